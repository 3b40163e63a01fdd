package status

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
)

// newInquiry asks a cluster with the objects, in which the caller may not read the
// forbidden resources, and a leader that knows of nothing.
func newInquiry(t *testing.T, forbidden []string, all ...runtime.Object) *inquiry {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{" + leading + `,"claims":{},"deletions":{}}`))
	}))
	t.Cleanup(server.Close)
	var core, snapshots []runtime.Object
	for _, object := range all {
		switch object.(type) {
		case *snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshotClass:
			snapshots = append(snapshots, object)
		default:
			core = append(core, object)
		}
	}
	client, ofSnapshots := fake.NewClientset(core...), snapshotsOf(snapshots...)
	refuse := func(action clienttesting.Action) (bool, runtime.Object, error) {
		resource := action.GetResource().GroupResource()
		return slices.Contains(forbidden, resource.Resource), nil, apierrors.NewForbidden(resource, "", nil)
	}
	client.PrependReactor("*", "*", refuse)
	ofSnapshots.PrependReactor("*", "*", refuse)
	return &inquiry{connection: &connection{url: server.URL, provisionerName: "cinder.example"}, client: client, snapshots: ofSnapshots}
}

// TestWhyOfOddObjects: whatever an object looks like, the answer says nothing false, and
// proposes nothing that could lose data.
func TestWhyOfOddObjects(t *testing.T) {
	text := func(s string) *string { return &s }
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := claimIn(corev1.ClaimPending)
		change(c)
		return c
	}
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := podOn("worker-1", corev1.PodPending)
		change(p)
		return p
	}
	volume := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		pv := volumeIn(corev1.VolumeBound, corev1.PersistentVolumeReclaimDelete)
		change(pv)
		return pv
	}
	snapshot := func(class *string, change func(*snapshotv1.VolumeSnapshot)) *snapshotv1.VolumeSnapshot {
		s := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nightly", CreationTimestamp: noon},
			Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: text("data")}, VolumeSnapshotClassName: class}}
		if change != nil {
			change(s)
		}
		return s
	}
	deleted := func(grace int64) (*metav1.Time, *int64) {
		at := metav1.NewTime(noon.Add(time.Duration(grace) * time.Second))
		return &at, &grace
	}
	outOfService := corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}
	for name, c := range map[string]struct {
		about     string
		objects   []runtime.Object
		forbidden []string
		want, not []string
		open      bool // nothing explains it
	}{
		"a node whose kubelet says that it is not ready runs, so nobody may say that it is off": {
			about: "node/worker-1", objects: []runtime.Object{nodeThatIs(corev1.ConditionFalse)},
			want: []string{"it has not been ready since 2026-11-28T12:00:00Z: Kubelet stopped posting node status"}, not: []string{"kubectl taint"},
		},
		"a node that is tainted already": {
			about: "node/worker-1", objects: []runtime.Object{func() *corev1.Node {
				n := nodeThatIs(corev1.ConditionUnknown)
				n.Spec.Taints = []corev1.Taint{outOfService}
				return n
			}()},
			want: []string{"it is tainted as out of service"}, not: []string{"kubectl taint"},
		},
		"a node that the program took out of service": {
			about: "node/worker-1", objects: []runtime.Object{func() *corev1.Node {
				n := nodeThatIs(corev1.ConditionUnknown)
				n.Spec.Taints = []corev1.Taint{nodemark.Taint()}
				nodemark.Set(n, nodemark.Mark{State: nodemark.Taken, Boot: "b1", Since: noon.Time})
				return n
			}()},
			want: []string{"the program took it out of service on 2026-11-28T12:00:00Z, after its volumes were taken from it"}, not: []string{"kubectl taint", "remove the taint when"},
		},
		"a node whose volumes the program takes": {
			about: "node/worker-1", objects: []runtime.Object{func() *corev1.Node {
				n := nodeThatIs(corev1.ConditionUnknown)
				nodemark.Set(n, nodemark.Mark{State: nodemark.Taking, Boot: "b1", Since: noon.Time})
				return n
			}()},
			want: []string{"the program takes its volumes from it since 2026-11-28T12:00:00Z"},
		},
		"a node that came back without a reboot": {
			about: "node/worker-1", objects: []runtime.Object{func() *corev1.Node {
				n := nodeThatIs(corev1.ConditionTrue)
				nodemark.Set(n, nodemark.Mark{State: nodemark.Returned, Boot: "b1", Since: noon.Time})
				return n
			}()},
			want: []string{"it came back without a reboot after its volumes were taken"},
		},
		"a node that is gone but has volumes": {
			about: "node/worker-1", objects: []runtime.Object{attachmentTo("worker-1", attached)},
			want: []string{"the node does not exist", "volumes of mode csi that are attached to it: 1"},
		},
		"a retained volume is not offered to everybody": {
			about: "pv/pvc-1", objects: []runtime.Object{volumeIn(corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain)},
			want: []string{"volume rebind"}, not: []string{"remove spec.claimRef"},
		},
		"a claim that lost its volume": {
			about: "data", objects: []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase, c.Spec.VolumeName = corev1.ClaimLost, "pvc-1" })},
			want: []string{"its PersistentVolume pvc-1 does not exist"}, not: []string{"waits until that can be bound", "nothing is provisioned"},
		},
		"a claim whose volume belongs to another": {
			about: "data", objects: []runtime.Object{
				claim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase, c.Spec.VolumeName = corev1.ClaimLost, "pvc-1" }),
				volume(func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.Namespace = "team-b" }),
			},
			want: []string{"its PersistentVolume pvc-1 belongs to claim team-b/data"},
		},
		"a claim of the same name as the one that has the volume": {
			about: "data", objects: []runtime.Object{
				claim(func(c *corev1.PersistentVolumeClaim) { c.UID, c.Spec.VolumeName = "new", "pvc-1" }),
				volume(func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "old" }),
			},
			want: []string{"its PersistentVolume pvc-1 belongs to an earlier claim team-a/data"},
		},
		"a pod with a claim that lost its volume": {
			about: "pod/web-0", objects: []runtime.Object{podOn("worker-1", corev1.PodPending), claim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase, c.Spec.VolumeName = corev1.ClaimLost, "pvc-1" })},
			want: []string{"claim data has lost its volume: kubectl cinder why data -n team-a"}, not: []string{"no volume yet"},
		},
		"a claim that names a volume that does not exist": {
			about: "data", objects: []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-1" })},
			want: []string{"its PersistentVolume pvc-1 does not exist"},
		},
		"a claim that names a volume that its reader may not read": {
			about: "data", objects: []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-1" })}, forbidden: []string{"persistentvolumes"},
			want: []string{"PersistentVolume pvc-1 cannot be read: persistentvolumes is forbidden"}, not: []string{"does not exist"},
		},
		"a claim that wants no StorageClass": {
			about: "data", objects: []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = text("") })},
			want: []string{"waits for a PersistentVolume made by hand"}, not: []string{"default StorageClass"},
		},
		"a claim without a StorageClass": {
			about: "data", objects: []runtime.Object{claimIn(corev1.ClaimPending)}, want: []string{"or for a default StorageClass"},
		},
		"a claim with a class of the old annotation": {
			about: "data", objects: []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) {
				c.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "fast"}
			})},
			want: []string{"StorageClass fast does not exist"},
		},
		"a claim whose class its reader may not read": {
			about: "data", objects: []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = text("fast") })}, forbidden: []string{"storageclasses"},
			want: []string{"StorageClass fast cannot be read: storageclasses.storage.k8s.io is forbidden"}, not: []string{"does not exist"}, open: true,
		},
		"a claim that is being deleted while a snapshot is taken": {
			about: "data", objects: []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) {
				c.Status.Phase, c.DeletionTimestamp = corev1.ClaimBound, &noon
				c.Finalizers = []string{"snapshot.storage.kubernetes.io/pvc-as-source-protection"}
			})},
			want: []string{"it is being deleted since 2026-11-28T12:00:00Z; what keeps it are its finalizers: snapshot.storage.kubernetes.io/pvc-as-source-protection"}, not: []string{"stays until no pod uses it"},
		},
		"a pending claim that a pod keeps": {
			about: "data", objects: []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) {
				c.DeletionTimestamp, c.Finalizers = &noon, []string{"kubernetes.io/pvc-protection"}
			}), podOn("", corev1.PodPending)},
			want: []string{"it is being deleted since 2026-11-28T12:00:00Z", "pod web-0 needs it"},
		},
		"a growing claim that is being deleted": {
			about: "data", objects: []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) {
				c.Status.Phase, c.DeletionTimestamp, c.Finalizers = corev1.ClaimBound, &noon, []string{"kubernetes.io/pvc-protection"}
				c.Spec.Resources.Requests, c.Status.Capacity = sizes("2Gi"), sizes("1Gi")
			})},
			want: []string{"asks to grow", "it is being deleted"},
		},
		"a growing claim of another driver": {
			about: "data", objects: []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) {
				c.Status.Phase, c.Annotations = corev1.ClaimBound, map[string]string{objects.AnnotationStorageProvisioner: "ebs.csi.aws.com"}
				c.Spec.Resources.Requests, c.Status.Capacity = sizes("2Gi"), sizes("1Gi")
				c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInfeasible}
			})},
			want: []string{"it belongs to another provisioner, ebs.csi.aws.com"}, not: []string{"Cinder"},
		},
		"a pod that is being deleted, whose time of deletion is the end of its grace": {
			about: "pod/web-0", objects: []runtime.Object{pod(func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = deleted(30) }), claimIn(corev1.ClaimBound), volumeIn(corev1.VolumeBound, "")},
			want: []string{"it is being deleted since 2026-11-28T12:00:00Z", "its node must confirm the deletion: kubectl cinder why node/worker-1"}, not: []string{"kube-controller-manager has not asked"},
		},
		"a pod without a node that is being deleted": {
			about: "pod/web-0", objects: []runtime.Object{pod(func(p *corev1.Pod) {
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = deleted(0)
				p.Spec.NodeName, p.Finalizers = "", []string{"example.org/keep"}
			}), claimIn(corev1.ClaimBound)},
			want: []string{"it is being deleted since 2026-11-28T12:00:00Z; what keeps it are its finalizers: example.org/keep"}, not: []string{"why node/"},
		},
		"a pod that ran when its node was last heard of": {
			about: "pod/web-0", objects: []runtime.Object{pod(func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodRunning
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: noon}}
			}), claimIn(corev1.ClaimBound), volumeIn(corev1.VolumeBound, ""), attachmentTo("worker-1", attached)},
			want: []string{"it has not been ready since 2026-11-28T12:00:00Z, which its node may cause: kubectl cinder why node/worker-1"},
		},
		"a pod that is held back": {
			about: "pod/web-0", objects: []runtime.Object{pod(func(p *corev1.Pod) {
				p.Spec.NodeName = ""
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated, Message: "Scheduling is blocked due to non-empty scheduling gates", LastTransitionTime: noon}}
			}), claimIn(corev1.ClaimBound)},
			want: []string{"it has had no node since 2026-11-28T12:00:00Z: SchedulingGated: Scheduling is blocked"}, not: []string{"no node has been found"},
		},
		"a pod whose ephemeral volume has the name of somebody else's claim": {
			about: "pod/web-0", objects: []runtime.Object{pod(func(p *corev1.Pod) {
				p.UID = "pod-1"
				p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
			}), claim(func(c *corev1.PersistentVolumeClaim) { c.Name, c.Status.Phase = "web-0-scratch", corev1.ClaimBound })},
			want: []string{"claim web-0-scratch was not made for it, but has the name that the claim of its ephemeral volume scratch would have"},
		},
		"a pod whose volume is gone": {
			about: "pod/web-0", objects: []runtime.Object{podOn("worker-1", corev1.PodPending), claimIn(corev1.ClaimBound)},
			want: []string{"PersistentVolume pvc-1 of claim data does not exist"},
		},
		"a snapshot of a class that does not exist": {
			about: "vs/nightly", objects: []runtime.Object{claimIn(corev1.ClaimBound), snapshot(text("nightly"), nil)},
			want: []string{"VolumeSnapshotClass nightly does not exist"},
		},
		"a snapshot of a class that its reader may not read": {
			about: "vs/nightly", objects: []runtime.Object{claimIn(corev1.ClaimBound), snapshot(text("nightly"), nil)}, forbidden: []string{"volumesnapshotclasses"}, open: true,
			want: []string{"no VolumeSnapshotContent has been made for it since", "VolumeSnapshotClass nightly cannot be read: volumesnapshotclasses.snapshot.storage.k8s.io is forbidden"},
		},
		"a snapshot of another driver's class": {
			about: "vs/nightly", objects: []runtime.Object{claimIn(corev1.ClaimBound), snapshot(text("nightly"), nil), &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}, Driver: "ebs.csi.aws.com"}},
			want: []string{"VolumeSnapshotClass nightly belongs to another driver, ebs.csi.aws.com"},
		},
		"a snapshot without a class": {
			about: "vs/nightly", objects: []runtime.Object{claimIn(corev1.ClaimBound), snapshot(nil, nil)}, open: true,
			want: []string{"it names no VolumeSnapshotClass, so it needs one that is the default"},
		},
		"a snapshot that names its content": {
			about: "vs/nightly", objects: []runtime.Object{snapshot(nil, func(s *snapshotv1.VolumeSnapshot) {
				s.Spec.Source = snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: text("snapcontent-1")}
			})},
			want: []string{"it names VolumeSnapshotContent snapcontent-1, which does not exist"}, not: []string{"no VolumeSnapshotContent has been made"},
		},
		"a snapshot whose content its reader may not read": {
			about: "vs/nightly", objects: []runtime.Object{claimIn(corev1.ClaimBound), snapshot(nil, func(s *snapshotv1.VolumeSnapshot) {
				s.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: text("snapcontent-1")}
			})}, forbidden: []string{"volumesnapshotcontents"}, open: true,
			want: []string{"VolumeSnapshotContent snapcontent-1 cannot be read: volumesnapshotcontents.snapshot.storage.k8s.io is forbidden"},
		},
		"a snapshot of another driver": {
			about: "vs/nightly", objects: []runtime.Object{claimIn(corev1.ClaimBound), snapshot(nil, func(s *snapshotv1.VolumeSnapshot) {
				s.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: text("snapcontent-1")}
			}), &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "snapcontent-1"}, Spec: snapshotv1.VolumeSnapshotContentSpec{Driver: "ebs.csi.aws.com"}}},
			want: []string{"VolumeSnapshotContent snapcontent-1 belongs to another driver, ebs.csi.aws.com"}, not: []string{"being taken"},
		},
		"an attachment without a volume": {
			about: "volumeattachment/csi-worker-1", objects: []runtime.Object{attachmentTo("worker-1", func(a *storagev1.VolumeAttachment) { a.Spec.Source.PersistentVolumeName = nil })},
			want: []string{"a volume without a PersistentVolume is being attached to node worker-1"},
		},
		"a volume that is bound to nothing": {
			about: "pv/pvc-1", objects: []runtime.Object{volume(func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil })}, open: true,
			not: []string{"why  -n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := ask(t, newInquiry(t, c.forbidden, c.objects...), c.about)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(answer.Because, "\n") + "\n"
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("it lacks %q", want)
				}
			}
			for _, not := range c.not {
				if strings.Contains(got, not) {
					t.Errorf("it says %q", not)
				}
			}
			if answer.Explained == c.open {
				t.Errorf("explained: %v", answer.Explained)
			}
			if t.Failed() {
				t.Log(got)
			}
		})
	}
}

