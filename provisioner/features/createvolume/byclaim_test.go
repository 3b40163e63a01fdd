package createvolume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// world is a Maker with everything around it. It provisions as the hub does: every
// claim that it sees gets a PersistentVolume, unless it waits.
type world struct {
	*Maker
	client   *fake.Clientset
	waits    map[string]Waits // claims
	deletion Waits
	attached bool
	volume   *cinder.Volume
	classes  cache.Indexer
}

func (w *world) Find(context.Context, string) (cinder.Volume, bool, error) {
	if w.volume == nil {
		return cinder.Volume{}, false, nil
	}
	return *w.volume, true, nil
}

const named = "some volume / with any name"

func newWorld(t *testing.T, existing ...runtime.Object) *world {
	t.Helper()
	w := &world{client: fake.NewClientset(existing...), waits: map[string]Waits{}, classes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)}
	pvs := cache.NewIndexer(cache.MetaNamespaceKeyFunc, objects.Indexers())
	must(t, w.classes.Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "driver"}, Provisioner: wire.DriverName}))
	must(t, w.classes.Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "native"}, Provisioner: "openstack.org/standalone-cinder"}))
	must(t, w.classes.Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Provisioner: "example.org/other"}))
	made := 0
	w.client.PrependReactor("create", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim := action.(clienttesting.CreateAction).GetObject().(*corev1.PersistentVolumeClaim)
		made++
		claim.Status.Phase = corev1.ClaimBound
		claim.UID = types.UID(fmt.Sprintf("uid-%d", made))
		if _, waits := w.waits[claim.Name]; !waits {
			must(t, pvs.Add(volumeFor(claim)))
		}
		return false, nil, nil
	})
	w.client.PrependReactor("delete", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if w.deletion.Message == "" {
			for _, object := range pvs.List() {
				if pv := object.(*corev1.PersistentVolume); pv.Spec.ClaimRef.Name == action.(clienttesting.DeleteAction).GetName() {
					must(t, pvs.Delete(pv))
				}
			}
		}
		return false, nil, nil
	})
	//nolint:staticcheck // NewClientset needs apply configurations, which this client does not have.
	snapshots := snapshotfake.NewSimpleClientset()
	w.Maker = New(Options{
		Cluster: "cluster-1", TrustParameters: true, Client: w.client, SnapshotClient: snapshots, Classes: storagelisters.NewStorageClassLister(w.classes),
		PersistentVolumes: pvs, Serves: func(by string) bool { return by != "example.org/other" },
		ClaimWaits:    func(_, claim string) (Waits, bool) { waits, does := w.waits[claim]; return waits, does },
		DeletionWaits: func(string, string) (Waits, bool) { return w.deletion, w.deletion.Message != "" },
		IsAttached:    func(string) (bool, error) { return w.attached, nil },
		Volumes: func(backend string) (Volumes, error) {
			if backend != "gold" {
				return nil, fmt.Errorf("backend %q is not in the policy", backend)
			}
			return w, nil
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantFailure(t *testing.T, err error, kind, message string) {
	t.Helper()
	var failed *controller.Failure
	if !errors.As(err, &failed) || failed.Kind != kind || failed.Message != message {
		t.Errorf("got  %#v\nwant %s: %s", err, kind, message)
	}
}

// volumeFor returns the PersistentVolume that the hub makes for a claim.
func volumeFor(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: objects.PVNameOf(claim), UID: "of-" + claim.UID, Annotations: map[string]string{objects.AnnotationClaimUID: string(claim.UID), objects.AnnotationCluster: "cluster-1"}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			ClaimRef:                      &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			VolumeMode:                    claim.Spec.VolumeMode,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: wire.DriverName, VolumeHandle: "gold/volume-" + string(claim.UID), VolumeAttributes: map[string]string{"k": "v"},
			}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

func tenantsClaim(class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "c1"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class}}
}

// asked returns a request of external-provisioner.
func asked(change func(*controller.Creation)) controller.Creation {
	wanted := controller.Creation{Name: "pvc-c1", Bytes: 1 << 30, AccessModes: []controller.AccessMode{controller.OneNode}, Parameters: map[string]string{
		"csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "team-a", "csi.storage.k8s.io/pv/name": "pvc-c1", "fsType": "xfs",
	}}
	if change != nil {
		change(&wanted)
	}
	return wanted
}

// trusted returns a request of a trusted caller.
func trusted(change func(*controller.Creation)) controller.Creation {
	wanted := controller.Creation{Name: named, Bytes: 1 << 30, AtMost: 3 << 30, AccessModes: []controller.AccessMode{controller.OneNode}, Parameters: map[string]string{"namespace": "team-a", "storageClass": "driver"}}
	if change != nil {
		change(&wanted)
	}
	return wanted
}

// TestExternalProvisionerGetsWhatTheHubMade: it gets nothing for a claim that is not
// the one that it means, or that is not the program's.
func TestExternalProvisionerGetsWhatTheHubMade(t *testing.T) {
	deleted := tenantsClaim("driver")
	deleted.DeletionTimestamp, deleted.Finalizers = &metav1.Time{Time: time.Now()}, []string{"f"}
	for name, test := range map[string]struct {
		claim      *corev1.PersistentVolumeClaim
		volume     func(*corev1.PersistentVolume)
		waits      Waits
		change     func(*controller.Creation)
		kind, want string
	}{
		"it is made":              {claim: tenantsClaim("driver"), volume: func(*corev1.PersistentVolume) {}},
		"the class names the hub": {claim: tenantsClaim("native"), volume: func(*corev1.PersistentVolume) {}},
		"the claim is another": {claim: tenantsClaim("driver"), change: func(w *controller.Creation) { w.Name = "pvc-c2" }, kind: "Denied",
			want: `no claim team-a/data has the UID at the end of the volume's name, "pvc-c2"`},
		"the claim is gone": {kind: "Denied", want: `no claim team-a/data has the UID at the end of the volume's name, "pvc-c1"`},
		"the claim goes":    {claim: deleted, kind: "Denied", want: "claim team-a/data is being deleted"},
		"the class is another's": {claim: tenantsClaim("theirs"), kind: "Denied",
			want: `claim team-a/data has the StorageClass "theirs", whose provisioner is neither this program nor, if a rule of the policy has mode csi, the driver`},
		"no class": {claim: tenantsClaim("gone"), kind: "Denied",
			want: `claim team-a/data has the StorageClass "gone", whose provisioner is neither this program nor, if a rule of the policy has mode csi, the driver`},
		"no metadata": {claim: tenantsClaim("driver"), change: func(w *controller.Creation) { w.Parameters = nil }, kind: "Invalid",
			want: "the request has no parameters csi.storage.k8s.io/pvc/namespace and csi.storage.k8s.io/pvc/name, so the program cannot tell which claim asks for the volume; external-provisioner sends them with --extra-create-metadata"},
		"it waits for its turn":  {claim: tenantsClaim("driver"), kind: "Conflict", want: "claim team-a/data has no volume yet: it is being provisioned"},
		"it fails":               {claim: tenantsClaim("driver"), waits: Waits{Message: "no answer"}, kind: "Conflict", want: "claim team-a/data has no volume yet: no answer"},
		"its source is not made": {claim: tenantsClaim("driver"), waits: Waits{Denied: true, Reason: "SourceNotReady", Message: "soon"}, kind: "Conflict", want: "claim team-a/data has no volume yet: soon"},
		"it is denied":           {claim: tenantsClaim("driver"), waits: Waits{Denied: true, Reason: "NoMatchingTenant", Message: "whose?"}, kind: "Denied", want: "claim team-a/data: whose?"},
		"no room":                {claim: tenantsClaim("driver"), waits: Waits{Denied: true, Reason: "QuotaExceeded", Message: "full"}, kind: "NoRoom", want: "claim team-a/data: full"},
		"too large":              {claim: tenantsClaim("driver"), waits: Waits{Denied: true, Reason: "VolumeTooLarge", Message: "large"}, kind: "OutOfRange", want: "claim team-a/data: large"},
		"no source":              {claim: tenantsClaim("driver"), waits: Waits{Denied: true, Reason: "SourceNotFound", Message: "what?"}, kind: "NotFound", want: "claim team-a/data: what?"},
		"another's volume": {claim: tenantsClaim("driver"), volume: func(pv *corev1.PersistentVolume) { pv.Annotations = nil }, kind: "AlreadyExists",
			want: "PersistentVolume pvc-c1 exists, and this program did not make it"},
		"a native volume": {claim: tenantsClaim("native"), volume: func(pv *corev1.PersistentVolume) { pv.Spec.CSI = nil }, kind: "Denied", want: "claim team-a/data is served by a rule in mode native, without the driver"},
		"a volume that goes": {claim: tenantsClaim("driver"), volume: func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased }, kind: "Conflict",
			want: "PersistentVolume pvc-c1 is being deleted"},
		"a smaller volume": {claim: tenantsClaim("driver"), volume: func(*corev1.PersistentVolume) {}, change: func(w *controller.Creation) { w.Bytes = 3 << 30 }, kind: "AlreadyExists",
			want: "claim team-a/data has a volume of 2147483648 bytes"},
		"another kind of volume": {claim: tenantsClaim("driver"), volume: func(*corev1.PersistentVolume) {}, change: func(w *controller.Creation) { w.Block = true }, kind: "AlreadyExists",
			want: "claim team-a/data has a volume of the other volumeMode"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var existing []runtime.Object
			if test.claim != nil {
				existing = append(existing, test.claim)
			}
			w := newWorld(t, existing...)
			w.TrustParameters = false
			if test.volume != nil {
				pv := volumeFor(test.claim)
				test.volume(pv)
				must(t, w.PersistentVolumes.Add(pv))
			}
			if test.waits.Message != "" {
				w.waits["data"] = test.waits
			}
			ctx, cancel := context.WithTimeout(t.Context(), pause*reportEvery+200*time.Millisecond)
			defer cancel()
			created, err := w.Create(ctx, asked(test.change))
			if test.kind != "" {
				wantFailure(t, err, test.kind, test.want)
			} else if must(t, err); created.Volume.String() != "gold/volume-c1" || created.Bytes != 2<<30 || created.Context["k"] != "v" {
				t.Errorf("created %+v", created)
			}
			for _, action := range w.client.Actions() {
				if action.GetVerb() != "get" {
					t.Errorf("it has sent %s %s", action.GetVerb(), action.GetResource().Resource)
				}
			}
		})
	}
}

