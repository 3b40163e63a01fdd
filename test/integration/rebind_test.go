package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// rebindSite is a site with several tenants, whose volumes change their claims.
type rebindSite struct {
	*site
	client snapshotclient.Interface
	dir    string
	// patient means that nothing is done to make Kubernetes look at a claim earlier, and
	// that all is tried with a volume.
	patient bool
	// sidecars means that real sidecars call the driver.
	sidecars bool
	// rebinds counts what the site has seen.
	rebinds int
}

// rebindTenants are the tenants besides the first one, which has the namespace of the
// site and NAME-more. Namespace NAME-fillers is a populator's, and NAME-stranger belongs
// to nobody.
const rebindTenants = `  - name: other
    namespaces: [NAME-other]
    quota: {volumes: 3, gigabytes: 9, snapshots: 2}
    classes: [{storageClasses: [NAME, NAME-kept], backends: [gold], EXTRA}]
  - name: populator
    namespaces: [NAME-populator]
    quota: {volumes: 3, gigabytes: 9, snapshots: 2}
    classes: [{storageClasses: [NAME, NAME-kept], backends: [gold], EXTRA}]
  - name: velero
    namespaces: [NAME-velero]
    quota: {volumes: 3, gigabytes: 9, snapshots: 2}
    classes: [{storageClasses: [NAME, NAME-kept], backends: [gold], EXTRA}]
populators:
  - namespace: NAME-fillers
`

// tenantsByEnd are the tenants of the namespaces, and their rules.
var tenantsByEnd = map[string]struct{ tenant, rule string }{
	"": {"tenant", "tenants[0].classes[0]"}, "-more": {"tenant", "tenants[0].classes[0]"}, "-other": {"other", "tenants[1].classes[0]"},
	"-populator": {"populator", "tenants[2].classes[0]"}, "-velero": {"velero", "tenants[3].classes[0]"},
}

var tenantsOfRebinds = []string{"tenant", "other", "populator", "velero"}

// rebindModes are the modes and workflows of a site.
var rebindModes = []string{"attachment", "reserve", "csi"}

func newRebindSite(ctx context.Context, name, mode string, replicas int) (*rebindSite, error) {
	dir, err := os.MkdirTemp("", "rebind-")
	if err != nil {
		return nil, err
	}
	extra := "import: {names: [old data]}"
	options := siteOptions{workflow: mode, namespaces: []string{"NAME-more"}, quota: "{volumes: 3, gigabytes: 9, snapshots: 2}", namedReads: true,
		cinder: cindersim.Options{
			CreateDelay: 50 * time.Millisecond, DeleteDelay: 50 * time.Millisecond, ExtendDelay: 50 * time.Millisecond, SnapshotDelay: 50 * time.Millisecond,
			Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: "other", Backend: "iscsi", RequiresInitiator: true}),
		},
	}
	if mode == "csi" {
		options.workflow, options.csi, options.sockets = "attachment", true, dir
		extra = "mode: csi, volumeTypes: [iscsi, other], import: {names: [old data]}"
	}
	options.classes = []string{"NAME-kept"}
	options.rule = strings.ReplaceAll(strings.ReplaceAll(extra, ", volumeTypes", "\n        volumeTypes"), ", import", "\n        import")
	options.tenants = strings.ReplaceAll(rebindTenants, "EXTRA", extra)
	base, err := newSite(ctx, name, options)
	if err != nil {
		return nil, err
	}
	s := &rebindSite{site: base, dir: dir}
	if err := s.furnish(ctx, replicas); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// furnish makes what the site needs besides its own.
