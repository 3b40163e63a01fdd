package datasource

import "sync"

// mostAwaited is how many sources are distinguished. Beyond it, every claim counts
// as one, which costs needless checks.
const mostAwaited = 4096

// awaited is the set of sources that claims asked for. It keeps every other
// claim's changes from counting as triggers.
type awaited struct {
	mu    sync.Mutex
	names map[string]bool
}

func (a *awaited) add(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.names) <= mostAwaited {
		a.names[name] = true
	}
}

// take removes a source, and reports whether it was in the set. The claims that
// it wakes add it again if they need to.
func (a *awaited) take(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.names) > mostAwaited {
		return true
	}
	was := a.names[name]
	delete(a.names, name)
	return was
}
