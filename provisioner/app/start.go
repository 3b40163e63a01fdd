package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/lastgood"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// begin puts the first policy into force: that of the file, or the last good one
// while the file is bad. It fails if neither can be used.
func (a *App) begin(ctx context.Context) (*reloader, error) {
	if err := a.findCluster(ctx); err != nil {
		return nil, err
	}
	kept, err := a.loadKept(ctx)
	if err != nil {
		return nil, err
	}
	r := newReloader(a)
	if err := r.begin(kept); err != nil {
		return nil, err
	}
	a.cluster = cmp.Or(a.policy.Load().ClusterID, a.clusterUID)
	if !a.options.KeepCredentials {
		kept.Credentials = nil
	}
	a.pool = backends.NewPool(backends.PoolOptions{
		Warn:     func(backend, message string) { a.logger.Warn(message, "backend", backend) },
		Size:     max(minClients, len(a.policy.Load().Backends)),
		Sources:  auth.Sources{CloudsFile: a.options.CloudsFile},
		Metrics:  a.backendMetrics,
		MayWrite: a.mayWrite,
		Kept:     kept.Credentials,
	})
	return r, a.checkCloudsFile(kept.Credentials)
}

// findCluster determines the default of the cluster ID that is stamped on volumes.
func (a *App) findCluster(ctx context.Context) error {
	return a.insist(ctx, "Cannot read the cluster's ID yet; trying again", func() (err error) {
		a.clusterUID, err = objects.ClusterUID(ctx, a.client)
		a.lastGood.ClusterUID = a.clusterUID
		return err
	})
}

// maxLoadAttempts is how often a replica with a good policy file asks for the last good
// policy before it goes on without it: the API server answers, but Secrets cannot be
// read, for example because their encryption is broken.
const maxLoadAttempts = 3

// loadKept reads the last good policy and credentials. A replica that cannot read them
// goes on without them if its policy file is good, or if waiting is of no use because
// it lacks the right to read them.
func (a *App) loadKept(ctx context.Context) (kept lastgood.Kept, err error) {
	tries := 0
	err = a.insist(ctx, "Cannot read the last good policy yet; trying again", func() (err error) {
		tries++
		if kept, err = a.lastGood.Load(ctx); err == nil {
			return nil
		}
		goOn := apierrors.IsForbidden(err)
		if !goOn && tries >= maxLoadAttempts {
			_, _, refused := a.readPolicy()
			goOn = refused == nil
		}
		if !goOn {
			return err
		}
		kept = lastgood.Kept{Unusable: err}
		return nil
	})
	if kept.Unusable != nil {
		a.logger.Warn("The last good policy and credentials cannot be used, so this replica cannot start with bad files", "in", a.lastGood.String(), "error", kept.Unusable)
	}
	return kept, err
}

// insist tries until it succeeds or the context ends: the API server may not be up yet,
// for example after a restart of the whole cluster.
func (a *App) insist(ctx context.Context, warning string, try func() error) error {
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 20, Cap: 15 * time.Second}
	for {
		err := try()
		if err == nil {
			return nil
		}
		a.logger.Warn(warning, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(backoff.Step()):
		}
	}
}

// keptPolicy checks the last good policy like a policy file. Relative file names in it
// are resolved as they would be in the file.
func (a *App) keptPolicy(kept lastgood.Kept) (*policy.Policy, error) {
	err := kept.Unusable
	if err == nil {
		if len(kept.Policy) == 0 {
			return nil, fmt.Errorf("no earlier policy is kept in %s that could be used instead", a.lastGood)
		}
		var found *policy.Policy
		if found, err = policy.Parse(kept.Policy, a.options.PolicyFile, a.options.Protocols.Describe()); err == nil {
			return found, nil
		}
		var mistakes policy.ErrorList
		if errors.As(err, &mistakes) {
			for i := range mistakes {
				mistakes[i].Source = a.lastGood.String()
			}
		}
	}
	return nil, fmt.Errorf("the last good policy, kept in %s, cannot be used either: %w", a.lastGood, err)
}

// begin chooses the first policy.
func (r *reloader) begin(kept lastgood.Kept) error {
	a := r.app
	revision, next, refused := a.readPolicy()
	before, unusable := a.keptPolicy(kept)
	if refused == nil && before != nil {
		refused = a.sameCluster(before, next)
	}
	switch {
	case refused == nil:
		a.putInForce(next)
		r.accept(revision)
	case before != nil:
		a.fromKept.Store(true)
		a.putInForce(before)
		a.reloads.inForce(before.Revision())
		r.refuse(revision, refused)
	default:
		return errors.Join(refused, unusable)
	}
	return nil
}

// checkCloudsFile makes sure that a replica has credentials: if the file of
// --clouds-file cannot be read, those that are kept must serve at least one
// backend that needs it.
func (a *App) checkCloudsFile(kept map[string][]byte) error {
	path := a.options.CloudsFile
	if path == "" {
		return nil
	}
	_, err := os.ReadFile(path)
	if err == nil {
		return nil
	}
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	p := a.policy.Load()
	var needing, unusable []string
	for i := range p.Backends {
		backend := &p.Backends[i]
		if backend.Auth.Cloud == "" {
			continue
		}
		needing = append(needing, fmt.Sprintf("%s (%s:%d)", backend.Name, p.Source, p.Line(fmt.Sprintf("backends[%d].auth.cloud", i))))
		text, ok := kept[backend.Name]
		if !ok {
			continue
		}
		failure := backends.UsableKept(wiring.BackendConfig(p, backend, a.cluster), text)
		if failure == nil {
			return nil // The reloader reports which backends lack credentials.
		}
		unusable = append(unusable, fmt.Sprintf("; those of %s cannot be used: %s", backend.Name, failure))
	}
	if len(needing) == 0 {
		a.logger.Warn("--clouds-file cannot be read; the policy does not need it", "file", path, "error", err)
		return nil
	}
	return fmt.Errorf("--clouds-file %s cannot be read: %w; these backends log in with its entries: %s; nothing is in force, because no usable credentials for them are kept in %s%s: mount the file, or correct the flag",
		path, err, strings.Join(needing, ", "), a.lastGood, strings.Join(unusable, ""))
}