func (s *rebindSite) furnish(ctx context.Context, replicas int) error {
	for _, end := range []string{"-more", "-other", "-populator", "-velero", "-fillers", "-stranger"} {
		if err := suite.CreateNamespace(ctx, s.in(end), nil); err != nil {
			return err
		}
	}
	retain := corev1.PersistentVolumeReclaimRetain
	if err := suite.CreateClass(ctx, s.class+"-kept", s.provisioner, func(class *storagev1.StorageClass) {
		class.ReclaimPolicy = &retain
	}); err != nil {
		return err
	}
	if err := suite.InstallSnapshots(ctx); err != nil {
		return err
	}
	var err error
	if s.client, err = snapshotclient.NewForConfig(suite.Config); err != nil {
		return err
	}
	driver := s.provisioner
	if s.options.csi {
		driver = wire.DriverName
		if err := suite.AllowCSINodes(ctx, s.provisioner); err != nil {
			return err
		}
	}
	if _, err := s.client.SnapshotV1().VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.name}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for range replicas {
		if _, err := s.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *rebindSite) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = s.client.SnapshotV1().VolumeSnapshotClasses().Delete(ctx, s.name, metav1.DeleteOptions{})
	return errors.Join(s.site.close(), suite.RemoveAdmissionPolicies(ctx, s.provisioner), os.RemoveAll(s.dir))
}

// unlikeInUse says how a volume differs from one that is ready to be used.
func (s *rebindSite) unlikeInUse(v cindersim.Volume) (complaint string) {
	if s.options.csi {
		if v.Status != "available" || len(v.Attachments) != 0 || v.Metadata[annotation("attached")] != "true" || v.Metadata[annotation("mode")] != "csi" {
			return fmt.Sprintf("the volume is not available and marked: %s, %v", describe([]cindersim.Volume{v}), v.Metadata)
		}
		return ""
	}
	if v.Status != "in-use" || len(v.Attachments) != 1 || v.Attachments[0].Host != "k8s" || !v.Export.Present || !slices.Equal(v.Export.ConnectedHosts, []string{"k8s"}) {
		return "the volume is not in use once: " + describe([]cindersim.Volume{v})
	}
	return ""
}

// unlikeRebound lists deviations from the state after a volume is another claim's:
// claim, PersistentVolume, Secret and stamp agree.
func (s *rebindSite) unlikeRebound(ctx context.Context, r *rebinding) (complaint string, err error) {
	claim, err := suite.Client.CoreV1().PersistentVolumeClaims(r.to.Namespace).Get(ctx, r.to.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if claim.UID != r.to.UID || claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != r.pv || pv.Status.Phase != corev1.VolumeBound || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return fmt.Sprintf("claim %s is %s to %q, and PersistentVolume %s is %s to %+v", claim.Name, claim.Status.Phase, claim.Spec.VolumeName, r.pv, pv.Status.Phase, pv.Spec.ClaimRef), nil
	}
	v, ok := s.sim.Volume(r.volume)
	if !ok {
		return "the volume is gone", nil
	}
	if complaint := s.unlikeInUse(v); complaint != "" {
		return complaint, nil
	}
	has := tenantsByEnd[r.way.to]
	for key, want := range map[string]string{
		annotation("tenant"): has.tenant, annotation("rule"): has.rule, annotation("rebound-to"): string(claim.UID), annotation("volume-id"): r.volume,
	} {
		if pv.Annotations[key] != want {
			return fmt.Sprintf("the PersistentVolume's annotation %s is %q, want %q", key, pv.Annotations[key], want), nil
		}
	}
	for key, want := range map[string]string{
		annotation("cluster"): "cluster-" + s.name, annotation("tenant"): has.tenant, annotation("rebound-to"): string(claim.UID),
		annotation("claim-uid"): string(r.made.UID), annotation("storage-class"): s.classOf(r),
		"csi.storage.k8s.io/pv/name": r.pv, "csi.storage.k8s.io/pvc/name": claim.Name, "csi.storage.k8s.io/pvc/namespace": claim.Namespace,
	} {
		if v.Metadata[key] != want {
			return fmt.Sprintf("the volume's metadata %s is %q, want %q", key, v.Metadata[key], want), nil
		}
	}
	secrets, err := s.secrets(ctx)
	if err != nil {
		return "", err
	}
	return s.unlikeUsable(*pv, v, secrets), nil
}

// rebound waits until the volume is the claim's, and counts for its tenant, once.
func (s *rebindSite) rebound(ctx context.Context, r *rebinding) error {
	if err := s.eventually(ctx, func() (string, error) { return s.unlikeRebound(ctx, r) }); err != nil {
		return err
	}
	return errors.Join(s.counts(ctx, r, counted{1, 1, 0}), s.decoysUntouched())
}

// counted is what counts: volumes, gigabytes and snapshots.
type counted [3]int

