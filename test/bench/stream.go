package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// streamPause lies between two claims of a stream.
const streamPause = 100 * time.Millisecond

// stream is claims that are filed at a steady rate.
type stream struct {
	suite            *harness.Suite
	namespace, class string
	// atLeast is how many claims are filed.
	atLeast int
	// meanwhile, if set, is done beside the second half; claims are filed until
	// it ends.
	meanwhile func() error
}

// claimTimes is when a claim was filed and when it was Bound.
type claimTimes struct{ filed, bound time.Time }

func (t claimTimes) took() time.Duration { return t.bound.Sub(t.filed) }

// run files the claims, waits until all are Bound and deletes them.
func (s stream) run(ctx context.Context) ([]claimTimes, error) {
	api := s.suite.Client.CoreV1().PersistentVolumeClaims(s.namespace)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	watch, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, err
	}
	defer watch.Stop()

	var mu sync.Mutex
	filed, bound := map[types.UID]time.Time{}, map[types.UID]time.Time{}
	go func() {
		for event := range watch.ResultChan() {
			claim, ok := event.Object.(*corev1.PersistentVolumeClaim)
			if !ok || claim.Status.Phase != corev1.ClaimBound {
				continue
			}
			mu.Lock()
			if _, seen := bound[claim.UID]; !seen {
				bound[claim.UID] = time.Now()
			}
			mu.Unlock()
		}
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
