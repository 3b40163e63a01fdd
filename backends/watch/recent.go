package watch

import (
	"slices"
	"time"
)

// recent is how long the last few waits took.
type recent []time.Duration

// The first few may have had an image or another volume to copy. Of all later ones, only
// the last few tell what is usual now.
const fewest, most = 3, 8

func (r recent) with(took time.Duration) recent {
	r = append(r, took)
	return r[max(0, len(r)-most):]
}

// fastest returns 0 until enough is known.
func (r recent) fastest() time.Duration {
	if len(r) < fewest {
		return 0
	}
	return slices.Min(r)
}
