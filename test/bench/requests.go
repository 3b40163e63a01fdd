package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// auditPolicy makes the API server note every request of the program, of the
// controllers and of the bare loop, except what goes on when nothing happens.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - {level: None, resources: [{group: coordination.k8s.io}]}
  - {level: None, verbs: [watch]}
  - {level: Metadata, userGroups: ["system:serviceaccounts:` + harness.Namespace + `", "system:serviceaccounts:kube-system", "system:masters"]}
  - {level: None}
`

// party is who sends requests.
type party string

// The parties whose requests are counted.
const (
	theProgram     party = "program"
	theLoop        party = "loop"
	theControllers party = "controller_manager"
)

// loopAgent is how the bare loop introduces itself to the API server.
const loopAgent = "bare-loop"

// requests counts by verb and resource, such as "create persistentvolumes".
type requests map[string]int

func (r requests) add(more requests) {
	for what, n := range more {
		r[what] += n
	}
}

func (r requests) sum() (all int) {
	for _, n := range r {
		all += n
	}
	return all
}

// auditLog reads the API server's audit log, from where it was last read.
type auditLog struct {
	path   string
	offset int64
}

// next counts the requests since the last call.
func (l *auditLog) next() (map[party]requests, error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(l.offset, io.SeekStart); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	// The last line may be half written.
	content = content[:bytes.LastIndexByte(content, '\n')+1]
	l.offset += int64(len(content))
	return countRequests(content), nil
}

// settled counts the requests until there are no more for a while: events are
// written behind the work that they tell about.
func (l *auditLog) settled(ctx context.Context) (map[party]requests, error) {
	const pause, most = time.Second, 30
	all := map[party]requests{}
	for range most {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		more, err := l.next()
		if err != nil {
			return nil, err
		}
		if len(more) == 0 {
			break
		}
		for who, counted := range more {
			if all[who] == nil {
				all[who] = requests{}
			}
			all[who].add(counted)
		}
	}
	return all, nil
}

// countRequests counts the lines of an audit log.
func countRequests(log []byte) map[party]requests {
	counted := map[party]requests{}
	for line := range bytes.Lines(log) {
		var event struct {
			Verb, UserAgent string
			ObjectRef       struct{ Resource, Subresource string }
			User            struct{ Username string }
		}
		if json.Unmarshal(line, &event) != nil || event.ObjectRef.Resource == "" {
			continue
		}
		who := partyOf(event.User.Username, event.UserAgent)
		if who == "" {
			continue
		}
		if counted[who] == nil {
			counted[who] = requests{}
		}
		what := event.Verb + " " + event.ObjectRef.Resource
		if event.ObjectRef.Subresource != "" {
			what += "/" + event.ObjectRef.Subresource
		}
		counted[who][what]++
	}
	return counted
}

// partyOf returns the party that a request is from; empty if it is not counted,
// such as the benchmark itself.
func partyOf(user, agent string) party {
	switch {
	case strings.HasPrefix(user, "system:serviceaccount:"+harness.Namespace+":"):
		return theProgram
	case strings.HasPrefix(user, "system:serviceaccount:kube-system:"):
		return theControllers
	case agent == loopAgent:
		return theLoop
	}
	return ""
}

// kinds lists what any of the parties asked for.
func kinds(all ...requests) []string {
	union := requests{}
	for _, r := range all {
		union.add(r)
	}
	return slices.Sorted(maps.Keys(union))
}
