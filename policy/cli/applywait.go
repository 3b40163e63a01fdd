package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// await waits until every replica runs the revision or has refused it.
func (a *applying) await(ctx context.Context) error {
	ctx, end := context.WithTimeout(ctx, a.timeout)
	defer end()
	a.tell("waiting for the replicas, whose kubelets update their files within about two minutes")
	told := map[string]string{}
	unknown := "no replica has answered yet"
	for {
		states, err := a.look(ctx)
		var replaced *replacedError
		switch {
		case errors.As(err, &replaced):
			return &ExitError{Code: ExitFailed, Err: err}
		case ctx.Err() != nil:
			// What a look that was cut off found says nothing about the replicas.
			return a.unfinished(ctx.Err(), unknown)
		case err != nil:
			unknown = err.Error()
		default:
			a.result.Replicas, unknown = states, ""
			if a.settled(told) {
				return a.verdict()
			}
		}
		select {
		case <-ctx.Done():
			return a.unfinished(ctx.Err(), unknown)
		case <-time.After(cmp.Or(a.Pause, applyPause)):
		}
	}
}

// replacedError means that somebody else has replaced the policy.
type replacedError struct{ place, by string }

func (e *replacedError) Error() string {
	if e.by == "" {
		return fmt.Sprintf("somebody has removed the policy from %s in the meantime; the replicas keep the one in force", e.place)
	}
	return fmt.Sprintf("somebody has replaced the policy in %s by revision %s in the meantime; run the same command again to see how they differ", e.place, e.by)
}

// look asks every replica, unless the ConfigMap no longer holds the policy.
func (a *applying) look(ctx context.Context) ([]Replica, error) {
	held, err := a.to.Held(ctx)
	if err != nil {
		return nil, err
	}
	found := a.read(held)
	if found == nil {
		return nil, &replacedError{place: a.Place.String()}
	}
	if now := found.Revision(); now != a.p.Revision() {
		return nil, &replacedError{a.Place.String(), now}
	}
	return a.to.Replicas(ctx)
}

// settled tells what is new about the replicas, and reports whether every one runs the
// policy or has refused it.
func (a *applying) settled(told map[string]string) bool {
	all := len(a.result.Replicas) > 0
	for _, r := range a.result.Replicas {
		news := ""
		switch revision := a.p.Revision(); {
		case r.Silent == "" && r.Revision == revision:
			news = fmt.Sprintf("replica %s runs revision %s", r.Pod, revision)
		case r.Silent == "" && r.Refused == revision:
			news = fmt.Sprintf("replica %s refuses revision %s, and keeps %s: %s", r.Pod, revision, r.Revision, strings.Join(r.Why, "; "))
		default:
			all = false
		}
		if news != "" && told[r.Pod] != news {
			a.tell("%s", news)
		}
		told[r.Pod] = news
	}
	return all
}

// verdict says what became of the policy once every replica has decided about it.
func (a *applying) verdict() error {
	revision := a.p.Revision()
	var refusing []string
	for _, r := range a.result.Replicas {
		if r.Revision != revision {
			refusing = append(refusing, r.Pod)
		}
	}
	if len(refusing) > 0 {
		return &ExitError{Code: ExitFailed, Err: fmt.Errorf("%d of %s refused revision %s and keep the policy in force; %s still holds it: correct it, or apply the earlier policy",
			len(refusing), count(len(a.result.Replicas), "replica"), revision, a.Place)}
	}
	a.tell("every replica (%d) runs revision %s", len(a.result.Replicas), revision)
	return nil
}

// unfinished says what is missing when the time is up, or the command is interrupted.
func (a *applying) unfinished(cause error, unknown string) error {
	missing, holds, hint := []string{}, "holds", ""
	for _, r := range a.result.Replicas {
		switch {
		case r.Silent != "":
			missing = append(missing, fmt.Sprintf("replica %s does not answer: %s", r.Pod, r.Silent))
		case r.Revision == a.p.Revision() || r.Refused == a.p.Revision():
		case len(r.Why) > 0:
			missing = append(missing, fmt.Sprintf("replica %s runs revision %s, and refuses another one: %s", r.Pod, r.Revision, strings.Join(r.Why, "; ")))
		default:
			missing = append(missing, fmt.Sprintf("replica %s runs revision %s", r.Pod, cmp.Or(r.Revision, "none")))
			hint = "; a kubelet updates no file that a pod mounts with subPath"
		}
	}
	switch {
	case unknown != "":
		missing, holds = append(missing, unknown), "held"
	case len(a.result.Replicas) == 0:
		missing = append(missing, fmt.Sprintf("no pod in namespace %s with the labels %s runs provisioner %s", a.Namespace, a.Selector, a.Provisioner))
	}
	waited := "interrupted"
	if errors.Is(cause, context.DeadlineExceeded) {
		waited = fmt.Sprintf("not finished after %s", a.timeout)
	}
	return &ExitError{Code: ExitFailed, Err: errors.New(oneLine(fmt.Sprintf("%s; %s %s revision %s, but %s; run the same command again to wait on%s",
		waited, a.Place, holds, a.p.Revision(), strings.Join(missing, "; "), hint)))}
}
