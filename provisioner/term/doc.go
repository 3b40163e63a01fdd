// Package term is the floor of what a leader knows for one term: what counts against
// quotas (ledger), where volumes go (placement), what was begun and undone (journal),
// which requests were sent (requestids), and how soon to try again (retry). It keeps
// memory and sends no requests to Kubernetes. The hub and the features ask it; the next
// term makes everything anew.
package term
