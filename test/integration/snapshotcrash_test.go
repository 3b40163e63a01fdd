package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/sample"
)

// snapshotSite is a site with one claim, whose snapshots are taken and deleted
// while leaders die.
type snapshotSite struct {
	*site
	client snapshotclient.Interface
	taken  int
	life   snapshotLife
	// next sets a trap for the next case.
	next func()
	// sidecar ends beSidecar; nil without it.
	sidecar context.CancelFunc
}

// The changes that a snapshot's life is made of.
const (
	stepTakeSnapshot    = "cinder POST snapshots"
	stepLetGoOfSnapshot = "kubernetes PATCH apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/snapcontent-ID"
	stepLetGoOfGroup    = "kubernetes PATCH apis/groupsnapshot.storage.k8s.io/v1/volumegroupsnapshotcontents/groupsnapcontent-ID"
	stepMarkSnapshot    = "cinder POST snapshots/ID/metadata"
	stepDeleteSnapshot  = "cinder DELETE snapshots/ID"
	stepChangeImported  = "kubernetes PATCH apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/imported-ID"
	stepNameImported    = "kubernetes PATCH apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/imported-ID/status"
)

// snapshotLife is how a snapshot begins and ends.
type snapshotLife struct {
	begin, end string
	// kept means that another VolumeSnapshot left it behind at Cinder. Otherwise somebody made
	// it there.
	kept bool
	// csi means that its content has the CSI driver's name.
	csi bool
}

// The phases of the lives.
const (
	phaseImporting      = "importing"
	phaseDeletingImport = "deleting an import"
	phaseTakingUp       = "taking up"
	phaseDeletingKept   = "deleting what was taken up"
	phaseTakingUpCSI    = "taking up in mode csi"
	phaseDeletingCSI    = "deleting what was taken up in mode csi"
)

func snapshotLives() []snapshotLife {
	return []snapshotLife{
		{begin: phaseImporting, end: phaseDeletingImport},
		{begin: phaseTakingUp, end: phaseDeletingKept, kept: true},
		{begin: phaseTakingUpCSI, end: phaseDeletingCSI, kept: true, csi: true},
	}
}

// TestCrashMatrixOfSnapshots kills the leader before every change and after every request
// of the life of a snapshot that exists at Cinder when its objects are made, in turn. The
// next leader ends with exactly that snapshot, and after the VolumeSnapshot with none.
//
//tier:matrix
func TestCrashMatrixOfSnapshots(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	t.Cleanup(cancel) // after the parallel subtests
	if err := suite.InstallSnapshots(ctx); err != nil {
		t.Fatal(err)
	}
	for _, phase := range []struct {
		name     string
		mustHave []string
	}{
		{phaseImporting, []string{stepChangeImported, stepMarkSnapshot, stepNameImported}},
		{phaseDeletingImport, []string{stepDeleteSnapshot, stepChangeImported}},
		{phaseTakingUp, []string{stepChangeImported, stepMarkSnapshot, stepNameImported}},
		{phaseDeletingKept, []string{stepDeleteSnapshot, stepChangeImported}},
		{phaseTakingUpCSI, []string{stepChangeImported, stepNameImported, stepMarkSnapshot}},
		{phaseDeletingCSI, []string{stepDeleteSnapshot}},
	} {
		t.Run(phase.name, func(t *testing.T) {
			t.Parallel()
			lives := snapshotLives()
			life := lives[slices.IndexFunc(lives, func(l snapshotLife) bool { return l.begin == phase.name || l.end == phase.name })]
			dir, err := os.MkdirTemp("", "csi-") // a socket's path must be short
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			s, err := newSnapshotSite(ctx, "snapcrash-"+strings.ReplaceAll(phase.name, " ", "-"), dir, life)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if s.sidecar != nil {
					s.sidecar()
				}
				if err := s.close(); err != nil {
					t.Error(err)
				}
			}()
			steps, err := s.recorded(ctx, phase.name)
			if err != nil {
				t.Fatalf("undisturbed: %v\n%s\n%s", err, s.news(), suite.SnapshotControllerLog())
			}
			for _, what := range phase.mustHave {
				if !slices.Contains(steps, step{what, 1}) {
					t.Errorf("the undisturbed runs have no step %q: %v", what, steps)
				}
			}
			sampled := sample.New(t)
			for _, at := range steps {
				for _, verdict := range []faultproxy.Verdict{faultproxy.HoldBefore, faultproxy.HoldAfter} {
					if at.reads() && verdict == faultproxy.HoldBefore {
						continue // before or after is the same to a read
					}
					if !sampled.Takes(phase.name) {
						continue
					}
					err := s.crashAt(ctx, phase.name, at, verdict)
					switch {
					case errors.Is(err, errNotReached) && !slices.Contains(phase.mustHave, at.String()):
						t.Logf("no run took the step %s again", at)
					case err != nil:
						t.Fatalf("killed at %s (%s): %v\n%s\n%s", at, verdict, err, s.news(), suite.SnapshotControllerLog())
					}
					s.news()
				}
			}
			t.Logf("killed at %d steps", len(steps))
		})
	}
}