// TestTrustedCallersGetOneVolumeForAName: this holds for any name and any number of
// calls.
func TestTrustedCallersGetOneVolumeForAName(t *testing.T) {
	w := newWorld(t)
	first, err := w.Create(t.Context(), trusted(nil))
	must(t, err)
	again, err := w.Create(t.Context(), trusted(nil))
	must(t, err)
	other, err := w.Create(t.Context(), trusted(func(c *controller.Creation) { c.Name, c.Block = "another", true }))
	must(t, err)
	if first.Volume != again.Volume || first.Volume == other.Volume {
		t.Errorf("volumes %s, %s, %s", first.Volume, again.Volume, other.Volume)
	}
	claims, err := w.client.CoreV1().PersistentVolumeClaims("team-a").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(claims.Items) != 2 {
		t.Fatalf("there are %d claims", len(claims.Items))
	}
	i := slices.IndexFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool { return c.Annotations[objects.AnnotationVolumeName] == named })
	if claim := claims.Items[i]; claim.Name != objects.NameForCaller(named) || *claim.Spec.StorageClassName != "driver" || claim.Spec.Resources.Requests.Storage().Value() != 1<<30 || claim.Spec.AccessModes[0] != "ReadWriteOnce" {
		t.Errorf("the claim is %+v", claim)
	}
	for name, change := range map[string]func(*controller.Creation){
		"the volume \"some volume / with any name\" was requested with 1073741824 bytes":                                                         func(c *controller.Creation) { c.Bytes = 2 << 30 },
		"the volume \"some volume / with any name\" was requested with another StorageClass, another type, other capabilities or another source": func(c *controller.Creation) { c.AccessModes = []controller.AccessMode{controller.OnePod} },
	} {
		_, err := w.Create(t.Context(), trusted(change))
		wantFailure(t, err, "AlreadyExists", name)
	}
}

