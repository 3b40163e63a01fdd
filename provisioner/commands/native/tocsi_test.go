package native

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/podrun"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

const filesystem = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"

// mounts is a node that still has the volume mounted.
func mounts() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		VolumesInUse: []corev1.UniqueVolumeName{"kubernetes.io/iscsi/192.0.2.1:3260:iqn.2026-01.example:V1:1"},
	}}
}

// copies is a cluster whose claim does not grow.
func copies() *cluster {
	c := newCluster()
	c.pv.Spec.ISCSI.TargetPortal = "192.0.2.1:3260"
	c.claim.Status.Capacity = c.pv.Spec.Capacity
	c.claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.ends = terminated(corev1.PodSucceeded, `{"device": "sdb", "filesystem": "ext4", "uuid": "`+filesystem+`", "bytes": 21474836480}`)
	return c
}

// copied is a claim that an earlier run has made.
func copied(class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data-csi", UID: "u2", Annotations: map[string]string{objects.AnnotationCopyOf: "u1"}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: "pvc-u2",
			DataSource: &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
}

// notACopy is a claim of that name that somebody else has made.
func notACopy() *corev1.PersistentVolumeClaim {
	claim := copied("files-csi")
	claim.Annotations = nil
	return claim
}

// scene is a cluster in which the workload stops after a minute, and its node has written
// everything a minute later.
type scene struct {
	*cluster
	// copied is the PersistentVolume that the new claim gets.
	copied *corev1.PersistentVolume
	// more are further objects.
	more []runtime.Object
	// change sets further answers of the API server.
	change func(*fake.Clientset)
	// stopped happens when the workload is stopped; created when the new claim is.
	stopped, created func(*fake.Clientset)
	// pends keeps the new claim Pending.
	pends bool
}

func newScene() *scene {
	c := copies()
	c.pv.UID = "pv1"
	return &scene{cluster: c, copied: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-u2"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef:               &corev1.ObjectReference{Namespace: "team-a", Name: "data-csi", UID: "u2"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: policy.CSIDriver, FSType: "ext4"}},
	}}}
}

func (s *scene) run(t *testing.T) error {
	t.Helper()
	node := mounts()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "files-csi"}, Provisioner: policy.CSIDriver}
	all := []runtime.Object{s.claim, s.pv, s.template, node, s.copied, class}
	for _, pod := range s.pods {
		all = append(all, pod)
	}
	for _, claim := range s.others {
		all = append(all, claim)
	}
	for _, object := range s.more {
		if another, is := object.(*storagev1.StorageClass); is {
			*class = *another
			continue
		}
		all = append(all, object)
	}
	s.client = fake.NewClientset(all...)
	s.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		if pod.Namespace = action.GetNamespace(); pod.Namespace == "grow" {
			pod.UID, pod.Status = "p1", s.ends
		}
		return false, nil, nil
	})
	s.client.PrependReactor("create", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim := action.(clienttesting.CreateAction).GetObject().(*corev1.PersistentVolumeClaim)
		claim.UID = "u2"
		if claim.Status.Phase = corev1.ClaimPending; !s.pends {
			claim.Spec.VolumeName, claim.Status.Phase = s.copied.Name, corev1.ClaimBound
		}
		if s.created != nil {
			s.created(s.client)
		}
		return false, nil, nil
	})
	if s.change != nil {
		s.change(s.client)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	begin := time.Now()
	go func() {
		for sleeps := range 2 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Minute):
			}
			if sleeps == 0 {
				for _, pod := range s.pods {
					_ = s.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "team-a", pod.Name)
				}
				if s.stopped != nil {
					s.stopped(s.client)
				}
				continue
			}
			after := node.DeepCopy()
			after.Status.VolumesInUse = nil
			_ = s.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), after, "")
		}
	}()
	r := &runner{Runner: podrun.Runner{Client: s.client, Namespace: "grow", Pause: time.Second, Say: func(text string) { s.said = append(s.said, text) }}, timeout: 10 * time.Minute}
	err := r.copyToCSI(t.Context(), "team-a", "data", copyRequest{"data-csi", "files-csi"})
	s.took = time.Since(begin)
	return err
}

