//go:build !race

package budgets

// raceEnabled: the race detector allocates, too.
const raceEnabled = false
