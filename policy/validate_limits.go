package policy

import "github.com/standalone-cinder/standalone-cinder/policy/document"

const (
	// maxConcurrency is beyond what any Cinder or any process bears. It keeps
	// slips such as a size in bytes from passing for a limit.
	maxConcurrency = 100_000

	// minRate is a request in 100 seconds. Making a volume takes at least
	// four, and slower ones would look like a program that hangs.
	minRate = 0.01
)

func validateTenantLimits(d *document.Document, path string, limits TenantLimits) {
	validateConcurrency(d, document.Child(path, "concurrency"), limits.Concurrency, "remove the key if the tenant needs no limit of its own; to allow it no volumes, set quota: {volumes: 0}")
	validateRate(d, document.Child(path, "requestsPerSecond"), limits.RequestsPerSecond)
}

// validateConcurrency refuses 0 rather than guess: it may be meant as no limit
// or as a stop.
func validateConcurrency(d *document.Document, path string, value int64, instead string) {
	switch {
	case !d.Has(path):
	case value < 1:
		d.Errorf(path, "must be at least 1; %s", instead)
	case value > maxConcurrency:
		d.Errorf(path, "must be at most %d", maxConcurrency)
	}
}

// validateRate is about requests a second, of which 0 means no limit.
func validateRate(d *document.Document, path string, value float64) {
	switch {
	case !d.Has(path):
	case value < 0:
		d.Errorf(path, "must not be negative; 0 means no limit")
	case value > 0 && value < minRate:
		d.Errorf(path, "must be at least %g, which is a request in 100 seconds; 0 means no limit", minRate)
	}
}
