package integration

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestEarlierClaimsAreKnownByTheirVersions lists claims before one is made,
// while it exists, and when only a cache that is late shows it.
func TestEarlierClaimsAreKnownByTheirVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "earlier", cindersim.Options{})
	list := func() objects.EarlierClaims {
		earlier, err := objects.ListEarlierClaims(w.ctx, suite.Client)
		w.must(err)
		return earlier
	}
	before := list()
	claim, err := suite.CreateClaim(w.ctx, harness.Claim("earlier-a", "data", "earlier-gold", "1Gi", nil))
	w.must(err)
	during := list()
	w.unclaim("a", "data")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := suite.Client.CoreV1().PersistentVolumeClaims("earlier-a").Get(w.ctx, "data", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the claim is still there", err
	}))
	for name, c := range map[string]struct {
		listed objects.EarlierClaims
		want   bool
	}{"before": {before, false}, "during": {during, true}, "after": {list(), true}} {
		if got := c.listed.Has(claim); got != c.want {
			t.Errorf("listed %s: earlier %t, want %t", name, got, c.want)
		}
	}
}
