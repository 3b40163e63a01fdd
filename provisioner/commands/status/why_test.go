package status

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

func ask(t *testing.T, q *inquiry, about ...string) (*whyAnswer, error) {
	t.Helper()
	asked, name, err := parseSubject(about)
	if err != nil {
		t.Fatal(err)
	}
	return q.about(t.Context(), asked, "team-a", name)
}

func snapshotsOf(objects ...runtime.Object) *snapshotfake.Clientset {
	//nolint:staticcheck // NewClientset needs apply configurations, which this client does not have.
	return snapshotfake.NewSimpleClientset(objects...)
}

var noon = metav1.NewTime(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC))

func podOn(node string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "web-0"},
		Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		}},
		Status: corev1.PodStatus{Phase: phase},
	}
}

func claimIn(phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data"}, Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
	if phase == corev1.ClaimBound {
		claim.Spec.VolumeName = "pvc-1"
	}
	return claim
}

func volumeIn(phase corev1.PersistentVolumePhase, policyOfReclaim corev1.PersistentVolumeReclaimPolicy) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Annotations: map[string]string{objects.AnnotationVolume: "volume-1", objects.AnnotationBackend: "gold", objects.AnnotationTenant: "a"}},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "team-a", Name: "data"}, PersistentVolumeReclaimPolicy: policyOfReclaim,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: policy.CSIDriver, VolumeHandle: "handle-1"}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: phase},
	}
}

func attachmentTo(node string, change func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	pv := "pvc-1"
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + node, CreationTimestamp: noon},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: policy.CSIDriver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
	}
	change(a)
	return a
}

func attached(a *storagev1.VolumeAttachment) { a.Status.Attached = true }

func nodeThatIs(ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "worker-1"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: noon, Message: "Kubelet stopped posting node status."}}},
	}
}

func plugin(names ...string) *storagev1.CSINode {
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}
	for _, name := range names {
		node.Spec.Drivers = append(node.Spec.Drivers, storagev1.CSINodeDriver{Name: name})
	}
	return node
}

