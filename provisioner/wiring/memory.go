package wiring

import (
	"fmt"
	"runtime/debug"

	"k8s.io/apimachinery/pkg/api/resource"
)

// heapShare is the part of the memory limit, in percent, that the Go runtime may fill
// before it collects garbage constantly. The rest is for memory that the runtime does
// not count, and for the peak of a new leader, which reads every volume. Other shares
// were measured. See docs/decisions.md, "Memory".
const heapShare = 37

// eagerCollection is GOGC. With Go's default, a heap doubles before it is collected,
// and the peak decides whether the container is killed.
const eagerCollection = 50

// KeepMemoryBelow makes the Go runtime stay below the memory limit of the container, a
// quantity such as 512Mi or a number of bytes. The environment variables GOMEMLIMIT and
// GOGC take precedence.
func KeepMemoryBelow(limit string, getenv func(string) string) error {
	if limit == "" {
		return nil
	}
	quantity, err := resource.ParseQuantity(limit)
	if err != nil || quantity.Value() < 64<<20 {
		return fmt.Errorf("--memory-limit is %q; give the container's limit, at least 64Mi, for example 512Mi", limit)
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(quantity.Value() / 100 * heapShare)
	}
	if getenv("GOGC") == "" {
		debug.SetGCPercent(eagerCollection)
	}
	return nil
}
