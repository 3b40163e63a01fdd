package policy

const (
	// maxConcurrency is beyond what any Cinder or any process bears. It keeps
	// slips such as a size in bytes from passing for a limit.
	maxConcurrency = 100_000

	// minRate is a request in 100 seconds. Making a volume takes at least
	// four, and slower ones would look like a program that hangs.
	minRate = 0.01
)

func validateTenantLimits(d *document, path string, limits TenantLimits) {
	validateConcurrency(d, child(path, "concurrency"), limits.Concurrency, "remove the key if the tenant needs no limit of its own; to allow it no volumes, set quota: {volumes: 0}")
	validateRate(d, child(path, "requestsPerSecond"), limits.RequestsPerSecond)
}

// validateConcurrency refuses 0 rather than guess: it may be meant as no limit
// or as a stop.
func validateConcurrency(d *document, path string, value int64, instead string) {
	switch {
	case !d.has(path):
	case value < 1:
		d.errorf(path, "must be at least 1; %s", instead)
	case value > maxConcurrency:
		d.errorf(path, "must be at most %d", maxConcurrency)
	}
}

// validateRate is about requests a second, of which 0 means no limit.
func validateRate(d *document, path string, value float64) {
	switch {
	case !d.has(path):
	case value < 0:
		d.errorf(path, "must not be negative; 0 means no limit")
	case value > 0 && value < minRate:
		d.errorf(path, "must be at least %g, which is a request in 100 seconds; 0 means no limit", minRate)
	}
}
