//go:build !linux

package plugin

func releaseProgram() error { return nil }
