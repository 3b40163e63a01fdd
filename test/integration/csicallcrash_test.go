package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// sidecarCall is a call of a sidecar, and what the sidecar does around it.
type sidecarCall struct {
	name string
	// mustHave are steps without which the case proves nothing.
	mustHave []string
	// begin leads to the call, from a claim whose volume is there.
	begin func(*callSite, context.Context) error
	// call makes it once. The sidecar repeats it until it succeeds.
	call func(*callSite, context.Context, csiDriver) error
	// end does what the sidecar does after the call, and waits for what must be true
	// then. twice means that Cinder may have got a request of the call more than once.
	end func(s *callSite, ctx context.Context, twice bool) error
}

var sidecarCalls = []sidecarCall{
	{
		name: "ControllerExpandVolume", mustHave: []string{"cinder POST volumes/ID/action os-extend", "kubernetes GET api/v1/namespaces/NAMESPACE/persistentvolumeclaims/data"},
		begin: (*callSite).askForMore,
		call: func(s *callSite, ctx context.Context, driver csiDriver) error {
			answer, err := driver.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: s.handle, CapacityRange: &csi.CapacityRange{RequiredBytes: 3 << 30}})
			if err == nil && (answer.GetCapacityBytes() != 3<<30 || !answer.GetNodeExpansionRequired()) {
				return fmt.Errorf("%w: the volume has %d bytes", errWrongAnswer, answer.GetCapacityBytes())
			}
			return err
		},
		end: (*callSite).hasMore,
	},
	{
		name: "CreateSnapshot", mustHave: []string{stepTakeSnapshot, stepMarkSnapshot, stepLetGoOfSnapshot, "kubernetes GET apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/snapcontent-ID"},
		begin: (*callSite).askForSnapshot, call: (*callSite).takeSnapshot, end: (*callSite).hasSnapshot,
	},
	{
		name: "DeleteSnapshot", mustHave: []string{stepDeleteSnapshot, "kubernetes GET apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/snapcontent-ID"},
		begin: (*callSite).askForItsEnd,
		call: func(s *callSite, ctx context.Context, driver csiDriver) error {
			_, err := driver.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.snapshotHandle})
			return err
		},
		end: (*callSite).hasNoSnapshot,
	},
	{
		name: "CreateVolumeGroupSnapshot", mustHave: []string{stepTakeSnapshot, stepMarkSnapshot, stepLetGoOfGroup},
		begin: (*callSite).askForGroup, call: (*callSite).takeGroup, end: (*callSite).hasGroup,
	},
	{
		name: "DeleteVolumeGroupSnapshot", mustHave: []string{stepDeleteSnapshot},
		begin: (*callSite).askForGroupsEnd, call: (*callSite).removeGroup, end: (*callSite).hasNoGroup,
	},
	{
		name: "ControllerModifyVolume", mustHave: []string{stepRetype, "kubernetes GET api/v1/namespaces/NAMESPACE/persistentvolumeclaims/data", "kubernetes GET api/v1/persistentvolumes/pvc-ID"},
		begin: func(*callSite, context.Context) error { return nil },
		call: func(s *callSite, ctx context.Context, driver csiDriver) error {
			_, err := driver.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: s.handle, MutableParameters: map[string]string{"type": "other"}})
			return err
		},
		end: (*callSite).hasOtherType,
	},
}

// errWrongAnswer means that a call has succeeded, but not as it should.
var errWrongAnswer = errors.New("the answer is wrong")

// callSite is a site with the volume of one claim, and the sidecars' part of the work.
// Its quota has just the room that the cases need, so that what counts twice or is
// never given back stops the next case.
type callSite struct {
	*site
	of       sidecarCall
	client   snapshotclient.Interface
	claim    *corev1.PersistentVolumeClaim
	handle   string
	snapshot *snapshotv1.VolumeSnapshot
	// content is the snapshot's, and snapshotHandle what the driver called it.
	content, snapshotHandle string
	// group is the VolumeGroupSnapshot of the claim.
	group *groupv1.VolumeGroupSnapshot
}

