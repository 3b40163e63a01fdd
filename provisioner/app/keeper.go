package app

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/objectwatch"
)

const (
	// keepAgain is how soon a leader tries again to keep what it could not keep, or
	// what somebody has changed or removed.
	keepAgain = 5 * time.Second
	// keepTimeout is how long one try may take.
	keepTimeout = 10 * time.Second
)

// keeper keeps the policy in force during one term, for replicas that start while the file
// is bad. It compares instead of being notified, so that it misses no change, whether
// by a new term, a reload or a repaired file.
type keeper struct {
	*replica
	// last is what was in force at the last try.
	last inForce
	// again means that another try is due at next although nothing else is in force:
	// the last one failed, or somebody has changed what is kept.
	again bool
	next  time.Time
	// failure is why the last try failed; empty if it did not.
	failure string
}

// inForce is what a replica works with.
type inForce struct {
	policy *policy.Policy
	// fromFile means that the file still has this policy.
	fromFile bool
}

// Run keeps what is in force until the context ends.
func (k *keeper) Run(ctx context.Context) {
	defer k.reloads.keepingEnded()
	secret := objectwatch.Start(ctx, k.metadataClient, objectwatch.Object{
		Resource: corev1.SchemeGroupVersion.WithResource("secrets"), Namespace: k.lastGood.Namespace, Name: k.lastGood.Name,
	})
	defer func() { <-secret.Stopped }()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		k.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-secret.Changed:
			// The program's own writes also get here, and cost one more look.
			k.again = true
		case <-ticker.C:
		}
	}
}

// look keeps what is in force if that has changed, or if another try is due.
func (k *keeper) look(ctx context.Context) {
	now := k.inForce()
	if now == k.last && (!k.again || time.Now().Before(k.next)) {
		return
	}
	trying, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	err := k.keep(trying, now)
	if ctx.Err() != nil {
		return
	}
	k.last, k.again, k.next = now, err != nil, time.Now().Add(keepAgain)
	k.reloads.keeping(err == nil)
	before := k.failure
	k.failure = ""
	if err != nil {
		k.failure = err.Error()
	}
	switch {
	case k.failure == before:
	case err == nil:
		k.logger.Info("The policy in force is kept again", "in", k.lastGood.String())
	default:
		k.logger.Warn("The policy in force is not kept", "error", err)
		k.tell(corev1.EventTypeWarning, "LastGoodNotKept", "replicas that start while the policy is bad may fail: "+k.failure)
	}
}

func (k *keeper) inForce() inForce {
	_, refused := k.status.troubles()
	return inForce{policy: k.policy.Load(), fromFile: refused == nil}
}

// keep writes what is in force. Unless a good file has it now, it replaces only what
// this replica could not use itself, because another replica may have kept something
// newer.
func (k *keeper) keep(ctx context.Context, now inForce) error {
	kept, err := k.lastGood.Load(ctx)
	if err != nil {
		return err
	}
	next := now.policy
	if !now.fromFile {
		if found, err := k.keptPolicy(kept); err == nil && k.sameCluster(now.policy, found) == nil {
			next = found
		}
	}
	return k.lastGood.Save(ctx, kept, next.Files().Encode())
}
