package copies

import "sync"

// maxAwaited is how many sources are distinguished. Beyond it, every claim counts as a
// source, which costs needless checks.
const maxAwaited = 4096

// awaited is the set of sources that claims asked for. It keeps changes of all other
// claims from counting as triggers.
type awaited struct {
	mu    sync.Mutex
	names map[string]bool
}

func (a *awaited) add(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.names) <= maxAwaited {
		a.names[name] = true
	}
}

// take removes a source, and reports whether it was in the set. The claims that this
// wakes add it again if they still need it.
func (a *awaited) take(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.names) > maxAwaited {
		return true
	}
	was := a.names[name]
	delete(a.names, name)
	return was
}
