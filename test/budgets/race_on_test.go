//go:build race

package budgets

// raceEnabled reports whether the race detector is on, which allocates, too.
const raceEnabled = true
