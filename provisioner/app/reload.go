package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// pollInterval is how often the mounted files are compared with what is in force.
// The program reads their content and does not rely on filesystem
// notifications: a ConfigMap or Secret is mounted as a symlink to a symlink
// that is swapped, some filesystems send no notifications at all, and reading
// a few kilobytes a second costs nothing.
const pollInterval = time.Second

// maxErrors is how many errors an event lists; the log has them all.
const maxErrors = 3

// reloader puts a changed policy into force and notices changed credentials.
// Every replica has one, so that a follower leads under the same policy.
type reloader struct {
	app *App
	// refused is the revision of the last refused file; empty when the file is the
	// policy in force.
	refused string
	// versions is the last version of each backend's credentials.
	versions map[string]string
}

func newReloader(a *App) *reloader {
	return &reloader{app: a, versions: map[string]string{}}
}

// run checks the files until the context ends.
func (r *reloader) run(ctx context.Context) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		r.checkPolicyFile()
		r.checkCredentials()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// checkPolicyFile reads the file. Everything that can fail comes first; then one
// swap puts the new policy into force for all later decisions.
func (r *reloader) checkPolicyFile() {
	a := r.app
	before := a.policy.Load()
	revision, next, err := a.readPolicy(before.Revision(), r.refused)
	switch {
	case err == nil && next == nil:
		if revision == before.Revision() && r.refused != "" {
			a.logger.Info("The policy file is again the policy in force", "revision", revision)
			r.accept(revision)
			a.tell(corev1.EventTypeNormal, "PolicyReloaded", fmt.Sprintf("the policy file is good again; its revision %s was in force all along", revision))
		}
		return
	case err == nil:
		err = a.sameCluster(before, next)
	}
	if err != nil {
		r.refuse(revision, err)
		return
	}
	a.retired.retire(before, next)
	a.putInForce(next)
	a.retired.restore(next)
	r.accept(revision)
	a.logger.Info("Reloaded the policy", "revision", revision, "before", before.Revision())
	a.tell(corev1.EventTypeNormal, "PolicyReloaded", fmt.Sprintf("policy revision %s is now in force (was %s)", revision, before.Revision()))
	a.warnOfMissingBackends()
	if term := a.term(); term != nil {
		term.policyChanged()
	}
}

// readPolicy reads the file and checks it, unless its revision is known. Even a file
// that cannot be read has a revision, which names the reason.
func (a *App) readPolicy(known ...string) (revision string, found *policy.Policy, err error) {
	data, err := readFile(a.options.PolicyFile)
	if err != nil {
		return "unreadable: " + err.Error(), nil, err
	}
	revision = policy.RevisionOf(data)
	if slices.Contains(known, revision) {
		return revision, nil, nil
	}
	found, err = policy.Parse(data, a.options.PolicyFile, a.options.Protocols.Describe())
	return revision, found, err
}

// putInForce makes a policy apply to all later decisions.
func (a *App) putInForce(next *policy.Policy) {
	a.noteTimeouts(next)
	a.policy.Store(next)
	for _, warning := range next.Warnings {
		a.logger.Warn("Policy: " + warning.Error())
	}
}

func (r *reloader) accept(revision string) {
	r.refused = ""
	r.app.fromKept.Store(false)
	r.app.reloads.inForce(revision)
	r.app.status.setRefused(nil)
}

// refuse keeps the policy in force, and reports why, once for each content.
func (r *reloader) refuse(revision string, err error) {
	if r.refused == revision {
		return
	}
	r.refused = revision
	a := r.app
	a.reloads.failed()
	a.status.setRefused(err)
	a.logger.Error("Refused the policy file; the last good policy stays in force", "revision", a.policy.Load().Revision()+a.keptWhere(), "error", err)
	a.reportRefused(err)
}

