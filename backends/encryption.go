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

// Encryption reads how a volume is encrypted.
func (l *Lifecycle) Encryption(ctx context.Context, volumeID string) (found cinder.Encryption, err error) {
	err = read(ctx, l.current().session, func(ctx context.Context, client encryptionRequests) error {
		found, err = client.Encryption(ctx, volumeID)
		return err
	})
	return found, err
}

// Key reads a volume's key from the key manager of the backend's cloud. It bypasses the
// breaker, because a key manager that does not answer says nothing about Cinder.
func (l *Lifecycle) Key(ctx context.Context, id string) (found cinder.Key, err error) {
	err = l.current().session.exchange(ctx, turns.Admission{}, func(client Cinder) error {
		found, err = client.(encryptionRequests).Key(ctx, id)
		return err
	})
	return found, err
}
