package policy

import (
	"fmt"
	"math"
	"regexp"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	gib = int64(1) << 30

	// maxGiB is the largest size that Cinder's API accepts (MAX_INT in its
	// db/constants.py).
	maxGiB = math.MaxInt32
)

// Size is an amount of storage as it is written in the policy.
type Size struct {
	// Bytes is rounded up to a whole byte; see the function Bytes.
	Bytes int64
	text  string
}

// String returns the size as it is written in the policy.
func (s Size) String() string { return s.text }

// MarshalText returns the size as it is written in the policy.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.text), nil }

// SizePattern is the part of Kubernetes' quantities that is useful for a volume: no bare
// numbers, whose unit is a guess, and no thousandths of bytes.
const SizePattern = `^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)$`

var sizePattern = regexp.MustCompile(SizePattern)

func parseSize(text string) (Size, bool) {
	quantity, err := resource.ParseQuantity(text)
	if !sizePattern.MatchString(text) || err != nil {
		return Size{}, false
	}
	return Size{Bytes: Bytes(quantity), text: text}, true
}

// Bytes returns a quantity as whole bytes, rounded up, for Request. Quantities above
// math.MaxInt64, which Kubernetes allows in claims, become that number; their Value would
// be arbitrary, such as 0 for 10E.
func Bytes(q resource.Quantity) int64 {
	if q.CmpInt64(math.MaxInt64) >= 0 {
		return math.MaxInt64
	}
	return q.Value()
}

// roundUpGiB returns the size of the smallest volume with that many bytes. Cinder knows
// only whole GiB.
func roundUpGiB(bytes int64) int64 {
	n := bytes / gib
	if bytes%gib > 0 {
		n++
	}
	return n
}

// sizeLimits are the effective bounds, with their paths. The zero value has none.
type sizeLimits struct {
	min, max         *Size
	minPath, maxPath string
}

// tenantSize returns the tenant's own bounds, completed by the defaults.
func tenantSize(defaults Defaults, t *Tenant, path string) sizeLimits {
	s := sizeLimits{
		min: defaults.VolumeSize.Min, minPath: "defaults.volumeSize.min",
		max: defaults.VolumeSize.Max, maxPath: "defaults.volumeSize.max",
	}
	if t.VolumeSize.Min != nil {
		s.min, s.minPath = t.VolumeSize.Min, path+".volumeSize.min"
	}
	if t.VolumeSize.Max != nil {
		s.max, s.maxPath = t.VolumeSize.Max, path+".volumeSize.max"
	}
	return s
}

// narrow returns the limits with further ones applied. The stricter bound counts.
func (s sizeLimits) narrow(size VolumeSize, path string) sizeLimits {
	if size.Min != nil && (s.min == nil || size.Min.Bytes > s.min.Bytes) {
		s.min, s.minPath = size.Min, path+".min"
	}
	if size.Max != nil && (s.max == nil || size.Max.Bytes < s.max.Bytes) {
		s.max, s.maxPath = size.Max, path+".max"
	}
	return s
}

// conflict reports whether no whole number of GiB is within the limits. It ignores limits
// that are mistakes themselves (unreadable, or below the smallest volume), because those
// have been reported.
func (s sizeLimits) conflict() (string, bool) {
	if s.min == nil || s.max == nil || s.max.Bytes < gib || roundUpGiB(s.min.Bytes) <= s.max.Bytes/gib {
		return "", false
	}
	return fmt.Sprintf("no size in whole GiB is at least %s (%s) and at most %s (%s)", s.min, s.minPath, s.max, s.maxPath), true
}

// check denies a volume whose size in GiB (at most maxGiB) is not within the
// limits.
func (s sizeLimits) check(size int64) *Denial {
	switch {
	case s.max != nil && size*gib > s.max.Bytes:
		return &Denial{Reason: VolumeTooLarge, Path: s.maxPath, Message: fmt.Sprintf(
			"the volume would have %d GiB, more than the %s that %s allows", size, s.max, s.maxPath)}
	case s.min != nil && size*gib < s.min.Bytes:
		return &Denial{Reason: VolumeTooSmall, Path: s.minPath, Message: fmt.Sprintf(
			"the volume would have %d GiB, less than the %s that %s demands", size, s.min, s.minPath)}
	}
	return nil
}
