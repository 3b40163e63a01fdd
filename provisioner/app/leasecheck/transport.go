// Package leasecheck keeps a replica that no longer leads from changing anything: it
// knows until when the lease is certainly held, and stops requests to Kubernetes.
package leasecheck

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Transport lets only a leader change anything in Kubernetes, and cuts off requests
// under way when the lease is lost. It applies the same fence as requests to Cinder: a
// leader that was paused, and resumes after another was elected, must not save what it
// was about to write.
type Transport struct {
	Next http.RoundTripper
	// MayWrite returns an error unless this replica leads; TermCtx ends with the
	// term.
	MayWrite func() error
	TermCtx  func() context.Context
}

// requestTimeout bounds every request: no worker waits forever for an API server that
// has accepted a request and does not answer. The server itself gives up after a
// minute, but reading a list may take longer.
const requestTimeout = 5 * time.Minute

// timeoutOf returns how long a request may take; 0 means forever. A watch lasts as long
// as it asks for, and informers bound that.
func timeoutOf(r *http.Request) time.Duration {
	query := r.URL.Query()
	if r.Method != http.MethodGet || query.Get("watch") == "" {
		return requestTimeout
	}
	if seconds, err := strconv.ParseInt(query.Get("timeoutSeconds"), 10, 32); err == nil && seconds > 0 {
		return time.Duration(seconds)*time.Second + requestTimeout
	}
	return 0
}

// RoundTrip implements http.RoundTripper.
func (f *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	timeout := timeoutOf(r)
	if timeout == 0 {
		return f.Next.RoundTrip(r)
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	end := sync.OnceFunc(cancel)
	r = r.WithContext(ctx)
	if r.Method != http.MethodGet && !isAboutEvents(r.URL.Path) {
		termCtx := f.TermCtx()
		if err := f.MayWrite(); err != nil {
			end()
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, err
		}
		stop := context.AfterFunc(termCtx, cancel)
		end = sync.OnceFunc(func() { stop(); cancel() })
		f.guard(r)
	}
	answer, err := f.Next.RoundTrip(r)
	if err != nil {
		end()
		return nil, err
	}
	answer.Body = &endingBody{answer.Body, end}
	return answer, nil
}

// guard checks once more when a request's body leaves the process. After the first check,
// the request may have waited for a connection, or the process may have been paused for
// minutes. The server acts on complete bodies only.
func (f *Transport) guard(r *http.Request) {
	if r.Body == nil {
		return
	}
	r.Body = &guardedBody{r.Body, f.MayWrite}
	again := r.GetBody
	if again == nil {
		return
	}
	r.GetBody = func() (io.ReadCloser, error) {
		body, err := again()
		if err != nil {
			return nil, err
		}
		return &guardedBody{body, f.MayWrite}, nil
	}
}

type guardedBody struct {
	io.ReadCloser
	mayWrite func() error
}

// Read checks after it has read: this is the last moment before the bytes are sent.
func (b *guardedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if refused := b.mayWrite(); refused != nil {
		return 0, refused
	}
	return n, err
}

// endingBody releases a request's context once the response body is closed.
type endingBody struct {
	io.ReadCloser
	end func()
}

func (b *endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// isAboutEvents reports whether a path is that of an event or of a namespace's events.
// Every replica may report what it sees.
func isAboutEvents(path string) bool {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	at := slices.Index(segments, "namespaces")
	return at >= 0 && len(segments) > at+2 && segments[at+2] == "events"
}
