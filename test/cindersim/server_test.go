package cindersim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
)

func TestCloseLeavesNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		s, err := New(Options{Latency: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		hanging := s.Inject(Fault{Kind: HangBefore, Operation: "volume.get"})
		client := &http.Client{Transport: &http.Transport{}}
		c := &sender{t: t, base: s.NoauthEndpoint() + "/" + DefaultNoauthProject, token: "admin:" + DefaultNoauthProject, client: client}
		var requests sync.WaitGroup
		for i := range 8 {
			requests.Add(1)
			go func() {
				defer requests.Done()
				c.try(context.Background(), "GET", []string{"/volumes", "/volumes/x"}[i%2], "")
			}()
		}
		for hanging.Applied() < 4 {
			time.Sleep(time.Millisecond)
		}
		s.Close()
		s.Close()
		requests.Wait()
		client.CloseIdleConnections()
		if got := c.try(context.Background(), "GET", "/volumes", ""); got.err == nil {
			t.Error("it answers after Close")
		}
		client.CloseIdleConnections()
	}
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
		time.Sleep(time.Millisecond)
	}
}

func TestItStartsOnceOnly(t *testing.T) {
	s := started(t, Options{})
	if err := s.Start(); err == nil {
		t.Error("it started twice")
	}
	taken := s.NoauthEndpoint()
	var port int
	if _, err := fmt.Sscanf(taken, "http://127.0.0.1:%d/v3", &port); err != nil {
		t.Fatal(err)
	}
	other, err := New(Options{CinderPort: port})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err == nil || !strings.HasPrefix(err.Error(), "start the simulator: listen tcp 127.0.0.1:") {
		t.Errorf("a taken port gives %v", err)
	}
	other.Close()
}

func TestItSpeaksTLS(t *testing.T) {
	// httptest lends its certificate for 127.0.0.1.
	lender := httptest.NewUnstartedServer(nil)
	lender.StartTLS()
	defer lender.Close()
	s := started(t, Options{TLSConfig: &tls.Config{Certificates: lender.TLS.Certificates}})
	roots := x509.NewCertPool()
	roots.AddCert(lender.Certificate())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	c := &sender{t: t, base: s.NoauthEndpoint(), token: "admin:fade", client: client}
	got := c.do(http.StatusOK, "GET", "/", "")
	raw, _ := json.Marshal(got.body)
	if !strings.HasPrefix(s.NoauthEndpoint(), "https://") || !strings.Contains(string(raw), s.NoauthEndpoint()+"/") {
		t.Errorf("the endpoint is %s, the document %s", s.NoauthEndpoint(), raw)
	}
}

