package cindersim

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"
)

// clock is a clock that a test moves.
type clock struct{ at time.Time }

func newClock() *clock { return &clock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) now() time.Time                  { return c.at }
func (c *clock) advance(by time.Duration)        { c.at = c.at.Add(by) }
func (c *clock) options(options Options) Options { options.Now = c.now; return options }

// started returns a running simulator that is closed when the test ends.
func started(t testing.TB, options Options) *Simulator {
	t.Helper()
	s, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// result is an answer, or an error instead.
type result struct {
	status int
	header http.Header
	body   map[string]any
	err    error
}

// sender sends requests to one of the endpoints.
type sender struct {
	t      testing.TB
	base   string
	token  string
	client *http.Client
}

func sendTo(t testing.TB, base, token string) *sender {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(client.CloseIdleConnections)
	return &sender{t: t, base: base, token: token, client: client}
}

// noauthSender sends to the noauth endpoint, in the default project.
func noauthSender(t testing.TB, s *Simulator) *sender {
	t.Helper()
	return sendTo(t, s.NoauthEndpoint()+"/"+DefaultNoauthProject, "admin:"+DefaultNoauthProject)
}

func (s *sender) try(ctx context.Context, method, path, body string, headers ...string) result {
	s.t.Helper()
	request, err := http.NewRequestWithContext(ctx, method, s.base+path, bytes.NewReader([]byte(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	if body == "" {
		request.Body, request.ContentLength = nil, 0
	} else {
		request.Header.Set("Content-Type", "application/json")
	}
	if s.token != "" {
		request.Header.Set("X-Auth-Token", s.token)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := s.client.Do(request)
	if err != nil {
		return result{err: err}
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	got := result{status: response.StatusCode, header: response.Header, err: err}
	if len(raw) > 0 {
		_ = json.Unmarshal(raw, &got.body)
	}
	return got
}

// do sends a request and requires a status.
func (s *sender) do(want int, method, path, body string, headers ...string) result {
	s.t.Helper()
	got := s.try(context.Background(), method, path, body, headers...)
	if got.err != nil || got.status != want {
		s.t.Fatalf("%s %s: status %d, want %d; error %v; body %v", method, path, got.status, want, got.err, got.body)
	}
	return got
}

func (s *sender) create(name string) string {
	s.t.Helper()
	got := s.do(http.StatusAccepted, "POST", "/volumes", `{"volume": {"name": "`+name+`", "size": 1}}`)
	return got.body["volume"].(map[string]any)["id"].(string)
}

func (s *sender) status(id string) string {
	s.t.Helper()
	return s.do(http.StatusOK, "GET", "/volumes/"+id, "").body["volume"].(map[string]any)["status"].(string)
}

func (s *sender) act(want int, id, action, parameters string) result {
	s.t.Helper()
	return s.do(want, "POST", "/volumes/"+id+"/action", `{"`+action+`": `+parameters+`}`)
}
