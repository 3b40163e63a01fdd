package provisioner

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestClaimThatIsGoneWhileTheCacheIsLateGetsNoVolume: an attempt reads from the
// API server only the claims that may already have been served.
func TestClaimThatIsGoneWhileTheCacheIsLateGetsNoVolume(t *testing.T) {
	for name, c := range map[string]struct {
		earlier, late, served, gone bool
		asked, made                 bool
	}{
		"created in the term":                   {made: true},
		"of an earlier term":                    {earlier: true, asked: true, made: true},
		"of an earlier term, gone":              {earlier: true, gone: true, asked: true},
		"gone when the term began":              {late: true, gone: true, asked: true},
		"its PersistentVolume has gone":         {served: true, asked: true, made: true},
		"its PersistentVolume has gone as well": {served: true, gone: true, asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			claim := f.claim(func(claim *corev1.PersistentVolumeClaim) {
				if c.late {
					claim.ResourceVersion = versionBefore
				}
			})
			f.noteEarlier()
			if c.earlier {
				f.noteEarlier(claim)
			}
			if c.served {
				f.followup.VolumeGone(&corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
					ClaimRef: &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
				}})
			}
			if c.gone {
				f.goneAtTheServer(claim)
			}
			f.client.ClearActions()
			pv, err := f.provision(claim)
			if made := pv != nil; made != c.made || err != nil && !isIgnored(err) {
				t.Errorf("made %t, want %t; error %v", made, c.made, err)
			}
			asked := false
			for _, action := range f.client.Actions() {
				asked = asked || action.Matches("get", "persistentvolumeclaims")
			}
			if asked != c.asked {
				t.Errorf("asked %t, want %t", asked, c.asked)
			}
			if !c.made {
				wantCalls(t, f.backends["gold"])
			}
			f.forgetClaim(claim)
			f.must(f.claimGone(t.Context(), claim.UID))
			if f.journal.HasOutlived(claim.UID) {
				t.Error("the claim is not forgotten")
			}
		})
	}
}

// TestDeletedClaimCountsAsEarlierWhenTheCacheIsLate: an earlier leader may have
// left its volume on a backend that could not be listed yet.
func TestDeletedClaimCountsAsEarlierWhenTheCacheIsLate(t *testing.T) {
	for version, want := range map[string]bool{versionBefore: true, versionInTerm: false} {
		f := newFixture(t)
		claim := f.claim(func(claim *corev1.PersistentVolumeClaim) { claim.ResourceVersion = version })
		f.noteEarlier()
		f.followup.ClaimGone(claim)
		if got := f.placement.SawDeleted(claim.UID); got != want {
			t.Errorf("last changed at %s: seen deleted %t, want %t", version, got, want)
		}
	}
}
