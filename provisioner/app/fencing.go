package app

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// fencedTransport lets only a leader change anything in Kubernetes, and cuts
// requests under way when the lease is lost. It applies the same fence as
// requests to Cinder: a leader that was paused, and resumes after another was
// elected, must not save what it was about to write.
type fencedTransport struct {
	next http.RoundTripper
	// mayWrite returns an error unless this replica leads; termCtx ends with the
	// term.
	mayWrite func() error
	termCtx  func() context.Context
}

// requestTimeout bounds every request but watches, which last: no worker waits
// for ever for an API server that has accepted a request and does not answer. The
// server itself gives up after a minute, but a list takes a while to read.
const requestTimeout = 5 * time.Minute

// RoundTrip implements http.RoundTripper.
func (f *fencedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && r.URL.Query().Get("watch") != "" {
		return f.next.RoundTrip(r)
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	end := sync.OnceFunc(cancel)
	if r.Method != http.MethodGet && !isAboutEvents(r.URL.Path) {
		termCtx := f.termCtx()
		if err := f.mayWrite(); err != nil {
			end()
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, err
		}
		stop := context.AfterFunc(termCtx, cancel)
		end = sync.OnceFunc(func() { stop(); cancel() })
	}
	answer, err := f.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	answer.Body = &endingBody{answer.Body, end}
	return answer, nil
}

// endingBody releases a request's context once its answer is read.
type endingBody struct {
	io.ReadCloser
	end func()
}

func (b *endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// isAboutEvents reports whether a path is that of an event or of a namespace's
// events: every replica may report what it sees.
func isAboutEvents(path string) bool {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	at := slices.Index(segments, "namespaces")
	return at >= 0 && len(segments) > at+2 && segments[at+2] == "events"
}
