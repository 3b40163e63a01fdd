package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

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

// run creates the claims, waits until all are Bound and deletes them.
func (s stream) run(ctx context.Context) ([]life, error) {
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	observer := observe(watching, s.suite, s.namespace, s.class)
	var uids []types.UID
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
		observer.note(claim.UID, filed, started)
		uids = append(uids, claim.UID)
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
	for _, uid := range uids {
		if err := observer.waitFor(waiting, uid, bound); err != nil {
			return nil, err
		}
	}
	return observer.of(uids), s.suite.DeleteClaims(ctx, s.namespace)
}
