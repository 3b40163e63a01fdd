package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/events"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
)

// livenessProbe returns what /healthz answers.
func (s *starter) livenessProbe() (status int, text string) {
	answer := httptest.NewRecorder()
	s.server.health.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	return answer.Code, strings.TrimSpace(answer.Body.String())
}

// heldLease returns a lease that another replica renews forever.
func heldLease(a *App) *coordinationv1.Lease {
	holder, seconds := "another", int32(365*24*60*60)
	now := metav1.NewMicroTime(time.Now())
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: wiring.LeaseName(a.options.ProvisionerName), Namespace: a.namespace},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
	}
}

// candidate returns a replica that asks for the lease that another one holds.
func candidate(t *testing.T, asks clienttesting.ReactionFunc) *starter {
	s := newStarter(t, policyOf("one", ""), cloudsOf("hunter2"))
	s.elector.leaseClient = s.client
	if err := s.client.Tracker().Add(heldLease(s.App)); err != nil {
		t.Fatal(err)
	}
	s.client.PrependReactor("get", "leases", asks)
	return s
}

func TestACandidateWhoseElectorStandsStillIsNotAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		stuck, asked := make(chan struct{}), &atomic.Int32{}
		s := candidate(t, func(clienttesting.Action) (bool, runtime.Object, error) {
			if asked.Add(1) > 3 {
				<-stuck
			}
			return false, nil, nil
		})
		ended := make(chan error)
		go func() { ended <- s.elector.lead(ctx) }()
		time.Sleep(s.options.electorBound())
		if status, text := s.livenessProbe(); status != http.StatusOK {
			t.Errorf("before the bound: %d %s", status, text)
		}
		time.Sleep(time.Minute)
		if status, text := s.livenessProbe(); status != http.StatusServiceUnavailable || !strings.HasPrefix(text, "the leader elector is stuck") {
			t.Errorf("%d %s", status, text)
		}
		if log := s.log.String(); strings.Count(log, "This replica is stuck") != 1 || !strings.Contains(log, "leasecheck.(*Lock).Get") {
			t.Errorf("the log does not show once where the goroutines are:\n%s", log)
		}
		s.livenessProbe()
		if log := s.log.String(); strings.Count(log, "This replica is stuck") != 1 {
			t.Errorf("the log shows the goroutines again")
		}
		end()
		close(stuck)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestACandidateWithoutAnAPIServerIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		asked := &atomic.Int32{}
		s := candidate(t, func(clienttesting.Action) (bool, runtime.Object, error) {
			// Every other request hangs until it times out.
			if asked.Add(1)%2 == 0 {
				time.Sleep(defaults(t).RenewDeadline)
			}
			return true, nil, errors.New("connection refused")
		})
		ended := make(chan error)
		go func() { ended <- s.elector.lead(ctx) }()
		for range 600 {
			time.Sleep(time.Second)
			if status, text := s.livenessProbe(); status != http.StatusOK {
				t.Fatalf("%d %s", status, text)
			}
		}
		if asked := asked.Load(); asked < 50 {
			t.Errorf("the elector asked %d times in ten minutes", asked)
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestALeaderWhoseElectorStandsStillIsNotAlive: its lease expires, but it has
// not noticed.
func TestALeaderWhoseElectorStandsStillIsNotAlive(t *testing.T) {
	s := newStarter(t, policyOf("one", ""), cloudsOf("hunter2"))
	s.elector.leaseClient = s.client
	s.options.RetryPeriod, s.options.RenewDeadline, s.options.LeaseDuration = 10*time.Millisecond, 100*time.Millisecond, time.Second
	s.options.DrainTimeout = 100 * time.Millisecond
	s.recorder = events.NewRecorder(record.NewFakeRecorder(0), scheme.Scheme, s.options.Metrics, keepEachMessage)
	if _, err := s.start(t); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	stuck, leading := make(chan struct{}), make(chan struct{})
	isLeading := sync.OnceFunc(func() { close(leading) })
	s.client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		isLeading()
		<-stuck
		return false, nil, nil
	})
	ended := make(chan error, 1)
	go func() { ended <- s.elector.lead(ctx) }()
	<-leading
	for {
		status, text := s.livenessProbe()
		if status == http.StatusServiceUnavailable && strings.HasPrefix(text, "the leader elector is stuck") {
			break
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%d %s", status, text)
		case <-time.After(100 * time.Millisecond):
		}
	}
	end()
	close(stuck)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// aheadInformer has read more from the API server than its cache has.