func newSnapshotSite(ctx context.Context, name, dir string, life snapshotLife) (*snapshotSite, error) {
	options := siteOptions{cinder: quickSnapshots()}
	if life.kept {
		// There is no room for what counts twice, or is never given back.
		options.rule, options.quota = "mode: native", "{volumes: 1, gigabytes: 1, snapshots: 1}"
	}
	if life.csi {
		options.csi, options.workflow, options.sockets, options.rule = true, "attachment", dir, "mode: csi"
	}
	base, err := newSite(ctx, name, options)
	if err != nil {
		return nil, err
	}
	s := &snapshotSite{site: base, life: life}
	s.client, err = snapshotclient.NewForConfig(suite.Config)
	if err == nil && life.csi {
		err = suite.AllowCSINodes(ctx, s.provisioner)
		sidecar, end := context.WithCancel(ctx)
		s.sidecar = end
		go s.beSidecar(sidecar)
	}
	if err == nil {
		_, err = s.client.SnapshotV1().VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: s.provisioner, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		}, metav1.CreateOptions{})
	}
	if err == nil {
		err = s.replace(ctx)
	}
	var claim *corev1.PersistentVolumeClaim
	if err == nil {
		claim, err = s.claim(ctx, "data")
	}
	if err == nil {
		err = s.served(ctx, claim)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// bring makes a snapshot at Cinder, and the objects that import it.
func (s *snapshotSite) bring(ctx context.Context) (*snapshotv1.VolumeSnapshot, error) {
	s.taken++
	claim, err := suite.Client.CoreV1().PersistentVolumeClaims(s.namespace).Get(ctx, "data", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	name, title, class := fmt.Sprintf("snapshot-%d", s.taken), "old data", s.class
	var metadata map[string]string
	if s.life.kept {
		left := fmt.Sprintf("00000000-0000-4000-8000-%012d", s.taken)
		kubeSystem, err := suite.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		title, class = objects.SnapshotName(types.UID(left)), ""
		metadata = stamps.Snapshot{
			Cluster: "cluster-" + s.name, ClusterUID: string(kubeSystem.UID), Namespace: s.namespace, Snapshot: "left-" + name, SnapshotUID: left,
			Content: objects.SnapshotContentName(types.UID(left)), Tenant: "tenant", StorageClass: s.class,
		}.Metadata(nil)
		metadata[stamps.KeyRecorded] = "true"
		if s.life.csi {
			metadata[stamps.KeyMode] = stamps.ModeCSI
		}
	}
	id, err := s.sim.AddSnapshot(pv.Annotations[objects.AnnotationVolume], title, metadata)
	if err != nil {
		return nil, err
	}
	wanted := objects.NewImportedSnapshotContent(id, s.namespace, name, s.provisioner, class, snapshotv1.VolumeSnapshotContentDelete, nil)
	if s.life.csi {
		handle := wire.Handle{Backend: "gold", ID: id}.String()
		wanted.Spec.Driver, wanted.Spec.Source.SnapshotHandle = wire.DriverName, &handle
	}
	content, err := s.client.SnapshotV1().VolumeSnapshotContents().Create(ctx, wanted, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return s.client.SnapshotV1().VolumeSnapshots(s.namespace).Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &content.Name}},
	}, metav1.CreateOptions{})
}

// contentName returns the name of a VolumeSnapshot's content.
func contentName(of *snapshotv1.VolumeSnapshot) string {
	if named := of.Spec.Source.VolumeSnapshotContentName; named != nil {
		return *named
	}
	return objects.SnapshotContentName(of.UID)
}

