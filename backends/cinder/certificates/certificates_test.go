package certificates

import (
	"crypto/x509"
	"testing"
	"time"
)

// TestExpiryIsThatOfTheLastUsableChain: an expired cross-signature, for example,
// does not matter as long as another chain verifies the server.
func TestExpiryIsThatOfTheLastUsableChain(t *testing.T) {
	in := func(hours int) *x509.Certificate {
		return &x509.Certificate{NotAfter: time.Unix(0, 0).Add(time.Duration(hours) * time.Hour)}
	}
	leaf, old, fresh := in(5), in(1), in(3)
	for name, test := range map[string]struct {
		chains [][]*x509.Certificate
		want   *x509.Certificate
	}{
		"not verified":                {nil, leaf},
		"the leaf expires first":      {[][]*x509.Certificate{{leaf, in(9)}}, leaf},
		"an authority expires first":  {[][]*x509.Certificate{{leaf, old}}, old},
		"the longest-living chain":    {[][]*x509.Certificate{{leaf, old}, {leaf, fresh}}, fresh},
		"in whatever order they come": {[][]*x509.Certificate{{leaf, fresh}, {leaf, old}}, fresh},
	} {
		if got := expiryOf(leaf, test.chains); !got.Equal(test.want.NotAfter) {
			t.Errorf("%s: expires at %s, want %s", name, got, test.want.NotAfter)
		}
	}
}