func (s *scene) claims() bool {
	return strings.Contains(strings.Join(s.said, "\n"), "has the content")
}

func (s *scene) askedToStop() bool {
	return strings.Contains(strings.Join(s.said, "\n"), "stop the workload")
}

var claimsResource = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")

// TestTheContentIsOfTheClaimThatWasRead: what the command says has the content must
// have that of the volume that was read.
func TestTheContentIsOfTheClaimThatWasRead(t *testing.T) {
	for name, change := range map[string]func(*scene){
		// A StatefulSet with whenScaled: Delete, or an operator that makes its claims anew: the
		// claim of the name is another, and empty, when the copy is made.
		"the claim is replaced while the command waits": func(s *scene) {
			s.stopped = func(client *fake.Clientset) {
				other := s.claim.DeepCopy()
				other.UID, other.Spec.VolumeName = "u9", "pvc-u9"
				_ = client.Tracker().Delete(claimsResource, "team-a", "data")
				_ = client.Tracker().Create(claimsResource, other, "team-a")
			}
		},
		"the claim is replaced while it is copied": func(s *scene) {
			s.created = func(client *fake.Clientset) {
				other := s.claim.DeepCopy()
				other.UID, other.Spec.VolumeName = "u9", "pvc-u1"
				s.pv.Spec.ClaimRef.UID = "u9"
				_ = client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), s.pv, "")
				_ = client.Tracker().Delete(claimsResource, "team-a", "data")
				_ = client.Tracker().Create(claimsResource, other, "team-a")
			}
		},
		// The PersistentVolume controller binds any claim, also one with a dataSource, to a fitting
		// Available PersistentVolume of the class before any provisioner sees it.
		"the new claim got an Available PersistentVolume that was there": func(s *scene) {
			s.copied.Name = "restored-last-year"
		},
		// The same name was moved earlier: data was cloned to data-csi, deleted, and made again.
		"the copy is of an earlier claim of the name": func(s *scene) {
			s.pv.Annotations[objects.AnnotationFilesystemUUIDs] = filesystem
			made := copied("files-csi")
			made.Spec.VolumeName = "pvc-u2"
			made.CreationTimestamp = metav1.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			s.copied.CreationTimestamp = made.CreationTimestamp
			s.claim.CreationTimestamp = metav1.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
			s.others = []*corev1.PersistentVolumeClaim{made}
		},
		"the copy that was found is being deleted": func(s *scene) {
			s.pv.Annotations[objects.AnnotationFilesystemUUIDs] = filesystem
			made := copied("files-csi")
			made.Spec.VolumeName = "pvc-u2"
			made.DeletionTimestamp, made.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kubernetes.io/pvc-protection"}
			s.others = []*corev1.PersistentVolumeClaim{made}
		},
		// The first run made the copy; then the old workload was started again, wrote for months,
		// and still writes.
		"the workload has written since the copy was made": func(s *scene) {
			s.pv.Annotations[objects.AnnotationFilesystemUUIDs] = filesystem
			made := copied("files-csi")
			made.Spec.VolumeName = "pvc-u2"
			made.CreationTimestamp = metav1.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			s.copied.CreationTimestamp = made.CreationTimestamp
			s.pods[0].CreationTimestamp = metav1.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
			s.others = []*corev1.PersistentVolumeClaim{made}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene()
				change(s)
				if err := s.run(t); err == nil || s.claims() {
					t.Errorf("got %v, and said\n%s", err, strings.Join(s.said, "\n"))
				}
			})
		})
	}
}

