package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// streamPause is the pause between two claims of a stream.
const streamPause = 100 * time.Millisecond

// stream is a series of claims created at a steady rate.
type stream struct {
	suite            *harness.Suite
	namespace, class string
	// atLeast is the minimum number of claims.
	atLeast int
	// meanwhile, if set, runs in parallel with the second half; claims are created
	// until it ends.
	meanwhile func() error
}

// claimTimes is when a claim was created and when it was Bound.
type claimTimes struct{ filed, bound time.Time }

func (t claimTimes) took() time.Duration { return t.bound.Sub(t.filed) }

// run creates the claims, waits until all are Bound and deletes them.
func (s stream) run(ctx context.Context) ([]claimTimes, error) {
	var mu sync.Mutex
	filed, bound := map[types.UID]time.Time{}, map[types.UID]time.Time{}
	// An informer survives a watch that the API server ends.
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go func() {
		_, _ = watchtools.UntilWithSync(watching, cache.NewListWatchFromClient(s.suite.Client.CoreV1().RESTClient(), "persistentvolumeclaims", s.namespace, fields.Everything()),
			&corev1.PersistentVolumeClaim{}, nil, func(event watch.Event) (bool, error) {
				claim, ok := event.Object.(*corev1.PersistentVolumeClaim)
				if !ok || claim.Status.Phase != corev1.ClaimBound {
					return false, nil
				}
				mu.Lock()
				defer mu.Unlock()
				if _, seen := bound[claim.UID]; !seen {
					bound[claim.UID] = time.Now()
				}
				return false, nil
			})
	}()

	next := time.NewTicker(streamPause)
	defer next.Stop()
	var ended chan error
	for i, more := 0, true; more; i++ {
		if i == s.atLeast/2 && s.meanwhile != nil {
			ended = make(chan error, 1)
			go func() { ended <- s.meanwhile() }()
		}
		started := time.Now()
		claim, err := s.suite.CreateClaim(ctx, harness.Claim(s.namespace, fmt.Sprintf("data-%d", i), s.class, "1Gi", nil))
		if err != nil {
			return nil, err
		}
		mu.Lock()
		filed[claim.UID] = started
		mu.Unlock()
		<-next.C
		more = i+1 < s.atLeast
		if ended != nil && !more {
			select {
			case err := <-ended:
				if err != nil {
					return nil, err
				}
				ended = nil
			default:
				more = true
			}
		}
	}
	waiting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := harness.Eventually(waiting, func() (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if len(bound) < len(filed) {
			return fmt.Sprintf("%d of %d claims are bound", len(bound), len(filed)), nil
		}
		return "", nil
	}); err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	var times []claimTimes
	for uid, at := range filed {
		times = append(times, claimTimes{at, bound[uid]})
	}
	return times, s.suite.DeleteClaims(ctx, s.namespace)
}
