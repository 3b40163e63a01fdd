// Package clock estimates a server's clock from its answers.
package clock

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxClockDifference is the largest difference between the server's clock and the local
// one that the program believes. A larger error would make its own volumes look like
// restored backups, or hide those that are.
const maxClockDifference = 24 * time.Hour

// clockReadings is how many answers determine the server's clock. A single wrong Date
// header must not: a volume stamped with a wrong time looks like a restored backup.
const clockReadings = 5

// Clock is a server's clock according to the Date headers of its last answers, to the
// second.
type Clock struct {
	mu sync.Mutex
	// ahead holds how far the clock was ahead of the local one, in the order of the
	// answers.
	ahead []time.Duration
	// latest is the same for the last answer, however implausible; nil before the first.
	latest *time.Duration
}

// Read records the date of an answer.
func (c *Clock) Read(response *http.Response) {
	at, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return
	}
	ahead := time.Until(at)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = &ahead
	if ahead.Abs() > maxClockDifference {
		return
	}
	if len(c.ahead) == clockReadings {
		c.ahead = slices.Delete(c.ahead, 0, 1)
	}
	c.ahead = append(c.ahead, ahead)
}

// Now returns the time by the median of the readings, or by the local clock if there are
// none.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ahead) == 0 {
		return time.Now()
	}
	sorted := slices.Sorted(slices.Values(c.ahead))
	return time.Now().Add(sorted[len(sorted)/2])
}

// Last returns how far the clock was ahead of the local one in the last answer.
func (c *Clock) Last() (ahead time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest == nil {
		return 0, false
	}
	return *c.latest, true
}