// reportRefused writes the event about a refused file.
func (a *App) reportRefused(err error) {
	a.tell(corev1.EventTypeWarning, "PolicyRefused", fmt.Sprintf("refused the policy file; revision %s%s stays in force: %s",
		a.policy.Load().Revision(), a.keptWhere(), firstErrors(err)))
}

// keptWhere returns text that follows a revision in messages if this replica has not
// read that policy from its file.
func (a *App) keptWhere() string {
	if !a.fromKept.Load() {
		return ""
	}
	return fmt.Sprintf(" (the last good one, kept in %s)", a.lastGood)
}

// reportUnreadable writes the event about credentials that cannot be read.
func (a *App) reportUnreadable(err error) {
	a.tell(corev1.EventTypeWarning, "CredentialsUnreadable", err.Error())
}

// reportTroubles reports at the beginning of a term what this replica found as a
// follower.
func (a *App) reportTroubles() {
	unreadable, refused := a.status.troubles()
	if refused != nil {
		a.reportRefused(refused)
	}
	for _, err := range unreadable {
		a.reportUnreadable(err)
	}
	a.warnOfMissingBackends()
}

// firstErrors shortens a list of errors to fit into an event.
func firstErrors(err error) string {
	var list policy.ErrorList
	if !errors.As(err, &list) || len(list) <= maxErrors {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	var first []string
	for _, mistake := range list[:maxErrors] {
		first = append(first, mistake.Error())
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(first, "; "), len(list)-maxErrors)
}

// sameCluster refuses a different clusterID, because every existing volume would count
// as another cluster's. To write out the default ID, or to leave it out, is not a
// change.
func (a *App) sameCluster(before, next *policy.Policy) error {
	was, will := cmp.Or(before.ClusterID, a.clusterUID), cmp.Or(next.ClusterID, a.clusterUID)
	if was == will {
		return nil
	}
	return fmt.Errorf("%s: clusterID: changing it from %q to %q would assign all existing volumes to another cluster; put it back, or, if that is what you want, stop all replicas and delete %s",
		next.Source, was, will, a.lastGood)
}

// checkCredentials reads the credentials of every backend, so that changed
// ones take effect at once and broken ones are known before they are needed.
func (r *reloader) checkCredentials() {
	a := r.app
	var changed []string
	for _, config := range a.backendConfigs() {
		name := config.Name
		version, err := a.pool.CheckCredentials(config)
		if err != nil {
			err = a.inUse(config, err)
		}
		news := a.status.setUnreadable(name, err)
		switch {
		case err != nil && news:
			a.logger.Error("Cannot read credentials", "backend", name, "error", err)
			a.reportUnreadable(err)
		case news:
			a.logger.Info("Credentials are readable again", "backend", name)
			a.tell(corev1.EventTypeNormal, "CredentialsReadable", fmt.Sprintf("backend %s: the credentials can be read again and are in use", name))
		}
		if err != nil || version == r.versions[name] {
			continue
		}
		// Until now, other credentials were in use, or none.
		if news || r.versions[name] != "" {
			a.logger.Info("Credentials have changed", "backend", name)
			changed = append(changed, name)
		}
		r.versions[name] = version
	}
	if term := a.term(); term != nil && len(changed) > 0 {
		term.credentialsChanged(changed)
	}
}

// inUse adds to an error about credentials which ones are in use instead.
func (a *App) inUse(config backends.Config, err error) error {
	switch last, ok := a.pool.LastGood(config); {
	case !ok:
		return fmt.Errorf("%w; none were read before, so the backend cannot be used until they can be read", err)
	case last.Restored:
		return fmt.Errorf("%w; the last good ones, kept in %s, are in use", err, a.lastGood)
	}
	return fmt.Errorf("%w; credentials that were read before stay in use", err)
}

// readFile reads a file up to the largest size of a policy.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	defer file.Close() //nolint:errcheck // Nothing was written.
	data, err := io.ReadAll(io.LimitReader(file, policy.MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return data, nil
}
