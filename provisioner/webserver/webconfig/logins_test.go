package webconfig

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

func hashOf(t *testing.T, password string, cost int) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), cost)
	if err != nil {
		t.Fatal(err)
	}
	return string(hash)
}

// TestUnknownUsersCostAsMuchAsKnownOnes: each login that is not remembered takes one
// comparison with a hash of the same cost.
func TestUnknownUsersCostAsMuchAsKnownOnes(t *testing.T) {
	users := map[string]string{"a": hashOf(t, "right", 6), "b": hashOf(t, "right", 6)}
	l := newLogins()
	var costs []int
	l.compare = func(hash, password []byte) error {
		cost, err := bcrypt.Cost(hash)
		if err != nil {
			t.Error(err)
		}
		costs = append(costs, cost)
		return bcrypt.CompareHashAndPassword(hash, password)
	}
	for _, c := range []struct {
		user, password string
		right          bool
	}{{"a", "wrong", false}, {"nobody", "wrong", false}, {"nobody", "right", false}, {"nobody", "right", false}, {"", "", false}, {"a", "right", true}} {
		if right, err := l.check(t.Context(), users, login{c.user, c.password, "x"}); right != c.right || err != nil {
			t.Errorf("%s %s: %t %v", c.user, c.password, right, err)
		}
	}
	if fmt.Sprint(costs) != "[6 6 6 6 6 6]" {
		t.Errorf("comparisons of cost %v", costs)
	}
	if right, err := l.check(t.Context(), users, login{"a", "right", "x"}); !right || err != nil || len(costs) != 6 {
		t.Errorf("the login is not remembered: %t %v", right, err)
	}
}

// TestTheCostOfALoginTellsNoName: names that nobody has cost as little, or as much, as
// those of users.
func TestTheCostOfALoginTellsNoName(t *testing.T) {
	users := map[string]string{"a": hashOf(t, "right", 4), "b": hashOf(t, "right", 5)}
	l := newLogins()
	costs := map[int]bool{}
	l.compare = func(hash, _ []byte) error {
		cost, err := bcrypt.Cost(hash)
		costs[cost] = true
		return errors.Join(err, bcrypt.ErrMismatchedHashAndPassword)
	}
	for i := range 100 {
		if right, err := l.check(t.Context(), users, login{fmt.Sprint("nobody", i), "right", "x"}); right || err != nil {
			t.Error(right, err)
		}
	}
	if !costs[4] || !costs[5] {
		t.Errorf("names that nobody has cost %v", costs)
	}
}

func TestARememberedLoginEndsWithItsHash(t *testing.T) {
	l := newLogins()
	right := func(users map[string]string, user, password string) bool {
		found, err := l.check(t.Context(), users, login{user, password, "x"})
		if err != nil {
			t.Error(err)
		}
		return found
	}
	first, second := map[string]string{"a": hashOf(t, "one", 4)}, map[string]string{"a": hashOf(t, "two", 4), "b": hashOf(t, "one", 4)}
	for range 2 {
		if !right(first, "a", "one") || right(second, "a", "one") || right(first, "b", "one") || !right(second, "b", "one") || !right(second, "a", "two") || right(first, "a", "two") {
			t.Error("a login is taken for another")
		}
	}
	third := map[string]string{"c": hashOf(t, "one", 4)}
	if !right(third, "c", "one") || len(l.right) != 1 {
		t.Errorf("%d logins are remembered, want that of the one user", len(l.right))
	}
}

// TestAFloodOfLoginsDelaysNobodyElse: while an address waits for its comparisons, further
// ones are refused, remembered logins are admitted, and another address has its turn.
func TestAFloodOfLoginsDelaysNobodyElse(t *testing.T) {
	users := map[string]string{"a": hashOf(t, "right", 4), "b": hashOf(t, "right", 4)}
	l := newLogins()
	if right, err := l.check(t.Context(), users, login{"a", "right", "x"}); !right || err != nil {
		t.Fatal(right, err)
	}
	begun, release := make(chan struct{}), make(chan struct{})
	l.compare = func(hash, password []byte) error {
		begun <- struct{}{}
		<-release
		return bcrypt.CompareHashAndPassword(hash, password)
	}
	answers := make(chan error, 2*maxWaiting)
	try := func(user, password, from string) {
		_, err := l.check(t.Context(), users, login{user, password, from})
		answers <- err
	}
	for i := range 2 * maxWaiting {
		go try("a", fmt.Sprint("guess", i), "flood")
	}
	<-begun
	for range maxWaiting {
		if err := <-answers; !errors.Is(err, errBusy) {
			t.Errorf("one too many: %v", err)
		}
	}
	if right, err := l.check(t.Context(), users, login{"a", "right", "flood"}); !right || err != nil {
		t.Errorf("a remembered login: %t %v", right, err)
	}
	other := make(chan bool)
	go func() {
		right, err := l.check(t.Context(), users, login{"b", "right", "other"})
		other <- right && err == nil
	}()
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := l.check(gone, users, login{"b", "wrong", "third"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that has gone: %v", err)
	}
	release <- struct{}{}
	for range maxWaiting {
		<-begun
		release <- struct{}{}
	}
	if !<-other {
		t.Error("another address is not admitted")
	}
	for range maxWaiting {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if len(l.waiting) != 0 || len(l.right) != 2 {
		t.Errorf("%d addresses and %d logins are kept", len(l.waiting), len(l.right))
	}
}

func TestEveryKindOfNameIsAllowed(t *testing.T) {
	client := &x509.Certificate{DNSNames: []string{"a.example"}, EmailAddresses: []string{"a@example"}, IPAddresses: []net.IP{net.IPv6loopback}, URIs: []*url.URL{{Scheme: "spiffe", Host: "a"}}}
	for name, want := range map[string]bool{"a.example": true, "a@example": true, "::1": true, "spiffe://a": true, "A.example": false, "": false, "example": false} {
		if err := hasName([]*x509.Certificate{client}, []string{"other", name}); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
	if hasName(nil, []string{"a.example"}) == nil || hasName([]*x509.Certificate{client}, nil) == nil {
		t.Error("who has no name is admitted")
	}
}
