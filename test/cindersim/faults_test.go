package cindersim

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/random"
)

func TestFaultsBeforeAndAfterTheEffect(t *testing.T) {
	for _, test := range []struct {
		kind     Kind
		status   int // 0: no answer
		volumes  int
		performs bool
	}{
		{RespondBefore, http.StatusBadGateway, 0, false},
		{RespondAfter, http.StatusBadGateway, 1, true},
		{HangBefore, 0, 0, false},
		{HangAfter, 0, 1, true},
		{DropBefore, 0, 0, false},
		{DropAfter, 0, 1, true},
		{Delay, http.StatusAccepted, 1, true},
		{FailBackend, http.StatusAccepted, 1, true},
	} {
		t.Run(test.kind.String(), func(t *testing.T) {
			s := started(t, Options{})
			injection := s.Inject(Fault{Kind: test.kind, Operation: "volume.create", Code: http.StatusBadGateway, Times: 1})
			c := noauthSender(t, s)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if test.kind == HangBefore || test.kind == HangAfter {
				go func() {
					for injection.Applied() == 0 || test.volumes > 0 && len(s.Volumes()) == 0 {
						time.Sleep(time.Millisecond)
					}
					cancel()
				}()
			}
			got := c.try(ctx, "POST", "/volumes", `{"volume": {"name": "a", "size": 1}}`)
			if got.status != test.status || (got.err != nil) != (test.status == 0) {
				t.Errorf("status %d, error %v", got.status, got.err)
			}
			if hangs := test.kind == HangBefore || test.kind == HangAfter; hangs && !errors.Is(got.err, context.Canceled) {
				t.Errorf("the request did not hang until its client left: %v", got.err)
			}
			if volumes := s.Volumes(); len(volumes) != test.volumes {
				t.Errorf("%d volumes, want %d", len(volumes), test.volumes)
			} else if test.kind == FailBackend && volumes[0].Status != "error" {
				t.Errorf("the volume is %s", volumes[0].Status)
			}
			if injection.Applied() != 1 || injection.Remaining() != 0 {
				t.Errorf("applied %d times, %d remaining", injection.Applied(), injection.Remaining())
			}
			s.Close()
			entry := s.Journal()[0]
			if entry.Fault != test.kind.String() || entry.Performed != test.performs || entry.Status != test.status || !entry.Done {
				t.Errorf("the journal says %+v", entry)
			}
			if test.performs && entry.VolumeID != s.Volumes()[0].ID {
				t.Errorf("the journal has no id of the volume: %+v", entry)
			}
		})
	}
}

func TestFaultsThatAnswer(t *testing.T) {
	s := started(t, Options{})
	c := noauthSender(t, s)
	for _, test := range []struct {
		name  string
		fault Fault
		want  string
	}{
		{"503 by default", Fault{}, "serviceUnavailable"},
		{"a rate limit", Fault{Code: http.StatusTooManyRequests, RetryAfter: "3"}, "computeFault"},
		{"401 in Keystone's form", Fault{Code: http.StatusUnauthorized}, "error"},
		{"a body of its own", Fault{Code: http.StatusConflict, Body: `{"mine": {}}`}, "mine"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.fault.Kind, test.fault.Times = RespondBefore, 1
			s.Inject(test.fault)
			code := test.fault.Code
			if code == 0 {
				code = http.StatusServiceUnavailable
			}
			got := c.do(code, "GET", "/volumes", "")
			if got.body[test.want] == nil {
				t.Errorf("the body is %v, want a %q", got.body, test.want)
			}
			if retry := got.header.Get("Retry-After"); retry != test.fault.RetryAfter {
				t.Errorf("Retry-After is %q", retry)
			}
		})
	}
	c.do(http.StatusOK, "GET", "/volumes", "")
	s.Inject(Fault{Kind: RespondBefore, Operation: "auth.*", Code: http.StatusInternalServerError})
	if got := sendTo(t, s.KeystoneURL(), "").do(http.StatusInternalServerError, "POST", "/auth/tokens", `{}`); got.body["error"] == nil {
		t.Errorf("Keystone's fault is %v", got.body)
	}
}

func TestFaultsPickTheirRequests(t *testing.T) {
	s := started(t, Options{})
	c := noauthSender(t, s)
	first, second := c.create("first"), c.create("second")
	for _, test := range []struct {
		name  string
		fault Fault
		want  string // "x" for each request that fails
	}{
		{"every one", Fault{Operation: "volume.get"}, "xx.xx."},
		{"by prefix", Fault{Operation: "volume.*"}, "xxxxxx"},
		{"by volume name", Fault{Volume: "first"}, "x..x.."},
		{"by volume id", Fault{Volume: second}, ".x..x."},
		{"a limited number", Fault{Operation: "volume.get", Times: 3}, "xx.x.."},
		{"the nth", Fault{Operation: "volume.get", Nth: 3}, "...x.."},
		{"by function", Fault{Match: func(r Request) bool { return strings.HasSuffix(r.Path, "/volumes") }}, "..x..x"},
		{"by endpoint", Fault{Match: func(r Request) bool { return r.Endpoint == Keystone }}, "......"},
		{"by project", Fault{Match: func(r Request) bool { return r.Project == DefaultNoauthProject && r.VolumeName == "second" }}, ".x..x."},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.fault.Kind = RespondBefore
			injection := s.Inject(test.fault)
			defer injection.Remove()
			got := ""
			for _, path := range []string{"/volumes/" + first, "/volumes/" + second, "/volumes", "/volumes/" + first, "/volumes/" + second, "/volumes"} {
				switch answer := c.try(context.Background(), "GET", path, ""); answer.status {
				case http.StatusOK:
					got += "."
				case http.StatusServiceUnavailable:
					got += "x"
				default:
					t.Fatalf("%s: status %d, error %v", path, answer.status, answer.err)
				}
			}
			if got != test.want {
				t.Errorf("the failures are %s, want %s", got, test.want)
			}
			if applied := strings.Count(got, "x"); injection.Applied() != applied || injection.Matched() < applied {
				t.Errorf("applied %d, matched %d", injection.Applied(), injection.Matched())
			}
		})
	}
	c.do(http.StatusOK, "GET", "/volumes", "")
}

