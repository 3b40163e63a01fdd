// Package objects writes and reads what Kubernetes objects say about volumes:
// annotations, PersistentVolumes and their origins, claims as the policy sees
// them, and lists of all of these. It decides nothing.
package objects
