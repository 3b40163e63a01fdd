package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// wanting returns a claim whose dataSourceRef has these parts. Kubernetes writes no group
// for the core group, which stands here as "-".
func wanting(group, kind, namespace string) *corev1.PersistentVolumeClaim {
	ref := &corev1.TypedObjectReference{Kind: kind, Name: "it"}
	if group != "-" {
		ref.APIGroup = &group
	}
	if namespace != "" {
		ref.Namespace = &namespace
	}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data"},
		Spec:       corev1.PersistentVolumeClaimSpec{DataSourceRef: ref},
	}
}

func TestWhoServesADataSource(t *testing.T) {
	long := strings.Repeat("K", 1000)
	for name, c := range map[string]struct {
		claim     *corev1.PersistentVolumeClaim
		populator string
		source    string        // the kind that the program copies
		refused   policy.Reason // empty if it is not refused
	}{
		"nothing":                         {claim: &corev1.PersistentVolumeClaim{}},
		"a claim":                         {claim: wanting("-", "PersistentVolumeClaim", ""), source: ClaimKind},
		"a claim, with an empty group":    {claim: wanting("", "PersistentVolumeClaim", ""), source: ClaimKind},
		"a claim of the same namespace":   {claim: wanting("-", "PersistentVolumeClaim", "team-a"), source: ClaimKind},
		"a claim of another namespace":    {claim: wanting("-", "PersistentVolumeClaim", "team-b"), refused: UnsupportedDataSource},
		"a snapshot":                      {claim: wanting("snapshot.storage.k8s.io", "VolumeSnapshot", ""), source: SnapshotKind},
		"a snapshot of another namespace": {claim: wanting("snapshot.storage.k8s.io", "VolumeSnapshot", "team-b"), refused: UnsupportedDataSource},
		"another kind of the core group":  {claim: wanting("-", "ConfigMap", ""), refused: UnsupportedDataSource},
		"no kind of the core group":       {claim: wanting("", "Image", ""), refused: UnsupportedDataSource},
		"a snapshot without its group":    {claim: wanting("-", "VolumeSnapshot", ""), refused: UnsupportedDataSource},
		"another kind of snapshots":       {claim: wanting("snapshot.storage.k8s.io", "VolumeSnapshotContent", ""), refused: UnsupportedDataSource},
		"a foreign group":                 {claim: wanting("cdi.kubevirt.io", "VolumeImportSource", ""), populator: "cdi.kubevirt.io/VolumeImportSource", refused: policy.AwaitsPopulator},
		"a foreign group elsewhere":       {claim: wanting("cdi.kubevirt.io", "VolumeImportSource", "team-b"), populator: "cdi.kubevirt.io/VolumeImportSource", refused: policy.AwaitsPopulator},
		"a foreign group with our kinds":  {claim: wanting("example.org", "PersistentVolumeClaim", ""), populator: "example.org/PersistentVolumeClaim", refused: policy.AwaitsPopulator},
		"a group that looks like ours":    {claim: wanting("snapshot.storage.k8s.io.example.org", "VolumeSnapshot", ""), populator: "snapshot.storage.k8s.io.example.org/VolumeSnapshot", refused: policy.AwaitsPopulator},
		"snapshots of groups":             {claim: wanting("groupsnapshot.storage.k8s.io", "VolumeGroupSnapshot", ""), populator: "groupsnapshot.storage.k8s.io/VolumeGroupSnapshot", refused: policy.AwaitsPopulator},
		"a kind without end":              {claim: wanting("example.org", long, ""), populator: "example.org/" + long[:63] + "...", refused: policy.AwaitsPopulator},
	} {
		t.Run(name, func(t *testing.T) {
			if got := PopulatorOf(c.claim); got != c.populator {
				t.Errorf("populator %q, want %q", got, c.populator)
			}
			source, refused := DataSourceOf(c.claim, nil)
			if (source == nil) != (c.source == "") || source != nil && source.Kind != c.source {
				t.Errorf("source %+v, want a %s", source, c.source)
			}
			if (refused == nil) != (c.refused == "") || refused != nil && refused.Reason != c.refused {
				t.Errorf("refused %+v, want %s", refused, c.refused)
			}
			if again := Refusal(c.claim, nil); c.refused != "" && (again == nil || *again != *refused) {
				t.Errorf("two answers: %+v and %+v", again, refused)
			}
		})
	}
}

