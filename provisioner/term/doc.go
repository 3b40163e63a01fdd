// Package term holds what a leader knows during one term: what counts against quotas
// (ledger), where volumes go (placement), what was begun and undone (journal), which
// requests were sent (requestids), and how soon to retry (retry). It lives in memory and
// sends no requests to Kubernetes. The hub and the features use it; each term starts from
// scratch.
package term