// TestCrashMatrixOfSidecarCalls lets the leader die, and requests and answers be lost,
// late or doubled, at every step of a call of csi-resizer and of csi-snapshotter. The
// call is repeated as they repeat it, is never refused for good, and has its effect
// once; the ledger counts exactly that, and the volume is otherwise unchanged.
//
//tier:matrix
func TestCrashMatrixOfSidecarCalls(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	if err := suite.InstallSnapshots(ctx); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for number, of := range sidecarCalls {
		all.Go(func() {
			t.Run(of.name, func(t *testing.T) {
				dir, err := os.MkdirTemp("", "csi-")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir)
				s, err := newCallSite(ctx, fmt.Sprintf("csicalls%d", number), dir, of)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := s.close(); err != nil {
						t.Error(err)
					}
				}()
				steps, err := s.through(ctx, step{}, mishap{})
				if err != nil {
					t.Fatalf("undisturbed: %v\n%s", err, s.news())
				}
				crashTable{
					site: s.site, steps: steps, mishaps: attachMishaps, must: of.mustHave, fits: fitsLeader, mayMiss: vary, first: true,
					run: func(at step, m mishap) error {
						_, err := s.through(ctx, at, m)
						return err
					},
				}.runAll(t)
			})
		})
	}
	all.Wait()
}

