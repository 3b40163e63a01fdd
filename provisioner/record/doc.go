// Package record is what is written on Kubernetes objects about volumes, and how
// it is read back: annotations, PersistentVolumes and their origins, claims as
// the policy sees them, and lists of all of these. It decides nothing.
package record
