package secrets

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

const sharedName = "gold-cephx-0123456789abcdef"

// cluster is an API server that gives Secrets resource versions and checks them, and a
// leader whose cache of PersistentVolumes stays empty.
type cluster struct {
	t       *testing.T
	tracker clienttesting.ObjectTracker
	leader  *Keeper
	// inPolicy and counts are what keeps the backend in use.
	inPolicy, counts bool
	// step is called before each request of a process.
	step func(process string)

	mu      sync.Mutex
	version int
}

func newCluster(t *testing.T, existing ...runtime.Object) *cluster {
	c := &cluster{t: t, tracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder()), step: func(string) {}}
	for _, object := range existing {
		c.add(object)
	}
	c.leader = c.keeper("leader")
	return c
}

// keeper returns the Keeper of a process.
func (c *cluster) keeper(process string) *Keeper {
	resource := corev1.SchemeGroupVersion.WithResource("secrets")
	client := &fake.Clientset{}
	react := clienttesting.ObjectReaction(c.tracker)
	client.AddReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		c.step(process)
		c.mu.Lock()
		defer c.mu.Unlock()
		var secret *corev1.Secret
		wanted, name := "", ""
		switch action := action.(type) {
		case clienttesting.DeleteActionImpl:
			if action.Resource == resource {
				name, wanted = action.Name, *action.DeleteOptions.Preconditions.ResourceVersion
			}
		case clienttesting.CreateActionImpl:
			secret, _ = action.Object.(*corev1.Secret)
		case clienttesting.UpdateActionImpl:
			if secret, _ = action.Object.(*corev1.Secret); secret != nil {
				name, wanted = secret.Name, secret.ResourceVersion
			}
		}
		if name != "" {
			live, err := c.tracker.Get(resource, "own", name)
			if err != nil {
				return true, nil, err
			}
			if live.(*corev1.Secret).ResourceVersion != wanted {
				return true, nil, apierrors.NewConflict(resource.GroupResource(), name, errors.New("it was changed"))
			}
		}
		if secret != nil {
			c.version++
			secret.ResourceVersion, secret.UID = strconv.Itoa(c.version), "uid"
		}
		return react(action)
	})
	return New(Options{
		Client: client, PersistentVolumes: corelisters.NewPersistentVolumeLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})),
		Namespace: "own", Cluster: "cluster-1", Logger: slog.New(slog.DiscardHandler),
		IsInUse: func(string) bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.inPolicy || c.counts
		},
		IsWanted:        func(types.UID) bool { return true },
		ClaimsOfVolumes: func(context.Context) (map[types.UID]bool, error) { return nil, nil },
		RemoveOwn:       func(context.Context, string) error { return nil },
	})
}

// sharedSecret returns a Secret, unneeded for a time; zero means that it is not marked.
func sharedSecret(unneeded time.Duration) *corev1.Secret {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "own", Name: sharedName, UID: "uid", ResourceVersion: "0", Labels: map[string]string{objects.LabelManagedBy: objects.ManagedBy},
			Annotations: map[string]string{objects.AnnotationSharedBy: "gold", objects.AnnotationCluster: "cluster-1"},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{"userKey": []byte("key")},
	}
	if unneeded != 0 {
		secret.Annotations[objects.AnnotationUnneededSince] = time.Now().Add(-unneeded).UTC().Format(time.RFC3339)
	}
	return secret
}

func (c *cluster) secret() *corev1.Secret {
	c.t.Helper()
	live, err := c.tracker.Get(corev1.SchemeGroupVersion.WithResource("secrets"), "own", sharedName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return live.(*corev1.Secret)
}

func (c *cluster) add(object runtime.Object) {
	c.t.Helper()
	if err := c.tracker.Add(object); err != nil {
		c.t.Fatal(err)
	}
}

// sweep sweeps as audits do, once in ten minutes, for as long as a Secret is kept.
func (c *cluster) sweep() {
	c.t.Helper()
	for range 8 {
		if err := c.leader.Sweep(c.t.Context()); err != nil {
			c.t.Error(err)
		}
		time.Sleep(10 * time.Minute)
	}
}

func namingPV() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: map[string]string{objects.AnnotationSecret: sharedName}}}
}

func waitingClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "imported"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: objects.ImportedPVName("volume-9")}}
}

func TestSharedSecretStaysWhileItsBackendIsInUse(t *testing.T) {
	refers := func(namespace string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: namespace, Name: sharedName}
	}
	change := func(change func(*corev1.Secret)) *corev1.Secret {
		secret := sharedSecret(0)
		change(secret)
		return secret
	}
	for name, test := range map[string]struct {
		secret *corev1.Secret
		exists runtime.Object
		before func(c *cluster)
		stays  bool
	}{
		"nothing needs it":             {},
		"its backend is in the policy": {stays: true, before: func(c *cluster) { c.inPolicy = true }},
		"a volume counts":              {stays: true, before: func(c *cluster) { c.counts = true }},
		"a PersistentVolume that the cache does not show names it": {stays: true, exists: namingPV()},
		"a PersistentVolume that an administrator made names it": {stays: true, exists: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: refers("own")}}}}},
		"a native PersistentVolume names it": {stays: true, exists: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{RBD: &corev1.RBDPersistentVolumeSource{SecretRef: refers("own")}}}}},
		"a PersistentVolume names another namespace's": {exists: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: refers("kube-system")}}}}},
		"a claim waits for an import":           {stays: true, exists: waitingClaim()},
		"it is another cluster's":               {stays: true, secret: change(func(s *corev1.Secret) { s.Annotations[objects.AnnotationCluster] = "cluster-2" })},
		"it carries no label":                   {stays: true, secret: change(func(s *corev1.Secret) { delete(s.Labels, objects.LabelManagedBy) })},
		"it is not marked as shared":            {stays: true, secret: change(func(s *corev1.Secret) { delete(s.Annotations, objects.AnnotationSharedBy) })},
		"the mark is of a clock that was ahead": {secret: sharedSecret(-100 * time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if test.secret == nil {
					test.secret = sharedSecret(0)
				}
				c := newCluster(t, test.secret)
				if test.exists != nil {
					c.add(test.exists)
				}
				if test.before != nil {
					test.before(c)
				}
				c.sweep()
				if got := c.secret() != nil; got != test.stays {
					t.Errorf("the Secret exists: %t, want %t", got, test.stays)
				}
			})
		})
	}
}

// TestSharedSecretOutlivesItsBackendByAnHour: a former leader's last request may save a
// PersistentVolume until then.
func TestSharedSecretOutlivesItsBackendByAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, sharedSecret(0))
		began := time.Now()
		for c.secret() != nil {
			if err := c.leader.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if took := time.Since(began); took < time.Hour || took > 62*time.Minute {
			t.Errorf("it stayed for %s", took)
		}
	})
}

func TestSharedSecretStaysWhenALookFails(t *testing.T) {
	for _, failing := range []string{"get secrets", "list persistentvolumeclaims", "list persistentvolumes"} {
		t.Run(failing, func(t *testing.T) {
			c := newCluster(t, sharedSecret(2*time.Hour))
			verb, resource, _ := strings.Cut(failing, " ")
			c.leader.Client.(*fake.Clientset).PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("the API server is down")
			})
			if err := c.leader.Sweep(t.Context()); err == nil || !strings.Contains(err.Error(), "the API server is down") {
				t.Errorf("error %v", err)
			}
			if c.secret() == nil {
				t.Error("the Secret is gone")
			}
		})
	}
}

// needing is a process that keeps the shared Secret, and then saves a PersistentVolume
// that names it.
type needing struct {
	// isImport means that it is a command, whose claim shows the leader that it may save
	// one. Otherwise it is an attempt of the leader, which has reserved room.
	isImport bool
	key      string
	// fails means that it comes to nothing.
	fails bool
}

