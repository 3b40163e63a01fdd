package objects

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestEarlierClaims(t *testing.T) {
	for _, c := range []struct {
		name         string
		uid          types.UID
		version, of  string
		wantsEarlier bool
	}{
		{"on the list", "present", "11", "10", true},
		{"changed last before it, and not on it", "gone", "9", "10", true},
		{"changed last by what made it the list's moment", "gone", "10", "10", true},
		{"made after it", "new", "11", "10", false},
		{"compared as numbers", "gone", "9", "1000", true},
		{"of a server whose versions have no order", "new", "abc", "10", true},
		{"of a list without a version", "new", "11", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			earlier := EarlierClaims{present: map[types.UID]bool{"present": true}, version: c.of}
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: c.uid, ResourceVersion: c.version}}
			if got := earlier.Has(claim); got != c.wantsEarlier {
				t.Errorf("earlier %t, want %t", got, c.wantsEarlier)
			}
		})
	}
}
