package tenantstatus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// cluster is an API server, a policy, and what counts and waits.
type cluster struct {
	*testing.T
	namespaces cache.Indexer

	mu      sync.Mutex
	policy  *policy.Policy
	volumes int64
	waiting []Waiting
	objects map[string]*stored
	writes  []string
	// broken are the namespaces that refuse writes; missing means that there is no CRD.
	broken  map[string]bool
	missing bool
	slow    bool
	tries   int
	told    []string
	log     bytes.Buffer
	uids    int
}

type stored struct {
	Found
	content Content
}

func newCluster(t *testing.T, namespaces ...string) *cluster {
	c := &cluster{T: t, namespaces: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), policy: parse(t, twoTenants), objects: map[string]*stored{}, broken: map[string]bool{}}
	for _, name := range namespaces {
		c.add(name)
	}
	return c
}

func (c *cluster) add(name string) {
	if err := c.namespaces.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) List(context.Context) (map[string]Found, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries++
	if c.missing {
		return nil, apierrors.NewNotFound(resource().GroupResource(), "")
	}
	if c.slow {
		return nil, context.DeadlineExceeded
	}
	found := map[string]Found{}
	for namespace, object := range c.objects {
		found[namespace] = object.Found
	}
	return found, nil
}

func (c *cluster) Apply(_ context.Context, namespace, digest string, content *Content) (types.UID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries++
	if c.broken[namespace] {
		return "", errors.New("refused")
	}
	object := c.objects[namespace]
	if object == nil {
		c.uids++
		object = &stored{Found: Found{UID: types.UID(fmt.Sprint(c.uids))}}
		c.objects[namespace] = object
	}
	object.Digest, object.content = digest, *content
	c.writes = append(c.writes, namespace)
	return object.UID, nil
}

func (c *cluster) Delete(_ context.Context, namespace string, uid types.UID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries++
	if object := c.objects[namespace]; object == nil || object.UID != uid {
		return apierrors.NewConflict(resource().GroupResource(), namespace, errors.New("another object"))
	}
	delete(c.objects, namespace)
	c.writes = append(c.writes, "-"+namespace)
	return nil
}

// lead runs a term, until the returned function ends it.
func (c *cluster) lead() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	controller := New(Options{
		Objects: c, Namespaces: corelisters.NewNamespaceLister(c.namespaces),
		Policy: func() *policy.Policy { c.mu.Lock(); defer c.mu.Unlock(); return c.policy },
		Usage: func(kind policy.ScopeKind, name string) policy.Usage {
			c.mu.Lock()
			defer c.mu.Unlock()
			return policy.Usage{Volumes: c.volumes}
		},
		Waiting: func() []Waiting { c.mu.Lock(); defer c.mu.Unlock(); return c.waiting },
		Tell:    func(message string) { c.told = append(c.told, message) },
		Logger:  slog.New(slog.NewTextHandler(&c.log, nil)),
		Board:   parking.NewBoard(), Monitor: liveness.New(), MaxWorkTime: liveness.Always(time.Hour),
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		controller.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// wrote waits so long, and compares the writes since the last call.
func (c *cluster) wrote(within time.Duration, want ...string) {
	c.Helper()
	time.Sleep(within)
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.writes)
	if !slices.Equal(c.writes, want) {
		c.Errorf("written: %q, want %q", c.writes, want)
	}
	c.writes = nil
}

func (c *cluster) change(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

func TestObjectsFollowWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "blue", "blue-1", "red", "kube-system")
		end := c.lead()
		c.wrote(5*time.Second, "blue", "blue-1", "red")
		c.wrote(10 * time.Minute)

		c.change(func() { c.waiting = []Waiting{waits("data", 0, "no room")} })
		c.wrote(5*time.Second, "blue-1")
		if got := c.objects["blue-1"].content; got.WaitingTotal != 1 || got.UpdatedAt == nil {
			t.Errorf("the content is %+v", got)
		}
		// However often it changes, each namespace is written once per look.
		time.Sleep(lookEvery / 2)
		for range 100 {
			c.change(func() { c.volumes++ })
			time.Sleep(lookEvery / 100)
		}
		c.wrote(5*time.Second, "blue", "blue", "blue-1", "blue-1", "red", "red")
		if got := c.objects["red"].content.Quota["volumes"].Used; got != 100 {
			t.Errorf("%d volumes are used", got)
		}

		c.add("blue-2")
		c.wrote(5*time.Second, "blue-2")
		if err := c.namespaces.Delete(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue-2"}}); err != nil {
			t.Fatal(err)
		}
		c.wrote(5*time.Second, "-blue-2")
		end()
	})
}

func TestNamespacesChangeTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "blue", "blue-1", "red")
		end := c.lead()
		c.wrote(5*time.Second, "blue", "blue-1", "red")
		c.change(func() {
			c.policy = parse(t, strings.ReplaceAll(strings.ReplaceAll(twoTenants, `[blue, "blue-*"]`, "[blue]"), "namespaces: [red]", "namespaces: [blue-1]"))
		})
		c.wrote(5*time.Second, "-red", "blue", "blue-1")
		if got := c.objects["blue-1"].content.Tenant; got != "red" {
			t.Errorf("the object of blue-1 is tenant %s's", got)
		}
		end()
	})
}

func TestTheNextLeaderWritesOnlyWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "blue", "blue-1", "red")
		end := c.lead()
		c.wrote(5*time.Second, "blue", "blue-1", "red")
		end()
		c.change(func() {
			c.waiting = []Waiting{waits("data", 0, "no room")}
			c.policy = parse(t, strings.ReplaceAll(twoTenants, "namespaces: [red]", "namespaces: [nobody]"))
			c.objects["blue"].Digest = "" // somebody has edited it
		})
		end = c.lead()
		// Every object has the revision of the policy.
		c.wrote(5*time.Second, "-blue", "-red", "blue", "blue-1")
		end()
		c.change(func() { c.waiting = nil })
		end = c.lead()
		c.wrote(5*time.Second, "blue-1")
		end()
	})
}

func TestWhatSomebodyRemovesOrEditsIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "blue", "blue-1", "red")
		end := c.lead()
		c.wrote(5*time.Second, "blue", "blue-1", "red")
		c.change(func() { delete(c.objects, "blue"); c.objects["red"].Digest = "" })
		c.wrote(listEvery+lookEvery, "-red", "blue", "red")
		// Another object has taken the name of one that is to go: it stays.
		c.change(func() { c.objects["red"].UID = "another" })
		c.add("blue-9")
		if err := c.namespaces.Delete(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red"}}); err != nil {
			t.Fatal(err)
		}
		c.wrote(5*time.Second, "blue-9")
		if c.objects["red"] == nil {
			t.Error("another's object was deleted")
		}
		end()
	})
}

func TestOneNamespaceDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "blue", "blue-1", "red")
		c.broken["blue-1"] = true
		end := c.lead()
		c.wrote(5*time.Second, "blue", "red")
		c.change(func() { c.tries = 0; c.volumes++ })
		c.wrote(5*time.Minute, "blue", "red")
		if c.tries > 20 {
			t.Errorf("%d requests in five minutes", c.tries)
		}
		c.change(func() { c.broken["blue-1"] = false })
		c.wrote(time.Minute, "blue-1")
		end()
		if log := c.log.String(); strings.Count(log, "\n") != 2 || !strings.Contains(log, "namespace=blue-1") || !strings.Contains(log, "written again") {
			t.Errorf("the log says\n%s", log)
		}
	})
}

func TestAMissingCRDIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "blue")
		c.missing = true
		end := c.lead()
		c.wrote(10 * time.Minute)
		if len(c.told) != 1 || !strings.Contains(c.told[0], "install the component tenant-status") || strings.Count(c.log.String(), "\n") != 1 {
			t.Errorf("told %q; the log says\n%s", c.told, c.log.String())
		}
		if c.tries > 70 {
			t.Errorf("%d requests in ten minutes", c.tries)
		}
		c.change(func() { c.missing = false })
		c.wrote(listAgain+lookEvery, "blue")
		// A list that fails in passing is no news, and stops nothing.
		c.change(func() { c.slow = true })
		c.wrote(5 * time.Minute)
		c.change(func() { c.volumes++ })
		c.wrote(5*time.Second, "blue")
		if len(c.told) != 1 {
			t.Errorf("told %q", c.told)
		}
		end()
	})
}

// TestAThousandNamespacesCostLittle: what does not change costs a list a minute, and a
// change of all of them is spread over some seconds.
func TestAThousandNamespacesCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		for i := range 1000 {
			c.add(fmt.Sprintf("blue-%d", i))
		}
		end := c.lead()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		c.change(func() {
			if len(c.objects) != 1000 || len(c.writes) != 1000 {
				t.Errorf("%d objects, %d writes", len(c.objects), len(c.writes))
			}
			c.tries, c.writes = 0, nil
		})
		c.wrote(5 * time.Minute)
		if c.tries > 6 {
			t.Errorf("%d requests in five minutes", c.tries)
		}
		end()
	})
}

// TestNoNumbersOfAnotherTenantWhileThePolicyChanges: the usage of a rule is known by the
// rule's path, which in the next policy may be that of another tenant's rule.
func TestNoNumbersOfAnotherTenantWhileThePolicyChanges(t *testing.T) {
	const head = "apiVersion: standalone-cinder.openstack.org/v1alpha1\nkind: Policy\nbackends: [{name: gold, auth: {cloud: gold}}]\ntenants:\n"
	const blue, red = "  - {name: blue, namespaces: [blue], classes: [{storageClasses: [c], backends: [gold], quota: {volumes: 9}}]}\n", "  - {name: red, namespaces: [red], classes: [{storageClasses: [c], backends: [gold], quota: {volumes: 999}}]}\n"
	before, after := parse(t, head+blue+red), parse(t, head+red+blue)
	inForce := before
	c := newCluster(t, "blue", "red")
	controller := New(Options{
		Namespaces: corelisters.NewNamespaceLister(c.namespaces), Board: parking.NewBoard(), Monitor: liveness.New(),
		Policy:  func() *policy.Policy { return inForce },
		Waiting: func() []Waiting { return nil },
		Usage: func(kind policy.ScopeKind, name string) policy.Usage {
			// The policy is reloaded at the first question, and the ledger follows it.
			inForce = after
			return map[string]policy.Usage{"tenants[0].classes[0]": {Volumes: 777}, "tenants[1].classes[0]": {Volumes: 3}}[name]
		},
	})
	for range 2 {
		wanted := controller.wanted()
		if content := wanted["blue"]; content != nil && content.Rules[0].Quota["volumes"].Used != 3 {
			t.Errorf("under revision %s, the tenant sees that another one uses %d volumes", content.PolicyRevision, content.Rules[0].Quota["volumes"].Used)
		}
	}
	if controller.wanted()["blue"] == nil {
		t.Error("after the change, there is no content")
	}
}
