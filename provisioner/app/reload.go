package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// pollInterval is how often the mounted files are compared with what is in force.
// The program reads their content and does not rely on filesystem
// notifications: a ConfigMap or Secret is mounted as a symlink to a symlink
// that is swapped, some filesystems send no notifications at all, and reading
// a few kilobytes a second costs nothing. A policy of several files is one content.
const pollInterval = time.Second

// maxErrors is how many errors an event lists; the log has them all.
const maxErrors = 3

// reloader puts a changed policy into force and notices changed credentials.
// Every replica has one, so that a follower leads under the same policy.
type reloader struct {
	*replica
	// refused is the revision of the last refused file; empty when the file is the
	// policy in force.
	refused string
	// versions is the last version of each backend's credentials.
	versions map[string]string
}

func newReloader(of *replica) *reloader {
	return &reloader{replica: of, versions: map[string]string{}}
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
	before := r.policy.Load()
	revision, next, err := r.readPolicy(before.Revision(), r.refused)
	switch {
	case err == nil && next == nil:
		if revision == before.Revision() && r.refused != "" {
			r.logger.Info("The policy file is again the policy in force", "revision", revision)
			r.accept(revision)
			r.tell(corev1.EventTypeNormal, "PolicyReloaded", fmt.Sprintf("the policy file is good again; its revision %s was in force all along", revision))
		}
		return
	case err == nil:
		err = r.sameCluster(before, next)
	}
	if err != nil {
		r.refuse(revision, err)
		return
	}
	r.retired.retire(before, next)
	r.putInForce(next)
	r.retired.restore(next)
	r.accept(revision)
	r.logger.Info("Reloaded the policy", "revision", revision, "before", before.Revision())
	r.tell(corev1.EventTypeNormal, "PolicyReloaded", fmt.Sprintf("policy revision %s is now in force (was %s)", revision, before.Revision()))
	r.warnOfMissingBackends()
	if term := r.term(); term != nil {
		term.policyChanged()
	}
}

// unreadableFile begins the revision of a file that cannot be read.
const unreadableFile = "unreadable: "

// readPolicy reads the file, or the files, and checks them, unless its revision is known. Even a file
// that cannot be read has a revision, which names the reason.
func (r *replica) readPolicy(known ...string) (revision string, found *policy.Policy, err error) {
	files, err := policy.ReadFiles(r.options.PolicyFile)
	if err != nil {
		return unreadableFile + err.Error(), nil, err
	}
	revision = files.Revision()
	if slices.Contains(known, revision) {
		return revision, nil, nil
	}
	found, err = policy.ParseFiles(files, r.options.PolicyFile, r.options.Protocols.Describe())
	return revision, found, err
}

// putInForce makes a policy apply to all later decisions.
func (r *replica) putInForce(next *policy.Policy) {
	r.noteTimeouts(next)
	r.policy.Store(next)
	for _, warning := range next.Warnings {
		r.logger.Warn("Policy: " + warning.Error())
	}
}

func (r *reloader) accept(revision string) {
	r.refused = ""
	r.fromKept.Store(false)
	r.reloads.inForce(revision)
	r.status.setRefused("", nil)
}

// refuse keeps the policy in force, and reports why, once for each content.
func (r *reloader) refuse(revision string, err error) {
	if r.refused == revision {
		return
	}
	r.refused = revision
	r.reloads.failed()
	readable := revision
	if strings.HasPrefix(revision, unreadableFile) {
		readable = ""
	}
	r.status.setRefused(readable, err)
	r.logger.Error("Refused the policy file; the last good policy stays in force", "revision", r.policy.Load().Revision()+r.keptWhere(), "error", err)
	r.reportRefused(err)
}

// reportRefused writes the event about a refused file.
func (r *replica) reportRefused(err error) {
	r.tell(corev1.EventTypeWarning, "PolicyRefused", fmt.Sprintf("refused the policy file; revision %s%s stays in force: %s",
		r.policy.Load().Revision(), r.keptWhere(), firstErrors(err)))
}

// keptWhere returns text that follows a revision in messages if this replica has not
// read that policy from its file.
func (r *replica) keptWhere() string {
	if !r.fromKept.Load() {
		return ""
	}
	return fmt.Sprintf(" (the last good one, kept in %s)", r.lastGood)
}

// reportUnreadable writes the event about credentials that cannot be read.
func (r *replica) reportUnreadable(err error) {
	r.tell(corev1.EventTypeWarning, "CredentialsUnreadable", err.Error())
}

// reportTroubles reports at the beginning of a term what this replica found as a
// follower.
func (r *replica) reportTroubles() {
	unreadable, refused := r.status.troubles()
	if refused != nil {
		r.reportRefused(refused)
	}
	for _, err := range unreadable {
		r.reportUnreadable(err)
	}
	r.warnOfMissingBackends()
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
func (r *replica) sameCluster(before, next *policy.Policy) error {
	was, will := cmp.Or(before.ClusterID, r.clusterUID), cmp.Or(next.ClusterID, r.clusterUID)
	if was == will {
		return nil
	}
	return fmt.Errorf("%s: clusterID: changing it from %q to %q would assign all existing volumes to another cluster; put it back, or, if that is what you want, stop all replicas and delete %s",
		next.Source, was, will, r.lastGood)
}

// checkCredentials reads the credentials of every backend, so that changed
// ones take effect at once and broken ones are known before they are needed.
func (r *reloader) checkCredentials() {
	var changed []string
	for _, config := range r.backendConfigs() {
		name := config.Name
		version, err := r.pool.CheckCredentials(config)
		switch {
		case err == nil:
		case version == "":
			err = fmt.Errorf("%w; none were read before, so the backend cannot be used until they can be read", err)
		default:
			err = fmt.Errorf("%w; credentials that were read before stay in use", err)
		}
		news := r.status.setUnreadable(name, err)
		switch {
		case err != nil && news:
			r.logger.Error("Cannot read credentials", "backend", name, "error", err)
			r.reportUnreadable(err)
		case news:
			r.logger.Info("Credentials are readable again", "backend", name)
			r.tell(corev1.EventTypeNormal, "CredentialsReadable", fmt.Sprintf("backend %s: the credentials can be read again and are in use", name))
		}
		if err != nil || version == r.versions[name] {
			continue
		}
		// Until now, other credentials were in use, or none.
		if news || r.versions[name] != "" {
			r.logger.Info("Credentials have changed", "backend", name)
			changed = append(changed, name)
		}
		r.versions[name] = version
	}
	if term := r.term(); term != nil && len(changed) > 0 {
		term.credentialsChanged(changed)
	}
}
