package backends

import (
	"context"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
)

// encryptionRequests are about volumes that nodes must open.
type encryptionRequests interface {
	Encryption(ctx context.Context, volumeID string) (cinder.Encryption, error)
	Key(ctx context.Context, id string) (cinder.Key, error)
}

// Encryption reads how a volume is encrypted, and, if managed says so of that, its key from
// the key manager of the backend's cloud. The latter bypasses the breaker, because a key
// manager that does not answer says nothing about Cinder.
func (l *Lifecycle) Encryption(ctx context.Context, volumeID string, managed func(cinder.Encryption) bool) (found cinder.Encryption, key cinder.Key, err error) {
	session := l.current().session
	err = read(ctx, session, func(ctx context.Context, client encryptionRequests) error {
		found, err = client.Encryption(ctx, volumeID)
		return err
	})
	if err != nil || !managed(found) {
		return found, key, err
	}
	err = session.exchange(ctx, turns.Admission{}, func(client Cinder) error {
		key, err = client.(encryptionRequests).Key(ctx, found.KeyID)
		return err
	})
	return found, key, err
}