func sizes(text string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
}

// TestWarningsAreOrderedByWhenTheyLastHappened: the scheduler's events say it elsewhere.
func TestWarningsAreOrderedByWhenTheyLastHappened(t *testing.T) {
	event := func(name string, change func(*corev1.Event)) runtime.Object {
		e := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Type: corev1.EventTypeWarning, Reason: name,
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "team-a", Name: "web-0"},
		}
		change(e)
		return e
	}
	later := metav1.NewMicroTime(noon.Add(time.Hour))
	q := newInquiry(t, nil, podOn("worker-1", corev1.PodPending), claimIn(corev1.ClaimBound), volumeIn(corev1.VolumeBound, ""), attachmentTo("worker-1", attached),
		event("series", func(e *corev1.Event) {
			e.EventTime, e.Series = metav1.NewMicroTime(noon.Add(-time.Hour)), &corev1.EventSeries{Count: 9, LastObservedTime: later}
		}),
		event("once", func(e *corev1.Event) { e.LastTimestamp = noon }))
	answer, err := ask(t, q, "pod/web-0")
	if err != nil || len(answer.Events) != 2 || answer.Events[0].Reason != "series" || !answer.Events[0].Time.Equal(later.Time) {
		t.Errorf("%+v, %v", answer, err)
	}
}