type aheadInformer struct {
	cache.SharedIndexInformer
	ahead *atomic.Bool
}

func (i aheadInformer) LastSyncResourceVersion() string {
	if i.ahead.Load() {
		return "another"
	}
	return i.SharedIndexInformer.LastSyncResourceVersion()
}

func persistentVolume(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func TestAnInformerThatStandsStillIsNotAlive(t *testing.T) {
	for _, c := range []struct {
		name              string
		inCache, inHandle bool
		want              string
	}{
		{name: "nothing", want: "ok"},
		{name: "its cache", inCache: true, want: "the informer of persistentvolumes is stuck"},
		{name: "its handler", inHandle: true, want: "the handler of persistentvolumes is stuck"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				source, ahead, stuck := fcache.NewFakePVControllerSource(), &atomic.Bool{}, make(chan struct{})
				informer := processInformer{aheadInformer{cache.NewSharedIndexInformer(source, &corev1.PersistentVolume{}, 0, nil), ahead}, "persistentvolumes"}
				a, seen := &replica{monitor: liveness.New()}, &atomic.Int32{}
				if _, err := a.lend(informer).Follow(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
					if seen.Add(1); c.inHandle && object.(*corev1.PersistentVolume).Name == "last" {
						<-stuck
					}
				}}); err != nil {
					t.Fatal(err)
				}
				source.Add(persistentVolume("first"))
				go informer.RunWithContext(ctx)
				go a.watchInformer(ctx, informer)
				time.Sleep(time.Hour)
				if err := a.monitor.Check(); err != nil || seen.Load() != 1 {
					t.Errorf("a quiet informer with %d objects: %v", seen.Load(), err)
				}
				source.Add(persistentVolume("last"))
				ahead.Store(c.inCache)
				time.Sleep(time.Hour)
				got := "ok"
				if err := a.monitor.Check(); err != nil {
					got = err.Error()
				}
				if !strings.HasPrefix(got, c.want) {
					t.Errorf("%s, want %s", got, c.want)
				}
				close(stuck)
				end()
				source.Shutdown()
			})
		})
	}
}

// TestShorterTimeoutsDoNotShortenTheWorkUnderWay: it goes on with those of the policy
// under which it began.
func TestShorterTimeoutsDoNotShortenTheWorkUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStarter(t, policyOf("one", ""), cloudsOf("hunter2"))
		withCreate := func(timeout time.Duration) *policy.Policy {
			return &policy.Policy{Backends: []policy.Backend{{Name: "gold", Timeouts: policy.Timeouts{Create: timeout, Delete: time.Minute, Request: time.Second}}}}
		}
		s.putInForce(withCreate(10 * time.Hour))
		work := s.monitor.Begin("the worker of claim a/data", s.maxWorkTime)
		s.putInForce(withCreate(time.Minute))
		time.Sleep(10 * time.Hour)
		if status, text := s.livenessProbe(); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
		time.Sleep(12 * time.Hour)
		if status, _ := s.livenessProbe(); status == http.StatusOK {
			t.Error("work that is stuck is not noticed")
		}
		work.End()
	})
}

// TestEveryStandstillIsLogged: the second one of a replica that recovered is logged,
// too.
func TestEveryStandstillIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStarter(t, policyOf("one", ""), cloudsOf("hunter2"))
		for n := range 2 {
			task := s.monitor.Begin("a loop", liveness.Always(time.Minute))
			time.Sleep(time.Hour)
			s.livenessProbe()
			s.livenessProbe()
			task.End()
			s.livenessProbe()
			if got := strings.Count(s.log.String(), "This replica is stuck"); got != n+1 {
				t.Errorf("after standstill %d there are %d lines", n+1, got)
			}
		}
	})
}