// counts waits until only the tenant of the claim that gets the volume has something, and
// just that.
func (s *rebindSite) counts(ctx context.Context, r *rebinding, want counted) error {
	for n := range want {
		want[n] += r.besides[n]
	}
	return s.countsAt(ctx, r.way.to, want)
}

// countsAt does the same for the tenant of a namespace.
func (s *rebindSite) countsAt(ctx context.Context, end string, want counted) error {
	return s.eventually(ctx, func() (string, error) {
		for _, tenant := range tenantsOfRebinds {
			has := counted{}
			if tenant == tenantsByEnd[end].tenant {
				has = want
			}
			if complaint, err := s.unlikeCounted(ctx, tenant, has[0], has[1], has[2]); complaint != "" || err != nil {
				return complaint, err
			}
		}
		return "", nil
	})
}

// eventsOf counts the events with a reason about an object.
func (s *rebindSite) eventsOf(ctx context.Context, namespace string, uid types.UID, reason string) (n int, err error) {
	events, err := suite.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: fmt.Sprintf("involvedObject.uid=%s,reason=%s", uid, reason)})
	if err != nil {
		return 0, err
	}
	for _, event := range events.Items {
		n += int(max(1, event.Count))
	}
	return n, nil
}

// told waits until claim and PersistentVolume have exactly one event with a reason.
func (s *rebindSite) toldOnce(ctx context.Context, r *rebinding, reason string) error {
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return s.eventually(ctx, func() (string, error) {
		onClaim, err := s.eventsOf(ctx, r.to.Namespace, r.to.UID, reason)
		if err != nil {
			return "", err
		}
		onPV, err := s.eventsOf(ctx, metav1.NamespaceDefault, pv.UID, reason)
		if onClaim != 1 || onPV != 1+r.before {
			return fmt.Sprintf("claim %s has %d events %s, PersistentVolume %s has %d", r.to.Name, onClaim, reason, r.pv, onPV), err
		}
		return "", err
	})
}

// notWarned checks that a claim that waited for a populator was not warned.
func (s *rebindSite) notWarned(ctx context.Context, r *rebinding) error {
	if r.to.Spec.DataSourceRef == nil {
		return nil
	}
	events, err := suite.Client.CoreV1().Events(r.to.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fmt.Sprintf("involvedObject.uid=%s,type=Warning", r.to.UID)})
	if err != nil {
		return err
	}
	// kube-controller-manager warns if somebody else has changed the claim that it saves.
	warnings := slices.DeleteFunc(events.Items, func(e corev1.Event) bool { return strings.HasPrefix(e.Message, "Error saving claim: ") })
	if len(warnings) > 0 {
		err = fmt.Errorf("the claim that waited for a populator is warned: %s: %s", warnings[0].Reason, warnings[0].Message)
	}
	return err
}

// said counts a line in the logs of all replicas that ever ran.
func (s *rebindSite) said(line string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, node := range s.nodes {
		if node.Replica != nil {
			n += strings.Count(node.Log(), line)
		}
	}
	return n
}