// TestAFilesystemThatTheDriverDoesNotMount: ext3, and a class whose copy has another type
// than the pod on the node has just told.
func TestAFilesystemThatTheDriverDoesNotMount(t *testing.T) {
	for name, test := range map[string]struct{ is, wanted string }{
		"ext3 is no filesystem of mode csi": {"ext3", "ext4"},
		"the class has another filesystem":  {"xfs", "ext4"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene()
				s.ends = terminated(corev1.PodSucceeded, `{"device": "sdb", "filesystem": "`+test.is+`", "uuid": "`+filesystem+`", "bytes": 21474836480}`)
				s.copied.Spec.CSI.FSType = test.wanted
				if err := s.run(t); err == nil || s.claims() {
					t.Errorf("%s into %s: got %v, and said\n%s", test.is, test.wanted, err, strings.Join(s.said, "\n"))
				}
			})
		})
	}
}

// TestNobodyStopsAWorkloadForNothing: what can be known beforehand is said before the
// workload is stopped.
func TestNobodyStopsAWorkloadForNothing(t *testing.T) {
	forbidden := func(verb, resource string) func(*fake.Clientset) {
		return func(client *fake.Clientset) {
			client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("no"))
			})
		}
	}
	later := storagev1.VolumeBindingWaitForFirstConsumer
	for name, change := range map[string]func(*scene){
		// Its pods are all that keeps the volume: stopping them deletes the claim, and with the
		// reclaim policy Delete the volume. The program does not copy such a claim.
		"the claim is being deleted": func(s *scene) {
			s.claim.DeletionTimestamp, s.claim.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kubernetes.io/pvc-protection"}
			s.stopped = func(client *fake.Clientset) {
				_ = client.Tracker().Delete(claimsResource, "team-a", "data")
			}
			s.pends = true
		},
		"the class does not exist": func(s *scene) {
			s.more = []runtime.Object{&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "files-cis"}}}
			s.pends = true
		},
		"the class waits for a pod": func(s *scene) {
			s.more = []runtime.Object{&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "files-csi"}, Provisioner: policy.CSIDriver, VolumeBindingMode: &later}}
			s.pends = true
		},
		// The program ignores what is no UUID.
		"the annotation is no UUID": func(s *scene) {
			s.pv.Annotations[objects.AnnotationFilesystemUUIDs] = "UUID=" + filesystem
			if known := objects.FilesystemUUIDsOf(s.pv, "v1"); len(known) > 0 {
				panic(known)
			}
			s.pends = true
		},
		"no right to list nodes":             func(s *scene) { s.change = forbidden("list", "nodes") },
		"no right to list VolumeAttachments": func(s *scene) { s.change = forbidden("list", "volumeattachments") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene()
				change(s)
				err := s.run(t)
				if err == nil || s.askedToStop() || s.took > time.Minute {
					t.Errorf("after %s: %v; it said\n%s", s.took, err, strings.Join(s.said, "\n"))
				}
			})
		})
	}
}

// TestAPodThatUsedTheClaimMeanwhileIsTold: a CronJob's pod wrote while Cinder copied.
func TestAPodThatUsedTheClaimMeanwhileIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.pends = true
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		s.created = func(client *fake.Clientset) {
			_ = client.Tracker().Create(pods, podOn("nightly", "n1"), "team-a")
			time.AfterFunc(time.Minute, func() {
				_ = client.Tracker().Delete(pods, "team-a", "nightly")
				object, err := client.Tracker().Get(claimsResource, "team-a", "data-csi")
				if err != nil {
					panic(err)
				}
				claim := object.(*corev1.PersistentVolumeClaim).DeepCopy()
				claim.Spec.VolumeName, claim.Status.Phase = "pvc-u2", corev1.ClaimBound
				_ = client.Tracker().Update(claimsResource, claim, "team-a")
			})
		}
		if err := s.run(t); err == nil && !strings.Contains(strings.Join(s.said, "\n"), "nightly") {
			t.Errorf("it said\n%s", strings.Join(s.said, "\n"))
		}
	})
}