// TestARepeatedRequestFindsItsVolumeWhateverClassesThereAreNow: the claim names one of
// the classes with the type, and others may be added later.
func TestARepeatedRequestFindsItsVolumeWhateverClassesThereAreNow(t *testing.T) {
	class := func(name string) *storagev1.VolumeAttributesClass {
		return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: wire.DriverName, Parameters: map[string]string{"type": "ssd"}}
	}
	w := newWorld(t, class("quick"))
	wanted := trusted(func(c *controller.Creation) { c.Type = "ssd" })
	first, err := w.Create(t.Context(), wanted)
	must(t, err)
	must(t, w.client.Tracker().Add(class("fast")))
	again, err := w.Create(t.Context(), wanted)
	if err != nil || again.Volume != first.Volume {
		t.Errorf("the first call made %s, and its repetition got %s, %v", first.Volume, again.Volume, err)
	}
}

func TestTrustedRequestsThatAreRefused(t *testing.T) {
	later, keep := storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimRetain
	for name, test := range map[string]struct {
		change     func(*controller.Creation)
		kind, want string
	}{
		"nothing said":     {func(c *controller.Creation) { c.Parameters = nil }, "Invalid", "the parameters namespace and storageClass are required"},
		"too much said":    {func(c *controller.Creation) { c.Parameters["tenant"] = "x" }, "Invalid", `unknown parameter "tenant"; only namespace and storageClass are supported`},
		"no such class":    {func(c *controller.Creation) { c.Parameters["storageClass"] = "x" }, "Invalid", `StorageClass "x" does not exist`},
		"a native class":   {func(c *controller.Creation) { c.Parameters["storageClass"] = "native" }, "Invalid", `StorageClass "native" does not name the driver as its provisioner, or no rule of the policy has mode csi`},
		"a class for pods": {func(c *controller.Creation) { c.Parameters["storageClass"] = "later" }, "Invalid", `StorageClass "later" waits for a pod (volumeBindingMode), but there will be none`},
		"a class of kept":  {func(c *controller.Creation) { c.Parameters["storageClass"] = "keep" }, "Invalid", `StorageClass "keep" keeps volumes, so the driver could not delete them`},
		"no such volume":   {func(c *controller.Creation) { c.FromVolume = "gold/x" }, "NotFound", `namespace team-a has no volume "gold/x" to copy`},
		"no such snapshot": {func(c *controller.Creation) { c.FromSnapshot = "gold/x" }, "NotFound", `namespace team-a has no VolumeSnapshot of a snapshot "gold/x"`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			must(t, w.classes.Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Provisioner: wire.DriverName, VolumeBindingMode: &later}))
			must(t, w.classes.Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "keep"}, Provisioner: wire.DriverName, ReclaimPolicy: &keep}))
			_, err := w.Create(t.Context(), trusted(test.change))
			wantFailure(t, err, test.kind, test.want)
		})
	}
	w := newWorld(t, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: objects.NameForCaller(named)}})
	_, err := w.Create(t.Context(), trusted(nil))
	wantFailure(t, err, "AlreadyExists", "claim team-a/"+objects.NameForCaller(named)+" was not made for a volume of that name")
}