// grow makes the claim ask for more, and waits until it has it.
func (s *rebindSite) grow(ctx context.Context, r *rebinding, gigabytes int) error {
	size := fmt.Sprintf("%dGi", gigabytes)
	claims := suite.Client.CoreV1().PersistentVolumeClaims(r.to.Namespace)
	if _, err := claims.Patch(ctx, r.to.Name, types.MergePatchType, fmt.Appendf(nil, `{"spec": {"resources": {"requests": {"storage": %q}}}}`, size), metav1.PatchOptions{}); err != nil {
		return err
	}
	grow := func() error { return nil }
	switch {
	case s.sidecars:
		grow = func() error { return s.growBySidecar(ctx, r, size, gigabytes) }
	case s.options.csi:
		grow = func() error { return s.growByDriver(ctx, r, size, int64(gigabytes)<<30) }
	}
	if err := grow(); err != nil {
		return err
	}
	return s.eventually(ctx, func() (string, error) {
		claim, err := claims.Get(ctx, r.to.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		v, _ := s.sim.Volume(r.volume)
		if v.SizeGiB != gigabytes || pv.Spec.Capacity.Storage().String() != size || claim.Status.Capacity.Storage().String() != size {
			return fmt.Sprintf("growth: cinder %d, pv %s, claim %s, want %s", v.SizeGiB, pv.Spec.Capacity.Storage(), claim.Status.Capacity.Storage(), size), nil
		}
		return "", nil
	})
}

// patchStatus patches the status of the claim that has the volume.
func (s *rebindSite) patchStatus(ctx context.Context, r *rebinding, patch string) error {
	_, err := suite.Client.CoreV1().PersistentVolumeClaims(r.to.Namespace).Patch(ctx, r.to.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// growBySidecar waits until csi-resizer has made the volume larger, and does what a node
// does then.
func (s *rebindSite) growBySidecar(ctx context.Context, r *rebinding, size string, gigabytes int) error {
	if err := s.eventually(ctx, func() (string, error) {
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
		v, _ := s.sim.Volume(r.volume)
		if err == nil && (v.SizeGiB != gigabytes || pv.Spec.Capacity.Storage().String() != size) {
			return fmt.Sprintf("growth: cinder %d, pv %s, want %s", v.SizeGiB, pv.Spec.Capacity.Storage(), size), nil
		}
		return "", err
	}); err != nil {
		return err
	}
	return s.patchStatus(ctx, r, fmt.Sprintf(`{"status": {"capacity": {"storage": %q}, "allocatedResourceStatuses": null, "conditions": null}}`, size))
}

// growByDriver does what csi-resizer and a node do.
func (s *rebindSite) growByDriver(ctx context.Context, r *rebinding, size string, bytes int64) error {
	if err := s.patchStatus(ctx, r, fmt.Sprintf(`{"status": {"allocatedResources": {"storage": %q}, "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}}`, size)); err != nil {
		return err
	}
	if err := s.insist(ctx, func(driver csiDriver) error {
		_, err := driver.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "gold/" + r.volume, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}})
		return err
	}); err != nil {
		return err
	}
	if err := s.patchPV(ctx, r, types.MergePatchType, fmt.Sprintf(`{"spec": {"capacity": {"storage": %q}}}`, size)); err != nil {
		return err
	}
	return s.patchStatus(ctx, r, fmt.Sprintf(`{"status": {"capacity": {"storage": %q}, "allocatedResourceStatuses": null}}`, size))
}

// insist makes a call of the driver until it succeeds, for at most half a minute.
func (s *rebindSite) insist(ctx context.Context, call func(csiDriver) error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := s.driven(ctx, call)
		if err == nil {
			return nil
		}
		if paused := pause(ctx, 50*time.Millisecond); paused != nil {
			return fmt.Errorf("%w; the last call: %w", paused, err)
		}
	}
}

// snapshot takes a snapshot of a claim's volume, and waits until it can be used.
func (s *rebindSite) snapshot(ctx context.Context, of *corev1.PersistentVolumeClaim, volume string) (*snapshotv1.VolumeSnapshot, error) {
	class := s.name
	made, err := s.client.SnapshotV1().VolumeSnapshots(of.Namespace).Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "one-"},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &of.Name}, VolumeSnapshotClassName: &class},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if s.options.csi && !s.sidecars {
		if err := s.snapshotByDriver(ctx, made, volume); err != nil {
			return nil, err
		}
	}
	return made, s.eventually(ctx, func() (string, error) {
		now, err := s.client.SnapshotV1().VolumeSnapshots(made.Namespace).Get(ctx, made.Name, metav1.GetOptions{})
		if err == nil && (now.Status == nil || now.Status.ReadyToUse == nil || !*now.Status.ReadyToUse) {
			return fmt.Sprintf("VolumeSnapshot %s is not ready: %+v", made.Name, now.Status), nil
		}
		return "", err
	})
}