// TestOneFailedLookDoesNotEndTheWait for the workload, which somebody is stopping.
func TestOneFailedLookDoesNotEndTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, looks := newScene(), 0
		s.change = func(client *fake.Clientset) {
			client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				if looks++; looks == 5 {
					return true, nil, apierrors.NewInternalError(errors.New("etcd has no leader"))
				}
				return false, nil, nil
			})
		}
		if err := s.run(t); err != nil {
			t.Errorf("after %s: %v", s.took, err)
		}
	})
}

// TestMissingRightsAreNamedRightly: no role of node-grow has these rights.
func TestMissingRightsAreNamedRightly(t *testing.T) {
	for _, right := range []string{"list nodes", "list volumeattachments", "patch persistentvolumes", "create persistentvolumeclaims"} {
		verb, resource, _ := strings.Cut(right, " ")
		t.Run(right, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene()
				s.change = func(client *fake.Clientset) {
					client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
						return true, nil, apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("no"))
					})
				}
				err := s.run(t)
				if err == nil || strings.Contains(err.Error(), "bind the Role and the ClusterRoles of the component node-grow") {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestGrowRefusesCephAsBefore: as at 5b1cc382, whatever the sizes are.
func TestGrowRefusesCephAsBefore(t *testing.T) {
	for name, change := range map[string]func(*cluster){
		"nothing to grow":  func(c *cluster) { c.claim.Status.Capacity = c.pv.Spec.Capacity },
		"not extended yet": func(c *cluster) { c.pv.Spec.Capacity = c.claim.Status.Capacity },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				c.pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{RBD: &corev1.RBDPersistentVolumeSource{}}
				change(c)
				if err := c.grow(t.Context()); err == nil || !strings.Contains(err.Error(), "is neither an iSCSI nor a Fibre Channel volume") {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestOnlyAUUIDIsRecorded: the program ignores all else, so the copy would be denied.
func TestOnlyAUUIDIsRecorded(t *testing.T) {
	for name, said := range map[string]string{
		"ext4 without a UUID (tune2fs -U clear)": "00000000-0000-0000-0000-000000000000",
		"a list, by a node that was taken over":  filesystem + ",7f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene()
				s.ends = terminated(corev1.PodSucceeded, `{"device": "sdb", "filesystem": "ext4", "uuid": "`+said+`", "bytes": 21474836480}`)
				if err := s.run(t); err == nil || slices.ContainsFunc(s.did(), func(did string) bool { return strings.HasPrefix(did, "patch ") }) {
					t.Errorf("got %v, and did %q", err, s.did())
				}
			})
		})
	}
}

// TestAPodWhoseCreationWasNotAnsweredIsDeleted: the API server made the pod, and the
// answer was lost.
func TestAPodWhoseCreationWasNotAnsweredIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.change = func(client *fake.Clientset) {
			client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod).DeepCopy()
				pod.Namespace, pod.UID = "grow", "p1"
				if err := client.Tracker().Create(action.GetResource(), pod, "grow"); err != nil {
					return true, nil, err
				}
				return true, nil, context.DeadlineExceeded
			})
		}
		err := s.run(t)
		if left, _ := s.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "grow", "grow-u1"); left != nil {
			t.Errorf("%v; the privileged pod is left", err)
		}
	})
}

// TestARefusalToReadNamesNoGrowth: nothing grows here.
func TestARefusalToReadNamesNoGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.pods = append(s.pods, podOn("b", "n2"))
		if err := s.run(t); err == nil || strings.Contains(err.Error(), "can grow only") {
			t.Errorf("got %v", err)
		}
	})
}