// TestDeniedClaimsOfTrustedCallersAreDeleted: their callers do not know them.
func TestDeniedClaimsOfTrustedCallersAreDeleted(t *testing.T) {
	w := newWorld(t)
	w.waits[objects.NameForCaller(named)] = Waits{Denied: true, Reason: "QuotaExceeded", Message: "full"}
	_, err := w.Create(t.Context(), trusted(nil))
	wantFailure(t, err, "NoRoom", "claim team-a/"+objects.NameForCaller(named)+": full")
	if _, err := w.client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), objects.NameForCaller(named), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the claim: %v", err)
	}
	// A claim that only waits stays, for the next call.
	w.waits[objects.NameForCaller(named)] = Waits{Message: "no answer"}
	ctx, cancel := context.WithTimeout(t.Context(), pause)
	defer cancel()
	_, err = w.Create(ctx, trusted(nil))
	wantFailure(t, err, "Conflict", "claim team-a/"+objects.NameForCaller(named)+" has no volume yet: no answer")
	_, err = w.client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), objects.NameForCaller(named), metav1.GetOptions{})
	must(t, err)
}

func TestCopiesNameTheirSourceAsClaimsDo(t *testing.T) {
	w := newWorld(t)
	source, err := w.Create(t.Context(), trusted(nil))
	must(t, err)
	handle := "gold/s1"
	_, err = w.SnapshotClient.SnapshotV1().VolumeSnapshotContents().Create(t.Context(), &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "content"}, Spec: snapshotv1.VolumeSnapshotContentSpec{VolumeSnapshotRef: corev1.ObjectReference{Namespace: "team-a", Name: "snap"}},
		Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle},
	}, metav1.CreateOptions{})
	must(t, err)
	for name, change := range map[string]func(*controller.Creation){
		"PersistentVolumeClaim/" + objects.NameForCaller(named): func(c *controller.Creation) { c.FromVolume = source.Volume.String() },
		"VolumeSnapshot/snap": func(c *controller.Creation) { c.FromSnapshot = handle },
	} {
		_, err := w.Create(t.Context(), trusted(func(c *controller.Creation) { c.Name = name; change(c) }))
		must(t, err)
		claim, err := w.client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), objects.NameForCaller(name), metav1.GetOptions{})
		must(t, err)
		if got := claim.Spec.DataSource.Kind + "/" + claim.Spec.DataSource.Name; got != name {
			t.Errorf("the source is %s, want %s", got, name)
		}
	}
}

