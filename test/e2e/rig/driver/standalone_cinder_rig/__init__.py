"""Cinder volume drivers that the end-to-end tests run a real Cinder with."""
