package cinder

import (
	"crypto/x509"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
)

// Expiry is when what a client depends on expires. A zero time means that it is
// not known, or that there is nothing that could expire.
type Expiry struct {
	Token time.Time
	// Keystone and Cinder are the certificates of the servers, each with the
	// authorities that it was verified by.
	Keystone, Cinder time.Time
}

// Expiry returns what the client has learned from its last answers.
func (c *Client) Expiry() Expiry {
	found := c.wire.certificates.expiry()
	if answer, ok := c.service.GetAuthResult().(interface{ ExtractToken() (*tokens.Token, error) }); ok {
		if token, err := answer.ExtractToken(); err == nil {
			found.Token = token.ExpiresAt
		}
	}
	return found
}

// serverCertificates remembers when the certificates expire that Keystone and
// Cinder showed last.
type serverCertificates struct {
	// identity is Keystone's host; every other host is Cinder's.
	identity string

	mu    sync.Mutex
	known Expiry
}

func (s *serverCertificates) read(request *http.Request, response *http.Response) {
	if response.TLS == nil || len(response.TLS.PeerCertificates) == 0 {
		return
	}
	expires := expiryOf(response.TLS.PeerCertificates[0], response.TLS.VerifiedChains)
	s.mu.Lock()
	defer s.mu.Unlock()
	if request.URL.Host == s.identity {
		s.known.Keystone = expires
	} else {
		s.known.Cinder = expires
	}
}

func (s *serverCertificates) expiry() Expiry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// expiryOf is when a server's certificate can no longer be verified: when the
// last of the chains that verify it has an expired certificate. Without
// verification it is the certificate's own expiry.
func expiryOf(leaf *x509.Certificate, chains [][]*x509.Certificate) time.Time {
	if len(chains) == 0 {
		return leaf.NotAfter
	}
	var latest time.Time
	for _, chain := range chains {
		first := leaf.NotAfter
		for _, certificate := range chain {
			if certificate.NotAfter.Before(first) {
				first = certificate.NotAfter
			}
		}
		if first.After(latest) {
			latest = first
		}
	}
	return latest
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}