// TestRightsOfANamespaceAreThoseOfObjectsInIt: a RoleBinding grants no other right of a
// ClusterRole.
func TestRightsOfANamespaceAreThoseOfObjectsInIt(t *testing.T) {
	content, err := os.ReadFile("../../../deploy/examples/status-reader.yaml")
	if err != nil {
		t.Fatal(err)
	}
	inNamespaces := []string{"persistentvolumeclaims", "pods", "events", "volumesnapshots", "volumegroupsnapshots"}
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				if role.Kind == "ClusterRole" && slices.Contains(inNamespaces, resource) != (role.Name == "standalone-cinder-claims") {
					t.Errorf("%s has %s", role.Name, resource)
				}
			}
		}
	}
}

// TestAMissingKindIsToldFromAMissingObject: of a kind that it does not have, the API server
// says no more than that it has no such page.
func TestAMissingKindIsToldFromAMissingObject(t *testing.T) {
	for body, want := range map[string]string{
		"404 page not found\n": "snapshot team-a/nightly: the API server has no VolumeSnapshots: the snapshot CRDs are not installed",
		`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"volumesnapshots \"nightly\" not found","reason":"NotFound","details":{"name":"nightly","kind":"volumesnapshots"},"code":404}`: `snapshot team-a/nightly: volumesnapshots "nightly" not found`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if strings.HasPrefix(body, "{") {
				w.Header().Set("Content-Type", "application/json")
			}
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(body))
		}))
		defer server.Close()
		snapshots, err := snapshotclient.NewForConfig(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(t, &inquiry{connection: &connection{}, snapshots: snapshots}, "vs/nightly"); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
