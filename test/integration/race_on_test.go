//go:build race

package integration

// raceEnabled builds the program with the race detector when the tests are.
const raceEnabled = true
