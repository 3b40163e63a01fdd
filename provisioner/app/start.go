package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/lastgood"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// begin puts the first policy into force: that of the file, or the last good one
// while the file is bad. It fails if neither can be used.
func (r *reloader) begin(ctx context.Context) error {
	if err := r.findCluster(ctx); err != nil {
		return err
	}
	kept, err := r.loadKept(ctx)
	if err != nil {
		return err
	}
	if err := r.choose(kept); err != nil {
		return err
	}
	r.cluster = cmp.Or(r.policy.Load().ClusterID, r.clusterUID)
	var dial func(ctx context.Context, network, address string) (net.Conn, error)
	if r.options.Network != nil {
		dial = r.options.Network.DialContext
	}
	r.pool = backends.NewPool(backends.PoolOptions{
		Dial:     dial,
		Warn:     func(backend, message string) { r.logger.Warn(message, "backend", backend) },
		Size:     max(minClients, len(r.policy.Load().Backends)),
		Sources:  auth.Sources{CloudsFile: r.options.CloudsFile},
		Metrics:  r.backendMetrics,
		MayWrite: r.mayWrite,
	})
	return r.checkCloudsFile()
}

// findCluster determines the default of the cluster ID that is stamped on volumes.
func (r *reloader) findCluster(ctx context.Context) error {
	return r.insist(ctx, "Cannot read the cluster's ID yet; trying again", func() (err error) {
		r.clusterUID, err = objects.ClusterUID(ctx, r.client)
		r.lastGood.ClusterUID = r.clusterUID
		return err
	})
}

// maxLoadAttempts is how often a replica with a good policy file asks for the last good
// policy before it goes on without it: the API server answers, but Secrets cannot be
// read, for example because their encryption is broken.
const maxLoadAttempts = 3

// loadKept reads the last good policy. A replica that cannot read it goes on without it if
// its policy file is good, or if waiting is of no use because it lacks the right to read
// it.
func (r *reloader) loadKept(ctx context.Context) (kept lastgood.Kept, err error) {
	tries := 0
	err = r.insist(ctx, "Cannot read the last good policy yet; trying again", func() (err error) {
		tries++
		if kept, err = r.lastGood.Load(ctx); err == nil {
			return nil
		}
		goOn := apierrors.IsForbidden(err)
		if !goOn && tries >= maxLoadAttempts {
			_, _, refused := r.readPolicy()
			goOn = refused == nil
		}
		if !goOn {
			return err
		}
		kept = lastgood.Kept{Unusable: err}
		return nil
	})
	if kept.Unusable != nil {
		r.logger.Warn("The last good policy cannot be used, so this replica cannot start with a bad file", "in", r.lastGood.String(), "error", kept.Unusable)
	}
	return kept, err
}

// insist tries until it succeeds or the context ends: the API server may not be up yet,
// for example after a restart of the whole cluster.
func (r *reloader) insist(ctx context.Context, warning string, try func() error) error {
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 20, Cap: 15 * time.Second}
	for {
		err := try()
		if err == nil {
			return nil
		}
		r.logger.Warn(warning, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(backoff.Step()):
		}
	}
}

// keptPolicy checks the last good policy like a policy file. Relative file names in it
// are resolved as they would be in the file.
func (r *replica) keptPolicy(kept lastgood.Kept) (*policy.Policy, error) {
	err := kept.Unusable
	if err == nil {
		if len(kept.Policy) == 0 {
			return nil, fmt.Errorf("no earlier policy is kept in %s that could be used instead", r.lastGood)
		}
		var found *policy.Policy
		files, path := keptFiles(kept, r.options.PolicyFile)
		if found, err = policy.ParseFiles(files, path, r.options.Protocols.Describe()); err == nil {
			return found, nil
		}
		var mistakes policy.ErrorList
		if errors.As(err, &mistakes) {
			for i := range mistakes {
				mistakes[i].Source = strings.Replace(mistakes[i].Source, path, r.lastGood.String(), 1)
			}
		}
	}
	return nil, fmt.Errorf("the last good policy, kept in %s, cannot be used either: %w", r.lastGood, err)
}

// keptFiles returns the last good policy as if it were read now. Since it was kept, --policy
// may have become a directory, or a file.
func keptFiles(kept lastgood.Kept, path string) (policy.Files, string) {
	files := policy.DecodeFiles(kept.Policy)
	info, err := os.Stat(path)
	switch several := len(files) > 1; {
	case err != nil || info.IsDir() == several:
	case several:
		path = filepath.Dir(path)
	default:
		files[0].Name = policy.MountedKey
	}
	if files[0].Name != "" {
		path = filepath.Clean(path)
	}
	return files, path
}

// choose puts the first policy into force.
func (r *reloader) choose(kept lastgood.Kept) error {
	revision, next, refused := r.readPolicy()
	before, unusable := r.keptPolicy(kept)
	if refused == nil && before != nil {
		refused = r.sameCluster(before, next)
	}
	switch {
	case refused == nil:
		r.putInForce(next)
		r.accept(revision)
	case before != nil:
		r.fromKept.Store(true)
		r.putInForce(before)
		r.reloads.inForce(before.Revision())
		r.refuse(revision, refused)
	default:
		return errors.Join(refused, unusable)
	}
	return nil
}

// checkCloudsFile returns an error if all backends need the file of --clouds-file, and it
// cannot be read: such a replica would be ready, but could do nothing. Other backends are
// served without the file.
func (r *reloader) checkCloudsFile() error {
	path := r.options.CloudsFile
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
	p := r.policy.Load()
	var needing []string
	for i := range p.Backends {
		if backend := &p.Backends[i]; backend.Auth.Cloud != "" {
			at := fmt.Sprintf("backends[%d].auth.cloud", i)
			needing = append(needing, fmt.Sprintf("%s (%s:%d)", backend.Name, cmp.Or(p.FileOf(at), p.Source), p.Line(at)))
		}
	}
	if len(needing) == 0 || len(needing) < len(p.Backends) {
		r.logger.Warn("--clouds-file cannot be read; the backends that need it wait for it", "file", path, "error", err, "backends", needing)
		return nil
	}
	return fmt.Errorf("--clouds-file %s cannot be read: %w; these backends log in with its entries: %s; nothing is in force: mount the file, or correct the flag",
		path, err, strings.Join(needing, ", "))
}
