package record

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
)

// EarlierClaims are the claims that existed at one moment, or before it.
type EarlierClaims struct {
	present map[types.UID]bool
	// version is that moment's, among the resource versions of claims.
	version string
}

// ListEarlierClaims lists the claims of a cluster, whoever serves them.
func ListEarlierClaims(ctx context.Context, client kubernetes.Interface) (EarlierClaims, error) {
	uids, version, err := ListClaims(ctx, client, func(claim *corev1.PersistentVolumeClaim) types.UID { return claim.UID })
	return NewEarlierClaims(version, uids), err
}

// NewEarlierClaims are the claims that a list of a resource version has, and all
// that went before it.
func NewEarlierClaims(version string, uids []types.UID) EarlierClaims {
	earlier := EarlierClaims{present: make(map[types.UID]bool, len(uids)), version: version}
	for _, uid := range uids {
		earlier.present[uid] = true
	}
	return earlier
}

// Present says whether a claim existed at the moment itself.
func (e EarlierClaims) Present(uid types.UID) bool { return e.present[uid] }

// Has says whether a claim, as a cache shows it, is an earlier one. Any that the
// list misses was made later, or was gone by then and the cache is late. The
// latter has not changed since the list was made, and a resource version tells
// (they are ordered, see KEP-5504).
func (e EarlierClaims) Has(claim *corev1.PersistentVolumeClaim) bool {
	if e.present[claim.UID] {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(claim.ResourceVersion, e.version)
	return err != nil || order <= 0
}
