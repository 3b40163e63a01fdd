package backends_test

import (
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/test/cindercontract"
)

// TestMemoryCinderIsLikeCinder holds the Cinder of the property tests to the
// same table as the adapter and real Cinder.
func TestMemoryCinderIsLikeCinder(t *testing.T) {
	cindercontract.TableIsComplete(t)
	for name, member := range map[string]bool{"administrator": false, "member": true} {
		t.Run(name, func(t *testing.T) {
			cindercontract.Run(t, cindercontract.Target{
				Cinder: backends.NewMemoryCinder(member), Member: member, Type: "iscsi", OtherType: "other", FailingType: backends.FailingType, SharedType: backends.SharedType, Backups: true, Wait: 5 * time.Second, Poll: time.Millisecond,
			})
		})
	}
}
