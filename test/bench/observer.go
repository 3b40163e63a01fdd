package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// step is a step that every claim takes.
type step int

// The steps, in their order.
const (
	filed    step = iota // the request that creates the claim is sent
	asked                // kube-controller-manager names the provisioner on it, which starts the program
	recorded             // its PersistentVolume exists
	bound
	removed  // the request that deletes the claim is sent
	released // its PersistentVolume is
	gone     // its PersistentVolume is
	steps
)

func (s step) String() string {
	return [...]string{"filed", "asked for", "recorded", "Bound", "removed", "released", "gone"}[s]
}

// life is when a claim took each step; zero means not yet.
type life [steps]time.Time

// took returns the time between two steps.
func (l life) took(from, to step) time.Duration { return l[to].Sub(l[from]) }

// took lists the sorted times between two steps.
func took(lives []life, from, to step) []time.Duration {
	var times []time.Duration
	for _, l := range lives {
		times = append(times, l.took(from, to))
	}
	slices.Sort(times)
	return times
}

// observer notes when claims take their steps. It watches, so that it neither
// loads the API server nor loses time between two polls.
type observer struct {
	mu    sync.Mutex
	lives map[types.UID]*life
	count [steps]int
	// changed is closed, and replaced, when a claim takes a step.
	changed chan struct{}
}

// observe watches the claims of a namespace and the PersistentVolumes of a
// StorageClass until the context ends.
func observe(ctx context.Context, suite *harness.Suite, namespace, class string) *observer {
	o := &observer{lives: map[types.UID]*life{}, changed: make(chan struct{})}
	client := suite.Client.CoreV1().RESTClient()
	// An informer survives a watch that the API server ends.
	go func() {
		_, _ = watchtools.UntilWithSync(ctx, cache.NewListWatchFromClient(client, "persistentvolumes", "", fields.Everything()),
			&corev1.PersistentVolume{}, nil, func(event watch.Event) (bool, error) {
				if pv, ok := event.Object.(*corev1.PersistentVolume); ok && pv.Spec.StorageClassName == class && pv.Spec.ClaimRef != nil {
					o.volume(pv, event.Type == watch.Deleted)
				}
				return false, nil
			})
	}()
	go func() {
		_, _ = watchtools.UntilWithSync(ctx, cache.NewListWatchFromClient(client, "persistentvolumeclaims", namespace, fields.Everything()),
			&corev1.PersistentVolumeClaim{}, nil, func(event watch.Event) (bool, error) {
				if claim, ok := event.Object.(*corev1.PersistentVolumeClaim); ok {
					o.claim(claim)
				}
				return false, nil
			})
	}()
	return o
}

func (o *observer) claim(claim *corev1.PersistentVolumeClaim) {
	if claim.Annotations[objects.AnnotationStorageProvisioner] != "" {
		o.note(claim.UID, asked, time.Now())
	}
	if claim.Status.Phase == corev1.ClaimBound {
		o.note(claim.UID, bound, time.Now())
	}
}

func (o *observer) volume(pv *corev1.PersistentVolume, deleted bool) {
	uid := pv.Spec.ClaimRef.UID
	o.note(uid, recorded, time.Now())
	if pv.Status.Phase == corev1.VolumeReleased {
		o.note(uid, released, time.Now())
	}
	if deleted {
		o.note(uid, gone, time.Now())
	}
}

// note keeps the first time at which a claim took a step.
func (o *observer) note(uid types.UID, s step, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lives[uid]
	if l == nil {
		l = &life{}
		o.lives[uid] = l
	}
	if !l[s].IsZero() {
		return
	}
	l[s] = at
	o.count[s]++
	close(o.changed)
	o.changed = make(chan struct{})
}

// wait waits until that many claims have taken a step, since the observer began.
func (o *observer) wait(ctx context.Context, s step, n int) error {
	seen := 0
	return o.until(ctx, func() bool { seen = o.count[s]; return seen >= n }, func() string { return fmt.Sprintf("%d of %d claims are %s", seen, n, s) })
}

// waitFor waits until one claim has taken a step.
func (o *observer) waitFor(ctx context.Context, uid types.UID, s step) error {
	return o.until(ctx, func() bool { l := o.lives[uid]; return l != nil && !l[s].IsZero() }, func() string { return fmt.Sprintf("claim %s is not %s", uid, s) })
}

func (o *observer) until(ctx context.Context, reached func() bool, complaint func() string) error {
	for {
		o.mu.Lock()
		done, changed := reached(), o.changed
		o.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", complaint(), ctx.Err())
		case <-changed:
		}
	}
}

// of lists the lives of some claims.
func (o *observer) of(uids []types.UID) []life {
	o.mu.Lock()
	defer o.mu.Unlock()
	var lives []life
	for _, uid := range uids {
		lives = append(lives, *o.lives[uid])
	}
	return lives
}
