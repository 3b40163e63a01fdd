//go:build race

package removal_test

// raceEnabled reports whether the race detector is on, which makes the model slower.
const raceEnabled = true
