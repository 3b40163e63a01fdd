package webconfig

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"

	"golang.org/x/crypto/bcrypt"
)

// maxWaiting is how many passwords of one address wait to be compared. Whoever sends more
// does not delay others.
const maxWaiting = 4

var errBusy = errors.New("too many logins")

// logins compares passwords. Each comparison takes tens of milliseconds on purpose, so one
// runs at a time, and right logins are remembered.
type logins struct {
	compare func(hash, password []byte) error
	secret  [sha256.Size]byte
	turn    chan struct{}

	mu sync.Mutex
	// right are proofs by user. Wrong ones are not kept, so a flood pushes none out.
	right   map[string][]byte
	waiting map[string]int // by address
}

type login struct{ user, password, from string }

func newLogins() *logins {
	l := &logins{compare: bcrypt.CompareHashAndPassword, turn: make(chan struct{}, 1), right: map[string][]byte{}, waiting: map[string]int{}}
	_, _ = rand.Read(l.secret[:]) // never fails
	return l
}

// check reports whether a login is right. It fails if the address has too many, or the
// client has gone.
func (l *logins) check(ctx context.Context, users map[string]string, given login) (bool, error) {
	hash, known := users[given.user]
	if !known {
		hash = l.hashFor(given.user, users)
	}
	proof := l.proof(hash, given.password)
	l.mu.Lock()
	if known && hmac.Equal(l.right[given.user], proof) {
		l.mu.Unlock()
		return true, nil
	}
	if l.waiting[given.from] >= maxWaiting {
		l.mu.Unlock()
		return false, errBusy
	}
	l.waiting[given.from]++
	l.mu.Unlock()
	defer l.leave(given.from)

	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	err := l.compare([]byte(hash), []byte(given.password))
	<-l.turn
	if err != nil || !known {
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.right, func(user string, _ []byte) bool { return users[user] == "" })
	l.right[given.user] = proof
	return true, nil
}

func (l *logins) leave(from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[from]--; l.waiting[from] == 0 {
		delete(l.waiting, from)
	}
}

// proof is what shows that a password was right for a hash. Unlike a plain digest, it is
// of no use outside the process.
func (l *logins) proof(hash, password string) []byte {
	mac := hmac.New(sha256.New, l.secret[:])
	_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(hash))))
	_, _ = mac.Write([]byte(hash + password))
	return mac.Sum(nil)
}

// hashFor returns a hash to compare the password of an unknown user with. It is always the
// same user's for a name, so that the time does not tell who is known.
func (l *logins) hashFor(unknown string, users map[string]string) string {
	names := slices.Sorted(maps.Keys(users))
	return users[names[binary.BigEndian.Uint64(l.proof("", unknown))%uint64(len(names))]]
}