// TestWhyFollowsAnObjectToWhatItWaitsFor: whatever a person holds in the hand, the answer
// names the next object, since when it waits, and who can help.
func TestWhyFollowsAnObjectToWhatItWaitsFor(t *testing.T) {
	text := func(s string) *string { return &s }
	refused := func(a *storagev1.VolumeAttachment) {
		a.Status.AttachError = &storagev1.VolumeError{Time: noon, Message: "volume volume-1 is attached to node worker-2"}
	}
	failed := func(name string) *snapshotv1.VolumeSnapshot {
		return &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Status: &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: text("snapshotting non-CSI volumes is not supported")}}}
	}
	group := func(name string, change func(*groupv1.VolumeGroupSnapshot)) *groupv1.VolumeGroupSnapshot {
		g := &groupv1.VolumeGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: "1", CreationTimestamp: noon},
			Spec: groupv1.VolumeGroupSnapshotSpec{VolumeGroupSnapshotClassName: text("alike"), Source: groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}}}
		if change != nil {
			change(g)
		}
		return g
	}
	labeled := func(value string) *corev1.PersistentVolumeClaim {
		claim := claimIn(corev1.ClaimBound)
		claim.Labels = map[string]string{objects.LabelCopy: value}
		return claim
	}
	member := claimIn(corev1.ClaimBound)
	member.Labels = map[string]string{"app": "db"}
	ready := true
	warning := func(of, by, reason, message string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: of + "." + by}, Type: corev1.EventTypeWarning, Reason: reason, Message: message, LastTimestamp: noon,
			Source: corev1.EventSource{Component: by}, InvolvedObject: corev1.ObjectReference{Kind: "VolumeSnapshot", Namespace: "team-a", Name: of}}
	}
	for name, c := range map[string]struct {
		about   []string
		objects []runtime.Object
		want    []string
		phase   string
		open    bool // nothing explains it
	}{
		"a bound claim": {about: []string{"data"}, phase: "Bound",
			objects: []runtime.Object{claimIn(corev1.ClaimBound), volumeIn(corev1.VolumeBound, ""), podOn("worker-1", corev1.PodPending), attachmentTo("worker-1", refused)},
			want: []string{"it is not pending: it is bound to PersistentVolume pvc-1", "pod web-0 needs it on node worker-1, and is not running: kubectl cinder why pod/web-0 -n team-a",
				"its volume could not be attached to node worker-1 at 2026-11-28T12:00:00Z, and is tried again: volume volume-1 is attached to node worker-2 (VolumeAttachment csi-worker-1)"}},
		"a bound claim that no pod uses": {about: []string{"pvc/data"}, phase: "Bound",
			objects: []runtime.Object{claimIn(corev1.ClaimBound), volumeIn(corev1.VolumeBound, ""), podOn("worker-1", corev1.PodSucceeded)},
			want:    []string{"it is not pending: it is bound to PersistentVolume pvc-1", "no pod uses it"}},
		"a claim that gets the copy of a move": {about: []string{"data"}, phase: "Bound", objects: []runtime.Object{labeled(objects.CopyPartial), volumeIn(corev1.VolumeBound, "")},
			want: []string{"it is not pending: it is bound to PersistentVolume pvc-1", "no pod uses it", "standalone-cinder volume move made it for a copy of another claim's volume; run that command again, or delete the claim"}},
		"a claim that a move has left": {about: []string{"data"}, phase: "Bound", objects: []runtime.Object{labeled(objects.CopyFormer), volumeIn(corev1.VolumeBound, "")},
			want: []string{"it is not pending: it is bound to PersistentVolume pvc-1", "no pod uses it", "it keeps the volume that another claim had before standalone-cinder volume move; delete it when the copy is trusted"}},
		"a pod whose claim does not exist": {about: []string{"pod/web-0"}, phase: "Pending", objects: []runtime.Object{podOn("", corev1.PodPending)},
			want: []string{"claim data does not exist"}},
		"a pod whose claim is pending": {about: []string{"po", "web-0"}, phase: "Pending", objects: []runtime.Object{podOn("", corev1.PodPending), claimIn(corev1.ClaimPending)},
			want: []string{"claim data has no volume yet: kubectl cinder why data -n team-a"}},
		"a pod whose volume is attached elsewhere": {about: []string{"pod/web-0"}, phase: "Pending",
			objects: []runtime.Object{podOn("worker-1", corev1.PodPending), claimIn(corev1.ClaimBound), volumeIn(corev1.VolumeBound, ""), attachmentTo("worker-2", attached)},
			want: []string{"the volume of claim data is attached to node worker-2: kubectl cinder why volumeattachment/csi-worker-2",
				"the volume of claim data is not attached to node worker-1: kube-controller-manager has not asked for it yet, or waits until another node has let go"}},
		"a pod that runs": {about: []string{"pod/web-0"}, phase: "Running",
			objects: []runtime.Object{podOn("worker-1", corev1.PodRunning), claimIn(corev1.ClaimBound), volumeIn(corev1.VolumeBound, ""), attachmentTo("worker-1", attached)},
			want:    []string{"it runs on node worker-1, so its volumes are mounted", "the volume of claim data is attached to node worker-1"}},
		"a pod whose volume is attached and not mounted": {about: []string{"pod/web-0"}, phase: "Pending", open: true,
			objects: []runtime.Object{podOn("worker-1", corev1.PodPending), claimIn(corev1.ClaimBound), volumeIn(corev1.VolumeBound, ""), attachmentTo("worker-1", attached)},
			want:    []string{"the volume of claim data is attached to node worker-1"}},
		"a retained volume": {about: []string{"pv/pvc-1"}, phase: "Released", objects: []runtime.Object{volumeIn(corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain)},
			want: []string{"it is volume volume-1 at backend gold, of tenant a",
				"its claim team-a/data is deleted, and its reclaim policy Retain keeps the volume. standalone-cinder volume rebind gives it to another claim; the reclaim policy Delete deletes it and its data"}},
		"a volume that is to be deleted": {about: []string{"pv/pvc-1"}, phase: "Released", objects: []runtime.Object{volumeIn(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete), attachmentTo("worker-1", attached)},
			want: []string{"it is volume volume-1 at backend gold, of tenant a", "its claim team-a/data is deleted, so its volume is to be deleted",
				"it has been blocked since 2026-11-28T12:00:00Z: VolumeStillAttached: VolumeAttachment csi-worker-1 still attaches the volume", "its volume is attached to node worker-1 (VolumeAttachment csi-worker-1)"}},
		"a volume of another provisioner": {about: []string{"pv/pvc-1"}, phase: "Bound",
			objects: []runtime.Object{&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Annotations: map[string]string{objects.AnnotationProvisionedBy: "ebs.csi.aws.com"}}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}},
			want:    []string{"it was made by another provisioner, ebs.csi.aws.com"}},
		"a volume whose record was edited": {about: []string{"pv/pvc-1"}, phase: "Bound",
			objects: []runtime.Object{&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Annotations: map[string]string{objects.AnnotationProvisionedBy: "cinder.example", objects.AnnotationBackend: "gold"}}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}},
			want:    []string{"PersistentVolume pvc-1: annotation standalone-cinder.openstack.org/volume-id is missing, and so is cinderVolumeId; nothing is deleted until it is fixed (kubectl cinder volume list shows the volumes of each backend)"}},
		"a volume of the historic provisioner": {about: []string{"pv/pvc-1"}, phase: "Available",
			objects: []runtime.Object{&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Annotations: map[string]string{objects.AnnotationProvisionedBy: "cinder.example", objects.HistoricVolume: "volume-1", objects.HistoricIdentity: "id"}}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}}},
			want:    []string{"it is volume volume-1 of the historic provisioner", "it waits for a claim that names it or fits it"}},
		"an attachment without a node plugin": {about: []string{"volumeattachment/csi-worker-1"}, phase: "Pending", objects: []runtime.Object{attachmentTo("worker-1", func(*storagev1.VolumeAttachment) {}), plugin("ebs.csi.aws.com")},
			want: []string{"PersistentVolume pvc-1 is being attached to node worker-1 since 2026-11-28T12:00:00Z", "the node plugin is not registered on node worker-1, so it can have no volumes of mode csi: does the DaemonSet run there?"}},
		"a node that is lost": {about: []string{"node/worker-1"}, phase: "not ready", objects: []runtime.Object{nodeThatIs(corev1.ConditionUnknown), plugin(policy.CSIDriver), attachmentTo("worker-1", attached)},
			want: []string{"it has not been ready since 2026-11-28T12:00:00Z: Kubelet stopped posting node status. Its volumes stay with it until it returns, or somebody who knows that the machine is off runs: kubectl taint node worker-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
				"volumes of mode csi that are attached to it: 1"}},
		"a node with a volume under way": {about: []string{"no/worker-1"}, phase: "ready", objects: []runtime.Object{nodeThatIs(corev1.ConditionTrue), plugin(policy.CSIDriver), attachmentTo("worker-1", refused)},
			want: []string{"it is ready since 2026-11-28T12:00:00Z", "volumes of mode csi that are attached to it: 0",
				"a volume could not be attached to node worker-1 at 2026-11-28T12:00:00Z, and is tried again: volume volume-1 is attached to node worker-2 (VolumeAttachment csi-worker-1)"}},
		"a snapshot of a pending claim": {about: []string{"vs/nightly"}, phase: "Pending",
			objects: []runtime.Object{claimIn(corev1.ClaimPending), &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nightly"}, Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: text("data")}}}},
			want:    []string{"claim data has no volume yet: kubectl cinder why data -n team-a"}},
		"a snapshot that failed": {about: []string{"volumesnapshots/nightly"}, phase: "Pending",
			objects: []runtime.Object{
				&snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nightly"}, Status: &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: text("snapcontent-1")}},
				&snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "snapcontent-1"}, Spec: snapshotv1.VolumeSnapshotContentSpec{Driver: policy.CSIDriver}, Status: &snapshotv1.VolumeSnapshotContentStatus{Error: &snapshotv1.VolumeSnapshotError{Message: text("QuotaExceeded: tenant a would use 3 of 2 snapshots")}}},
			},
			want: []string{"its VolumeSnapshotContent snapcontent-1 says: QuotaExceeded: tenant a would use 3 of 2 snapshots"}},
		"a snapshot that an earlier leader denied": {about: []string{"vs/older"}, phase: "Pending", objects: []runtime.Object{failed("older")},
			want: []string{"it has been denied since 2026-11-28T12:00:05Z or before (the leader began then): NoMatchingTenant"}},
		"a snapshot without room": {about: []string{"vs/full"}, phase: "Pending", objects: []runtime.Object{failed("full"), warning("full", wiring.EventSource, "ClaimNotBound", "claim data is not bound")},
			want: []string{"it has been denied since 2026-11-28T12:00:00Z: QuotaExceeded: tenant a would use 3 of 2 snapshots"}},
		"a snapshot that the program warned about": {about: []string{"vs/nightly"}, phase: "Pending", objects: []runtime.Object{failed("nightly"), warning("nightly", wiring.EventSource, "SnapshotFailed", "backend gold: no room"), warning("nightly", "snapshot-controller", "SetDefaultSnapshotClassFailed", "non-CSI")},
			want: []string{"the program's last warning, of 2026-11-28T12:00:00Z, says: SnapshotFailed: backend gold: no room"}},
		"a snapshot of which only its status tells": {about: []string{"vs/nightly"}, phase: "Pending", objects: []runtime.Object{failed("nightly"), warning("nightly", "snapshot-controller", "SetDefaultSnapshotClassFailed", "non-CSI")},
			want: []string{"the last attempt failed: snapshotting non-CSI volumes is not supported"}},
		"a snapshot that nobody takes up": {about: []string{"vs/nightly"}, phase: "Pending", open: true,
			objects: []runtime.Object{&snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nightly", CreationTimestamp: noon}}},
			want:    []string{"no VolumeSnapshotContent has been made for it since 2026-11-28T12:00:00Z; if that lasts, does the snapshot-controller run?", "it names no VolumeSnapshotClass, so it needs one that is the default of its claim's driver"}},
		"a snapshot that waits for its group": {about: []string{"vs/nightly"}, phase: "Pending",
			objects: []runtime.Object{&snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nightly", OwnerReferences: []metav1.OwnerReference{{APIVersion: groupv1.SchemeGroupVersion.String(), Kind: "VolumeGroupSnapshot", Name: "all"}}}}},
			want:    []string{"it belongs to VolumeGroupSnapshot all: kubectl cinder why vgs/all -n team-a"}},
		"a group that is ready": {about: []string{"vgs/all"}, phase: "Ready", objects: []runtime.Object{group("all", func(g *groupv1.VolumeGroupSnapshot) {
			g.Status = &groupv1.VolumeGroupSnapshotStatus{ReadyToUse: &ready}
		})},
			want: []string{"it is ready"}},
		"a group without room, named like a snapshot without a tenant": {about: []string{"volumegroupsnapshots/older"}, phase: "Pending", objects: []runtime.Object{member, group("older", nil)},
			want: []string{"it has been denied since 2026-11-28T12:00:00Z: QuotaExceeded: tenant a would use 4 of 3 snapshots"}},
		"a group of a claim without a volume": {about: []string{"vgs/all"}, phase: "Pending",
			objects: []runtime.Object{group("all", nil), func() runtime.Object { c := claimIn(corev1.ClaimPending); c.Labels = member.Labels; return c }()},
			want:    []string{"claim data has no volume yet: kubectl cinder why data -n team-a"}},
		"a group of no claim": {about: []string{"vgs/all"}, phase: "Pending", objects: []runtime.Object{group("all", nil), claimIn(corev1.ClaimBound)},
			want: []string{"its selector app=db selects no claim"}},
		"a group that is being taken": {about: []string{"vgs/all"}, phase: "Pending",
			objects: []runtime.Object{member, group("all", nil), &groupv1.VolumeGroupSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "groupsnapcontent-1", CreationTimestamp: noon}, Spec: groupv1.VolumeGroupSnapshotContentSpec{Driver: policy.CSIDriver}}},
			want:    []string{"its snapshots are being taken since 2026-11-28T12:00:00Z (VolumeGroupSnapshotContent groupsnapcontent-1)"}},
		"a group that nobody takes up": {about: []string{"vgs/all"}, phase: "Pending", objects: []runtime.Object{member, group("all", nil)},
			want: []string{"no VolumeGroupSnapshotContent has been made for it since 2026-11-28T12:00:00Z; if that lasts, does the snapshot-controller run, with its feature gate CSIVolumeGroupSnapshot?", "VolumeGroupSnapshotClass alike does not exist"}},
		"a group of another driver": {about: []string{"vgs/all"}, phase: "Pending",
			objects: []runtime.Object{member, group("all", nil), &groupv1.VolumeGroupSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "alike"}, Driver: "ebs.csi.aws.com"}},
			want:    []string{"no VolumeGroupSnapshotContent has been made for it since 2026-11-28T12:00:00Z; if that lasts, does the snapshot-controller run, with its feature gate CSIVolumeGroupSnapshot?", "VolumeGroupSnapshotClass alike belongs to another driver, ebs.csi.aws.com"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte("{" + leading + `,"claims":{},"deletions":{"pending":[{"persistentVolume":"pvc-1","state":"blocked","since":"2026-11-28T12:00:00Z","reason":"VolumeStillAttached","message":"VolumeAttachment csi-worker-1 still attaches the volume"}]},"snapshots":{"pending":[{"namespace":"team-a","name":"full","state":"denied","since":"2026-11-28T12:00:00Z","reason":"QuotaExceeded","message":"tenant a would use 3 of 2 snapshots"},{"namespace":"team-a","name":"older","state":"denied","created":"2026-11-28T11:00:00Z","since":"2026-11-28T12:00:05Z","reason":"NoMatchingTenant"},{"namespace":"team-a","name":"older","kind":"VolumeGroupSnapshot","state":"denied","since":"2026-11-28T12:00:00Z","reason":"QuotaExceeded","message":"tenant a would use 4 of 3 snapshots"}]},"replica":{"identity":"p_1","ready":true,"leads":true,"leadsSince":"2026-11-28T12:00:03Z"}}`))
			}))
			defer server.Close()
			var core, snapshots []runtime.Object
			for _, object := range c.objects {
				switch object.(type) {
				case *snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent, *groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotContent, *groupv1.VolumeGroupSnapshotClass:
					snapshots = append(snapshots, object)
				default:
					core = append(core, object)
				}
			}
			q := &inquiry{connection: &connection{url: server.URL, provisionerName: "cinder.example"}, client: fake.NewClientset(core...), snapshots: snapshotsOf(snapshots...)}
			answer, err := ask(t, q, c.about...)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Join(answer.Because, "\n"), strings.Join(c.want, "\n"); got != want || answer.Phase != c.phase || answer.Explained == c.open {
				t.Errorf("phase %s, explained %v:\n%s\nwant:\n%s", answer.Phase, answer.Explained, got, want)
			}
		})
	}
}

