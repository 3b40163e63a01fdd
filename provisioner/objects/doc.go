// Package objects writes and reads what Kubernetes objects say about volumes:
// annotations, PersistentVolumes and their origins, claims as the policy sees
// them, and lists of all of these. It decides nothing, and remembers nothing. The
// packages below it prove what may be removed (removal), find which nodes use a volume
// (nodeuse), keep Secrets (secrets), and make objects small (trim). The hub, the features
// and the commands use all of them.
package objects
