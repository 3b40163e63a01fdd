// Package budgets measures what runs for every claim, and bounds what it
// allocates. Times depend on the machine, so only benchmarks print them;
// allocations do not, so tests compare them with budgets.
package budgets