func TestFaultProbabilitiesComeFromTheSeed(t *testing.T) {
	failures := func(seed uint64) string {
		s := started(t, Options{Seed: seed})
		s.Inject(Fault{Kind: RespondBefore, Operation: "volume.list", Probability: 0.5})
		c := noauthSender(t, s)
		got := ""
		for range 40 {
			if c.try(context.Background(), "GET", "/volumes", "").status == http.StatusOK {
				got += "."
			} else {
				got += "x"
			}
		}
		return got
	}
	first := failures(11)
	if again := failures(11); again != first {
		t.Errorf("one seed gives %s and %s", first, again)
	}
	if other := failures(12); other == first {
		t.Errorf("two seeds give %s", other)
	}
	if n := strings.Count(first, "x"); n < 8 || n > 32 {
		t.Errorf("half of 40 requests should fail, %d do", n)
	}
}

func TestDelaysAddUpAndLetOtherFaultsApply(t *testing.T) {
	s := &faultSet{ids: random.New(1)}
	s.inject(Fault{Kind: Delay, Delay: time.Second})
	s.inject(Fault{Kind: DropBefore, Delay: time.Minute})
	s.inject(Fault{Kind: RespondBefore, Delay: time.Hour})
	fault, delays := s.pick(Request{Operation: "volume.get"})
	var delay time.Duration
	for _, injection := range delays {
		delay += injection.fault.Delay
	}
	if fault == nil || fault.Kind != DropBefore || delay != time.Minute+time.Second {
		t.Errorf("picked %+v after %s", fault, delay)
	}
}

func TestADelayEndsWhenItIsRemoved(t *testing.T) {
	s := started(t, Options{})
	delay := s.Inject(Fault{Kind: Delay, Delay: time.Hour})
	c := noauthSender(t, s)
	go func() {
		for delay.Applied() == 0 {
			time.Sleep(time.Millisecond)
		}
		delay.Remove()
		delay.Remove()
	}()
	c.do(http.StatusOK, "GET", "/volumes", "")
}

func TestABlackHoleEndsWhenItIsRemoved(t *testing.T) {
	s := started(t, Options{})
	hole := s.BlackHole()
	c := noauthSender(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for hole.Applied() == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if got := c.try(ctx, "GET", "/volumes", ""); got.err == nil {
		t.Errorf("a black hole answered %d", got.status)
	}
	hole.Remove()
	c.do(http.StatusOK, "GET", "/volumes", "")
}

func TestAFailingBackendFailsWhereTheDriverWould(t *testing.T) {
	clock := newClock()
	s := started(t, clock.options(Options{}))
	c := noauthSender(t, s)
	fail := func(operation string) { s.Inject(Fault{Kind: FailBackend, Operation: operation, Times: 1}) }
	const from = `{"connector": {"host": "node1", "initiator": "iqn.1993-08.org.debian:01:node1"}}`

	id := c.create("a")
	fail("action.os-initialize_connection")
	c.act(http.StatusInternalServerError, id, "os-initialize_connection", from)
	if v, _ := s.Volume(id); v.Export.Present || v.Status != "available" {
		t.Errorf("after a failed initialize the volume is %s, exported %v", v.Status, v.Export.Present)
	}
	c.act(http.StatusOK, id, "os-initialize_connection", from)
	c.act(http.StatusAccepted, id, "os-attach", `{"host_name": "node1", "mountpoint": "/dev/sdb"}`)
	fail("action.os-terminate_connection")
	c.act(http.StatusInternalServerError, id, "os-terminate_connection", from)
	if v, _ := s.Volume(id); !v.Export.Present || v.Status != "in-use" || len(v.Export.ConnectedHosts) != 1 {
		t.Errorf("after a failed terminate the volume is %s with %+v", v.Status, v.Export)
	}
	c.act(http.StatusAccepted, id, "os-terminate_connection", from)
	c.act(http.StatusAccepted, id, "os-detach", `{}`)
	fail("action.os-extend")
	c.act(http.StatusAccepted, id, "os-extend", `{"new_size": 2}`)
	if v, _ := s.Volume(id); v.Status != "error_extending" || v.SizeGiB != 1 {
		t.Errorf("after a failed extend the volume is %s of %d GiB", v.Status, v.SizeGiB)
	}
	if usage := c.do(http.StatusOK, "GET", "/os-quota-sets/"+DefaultNoauthProject+"?usage=true", "").body["quota_set"].(map[string]any)["gigabytes"]; usage.(map[string]any)["in_use"] != 1.0 || usage.(map[string]any)["reserved"] != 0.0 {
		t.Errorf("after a failed extend the usage is %v", usage)
	}
	fail("volume.delete")
	c.do(http.StatusAccepted, "DELETE", "/volumes/"+id, "")
	if got := c.status(id); got != "error_deleting" {
		t.Errorf("after a failed delete the volume is %s", got)
	}
	c.act(http.StatusAccepted, id, "os-force_delete", `{}`)
	c.do(http.StatusNotFound, "GET", "/volumes/"+id, "")
}