// ready waits until the VolumeSnapshot is ready and Cinder has exactly the
// snapshot that its content names.
func (s *snapshotSite) ready(ctx context.Context, of *snapshotv1.VolumeSnapshot) error {
	return s.eventually(ctx, func() (string, error) {
		snapshot, err := s.client.SnapshotV1().VolumeSnapshots(s.namespace).Get(ctx, of.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if snapshot.Status == nil || snapshot.Status.ReadyToUse == nil || !*snapshot.Status.ReadyToUse {
			return fmt.Sprintf("the VolumeSnapshot is not ready: %+v", snapshot.Status), nil
		}
		content, err := s.client.SnapshotV1().VolumeSnapshotContents().Get(ctx, contentName(of), metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		stored := s.sim.Snapshots()
		if len(stored) != 1 || stored[0].ID != objects.SnapshotHandleOf(content) || stored[0].Status != "available" {
			return fmt.Sprintf("the content names %q, and Cinder has %+v", objects.SnapshotHandleOf(content), stored), nil
		}
		if !s.life.kept {
			return "", nil
		}
		if stamp := stored[0].Metadata; stamp[stamps.KeySnapshotUID] != string(of.UID) || stamp[stamps.KeySnapshotContent] != content.Name {
			return "", fmt.Errorf("it is ready, but its stamp is %v", stamp)
		}
		return s.unlikeCounted(ctx, "tenant", 1, 1, 1)
	})
}

// beSidecar does what csi-snapshotter does, beside whichever replica leads.
func (s *snapshotSite) beSidecar(ctx context.Context) {
	for pause(ctx, 50*time.Millisecond) == nil {
		contents, err := s.client.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for i := range contents.Items {
			content := &contents.Items[i]
			if content.Spec.Driver != wire.DriverName || content.Spec.VolumeSnapshotRef.Namespace != s.namespace {
				continue
			}
			_, asked := content.Annotations[objects.AnnotationSnapshotBeingDeleted]
			switch {
			case content.DeletionTimestamp != nil && asked && slices.Contains(content.Finalizers, objects.SnapshotFinalizer):
				_ = s.letGoOf(ctx, content) // it is tried again
			case content.DeletionTimestamp == nil && !objects.IsSnapshotReady(content):
				_ = s.askAbout(ctx, content)
			}
		}
	}
}

// letGoOf deletes the snapshot that the status of a content names, and then the
// finalizer.
func (s *snapshotSite) letGoOf(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	contents := s.client.SnapshotV1().VolumeSnapshotContents()
	if content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete && content.Status != nil && content.Status.SnapshotHandle != nil {
		err := s.driven(ctx, func(driver csiDriver) error {
			_, err := driver.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: *content.Status.SnapshotHandle})
			return err
		})
		if err != nil {
			return err
		}
		if _, err := contents.Patch(ctx, content.Name, types.MergePatchType, []byte(`{"status": {"snapshotHandle": null, "readyToUse": null}}`), metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	left, err := json.Marshal(slices.DeleteFunc(slices.Clone(content.Finalizers), func(f string) bool { return f == objects.SnapshotFinalizer }))
	if err == nil {
		_, err = contents.Patch(ctx, content.Name, types.JSONPatchType, fmt.Appendf(nil, `[{"op": "replace", "path": "/metadata/finalizers", "value": %s}]`, left), metav1.PatchOptions{})
	}
	return err
}

// askAbout asks whether the snapshot of a content is ready, and writes the answer into
// its status. Sometimes it overwrites what was written in the meantime, as the sidecar
// does with an error.
func (s *snapshotSite) askAbout(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	handle := *content.Spec.Source.SnapshotHandle
	var listed *csi.ListSnapshotsResponse
	err := s.driven(ctx, func(driver csiDriver) (err error) {
		listed, err = driver.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: handle})
		return err
	})
	status := `[{"op": "replace", "path": "/status", "value": {"readyToUse": false}}]`
	if err == nil && len(listed.GetEntries()) == 1 && listed.GetEntries()[0].GetSnapshot().GetReadyToUse() {
		found := listed.GetEntries()[0].GetSnapshot()
		status = fmt.Sprintf(`[{"op": "replace", "path": "/status", "value": {"readyToUse": true, "snapshotHandle": %q, "restoreSize": %d, "creationTime": %d}}]`,
			handle, found.GetSizeBytes(), found.GetCreationTime().AsTime().UnixNano())
	}
	_, err = s.client.SnapshotV1().VolumeSnapshotContents().Patch(ctx, content.Name, types.JSONPatchType, []byte(status), metav1.PatchOptions{}, "status")
	return err
}

