//go:build !race

package integration

// raceEnabled reports whether the tests, and so the program, are built with the
// race detector.
const raceEnabled = false