// snapshotByDriver does what csi-snapshotter does for the content that the
// snapshot-controller makes.
func (s *rebindSite) snapshotByDriver(ctx context.Context, of *snapshotv1.VolumeSnapshot, volume string) error {
	contents, name := s.client.SnapshotV1().VolumeSnapshotContents(), objects.SnapshotContentName(of.UID)
	if err := s.eventually(ctx, func() (string, error) {
		_, err := contents.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "the snapshot-controller has made no content", nil
		}
		return "", err
	}); err != nil {
		return err
	}
	const prefix = "csi.storage.k8s.io/volumesnapshot"
	handle := ""
	if err := s.insist(ctx, func(driver csiDriver) error {
		taken, err := driver.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
			SourceVolumeId: "gold/" + volume, Name: objects.SnapshotName(of.UID),
			Parameters: map[string]string{prefix + "/name": of.Name, prefix + "/namespace": of.Namespace, prefix + "content/name": name},
		})
		if err == nil && !taken.GetSnapshot().GetReadyToUse() {
			err = errors.New("the snapshot is not ready")
		}
		handle = taken.GetSnapshot().GetSnapshotId()
		return err
	}); err != nil {
		return err
	}
	_, err := contents.Patch(ctx, name, types.MergePatchType,
		fmt.Appendf(nil, `{"status": {"snapshotHandle": %q, "creationTime": %d, "restoreSize": %d, "readyToUse": true}}`, handle, time.Now().UnixNano(), 1<<30), metav1.PatchOptions{}, "status")
	return err
}

// removeSnapshot deletes a VolumeSnapshot, and waits until Cinder has no snapshot.
func (s *rebindSite) removeSnapshot(ctx context.Context, namespace, name string) error {
	snapshot, err := s.client.SnapshotV1().VolumeSnapshots(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	contents, content := s.client.SnapshotV1().VolumeSnapshotContents(), objects.SnapshotContentName(snapshot.UID)
	if s.options.csi && !s.sidecars {
		handle, err := s.abandonSnapshot(ctx, snapshot, content)
		if err != nil {
			return err
		}
		if err := s.insist(ctx, func(driver csiDriver) error {
			_, err := driver.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: handle})
			return err
		}); err != nil {
			return err
		}
		if _, err := contents.Patch(ctx, content, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	} else if err := s.client.SnapshotV1().VolumeSnapshots(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return s.eventually(ctx, func() (string, error) {
		_, err := contents.Get(ctx, content, metav1.GetOptions{})
		if left := s.sim.Snapshots(); len(left) > 0 || !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%d snapshots are left; content: %v", len(left), err), nil
		}
		return "", nil
	})
}

