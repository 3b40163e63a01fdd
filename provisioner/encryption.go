package provisioner

import (
	"cmp"
	"context"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/volumekeys"
)

func (a *attempt) keys() volumekeys.Keeper {
	return volumekeys.Keeper{Client: a.client, Namespace: a.namespace}
}

// newKey returns what makes the key of the claim's volume; nil if its rule encrypts none.
func (a *attempt) newKey(by *policy.Encrypt) func(context.Context) (stamps.EncryptionRecord, error) {
	if by == nil {
		return nil
	}
	return func(ctx context.Context) (stamps.EncryptionRecord, error) {
		return a.keys().New(ctx, by.KeySecret, by.Entry, string(a.claim.UID))
	}
}

// keyOrigin returns the UID of the claim for which the key of the volume was made; empty if
// nodes do not encrypt it. It is what Kubernetes says: the volume's metadata proves nothing.
func (a *attempt) keyOrigin() string {
	switch {
	case a.decision.Volume.Encrypt == nil:
		return ""
	case a.source.Content != (backends.Source{}):
		return a.source.Encrypted
	}
	return string(a.claim.UID)
}

// checkKey returns an error unless nodes will be able to open the volume. Only now is it
// certain which key it has: an earlier attempt may have made it, and somebody may have
// changed its record since. No key leaves here. The volume stays, and the attempt is
// retried: its record may open it later.
func (a *attempt) checkKey(ctx context.Context) error {
	origin := a.keyOrigin()
	if origin == "" {
		return nil
	}
	opened, err := a.keys().Open(ctx, a.made.ID, origin, a.made.Metadata)
	return cmp.Or(err, opened.Unusable)
}