// run carries it out. Each request, and each change of what the leader knows, is a step.
func (n needing) run(c *cluster) error {
	keeper := c.keeper("needing")
	claims := keeper.Client.CoreV1().PersistentVolumeClaims("team-a")
	setCounts := func(to bool) {
		c.step("needing")
		c.mu.Lock()
		defer c.mu.Unlock()
		// The policy loses the backend as soon as the room is reserved.
		c.counts = to
	}
	claim := waitingClaim()
	var err error
	if n.isImport {
		claim, err = claims.Create(c.t.Context(), claim, metav1.CreateOptions{})
	} else {
		setCounts(true)
	}
	if err != nil {
		return err
	}
	secret := mappers.Secret{Name: sharedName, Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"userKey": []byte(n.key)}, Shared: true}
	if _, err := keeper.Keep(c.t.Context(), "pv", "gold", secret, true); err != nil {
		return err
	}
	if !n.fails {
		if _, err := keeper.Client.CoreV1().PersistentVolumes().Create(c.t.Context(), namingPV(), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	switch {
	case !n.isImport:
		// From now on, the PersistentVolume alone must be enough.
		setCounts(false)
	case n.fails:
		err = claims.Delete(c.t.Context(), claim.Name, metav1.DeleteOptions{})
	default:
		claim.Status.Phase = corev1.ClaimBound
		_, err = claims.UpdateStatus(c.t.Context(), claim, metav1.UpdateOptions{})
	}
	return err
}

// TestNoPersistentVolumeNamesAMissingSecret runs a process that needs the Secret and a
// leader that finds the Secret unneeded, and removes it more than an hour later, in every
// order of their steps. Any time may pass between two steps of the process.
func TestNoPersistentVolumeNamesAMissingSecret(t *testing.T) {
	for name, process := range map[string]needing{
		"an attempt":                       {key: "key"},
		"an attempt with a new key":        {key: "new"},
		"an attempt that comes to nothing": {key: "key", fails: true},
		"an import":                        {isImport: true, key: "key"},
		"an import with a new key":         {isImport: true, key: "new"},
		"an import that comes to nothing":  {isImport: true, key: "key", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			for order, more := []bool(nil), true; more && !t.Failed(); order, more = nextOrder(order) {
				synctest.Test(t, func(t *testing.T) { order = runInOrder(t, process, order) })
			}
		})
	}
}

// nextOrder returns the order in which the last step that the leader took is the other
// process's.
func nextOrder(order []bool) (next []bool, more bool) {
	for len(order) > 0 && order[len(order)-1] {
		order = order[:len(order)-1]
	}
	if len(order) == 0 {
		return nil, false
	}
	order[len(order)-1] = true
	return order, true
}

// runInOrder runs both processes. While both have something to do, order says whether
// the step is the needing one's; after its end, the leader is first. It returns the whole
// order.
func runInOrder(t *testing.T, process needing, order []bool) []bool {
	c := newCluster(t, sharedSecret(0))
	arrived := map[string]chan bool{"leader": make(chan bool), "needing": make(chan bool)}
	turn := map[string]chan bool{"leader": make(chan bool), "needing": make(chan bool)}
	var gated atomic.Bool
	gated.Store(true)
	c.step = func(process string) {
		if gated.Load() {
			arrived[process] <- true
			<-turn[process]
		}
	}
	go func() {
		defer close(arrived["leader"])
		for range 2 {
			if err := c.leader.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(objects.UnneededKept + time.Minute)
		}
	}()
	go func() {
		defer close(arrived["needing"])
		if err := process.run(c); err != nil {
			t.Error(err)
		}
	}()
	next := func(process string) bool { return <-arrived[process] }
	leads, needs := next("leader"), next("needing")
	for taken := 0; leads || needs; {
		goes := "leader"
		if leads && needs {
			if taken == len(order) {
				order = append(order, false)
			}
			if order[taken] {
				goes = "needing"
			}
			taken++
		} else if needs {
			goes = "needing"
		}
		turn[goes] <- true
		if goes == "leader" {
			leads = next(goes)
		} else {
			needs = next(goes)
		}
		if _, err := c.tracker.Get(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", "pv"); err == nil && c.secret() == nil {
			t.Errorf("the PersistentVolume names a Secret that does not exist, in the order %v", order[:taken])
		}
	}
	gated.Store(false)
	c.sweep()
	secret := c.secret()
	switch {
	case process.fails && secret != nil:
		t.Errorf("the Secret stays though nothing needs it, in the order %v", order)
	case !process.fails && (secret == nil || string(secret.Data["userKey"]) != process.key):
		t.Errorf("the Secret is %v, in the order %v", secret, order)
	}
	return order
}