// abandonSnapshot deletes a VolumeSnapshot with the finalizer of csi-snapshotter on its
// content, and returns the handle once the snapshot-controller has deleted the content.
func (s *rebindSite) abandonSnapshot(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot, content string) (handle string, err error) {
	contents := s.client.SnapshotV1().VolumeSnapshotContents()
	if _, err := contents.Patch(ctx, content, types.MergePatchType, []byte(`{"metadata": {"finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"]}}`), metav1.PatchOptions{}); err != nil {
		return "", err
	}
	if err := s.client.SnapshotV1().VolumeSnapshots(snapshot.Namespace).Delete(ctx, snapshot.Name, metav1.DeleteOptions{}); err != nil {
		return "", err
	}
	return handle, s.eventually(ctx, func() (string, error) {
		now, err := contents.Get(ctx, content, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if now.Status == nil || now.Status.SnapshotHandle == nil {
			return "", errors.New("the content has no handle")
		}
		handle = *now.Status.SnapshotHandle
		if now.DeletionTimestamp == nil {
			return "the content is not deleted", nil
		}
		return "", nil
	})
}

// copies makes a claim from a snapshot and a clone of the claim, and removes both.
func (s *rebindSite) copies(ctx context.Context, r *rebinding, snapshot string) error {
	group := snapshotv1.GroupName
	for name, source := range map[string]*corev1.TypedLocalObjectReference{
		"restored": {APIGroup: &group, Kind: "VolumeSnapshot", Name: snapshot}, "cloned": {Kind: "PersistentVolumeClaim", Name: r.to.Name},
	} {
		claim, err := suite.CreateClaim(ctx, s.newClaim(r, r.way.to, name, func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.DataSource = source
			claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
		}))
		if err != nil {
			return err
		}
		of := &rebinding{way: r.way}
		if err := s.has(ctx, of, claim); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		v, _ := s.sim.Volume(of.volume)
		if v.SourceID != r.volume && v.SnapshotID == "" {
			return fmt.Errorf("%s: the volume is %+v", name, v)
		}
		if err := s.drop(ctx, claim); err != nil {
			return err
		}
		if err := s.letGo(ctx, of); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// letGo lets a volume end whose claim is gone, and waits for that.
func (s *rebindSite) letGo(ctx context.Context, r *rebinding) error {
	if r.policy == corev1.PersistentVolumeReclaimRetain {
		if err := s.pvIs(ctx, r, corev1.VolumeReleased); err != nil {
			return err
		}
		if err := s.patchPV(ctx, r, types.StrategicMergePatchType, `{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`); err != nil {
			return err
		}
	}
	return s.eventually(ctx, func() (string, error) {
		_, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
		if v, exists := s.sim.Volume(r.volume); exists || !apierrors.IsNotFound(err) {
			return fmt.Sprintf("PersistentVolume %s: %v; volume: %s", r.pv, err, describe([]cindersim.Volume{v})), nil
		}
		return "", nil
	})
}

// ends deletes the claim that has the volume. After that, nothing is left of anything,
// and nothing counts.
func (s *rebindSite) ends(ctx context.Context, r *rebinding) error {
	if err := s.drop(ctx, r.to); err != nil {
		return err
	}
	if err := s.letGo(ctx, r); err != nil {
		return err
	}
	return errors.Join(s.gone(ctx), s.counts(ctx, r, counted{0, 0, 0}), s.removeDecoys())
}

// operator runs a command beside the replicas.
func (s *rebindSite) operator(ctx context.Context, name string, arguments ...string) (output string, err error) {
	_, command, err := s.volumeCommand(ctx, s.dir, name, arguments...)
	if err != nil {
		return "", err
	}
	text, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("volume %s: %w: %s", name, err, text)
	}
	return string(text), err
}

// retype changes the volume's type, by the operator's command.
func (s *rebindSite) retype(ctx context.Context, r *rebinding, kind string) error {
	if _, err := s.operator(ctx, "retype", "--namespace", r.to.Namespace, "--claim", r.to.Name, "--type", kind, "--apply"); err != nil {
		return err
	}
	if v, _ := s.sim.Volume(r.volume); v.Type != kind {
		return fmt.Errorf("the volume has type %q, want %q", v.Type, kind)
	}
	return nil
}

// audited runs the audit, which must find nothing.
func (s *rebindSite) audited(ctx context.Context) error {
	_, command, err := s.volumeCommand(ctx, s.dir, "audit")
	if err != nil {
		return err
	}
	// The audit is no command about volumes, and knows the program's namespace.
	command.Args = slices.Concat(command.Args[:1], command.Args[2:], []string{"--namespace", harness.Namespace, "--grace", "0s", "--output", "json"})
	output, err := command.CombinedOutput()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		return err
	}
	document, _, _ := strings.Cut(string(output), "\nstandalone-cinder: ")
	var answer auditAnswer
	if err := json.Unmarshal([]byte(document), &answer); err != nil {
		return fmt.Errorf("audit: %w:\n%s", err, output)
	}
	// Decoys have no PersistentVolume.
	answer.Findings = slices.DeleteFunc(answer.Findings, func(f auditFinding) bool {
		return slices.ContainsFunc(s.decoys, func(d cindersim.Volume) bool { return d.ID == f.Volume })
	})
	if len(answer.Findings) > 0 {
		return fmt.Errorf("the audit finds %+v", answer.Findings)
	}
	return nil
}

// reported compares the leader's report with the counts.
func (s *rebindSite) reported(ctx context.Context, r *rebinding) error {
	return s.eventually(ctx, func() (string, error) {
		leader, err := s.leader(ctx)
		if err != nil {
			return "", err
		}
		code, output, err := suite.Run(ctx, "status", "--url", "http://"+leader.Address, "--output", "json")
		if err != nil {
			return "", err
		}
		var report statusreport.Report
		if err := json.Unmarshal([]byte(output), &report); err != nil || code != 0 {
			return fmt.Sprintf("status: exit code %d: %v: %s", code, err, output), nil
		}
		for _, tenant := range report.Tenants {
			want := int64(0)
			if tenant.Name == tenantsByEnd[r.way.to].tenant {
				want = 1
			}
			for _, quota := range tenant.Quotas {
				if quota.Resource == statusreport.Volumes && (quota.Used == nil || *quota.Used != want) {
					return fmt.Sprintf("the report says of tenant %s: %s", tenant.Name, output), nil
				}
			}
		}
		return "", nil
	})
}