func newCallSite(ctx context.Context, name, dir string, of sidecarCall) (*callSite, error) {
	options := siteOptions{
		workflow: "attachment", csi: true, sockets: dir, requestTimeout: time.Second, apiPatience: time.Second, namedReads: true,
		rule: "mode: csi\n        groups: true\n        volumeTypes: [iscsi, other]", quota: "{volumes: 1, gigabytes: 3, snapshots: 1}",
		auditEvery: 20 * time.Second, // which finds what came late
		cinder: cindersim.Options{
			CreateDelay: 50 * time.Millisecond, DeleteDelay: 50 * time.Millisecond, ExtendDelay: 200 * time.Millisecond, SnapshotDelay: 200 * time.Millisecond,
			Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: "other", Backend: "iscsi", RequiresInitiator: true}),
		},
	}
	base, err := newSite(ctx, name, options)
	if err != nil {
		return nil, err
	}
	s := &callSite{site: base, of: of}
	if s.client, err = snapshotclient.NewForConfig(suite.Config); err == nil {
		_, err = s.client.SnapshotV1().VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: wire.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = s.client.GroupsnapshotV1().VolumeGroupSnapshotClasses().Create(ctx, &groupv1.VolumeGroupSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: wire.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		}, metav1.CreateOptions{})
	}
	if err == nil {
		err = suite.AllowCSINodes(ctx, s.provisioner)
	}
	if err == nil {
		err = s.replace(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// through makes a claim, makes the call while a mishap befalls a step, and deletes the
// claim. It returns the steps of the call.
func (s *callSite) through(ctx context.Context, at step, m mishap) ([]step, error) {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	if err := s.prepareCall(ctx); err != nil {
		return nil, fmt.Errorf("before anything went wrong: %w", err)
	}
	s.sim.ResetJournal()
	trap, reached, err := s.during(ctx, at, m, s.repeat)
	steps := s.steps()
	twice := m.verdict == faultproxy.Late || m.verdict == faultproxy.Twice
	if err == nil {
		if err = s.of.end(s, ctx, twice); err != nil {
			err = fmt.Errorf("after the call: %w", err)
		}
	}
	if err == nil && reached && m.verdict == faultproxy.Late {
		s.release()
		if err = wait(ctx, trap.done); err == nil {
			if err = s.of.end(s, ctx, twice); err != nil {
				err = fmt.Errorf("after the late request: %w", err)
			}
		}
	}
	if err == nil {
		if err = s.finishCall(ctx); err != nil {
			err = fmt.Errorf("at the end: %w", err)
		}
	}
	if err == nil && !reached {
		err = errNotReached
	}
	return steps, err
}

// repeat makes the call until it succeeds. There is never a reason to refuse it, so no
// answer may make the sidecar believe that the call never had an effect.
func (s *callSite) repeat(ctx context.Context) error {
	for {
		err := s.driven(ctx, func(driver csiDriver) error { return s.of.call(s, ctx, driver) })
		if err == nil || errors.Is(err, errWrongAnswer) {
			return err
		}
		if answered, ok := status.FromError(err); ok && !slices.Contains([]codes.Code{codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.Canceled}, answered.Code()) {
			return fmt.Errorf("the call is refused for good: %w", err)
		}
		if paused := pause(ctx, 50*time.Millisecond); paused != nil {
			return fmt.Errorf("%w; the last call: %w", paused, err)
		}
	}
}

// prepareCall makes the claim, and all that the call needs.
func (s *callSite) prepareCall(ctx context.Context) error {
	s.snapshot, s.content, s.snapshotHandle, s.group = nil, "", "", nil
	var err error
	if s.claim, err = suite.CreateClaim(ctx, harness.Claim(s.namespace, "data", s.class, "1Gi", nil)); err != nil {
		return err
	}
	if err := s.served(ctx, s.claim); err != nil {
		return err
	}
	s.handle = "gold/" + s.ours()[0].ID
	return s.of.begin(s, ctx)
}

// finishCall removes everything. After that, nothing counts.
func (s *callSite) finishCall(ctx context.Context) error {
	s.begin()
	s.release()
	if s.snapshot != nil && s.of.name != "DeleteSnapshot" {
		if err := s.deleteSnapshot(ctx); err != nil {
			return err
		}
	}
	if s.group != nil {
		if err := s.deleteGroup(ctx); err != nil {
			return err
		}
	}
	if err := s.deleteClaim(ctx, "data"); err != nil {
		return err
	}
	if err := s.gone(ctx); err != nil {
		return err
	}
	return s.ledgerCounts(ctx, 0, 0, 0)
}

// ledgerCounts waits until the leader's ledger counts exactly this.
func (s *callSite) ledgerCounts(ctx context.Context, volumes, gigabytes, snapshots int) error {
	return s.eventually(ctx, func() (string, error) { return s.unlikeCounted(ctx, "tenant", volumes, gigabytes, snapshots) })
}

// unlikeCounted compares what the leader's ledger counts for a tenant.
func (s *site) unlikeCounted(ctx context.Context, tenant string, volumes, gigabytes, snapshots int) (complaint string, err error) {
	leader, err := s.leader(ctx)
	if err != nil {
		return "", err
	}
	_, metrics, err := leader.Get(ctx, "/metrics")
	if err != nil {
		return err.Error(), nil
	}
	for name, want := range map[string]int{"volumes": volumes, "gigabytes": gigabytes, "snapshots": snapshots} {
		line := fmt.Sprintf("standalone_cinder_quota{name=%q,resource=%q,scope=\"tenant\",type=\"used\"} ", tenant, name)
		if _, after, found := strings.Cut(metrics, "\n"+line); !found || !strings.HasPrefix(after, fmt.Sprintf("%d\n", want)) {
			return fmt.Sprintf("of %s's %s count %.20q, want %d", tenant, name, after, want), nil
		}
	}
	return "", nil
}

// performed counts the requests of a kind that had an effect.
func (s *site) performed(operation string) int {
	n := 0
	for _, entry := range s.sim.Journal() {
		if entry.Operation == operation && entry.Performed && entry.Status == 202 {
			n++
		}
	}
	return n
}

// askForMore does what a user and then csi-resizer do before the call.
func (s *callSite) askForMore(ctx context.Context) error {
	claims := suite.Client.CoreV1().PersistentVolumeClaims(s.namespace)
	if _, err := claims.Patch(ctx, "data", types.MergePatchType, []byte(`{"spec": {"resources": {"requests": {"storage": "3Gi"}}}}`), metav1.PatchOptions{}); err != nil {
		return err
	}
	_, err := claims.Patch(ctx, "data", types.MergePatchType,
		[]byte(`{"status": {"allocatedResources": {"storage": "3Gi"}, "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}}`), metav1.PatchOptions{}, "status")
	return err
}

// hasMore does what csi-resizer and then a node do after it.
func (s *callSite) hasMore(ctx context.Context, _ bool) error {
	if n := s.performed("action.os-extend"); n != 1 {
		return fmt.Errorf("Cinder extended %d times, want once", n)
	}
	if v := s.ours()[0]; v.SizeGiB != 3 || v.Status != "available" {
		return fmt.Errorf("the volume has %d GiB and is %s", v.SizeGiB, v.Status)
	}
	pvs := suite.Client.CoreV1().PersistentVolumes()
	if _, err := pvs.Patch(ctx, pvName(s.claim), types.MergePatchType, []byte(`{"spec": {"capacity": {"storage": "3Gi"}}}`), metav1.PatchOptions{}); err != nil {
		return err
	}
	claims := suite.Client.CoreV1().PersistentVolumeClaims(s.namespace)
	if _, err := claims.Patch(ctx, "data", types.MergePatchType, []byte(`{"status": {"capacity": {"storage": "3Gi"}, "allocatedResourceStatuses": null}}`), metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	if err := s.ledgerCounts(ctx, 1, 3, 0); err != nil {
		return err
	}
	now, err := claims.Get(ctx, "data", metav1.GetOptions{})
	if err == nil && (!now.Status.Capacity.Storage().Equal(resource.MustParse("3Gi")) || len(now.Status.AllocatedResourceStatuses) > 0) {
		err = fmt.Errorf("the claim says %+v", now.Status)
	}
	return errors.Join(err, s.served(ctx, s.claim))
}

// askForSnapshot makes a VolumeSnapshot, and waits for the content that the
// snapshot-controller makes for csi-snapshotter.
func (s *callSite) askForSnapshot(ctx context.Context) error {
	claim, class := "data", s.name
	var err error
	s.snapshot, err = s.client.SnapshotV1().VolumeSnapshots(s.namespace).Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "one-"},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}, VolumeSnapshotClassName: &class},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	s.content = objects.SnapshotContentName(s.snapshot.UID)
	return s.eventually(ctx, func() (string, error) {
		content, err := s.client.SnapshotV1().VolumeSnapshotContents().Get(ctx, s.content, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return "the snapshot-controller has made no content", nil
		case err == nil && (content.Spec.Source.VolumeHandle == nil || *content.Spec.Source.VolumeHandle != s.handle):
			return "", fmt.Errorf("the content is for %+v", content.Spec.Source)
		}
		return "", err
	})
}

