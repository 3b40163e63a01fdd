package machine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// errCut is what requests get that cannot reach the API server.
var errCut = errors.New("the network is unreachable")

// link is a way to the API server. When it is cut, it ends the requests that are under
// way, which the API server may carry out all the same.
type link struct {
	mu   sync.Mutex
	cut  bool
	ends map[*context.CancelCauseFunc]bool
}

func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for end := range l.ends {
			(*end)(errCut)
		}
		l.ends = nil
	}
}

func (l *link) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// under returns a context that ends when the link is cut.
func (l *link) under(ctx context.Context) (context.Context, func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, nil, errCut
	}
	ctx, end := context.WithCancelCause(ctx)
	if l.ends == nil {
		l.ends = map[*context.CancelCauseFunc]bool{}
	}
	l.ends[&end] = true
	return ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.ends, &end)
		end(nil)
	}, nil
}

// over returns a transport over a link.
func (l *link) over(next http.RoundTripper) http.RoundTripper { return roundTripper{l, next} }

type roundTripper struct {
	link *link
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper. Answers are short, so they are read at once.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, done, err := r.link.under(request.Context())
	if err != nil {
		return nil, err
	}
	defer done()
	response, err := r.next.RoundTrip(request.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// WrappedRoundTripper lets client-go find what can end a request.
func (r roundTripper) WrappedRoundTripper() http.RoundTripper { return r.next }