// uses does with a rebound volume what is done with any other: it grows, is copied, gets
// another type, is listed and audited.
func (s *rebindSite) uses(ctx context.Context, r *rebinding, thoroughly bool) error {
	if err := s.grow(ctx, r, 2); err != nil {
		return err
	}
	snapshot, err := s.snapshot(ctx, r.to, r.volume)
	if err != nil {
		return err
	}
	if err := s.counts(ctx, r, counted{1, 2, 1}); err != nil {
		return err
	}
	if thoroughly {
		if err := s.copies(ctx, r, snapshot.Name); err != nil {
			return err
		}
	}
	if err := s.removeSnapshot(ctx, snapshot.Namespace, snapshot.Name); err != nil {
		return err
	}
	if thoroughly {
		if err := s.retype(ctx, r, "other"); err != nil {
			return err
		}
		if err := s.reported(ctx, r); err != nil {
			return err
		}
		if err := s.audited(ctx); err != nil {
			return err
		}
	}
	return s.counts(ctx, r, counted{1, 2, 0})
}

// begins makes a volume, and checks that it counts where it was made.
func (s *rebindSite) begins(ctx context.Context, w way) (*rebinding, error) {
	s.sim.ResetJournal()
	s.begin()
	r := &rebinding{way: w}
	if err := w.prepare(ctx, s, r); err != nil {
		return nil, fmt.Errorf("before anything: %w", err)
	}
	return r, nil
}

// through gives a volume to another claim, undisturbed, uses it, and deletes it.
func (s *rebindSite) through(ctx context.Context, w way) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := s.begins(ctx, w)
	if err != nil {
		return err
	}
	said := s.said(`"Rebound a volume"`)
	if err := w.handOver(ctx, s, r); err != nil {
		return fmt.Errorf("handing over: %w", err)
	}
	if err := s.rebound(ctx, r); err != nil {
		return err
	}
	if w.finish != nil {
		if err := w.finish(ctx, s, r); err != nil {
			return fmt.Errorf("cleaning up: %w", err)
		}
	}
	if err := s.rebound(ctx, r); err != nil {
		return fmt.Errorf("after the clean-up: %w", err)
	}
	if err := s.toldOnce(ctx, r, "Rebound"); err != nil {
		return err
	}
	if err := s.notWarned(ctx, r); err != nil {
		return err
	}
	if now := s.said(`"Rebound a volume"`); now != said+1 {
		return fmt.Errorf("the audit trail has %d lines about the rebind, want one", now-said)
	}
	s.rebinds++
	if err := s.uses(ctx, r, s.patient); err != nil {
		return err
	}
	if complaint, err := s.unlikeRebound(ctx, r); complaint != "" || err != nil {
		return fmt.Errorf("after its use: %s (%w)", complaint, err)
	}
	return s.ends(ctx, r)
}

// commonWays are in every run of the tests.
var commonWays = []way{
	{name: "administrator, to another tenant", to: "-other", prepare: made, handOver: byVolumeName("moved"), finish: policyBack},
	{name: "administrator, under the same name", prepare: made, handOver: byReservation("data"), finish: policyBack, retain: true},
	{name: "lib-volume-populator", from: "-populator", prepare: prepareByLibPopulator, handOver: handOverByLibPopulator, finish: finishByLibPopulator},
	{name: "Velero's restore of objects", prepare: made, handOver: handOverByRestore, retain: true},
}