// removed deletes the VolumeSnapshot, unless that was done, and waits until nothing
// is left.
func (s *snapshotSite) removed(ctx context.Context, of *snapshotv1.VolumeSnapshot) error {
	if err := s.client.SnapshotV1().VolumeSnapshots(s.namespace).Delete(ctx, of.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return s.eventually(ctx, func() (string, error) {
		_, err := s.client.SnapshotV1().VolumeSnapshots(s.namespace).Get(ctx, of.Name, metav1.GetOptions{})
		content, contentErr := s.client.SnapshotV1().VolumeSnapshotContents().Get(ctx, contentName(of), metav1.GetOptions{})
		if stored := s.sim.Snapshots(); len(stored) > 0 || !apierrors.IsNotFound(err) || !apierrors.IsNotFound(contentErr) {
			return fmt.Sprintf("left are %+v at Cinder, VolumeSnapshot: %v, content: %+v %v", stored, err, content.ObjectMeta, contentErr), nil
		}
		return "", nil
	})
}

// recorded returns the steps that every one of several undisturbed runs takes.
func (s *snapshotSite) recorded(ctx context.Context, phase string) (steps []step, err error) {
	for run := range 3 {
		taken, err := s.pass(ctx, phase, func(context.Context, func(context.Context) error) error { return nil })
		if err != nil {
			return nil, err
		}
		if run == 0 {
			steps = taken
		}
		steps = slices.DeleteFunc(steps, func(at step) bool {
			return !slices.Contains(taken, at) || !strings.Contains(at.what, "snapshot") && at.reads()
		})
	}
	return steps, nil
}

// pass lets a snapshot's life pass, and makes something happen during one phase of it,
// which ends when a goal is met. It returns the steps of that phase.
func (s *snapshotSite) pass(ctx context.Context, phase string, during func(ctx context.Context, goal func(context.Context) error) error) ([]step, error) {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	var steps []step
	meanwhile := func(of string, act func() error, goal func(context.Context) error) error {
		if of == phase {
			s.begin()
			if s.next != nil {
				s.next()
			}
		}
		err := act()
		if err == nil && of == phase {
			err = during(ctx, goal)
		}
		if err == nil {
			err = goal(ctx)
		}
		if of == phase {
			steps = s.steps()
		}
		return err
	}
	var snapshot *snapshotv1.VolumeSnapshot
	err := meanwhile(s.life.begin, func() (err error) { snapshot, err = s.bring(ctx); return err },
		func(ctx context.Context) error { return s.ready(ctx, snapshot) })
	if err == nil {
		err = meanwhile(s.life.end, func() error {
			return s.client.SnapshotV1().VolumeSnapshots(s.namespace).Delete(ctx, snapshot.Name, metav1.DeleteOptions{})
		}, func(ctx context.Context) error { return s.removed(ctx, snapshot) })
	}
	s.begin()
	s.release()
	if err == nil {
		err = s.removed(ctx, snapshot)
	}
	return steps, err
}

// crashAt kills a leader at one step. If the phase passes without the step, it begins
// again: whether a step is needed may depend on what the caches show already.
func (s *snapshotSite) crashAt(ctx context.Context, phase string, at step, verdict faultproxy.Verdict) (err error) {
	for range attempts {
		if _, err := s.leader(ctx); err != nil {
			return err
		}
		var caught *trap
		reached := false
		s.next = func() { caught = s.set(at, verdict) }
		_, err = s.pass(ctx, phase, func(ctx context.Context, goal func(context.Context) error) error {
			if reached, err = s.reaches(ctx, caught, goal); err != nil || !reached {
				return err
			}
			s.kill(caught.by)
			return s.replace(ctx)
		})
		if err != nil || reached {
			return err
		}
	}
	return errNotReached
}

// TestCrashMatrixOfAbandonedSnapshots kills the leader before every change and after
// every request while it takes up a kept snapshot, and its objects are deleted before
// another leads. Either the snapshot goes with them, as their policy says, or it is still
// the kept one: nothing else that carries its new stamp could ever delete it.
//
//tier:matrix
func TestCrashMatrixOfAbandonedSnapshots(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	t.Cleanup(cancel) // after the parallel subtests
	if err := suite.InstallSnapshots(ctx); err != nil {
		t.Fatal(err)
	}
	for _, life := range snapshotLives() {
		if !life.kept {
			continue
		}
		t.Run(life.begin, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "csi-")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			s, err := newSnapshotSite(ctx, "snapabandon-"+strings.ReplaceAll(life.begin, " ", "-"), dir, life)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if s.sidecar != nil {
					s.sidecar()
				}
				if err := s.close(); err != nil {
					t.Error(err)
				}
			}()
			steps, err := s.recorded(ctx, life.begin)
			if err != nil {
				t.Fatalf("undisturbed: %v\n%s", err, s.news())
			}
			sampled, gone, kept := sample.New(t), 0, 0
			for _, at := range steps {
				for _, verdict := range []faultproxy.Verdict{faultproxy.HoldBefore, faultproxy.HoldAfter} {
					if at.reads() && verdict == faultproxy.HoldBefore || !sampled.Takes(life.begin) {
						continue
					}
					left, err := s.abandonAt(ctx, at, verdict)
					switch {
					case errors.Is(err, errNotReached):
						t.Logf("no run took the step %s again", at)
					case err != nil:
						t.Fatalf("abandoned at %s (%s): %v\n%s\n%s", at, verdict, err, s.news(), suite.SnapshotControllerLog())
					case left:
						kept++
					default:
						gone++
					}
					s.news()
				}
			}
			t.Logf("abandoned at %d steps: %d snapshots are gone, %d are kept", len(steps), gone, kept)
		})
	}
}

