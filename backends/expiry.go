package backends

import (
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
)

// Expiry is when what a backend depends on expires. A zero time means that it is
// not known, or that there is nothing that could expire.
type Expiry struct {
	cinder.Expiry
	// ClientCertificate is the one that the program shows.
	ClientCertificate time.Time
}

// Expiry returns what the last reading of the credentials and the last answers of
// the backend have shown. It reads and sends nothing.
func (p *Pool) Expiry(config Config) Expiry {
	config = config.withDefaults()
	p.mu.Lock()
	last, read := p.readings.Peek(key{config.Name, fingerprint.Of(config.credentials())})
	entry, loggedIn := p.clients.Peek(key{config.Name, fingerprint.Of(config)})
	p.mu.Unlock()
	var found Expiry
	if read {
		if settings := last.Credentials().TLS; settings != nil && len(settings.Certificates) > 0 && settings.Certificates[0].Leaf != nil {
			found.ClientCertificate = settings.Certificates[0].Leaf.NotAfter
		}
	}
	if loggedIn {
		// Reading the token's expiry decodes the catalog, too: not under the lock.
		found.Expiry = entry.client.Expiry()
	}
	return found
}