func (s *callSite) takeSnapshot(ctx context.Context, driver csiDriver) error {
	const prefix = "csi.storage.k8s.io/volumesnapshot"
	taken, err := driver.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
		SourceVolumeId: s.handle, Name: objects.SnapshotName(s.snapshot.UID),
		Parameters: map[string]string{prefix + "/name": s.snapshot.Name, prefix + "/namespace": s.namespace, prefix + "content/name": s.content},
	})
	if err != nil {
		return err
	}
	if !taken.GetSnapshot().GetReadyToUse() || taken.GetSnapshot().GetSourceVolumeId() != s.handle || taken.GetSnapshot().GetSizeBytes() != 1<<30 {
		return fmt.Errorf("%w: %v", errWrongAnswer, taken)
	}
	s.snapshotHandle = taken.GetSnapshot().GetSnapshotId()
	return nil
}

// hasSnapshot does what csi-snapshotter does after a snapshot was taken.
func (s *callSite) hasSnapshot(ctx context.Context, twice bool) error {
	most := 1
	if twice {
		most = 2
	}
	if n := s.performed("snapshot.create"); n < 1 || n > most {
		return fmt.Errorf("%d snapshots were taken, want no more than %d", n, most)
	}
	_, err := s.client.SnapshotV1().VolumeSnapshotContents().Patch(ctx, s.content, types.MergePatchType,
		fmt.Appendf(nil, `{"status": {"snapshotHandle": %q, "creationTime": %d, "restoreSize": %d, "readyToUse": true}}`, s.snapshotHandle, time.Now().UnixNano(), 1<<30), metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	err = s.eventually(ctx, func() (string, error) {
		stored := s.sim.Snapshots()
		if len(stored) != 1 || "gold/"+stored[0].ID != s.snapshotHandle || stored[0].Status != "available" || stored[0].Metadata[annotation("recorded")] != "true" {
			return fmt.Sprintf("the driver calls it %s, and Cinder has %+v", s.snapshotHandle, stored), nil
		}
		content, err := s.client.SnapshotV1().VolumeSnapshotContents().Get(ctx, s.content, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		origin, err := objects.SnapshotOriginOf(content)
		if err != nil || origin.VolumeID != s.ours()[0].ID || origin.Tenant != "tenant" {
			return fmt.Sprintf("the content records %+v (%v)", origin, err), nil
		}
		return "", nil
	})
	return errors.Join(err, s.ledgerCounts(ctx, 1, 1, 1), s.served(ctx, s.claim))
}

// askForItsEnd takes a snapshot, and deletes its content, which only the sidecar's
// finalizer keeps.
func (s *callSite) askForItsEnd(ctx context.Context) error {
	if err := s.askForSnapshot(ctx); err != nil {
		return err
	}
	for {
		err := s.driven(ctx, func(driver csiDriver) error { return s.takeSnapshot(ctx, driver) })
		if err == nil {
			break
		}
		if paused := pause(ctx, 50*time.Millisecond); paused != nil {
			return errors.Join(paused, err)
		}
	}
	if err := s.hasSnapshot(ctx, true); err != nil {
		return err
	}
	return s.abandonSnapshot(ctx)
}

// abandonSnapshot deletes the VolumeSnapshot, and waits until the snapshot-controller has
// deleted its content.
func (s *callSite) abandonSnapshot(ctx context.Context) error {
	_, err := s.client.SnapshotV1().VolumeSnapshotContents().Patch(ctx, s.content, types.MergePatchType,
		[]byte(`{"metadata": {"finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"]}}`), metav1.PatchOptions{})
	if err == nil {
		err = s.client.SnapshotV1().VolumeSnapshots(s.namespace).Delete(ctx, s.snapshot.Name, metav1.DeleteOptions{})
	}
	if err != nil {
		return err
	}
	return s.eventually(ctx, func() (string, error) {
		content, err := s.client.SnapshotV1().VolumeSnapshotContents().Get(ctx, s.content, metav1.GetOptions{})
		if err == nil && content.DeletionTimestamp == nil {
			return "the content is not deleted", nil
		}
		return "", err
	})
}

// hasNoSnapshot does what csi-snapshotter does after a snapshot was deleted.
func (s *callSite) hasNoSnapshot(ctx context.Context, _ bool) error {
	if stored := s.sim.Snapshots(); len(stored) > 0 {
		return fmt.Errorf("Cinder has %+v", stored)
	}
	_, err := s.client.SnapshotV1().VolumeSnapshotContents().Patch(ctx, s.content, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return errors.Join(s.ledgerCounts(ctx, 1, 1, 0), s.served(ctx, s.claim))
}

// deleteSnapshot ends a snapshot, by the driver.
func (s *callSite) deleteSnapshot(ctx context.Context) error {
	if err := s.abandonSnapshot(ctx); err != nil {
		return err
	}
	for {
		err := s.driven(ctx, func(driver csiDriver) error {
			_, err := driver.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.snapshotHandle})
			return err
		})
		if err == nil {
			return s.hasNoSnapshot(ctx, true)
		}
		if paused := pause(ctx, 50*time.Millisecond); paused != nil {
			return errors.Join(paused, err)
		}
	}
}

// askForGroup makes a VolumeGroupSnapshot, and waits for the content that the
// snapshot-controller makes for csi-snapshotter.
func (s *callSite) askForGroup(ctx context.Context) error {
	var err error
	s.group, err = s.client.GroupsnapshotV1().VolumeGroupSnapshots(s.namespace).Create(ctx, &groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "one-"},
		Spec:       groupv1.VolumeGroupSnapshotSpec{VolumeGroupSnapshotClassName: &s.name, Source: groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return s.groupContentIs(ctx, "made", func(content *groupv1.VolumeGroupSnapshotContent) bool {
		return slices.Equal(content.Spec.Source.VolumeHandles, []string{s.handle}) && slices.Contains(content.Finalizers, objects.GroupFinalizer)
	})
}

func (s *callSite) groupContentIs(ctx context.Context, what string, is func(*groupv1.VolumeGroupSnapshotContent) bool) error {
	return s.eventually(ctx, func() (string, error) {
		content, err := s.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(ctx, objects.GroupContentName(s.group.UID), metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && !is(content) {
			return fmt.Sprintf("the group's content is not %s: %+v", what, content), nil
		}
		return "", err
	})
}

func (s *callSite) takeGroup(ctx context.Context, driver csiDriver) error {
	answer, err := driver.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{
		Name: objects.GroupHandle(s.group.UID), SourceVolumeIds: []string{s.handle}, Parameters: map[string]string{"consistency": "none"},
	})
	if err != nil {
		return err
	}
	taken := answer.GetGroupSnapshot()
	if !taken.GetReadyToUse() || len(taken.GetSnapshots()) != 1 || taken.GetSnapshots()[0].GetSourceVolumeId() != s.handle || taken.GetGroupSnapshotId() != objects.GroupHandle(s.group.UID) {
		return fmt.Errorf("%w: %v", errWrongAnswer, answer)
	}
	s.snapshotHandle = taken.GetSnapshots()[0].GetSnapshotId()
	return nil
}

// hasGroup does what csi-snapshotter does after a group was taken, and waits for what the
// snapshot-controller does then.
func (s *callSite) hasGroup(ctx context.Context, twice bool) error {
	most := 1
	if twice {
		most = 2
	}
	if n := s.performed("snapshot.create"); n < 1 || n > most {
		return fmt.Errorf("%d snapshots were taken, want no more than %d", n, most)
	}
	status := fmt.Appendf(nil, `{"status": {"volumeGroupSnapshotHandle": %q, "readyToUse": true, "volumeSnapshotInfoList": [{"volumeHandle": %q, "snapshotHandle": %q, "readyToUse": true, "restoreSize": %d, "creationTime": 1}]}}`,
		objects.GroupHandle(s.group.UID), s.handle, s.snapshotHandle, 1<<30)
	if _, err := s.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Patch(ctx, objects.GroupContentName(s.group.UID), types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	s.content = objects.SnapshotContentName(objects.MemberUID(s.group.UID, s.handle))
	err := s.eventually(ctx, func() (string, error) {
		stored := s.sim.Snapshots()
		if len(stored) != 1 || "gold/"+stored[0].ID != s.snapshotHandle || stored[0].Status != "available" || stored[0].Metadata[annotation("recorded")] != "true" {
			return fmt.Sprintf("the driver calls it %s, and Cinder has %+v", s.snapshotHandle, stored), nil
		}
		content, err := s.client.SnapshotV1().VolumeSnapshotContents().Get(ctx, s.content, metav1.GetOptions{})
		if err != nil {
			return err.Error(), nil
		}
		origin, err := objects.SnapshotOriginOf(content)
		if err != nil || origin.VolumeID != s.ours()[0].ID || origin.Tenant != "tenant" || !slices.Contains(content.Finalizers, objects.SnapshotFinalizer) {
			return fmt.Sprintf("the content records %+v (%v)", origin, err), nil
		}
		group, err := s.client.GroupsnapshotV1().VolumeGroupSnapshots(s.namespace).Get(ctx, s.group.Name, metav1.GetOptions{})
		if err == nil && (group.Status == nil || group.Status.ReadyToUse == nil || !*group.Status.ReadyToUse || len(group.Finalizers) == 0) {
			return fmt.Sprintf("the group is not ready: %+v", group.Status), nil
		}
		return "", err
	})
	return errors.Join(err, s.ledgerCounts(ctx, 1, 1, 1), s.served(ctx, s.claim))
}

// askForGroupsEnd takes a group and deletes it.
func (s *callSite) askForGroupsEnd(ctx context.Context) error {
	if err := s.askForGroup(ctx); err != nil {
		return err
	}
	if err := s.untilDriven(ctx, s.takeGroup); err != nil {
		return err
	}
	if err := s.hasGroup(ctx, true); err != nil {
		return err
	}
	return s.abandonGroup(ctx)
}

// untilDriven makes a call of the driver until it succeeds.
func (s *callSite) untilDriven(ctx context.Context, call func(ctx context.Context, driver csiDriver) error) error {
	for {
		err := s.driven(ctx, func(driver csiDriver) error { return call(ctx, driver) })
		if err == nil {
			return nil
		}
		if paused := pause(ctx, 50*time.Millisecond); paused != nil {
			return errors.Join(paused, err)
		}
	}
}

// abandonGroup deletes the VolumeGroupSnapshot, and waits until the snapshot-controller has
// deleted its content.
func (s *callSite) abandonGroup(ctx context.Context) error {
	if err := s.client.GroupsnapshotV1().VolumeGroupSnapshots(s.namespace).Delete(ctx, s.group.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return s.groupContentIs(ctx, "deleted", func(content *groupv1.VolumeGroupSnapshotContent) bool { return content.DeletionTimestamp != nil })
}

func (s *callSite) removeGroup(ctx context.Context, driver csiDriver) error {
	_, err := driver.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: objects.GroupHandle(s.group.UID), SnapshotIds: []string{s.snapshotHandle}})
	return err
}

// hasNoGroup does what csi-snapshotter does after a group was deleted.
func (s *callSite) hasNoGroup(ctx context.Context, _ bool) error {
	if stored := s.sim.Snapshots(); len(stored) > 0 {
		return fmt.Errorf("Cinder has %+v", stored)
	}
	free := []byte(`{"metadata": {"finalizers": null}}`)
	_, err := s.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Patch(ctx, objects.GroupContentName(s.group.UID), types.MergePatchType, free, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	err = s.eventually(ctx, func() (string, error) {
		content, err := s.client.SnapshotV1().VolumeSnapshotContents().Get(ctx, s.content, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err == nil && content.DeletionTimestamp != nil {
			_, err = s.client.SnapshotV1().VolumeSnapshotContents().Patch(ctx, s.content, types.MergePatchType, free, metav1.PatchOptions{})
		}
		return fmt.Sprintf("the member's content is left: %+v, %v", content.ObjectMeta, err), nil
	})
	return errors.Join(err, s.ledgerCounts(ctx, 1, 1, 0), s.served(ctx, s.claim))
}

// deleteGroup ends a group, by the driver, unless that was done.
func (s *callSite) deleteGroup(ctx context.Context) error {
	if s.of.name == "DeleteVolumeGroupSnapshot" {
		return nil
	}
	if err := s.abandonGroup(ctx); err != nil {
		return err
	}
	if err := s.untilDriven(ctx, s.removeGroup); err != nil {
		return err
	}
	return s.hasNoGroup(ctx, true)
}

func (s *callSite) hasOtherType(ctx context.Context, _ bool) error {
	if n := s.performed("action.os-retype"); n != 1 {
		return fmt.Errorf("Cinder was made to change the type %d times, want once", n)
	}
	if v := s.ours()[0]; v.Type != "other" || v.Status != "available" || v.SizeGiB != 1 {
		return fmt.Errorf("the volume has the type %s, %d GiB and is %s", v.Type, v.SizeGiB, v.Status)
	}
	return errors.Join(s.ledgerCounts(ctx, 1, 1, 0), s.served(ctx, s.claim))
}
