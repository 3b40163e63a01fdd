package app

import (
	"context"
	"log/slog"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/attach"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestCachedCSINodesHaveTheDriverAlone: the program reads nothing else of them.
func TestCachedCSINodesHaveTheDriverAlone(t *testing.T) {
	got, err := onlyUse(&storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid", ResourceVersion: "7", Annotations: map[string]string{"a": "b"}},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "other.example.org", NodeID: "x", TopologyKeys: []string{"zone"}}, {Name: wire.DriverName, NodeID: "v1 n1", TopologyKeys: []string{"zone"}},
		}},
	})
	want := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid", ResourceVersion: "7"},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: wire.DriverName, NodeID: "v1 n1"}}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("kept %+v (%v)", got, err)
	}
}

// TestCachedVolumeAttachmentsOfOthersHaveTheirPlaceAlone: the program reads nothing
// else of them.
func TestCachedVolumeAttachmentsOfOthersHaveTheirPlaceAlone(t *testing.T) {
	pv := "pvc-1"
	full := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid", ResourceVersion: "7", Finalizers: []string{"f"}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "other.example.org", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"a": "b"}},
	}
	want := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid", ResourceVersion: "7"},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
	}
	for _, attacher := range []string{"other.example.org", wire.DriverName} {
		full.Spec.Attacher = attacher
		if attacher == wire.DriverName {
			want.Spec.Attacher, want.Status.Attached = attacher, true
		}
		if got, err := onlyUse(full); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("kept %+v (%v)", got, err)
		}
	}
}

// silence is what happens to a term whose csi-attacher may be silent.
type silence struct {
	server  *controller.Server
	engine  *attach.Engine
	told    []string
	waiting cache.Store
}

func newSilence(t *testing.T) *silence {
	t.Helper()
	s := &silence{server: controller.New(controller.Options{Observe: func(string, string, time.Duration) {}, Logger: slog.New(slog.DiscardHandler)}), waiting: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	volumes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, objects.Indexers())
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Annotations: map[string]string{objects.AnnotationCluster: "lab"}}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: "gold/v1"}
	if err := volumes.Add(pv); err != nil {
		t.Fatal(err)
	}
	s.engine = attach.New(attach.Options{Cluster: "lab", Attachments: attach.Cache[storagev1.VolumeAttachment]{Store: s.waiting}, PersistentVolumes: volumes})
	return s
}

// attachment shows a VolumeAttachment.
func (s *silence) attachment(t *testing.T, change func(*storagev1.VolumeAttachment)) {
	t.Helper()
	pv := "pvc-1"
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-1"},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: wire.DriverName, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}}
	change(a)
	if err := s.waiting.Add(a); err != nil {
		t.Fatal(err)
	}
}

func (s *silence) call(t *testing.T, method string) {
	t.Helper()
	_, err := s.server.Intercept(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/" + method}, func(context.Context, any) (any, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
}

// TestALeaderWithASilentAttacherHandsOver: only if something waits for the csi-attacher,
// and less and less often if it was in vain.
func TestALeaderWithASilentAttacherHandsOver(t *testing.T) {
	waits := func(*storagev1.VolumeAttachment) {}
	const patient = 5 * time.Minute
	for name, test := range map[string]struct {
		initial time.Duration
		during  func(*testing.T, *silence)
		told    int
		next    time.Duration
	}{
		"nothing waits": {patient, func(*testing.T, *silence) { time.Sleep(2 * time.Hour) }, 0, patient},
		"what is attached waits for nothing": {patient, func(t *testing.T, s *silence) {
			s.attachment(t, func(a *storagev1.VolumeAttachment) { a.Status.Attached = true })
			time.Sleep(2 * time.Hour)
		}, 0, patient},
		"an attachment waits":          {patient, func(t *testing.T, s *silence) { s.attachment(t, waits); time.Sleep(6 * time.Minute) }, 1, 2 * patient},
		"it does not wait long":        {patient, func(t *testing.T, s *silence) { s.attachment(t, waits); time.Sleep(4 * time.Minute) }, 0, patient},
		"it was in vain":               {patient, func(t *testing.T, s *silence) { s.attachment(t, waits); time.Sleep(20 * time.Minute) }, 2, 4 * patient},
		"it is in vain for half a day": {patient, func(t *testing.T, s *silence) { s.attachment(t, waits); time.Sleep(12 * time.Hour) }, 14, time.Hour},
		"a detachment waits": {patient, func(t *testing.T, s *silence) {
			s.attachment(t, func(a *storagev1.VolumeAttachment) {
				a.Status.Attached, a.DeletionTimestamp = true, &metav1.Time{Time: time.Now()}
			})
			time.Sleep(6 * time.Minute)
		}, 1, 2 * patient},
		"csi-attacher calls": {patient, func(t *testing.T, s *silence) {
			s.attachment(t, waits)
			for range 60 {
				time.Sleep(2 * time.Minute)
				s.call(t, "ListVolumes")
			}
		}, 0, patient},
		"another sidecar calls": {patient, func(t *testing.T, s *silence) {
			s.attachment(t, waits)
			for range 6 {
				time.Sleep(time.Minute)
				s.call(t, "ControllerExpandVolume")
			}
		}, 1, 2 * patient},
		"csi-attacher works again": {patient, func(t *testing.T, s *silence) {
			s.attachment(t, waits)
			time.Sleep(20 * time.Minute)
			s.call(t, "ControllerPublishVolume")
			time.Sleep(6 * time.Minute)
		}, 3, 2 * patient},
		"for ever": {0, func(t *testing.T, s *silence) { s.attachment(t, waits); time.Sleep(12 * time.Hour) }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSilence(t)
				term := csiTerm{server: s.server, engine: s.engine, patience: newPatience(test.initial), silent: func(attachment string) { s.told = append(s.told, attachment) }}
				work, end := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); term.watchAttacher(work) }()
				test.during(t, s)
				end()
				<-done
				if len(s.told) != test.told || term.patience.now != test.next {
					t.Errorf("it was told %d times (%q), and then after %s", len(s.told), s.told, term.patience.now)
				}
			})
		})
	}
}