func TestTheJournalOrdersCountsAndKeepsNoSecrets(t *testing.T) {
	s := started(t, Options{})
	c := noauthSender(t, s)
	id := c.create("claimed")
	c.act(http.StatusAccepted, id, "os-reserve", `{}`)
	c.act(http.StatusBadRequest, id, "os-reserve", `{}`)
	connection := c.act(http.StatusOK, id, "os-initialize_connection", `{"connector": {"host": "n", "initiator": "iqn.x"}}`)
	c.do(http.StatusNotFound, "GET", "/nothing", "")
	member := loggedIn(t, s, "team-a")
	member.do(http.StatusOK, "GET", "/volumes/detail?name=x", "")

	var got []string
	entries := s.Journal()
	for i, e := range entries {
		got = append(got, fmt.Sprintf("%s %s %d", e.Endpoint, e.Operation, e.Status))
		if e.Number != i+1 || !e.Done || e.Time.IsZero() {
			t.Errorf("entry %d is %+v", i, e)
		}
	}
	want := []string{
		"noauth volume.create 202", "noauth action.os-reserve 202", "noauth action.os-reserve 400",
		"noauth action.os-initialize_connection 200", "noauth unknown 404", "keystone auth.tokens.create 201", "cinder volume.list 200",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the journal has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if first := entries[0]; first.VolumeID != id || first.VolumeName != "claimed" || first.Project != DefaultNoauthProject {
		t.Errorf("the create is %+v", first)
	}
	if last := entries[len(entries)-1]; last.Query != "name=x" || last.Project != s.ProjectID("team-a") {
		t.Errorf("the list is %+v", last)
	}
	counts := s.CountByOperation()
	if counts["action.os-reserve"] != 2 || counts["volume.create"] != 1 {
		t.Errorf("the counts are %v", counts)
	}
	printed := fmt.Sprintf("%+v", entries)
	data := connection.body["connection_info"].(map[string]any)["data"].(map[string]any)
	for what, secret := range map[string]string{
		"the Keystone password": "team-a-pass", "the token": member.token, "the CHAP password": data["auth_password"].(string),
	} {
		if strings.Contains(printed, secret) {
			t.Errorf("the journal contains %s", what)
		}
	}
	s.ResetJournal()
	if len(s.Journal()) != 0 || len(s.CountByOperation()) != 0 {
		t.Error("a reset leaves entries")
	}
	c.do(http.StatusOK, "GET", "/volumes", "")
	if next := s.Journal()[0].Number; next != len(want)+1 {
		t.Errorf("after a reset the numbers continue with %d", next)
	}
}

func TestLatencyByOperation(t *testing.T) {
	options := Options{
		Latency:          time.Second,
		OperationLatency: map[string]time.Duration{"action.*": time.Minute, "action.os-*": time.Hour, "action.os-attach": 0},
	}
	for operation, want := range map[string]time.Duration{
		"volume.get": time.Second, "action.revert": time.Minute, "action.os-detach": time.Hour, "action.os-attach": 0,
	} {
		if got := options.latency(operation); got != want {
			t.Errorf("%s: %s, want %s", operation, got, want)
		}
	}
	s, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	s.SetLatency("", time.Millisecond)
	s.SetLatency("volume.get", 2*time.Millisecond)
	if got := s.latency("volume.list"); got != time.Millisecond {
		t.Errorf("the general latency is %s", got)
	}
	if got := s.latency("volume.get"); got != 2*time.Millisecond {
		t.Errorf("the latency of volume.get is %s", got)
	}
	if _, shared := options.OperationLatency["volume.get"]; shared {
		t.Error("SetLatency writes into the caller's options")
	}
}

func TestOptionsThatContradictThemselves(t *testing.T) {
	for _, test := range []struct {
		name    string
		options Options
		want    string
	}{
		{"a microversion of another API", Options{MaxMicroversion: "2.1"}, `option MaxMicroversion: "2.1" is not of the form 3.N`},
		{"a negative page", Options{MaxLimit: -1}, "option MaxLimit: -1 is negative"},
		{"no types", Options{Types: []drivers.VolumeType{}}, "option Types: a Cinder has at least one volume type"},
		{"a nameless type", Options{Types: []drivers.VolumeType{{}}}, "option Types: a volume type has no name"},
		{"twin types", Options{Types: []drivers.VolumeType{{Name: "a"}, {Name: "a"}}}, `option Types: two volume types are named "a"`},
		{"an unknown default type", Options{DefaultType: "b"}, `option DefaultType: no volume type is named "b"`},
		{"an identity that does", Options{Identity: keystone.Identity{Users: []keystone.User{{}}}}, "option Identity.Users: a user has no name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := New(test.options); err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestTheMaximumMicroversionIsConfigurable(t *testing.T) {
	s := started(t, Options{MaxMicroversion: "3.30"})
	c := noauthSender(t, s)
	c.do(http.StatusOK, "GET", "/attachments", "", "OpenStack-API-Version", "volume 3.30")
	got := c.do(http.StatusNotAcceptable, "GET", "/attachments", "", "OpenStack-API-Version", "volume 3.44")
	want := "Version 3.44 is not supported by the API. Minimum is 3.0 and maximum is 3.30."
	if message := got.body["computeFault"].(map[string]any)["message"]; message != want {
		t.Errorf("the message is %v", message)
	}
}