// TestOnlyVolumesOfTrustedCallersAreDeleted: they must also be unused.
func TestOnlyVolumesOfTrustedCallersAreDeleted(t *testing.T) {
	stamped := func(change func(*cinder.Volume)) *cinder.Volume {
		v := &cinder.Volume{ID: "volume-uid-1", Status: cinder.StatusAvailable, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "uid-1", PV: "pvc-uid-1"}.Metadata(nil)}
		v.Metadata[stamps.KeyMode] = stamps.ModeCSI
		if change != nil {
			change(v)
		}
		return v
	}
	noPV := func(w *world) {
		object, _, _ := w.PersistentVolumes.GetByKey("pvc-uid-1")
		_ = w.PersistentVolumes.Delete(object)
	}
	for name, test := range map[string]struct {
		prepare    func(*world)
		kind, want string // % is the name of the claim
	}{
		"unused":                 {prepare: func(*world) {}},
		"gone at Cinder":         {prepare: func(w *world) { w.volume = nil }},
		"gone":                   {prepare: func(w *world) { noPV(w); w.volume = nil }},
		"no callers are trusted": {func(w *world) { w.TrustParameters = false }, "InUse", "PersistentVolume pvc-uid-1 names the volume; delete its claim instead, and the reclaim policy applies"},
		"a tenant's": {func(w *world) {
			claim, _ := w.client.CoreV1().PersistentVolumeClaims("team-a").Get(context.Background(), objects.NameForCaller(named), metav1.GetOptions{})
			claim.Annotations = nil
			_, _ = w.client.CoreV1().PersistentVolumeClaims("team-a").Update(context.Background(), claim, metav1.UpdateOptions{})
		}, "InUse", "claim team-a/% has the volume, and was not made by the driver; delete the claim"},
		"a tenant's, with an annotation of another": {func(w *world) {
			claim, _ := w.client.CoreV1().PersistentVolumeClaims("team-a").Get(context.Background(), objects.NameForCaller(named), metav1.GetOptions{})
			claim.Annotations[objects.AnnotationVolumeName] = "copied from another claim"
			_, _ = w.client.CoreV1().PersistentVolumeClaims("team-a").Update(context.Background(), claim, metav1.UpdateOptions{})
		}, "InUse", "claim team-a/% has the volume, and was not made by the driver; delete the claim"},
		"kept": {func(w *world) {
			object, _, _ := w.PersistentVolumes.GetByKey("pvc-uid-1")
			object.(*corev1.PersistentVolume).Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, "InUse", "PersistentVolume pvc-uid-1 keeps the volume: its reclaim policy is Retain"},
		"Kubernetes attaches it": {func(w *world) { w.attached = true }, "InUse", "a VolumeAttachment names PersistentVolume pvc-uid-1"},
		"a node has it": {func(w *world) {
			w.volume.Metadata[stamps.NodeRecordPrefix+"k"] = stamps.NodeRecord{AttachmentID: "a", Node: "n1"}.String()
		}, "InUse", "volume volume-uid-1 is attached to node n1"},
		"it is in use":     {func(w *world) { w.volume.Status = cinder.StatusInUse }, "InUse", "volume volume-uid-1 is in-use"},
		"it takes longer":  {func(w *world) { w.deletion = Waits{Message: "no answer"} }, "Conflict", "volume gold/volume-uid-1 has not been removed yet: no answer"},
		"it has snapshots": {func(w *world) { w.deletion = Waits{Reason: "VolumeHasSnapshots", Message: "two snapshots"} }, "InUse", "two snapshots"},
		"nothing names it": {noPV, "NotOurs", "no PersistentVolume names volume gold/volume-uid-1; run an audit to see whether something needs it"},
		"not ours": {func(w *world) { noPV(w); w.volume.Metadata = nil }, "NotOurs",
			"volume gold/volume-uid-1 does not carry the stamp of a volume of the driver in this cluster, so it is not deleted"},
		"a copied object": {func(w *world) {
			object, _, _ := w.PersistentVolumes.GetByKey("pvc-uid-1")
			second := object.(*corev1.PersistentVolume).DeepCopy()
			second.Name = "pvc-x"
			_ = w.PersistentVolumes.Add(second)
		}, "Damaged", "PersistentVolumes pvc-uid-1 and pvc-x name volume gold/volume-uid-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			created, err := w.Create(t.Context(), trusted(nil))
			must(t, err)
			w.volume = stamped(nil)
			test.prepare(w)
			ctx, cancel := context.WithTimeout(t.Context(), pause*reportEvery+200*time.Millisecond)
			defer cancel()
			err = w.Delete(ctx, created.Volume)
			if test.kind == "" {
				must(t, err)
				return
			}
			wantFailure(t, err, test.kind, strings.ReplaceAll(test.want, "%", objects.NameForCaller(named)))
		})
	}
	w := newWorld(t)
	err := w.Delete(t.Context(), wire.Handle{Backend: "tin", ID: "v"})
	wantFailure(t, err, "Unavailable", `backend "tin" is not in the policy`)
}