// TestWhyOfUnknownKinds: kubectl's spellings of a kind are understood, and others named.
func TestWhyOfUnknownKinds(t *testing.T) {
	for arguments, want := range map[string]string{
		"deployment/web":   "names no object that can be asked about",
		"team-a/data":      `"team-a/data" names no object that can be asked about; write data -n team-a if team-a is a namespace, else the NAME of a claim`,
		"pod/team-a/web-0": "write pod/web-0 -n team-a if team-a is a namespace",
		"pod/":             "names no object that can be asked about; write the NAME of a claim",
		"/":                "names no object that can be asked about; write the NAME of a claim",
		"a b c":            "needs the name of one object",
		"":                 "needs the name of one object",
	} {
		code, output := runCommand(NewPlugin(), append([]string{"why"}, strings.Fields(arguments)...)...)
		if code != 2 || !strings.Contains(output, want) {
			t.Errorf("%q: exit code %d: %s", arguments, code, output)
		}
	}
	if code, output := runCommand(NewPlugin(), "why", ""); code != 2 || !strings.Contains(output, "names no object") {
		t.Errorf("an empty name: exit code %d: %s", code, output)
	}
}

func TestAnObjectThatDoesNotExistIsNamed(t *testing.T) {
	q := &inquiry{connection: &connection{}, client: fake.NewClientset(), snapshots: snapshotsOf()}
	for about, want := range map[string]string{
		"data": "claim team-a/data: ", "pod/x": "pod team-a/x: ", "pv/x": "PersistentVolume x: ", "node/x": "node x: ", "volumeattachment/x": "attachment x: ", "vs/x": "snapshot team-a/x: ",
	} {
		if _, err := ask(t, q, about); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", about, err, want)
		}
	}
	var text bytes.Buffer
	if err := (&whyAnswer{Kind: "node", Name: "x", Phase: "Ready"}).write(&text); err != nil || text.String() != "node x: Ready\n" {
		t.Errorf("%q, %v", text.String(), err)
	}
}
