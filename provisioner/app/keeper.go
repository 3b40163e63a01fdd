package app

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/lastgood"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/objectwatch"
)

const (
	// keepAgain is how soon a leader tries again to keep what it could not keep, or
	// what somebody has changed or removed.
	keepAgain = 5 * time.Second
	// keepTimeout is how long one try may take.
	keepTimeout = 10 * time.Second
)

// keeper keeps what is in force during one term, for replicas that start while a file
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
	// credentials are those of the policy's backends.
	credentials map[string]credentialsInUse
}

type credentialsInUse struct {
	text string
	// fromFiles means that the files still have these credentials.
	fromFiles bool
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
	if now.equal(k.last) && (!k.again || time.Now().Before(k.next)) {
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
		k.logger.Info("The policy and credentials in force are kept again", "in", k.lastGood.String())
	default:
		k.logger.Warn("The policy and credentials in force are not kept", "error", err)
		k.tell(corev1.EventTypeWarning, "LastGoodNotKept", "replicas that start while the policy or the credentials are bad may fail, or lack credentials: "+k.failure)
	}
}

func (k *keeper) inForce() inForce {
	p := k.policy.Load()
	_, refused := k.status.troubles()
	now := inForce{policy: p, fromFile: refused == nil, credentials: map[string]credentialsInUse{}}
	for i := range p.Backends {
		config := wiring.BackendConfig(p, &p.Backends[i], k.cluster)
		if last, ok := k.pool.LastGood(config); ok && len(last.Kept) > 0 {
			now.credentials[config.Name] = credentialsInUse{string(last.Kept), last.Current}
		}
	}
	return now
}

func (f inForce) equal(other inForce) bool {
	return f.policy == other.policy && f.fromFile == other.fromFile && maps.Equal(f.credentials, other.credentials)
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
	return k.lastGood.Save(ctx, kept, next.Text(), k.credentialsToKeep(next, now, kept))
}

// credentialsToKeep returns the credentials of those backends that the kept policy has.
// Credentials that are no longer used are not kept.
func (k *keeper) credentialsToKeep(next *policy.Policy, now inForce, kept lastgood.Kept) map[string][]byte {
	chosen := map[string][]byte{}
	if !k.options.KeepCredentials {
		return chosen
	}
	for i := range next.Backends {
		config := wiring.BackendConfig(next, &next.Backends[i], k.cluster)
		own, earlier := now.credentials[config.Name], kept.Credentials[config.Name]
		ownUsable := backends.UsableKept(config, []byte(own.text)) == nil
		switch {
		case ownUsable && own.fromFiles:
			chosen[config.Name] = []byte(own.text)
		case backends.UsableKept(config, earlier) == nil:
			chosen[config.Name] = earlier
		case ownUsable:
			chosen[config.Name] = []byte(own.text)
		}
	}
	return chosen
}