var otherWays = []way{
	{name: "administrator, to the same tenant", prepare: made, handOver: byVolumeName("moved"), finish: policyBack},
	{name: "administrator, to another namespace of the tenant", to: "-more", prepare: made, handOver: byReservation("data"), finish: policyBack},
	{name: "administrator, kept volume to another tenant", from: "-other", prepare: made, handOver: byReservation("moved"), finish: policyBack, retain: true},
	{name: "lib-volume-populator, kept volume", from: "-populator", to: "-other", prepare: prepareByLibPopulator, handOver: handOverByLibPopulator, finish: finishByLibPopulator, retain: true},
	{name: "lib-volume-populator, on behalf of the claim", from: "-fillers", to: "-other", prepare: prepareByLibPopulator, handOver: handOverByLibPopulator, finish: finishByLibPopulator},
	{name: "containerized-data-importer", prepare: prepareByCDI, handOver: handOverByCDI, finish: dropLost},
	{name: "containerized-data-importer, kept volume", from: "-more", to: "-more", prepare: prepareByCDI, handOver: handOverByCDI, finish: dropLost, retain: true},
	{name: "VolSync", prepare: prepareByVolSync, handOver: handOverByVolSync, finish: finishByVolSync},
	{name: "Velero's data mover", from: "-velero", prepare: prepareByVelero, handOver: handOverByVelero, finish: finishByVelero},
	{name: "Velero's data mover, kept volume", from: "-velero", to: "-other", prepare: prepareByVelero, handOver: handOverByVelero, finish: finishByVelero, retain: true},
	{name: "kubectl apply", prepare: made, handOver: handOverByKubectl(nil), finish: policyBack},
	{name: "kubectl apply without our UID", prepare: made, handOver: handOverByKubectl(func(pv *corev1.PersistentVolume) { delete(pv.Annotations, annotation("claim-uid")) }), finish: policyBack},
	{name: "kubectl apply with a wrong UID of ours", prepare: made, handOver: handOverByKubectl(func(pv *corev1.PersistentVolume) {
		pv.Annotations[annotation("claim-uid")] = "3b1c5f5e-8a55-4a40-8c9b-6f6d2a1b9e10"
	}), retain: true},
	{name: "kubectl apply, and the old advice", prepare: made, handOver: handOverByOldAdvice, finish: policyBack},
	{name: "another cluster", prepare: made, handOver: handOverToAnotherCluster, finish: policyBack},
}

// rebindsBy runs ways one after another on a site of its own for each mode.
func rebindsBy(t *testing.T, name string, patient bool, modes []string, ways []way) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), worldTime)
			defer cancel()
			s, err := newRebindSite(ctx, name+"-"+mode, mode, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.close(); err != nil {
					t.Error(err)
				}
			}()
			s.patient = patient
			for _, w := range ways {
				t.Run(w.name, func(t *testing.T) {
					if err := s.through(ctx, w); err != nil {
						t.Fatalf("%v\n%s", err, s.news())
					}
					s.news()
				})
				if t.Failed() {
					return // what is left there would only fail the next one
				}
			}
		})
	}
}

// TestRebinds: volumes that are given to other claims are the other claims', count for
// their tenants, and are used and deleted like any other.
func TestRebinds(t *testing.T) {
	t.Parallel()
	rebindsBy(t, "rebind", false, []string{"attachment", "csi"}, commonWays)
}

// TestReboundVolumesAndTheirSidecars: the real csi-resizer and csi-snapshotter serve a
// rebound volume as any other.
//
//tier:outage
func TestReboundVolumesAndTheirSidecars(t *testing.T) {
	// Sidecars serve every volume of the driver in a cluster, so no test runs beside.
	ctx, cancel := context.WithTimeout(context.Background(), worldTime)
	defer cancel()
	s, err := newRebindSite(ctx, "rebindsidecars", "csi", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, begin := range []func(string) (*harness.Sidecar, error){suite.Resizer(ctx, s.provisioner), suite.Snapshotter(ctx, s.provisioner)} {
		sidecar, err := begin(s.living()[0].socket)
		if err != nil {
			t.Fatal(err)
		}
		defer sidecar.Stop()
	}
	s.sidecars = true
	for _, w := range commonWays[:3] {
		if err := s.through(ctx, w); err != nil {
			t.Fatalf("%s: %v\n%s", w.name, err, s.news())
		}
		s.news()
	}
}

// TestRebindsOfEveryKind does the same in all ways, modes and workflows, and at the pace
// of Kubernetes.
//
//tier:outage
func TestRebindsOfEveryKind(t *testing.T) {
	t.Parallel()
	rebindsBy(t, "rebinds", true, rebindModes, slices.Concat(otherWays, commonWays))
}