// TestOldDataSourceIsReadLikeItsSuccessor: API servers before dataSourceRef keep foreign
// groups in dataSource.
func TestOldDataSourceIsReadLikeItsSuccessor(t *testing.T) {
	group := "example.org"
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{DataSource: &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "Image", Name: "it"}}}
	if got := PopulatorOf(claim); got != "example.org/Image" {
		t.Errorf("populator %q", got)
	}
}

// TestPopulatorComesFirst: whatever else such a claim asks for is no reason to tell its
// author of anything.
func TestPopulatorComesFirst(t *testing.T) {
	claim := wanting("example.org", "Image", "")
	claim.Annotations = map[string]string{CloneAnnotation: "other", ImportAnnotation: "volume"}
	claim.Spec.Selector = &metav1.LabelSelector{}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	const want = "the claim waits for a volume populator of example.org/Image, which has its volume made for a claim of its own"
	if refused := Refusal(claim, nil); refused == nil || refused.Reason != policy.AwaitsPopulator || refused.Message != want {
		t.Errorf("refused %+v", refused)
	}
	if _, asks := ImportOf(claim); asks {
		t.Error("the claim asks for an import")
	}
}

func TestPopulatedClaim(t *testing.T) {
	const uid = "0f6c2d3e-8a41-4c5b-9d7e-1234567890ab"
	for name, c := range map[string]struct {
		name   string
		change func(*corev1.PersistentVolumeClaim)
		want   string // the end of why there is none; empty if there is one
	}{
		"by its UID":              {name: "prime-" + uid},
		"by its UID alone":        {name: uid},
		"by another UID":          {name: "prime-" + strings.Replace(uid, "0f", "1f", 1), want: "no claim has the UID 1f6c2d3e-8a41-4c5b-9d7e-1234567890ab"},
		"by no UID":               {name: "prime-data", want: "the name of claim prime-data does not end in the UID of another"},
		"being deleted":           {name: uid, change: func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }, want: "is being deleted"},
		"with a volume":           {name: uid, change: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv-1" }, want: "has PersistentVolume pv-1 already"},
		"that wants an empty one": {name: uid, change: func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSourceRef = nil }, want: "does not ask for the content of an object that populators serve (spec.dataSourceRef)"},
		"that wants a clone": {name: uid, change: func(c *corev1.PersistentVolumeClaim) { c.Spec = wanting("-", "PersistentVolumeClaim", "").Spec },
			want: "does not ask for the content of an object that populators serve (spec.dataSourceRef)"},
	} {
		t.Run(name, func(t *testing.T) {
			target := wanting("example.org", "Image", "")
			target.UID = uid
			if c.change != nil {
				c.change(target)
			}
			prime := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "populators", Name: c.name}}
			found, missing := PopulatedClaim(prime, func(uid string) *corev1.PersistentVolumeClaim {
				if uid != string(target.UID) {
					return nil
				}
				return target
			})
			if (found == target) != (c.want == "") || !strings.HasSuffix(missing, c.want) || (c.want == "") != (missing == "") {
				t.Errorf("found %v, missing %q, want %q", found, missing, c.want)
			}
		})
	}
}

// TestNamesThatNoObjectCanHaveAreRefused: the API server accepts names of any length in
// a data source, and a refusal repeats only the beginning.
func TestNamesThatNoObjectCanHaveAreRefused(t *testing.T) {
	long := strings.Repeat("x", 600<<10)
	for name, c := range map[string]struct{ source, annotation string }{
		"too long":              {source: long},
		"no name":               {source: "A claim!"},
		"too long, of a clone":  {annotation: long},
		"of a clone, qualified": {annotation: "team-a/" + long},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", Annotations: map[string]string{}}}
			if c.source != "" {
				claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: ClaimKind, Name: c.source}
			} else {
				claim.Annotations[CloneAnnotation] = c.annotation
			}
			source, refused := DataSourceOf(claim, map[string]string{"smartclone": "true"})
			if source != nil || refused == nil || refused.Reason != policy.InvalidClaim || len(refused.Message) > 200 {
				t.Errorf("got %+v, %.300v", source, refused)
			}
		})
	}
}