// abandonAt kills a leader at a step of taking up a snapshot, deletes the objects, and
// lets another one lead. It reports whether the snapshot is left, and then removes it.
func (s *snapshotSite) abandonAt(ctx context.Context, at step, verdict faultproxy.Verdict) (left bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	if _, err := s.leader(ctx); err != nil {
		return false, err
	}
	s.begin()
	caught := s.set(at, verdict)
	snapshot, err := s.bring(ctx)
	if err != nil {
		return false, err
	}
	reached, err := s.reaches(ctx, caught, func(ctx context.Context) error { return s.ready(ctx, snapshot) })
	if err != nil {
		return false, err
	}
	if reached {
		s.kill(caught.by)
	}
	if err := s.client.SnapshotV1().VolumeSnapshots(s.namespace).Delete(ctx, snapshot.Name, metav1.DeleteOptions{}); err != nil {
		return false, err
	}
	if err := s.client.SnapshotV1().VolumeSnapshotContents().Delete(ctx, contentName(snapshot), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	s.begin()
	s.release()
	if err := s.replace(ctx); err != nil {
		return false, err
	}
	err = s.eventually(ctx, func() (string, error) {
		_, err := s.client.SnapshotV1().VolumeSnapshots(s.namespace).Get(ctx, snapshot.Name, metav1.GetOptions{})
		content, contentErr := s.client.SnapshotV1().VolumeSnapshotContents().Get(ctx, contentName(snapshot), metav1.GetOptions{})
		if !apierrors.IsNotFound(err) || !apierrors.IsNotFound(contentErr) {
			return fmt.Sprintf("VolumeSnapshot: %v, content: %+v %+v %v", err, content.ObjectMeta, content.Status, contentErr), nil
		}
		stored := s.sim.Snapshots()
		left = len(stored) > 0
		if left && stored[0].Metadata[stamps.KeySnapshotUID] == string(snapshot.UID) {
			return fmt.Sprintf("left is %+v", stored[0]), nil
		}
		return s.unlikeCounted(ctx, "tenant", 1, 1, len(stored))
	})
	if err == nil && left {
		if err = s.sim.RemoveSnapshot(s.sim.Snapshots()[0].ID); err == nil {
			// Another term no longer counts it.
			if leader, leading := s.leader(ctx); leading == nil {
				s.kill(leader)
			}
			err = s.replace(ctx)
		}
	}
	if err == nil && !reached {
		err = errNotReached
	}
	return left, err
}
