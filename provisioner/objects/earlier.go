package objects

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
)

// EarlierClaims are the claims that existed at or before a moment.
type EarlierClaims struct {
	present map[types.UID]bool
	// version is that moment, as a resource version of claims.
	version string
}

// ListEarlierClaims lists all claims of a cluster, of every provisioner.
func ListEarlierClaims(ctx context.Context, client kubernetes.Interface) (EarlierClaims, error) {
	uids, version, err := ListClaims(ctx, client, func(claim *corev1.PersistentVolumeClaim) types.UID { return claim.UID })
	return NewEarlierClaims(version, uids), err
}

// NewEarlierClaims returns the claims of a list with the given resource version, and all
// that were gone before it.
func NewEarlierClaims(version string, uids []types.UID) EarlierClaims {
	earlier := EarlierClaims{present: make(map[types.UID]bool, len(uids)), version: version}
	for _, uid := range uids {
		earlier.present[uid] = true
	}
	return earlier
}

// Present reports whether a claim existed at the moment itself.
func (e EarlierClaims) Present(uid types.UID) bool { return e.present[uid] }

// Has reports whether a claim, as a cache shows it, is an earlier one. A claim missing
// from the list was either created later, or already gone while the cache still shows it.
// In the second case its resource version shows that it has not changed since the list
// was read (resource versions are ordered, see KEP-5504).
func (e EarlierClaims) Has(claim *corev1.PersistentVolumeClaim) bool {
	if e.present[claim.UID] {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(claim.ResourceVersion, e.version)
	return err != nil || order <= 0
}
