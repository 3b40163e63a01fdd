// Package objects reads and writes what Kubernetes objects record about volumes:
// annotations, PersistentVolumes and their origins, claims as the policy sees them, and
// lists of all of these. It makes no decisions and keeps no state. The packages below it
// prove what may be removed (removal), find which nodes use a volume (nodeuse), keep
// Secrets (secrets), and shrink objects (trim). The hub, the features and the commands
// use all of them.
package objects