func TestAClaimIsCopiedOnceItsNodeHasWrittenEverything(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	created := `create data-csi of files-csi from data with 20Gi [ReadWriteOnce]`
	read := []string{
		"create grow-u1 on n1: node grow --persistent-volume=pvc-u1 --bytes=21474836480 --disk=iqn.2026-01.example:v1/1 --pod=uid-app", "delete grow-u1",
		`patch {"metadata":{"annotations":{"standalone-cinder.openstack.org/filesystem-uuids":"` + filesystem + `"},"uid":"pv1"}}`,
	}
	for name, test := range map[string]struct {
		change func(*scene)
		did    []string
		took   time.Duration
	}{
		"a filesystem":            {func(*scene) {}, append(read, created), 2 * time.Minute},
		"whose UUID is recorded":  {func(c *scene) { c.pv.Annotations[objects.AnnotationFilesystemUUIDs] = filesystem }, []string{created}, 2 * time.Minute},
		"a raw device":            {func(c *scene) { c.claim.Spec.VolumeMode = &block }, []string{created + " Block"}, 2 * time.Minute},
		"the command was stopped": {func(c *scene) { c.others, c.pods = []*corev1.PersistentVolumeClaim{copied("files-csi")}, nil }, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newScene()
				test.change(c)
				if err := c.run(t); err != nil {
					t.Fatalf("%v, and said %q", err, c.said)
				}
				if did := c.did(); !slices.Equal(did, test.did) {
					t.Errorf("it did %q, want %q", did, test.did)
				}
				if c.took < test.took || c.took > test.took+5*time.Second {
					t.Errorf("it took %s", c.took)
				}
				if last := c.said[len(c.said)-1]; !strings.Contains(last, "has the content, in mode csi (PersistentVolume pvc-u2)") {
					t.Errorf("it said %q", c.said)
				}
				said := strings.Join(c.said, "\n")
				if waits := strings.Contains(said, "waiting: pod app uses it; stop the workload\nwaiting: node n1 still has it mounted"); waits != (test.took > 0) {
					t.Errorf("it said %q", c.said)
				}
			})
		})
	}
}

func TestNothingIsCopiedThatCouldNotBeUsed(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*scene)
		driver string
		want   string
		did    int
	}{
		"in mode csi": {func(c *scene) {
			c.pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: policy.CSIDriver}}
		}, policy.CSIDriver, "it is in mode csi already", 0},
		"it grows":                {func(c *scene) { c.claim.Status.Capacity = nil }, policy.CSIDriver, "it grows; wait", 0},
		"a claim of that name":    {func(c *scene) { c.others = []*corev1.PersistentVolumeClaim{notACopy()} }, policy.CSIDriver, "claim data-csi exists, and this command did not make it", 0},
		"a copy of another class": {func(c *scene) { c.others = []*corev1.PersistentVolumeClaim{copied("other")} }, policy.CSIDriver, "with StorageClass files-csi; delete it, or give another --name", 0},
		"no pod shows its UUID":   {func(c *scene) { c.pods = nil }, policy.CSIDriver, "the UUID of its filesystem is not recorded, and cannot be read: no pod on a node uses it", 0},
		"another disk":            {func(c *scene) { c.ends = terminated(corev1.PodFailed, `{"error": "WrongDisk"}`) }, policy.CSIDriver, "node n1: WrongDisk", 2},
		"an older component": {func(c *scene) {
			c.ends = terminated(corev1.PodSucceeded, `{"filesystem": "ext4", "bytes": 21474836480}`)
		}, policy.CSIDriver, "does not say which UUID the filesystem has", 2},
		"the class is of the other": {func(c *scene) { c.pv.Annotations[objects.AnnotationFilesystemUUIDs] = filesystem }, "", "the rule for StorageClass files-csi is in mode native", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newScene()
				test.change(c)
				if test.driver == "" {
					c.copied.Spec.CSI = nil
				}
				if err := c.run(t); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				if did := c.did(); len(did) != test.did {
					t.Errorf("it did %q", did)
				}
			})
		})
	}
}
