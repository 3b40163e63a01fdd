// Package certificates records when servers' certificates expire.
package certificates

import (
	"crypto/x509"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Seen remembers when the certificates last presented by Keystone and Cinder expire.
type Seen struct {
	// Identity is Keystone's host; every other host is Cinder's.
	Identity string

	mu               sync.Mutex
	keystone, cinder time.Time
}

// Read records the certificate that came with an answer.
func (s *Seen) Read(request *http.Request, response *http.Response) {
	if response.TLS == nil || len(response.TLS.PeerCertificates) == 0 {
		return
	}
	expires := expiryOf(response.TLS.PeerCertificates[0], response.TLS.VerifiedChains)
	s.mu.Lock()
	defer s.mu.Unlock()
	if request.URL.Host == s.Identity {
		s.keystone = expires
	} else {
		s.cinder = expires
	}
}

// Expiry returns when the certificates of Keystone and Cinder expire. A zero time means
// that none has been seen.
func (s *Seen) Expiry() (keystone, cinder time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keystone, s.cinder
}

// expiryOf returns when a server's certificate can no longer be verified: when the last
// of its chains has an expired certificate. Without verification it is the certificate's
// own expiry.
func expiryOf(leaf *x509.Certificate, chains [][]*x509.Certificate) time.Time {
	if len(chains) == 0 {
		return leaf.NotAfter
	}
	var latest time.Time
	for _, chain := range chains {
		first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if first.NotAfter.After(latest) {
			latest = first.NotAfter
		}
	}
	return latest
}
