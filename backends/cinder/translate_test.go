package cinder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gophercloud/gophercloud/v2"
	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestRecordedFaults sends recorded answers of Cinder through a client and
// compares the errors with those in testdata/faults.json. UPDATE_GOLDEN=1
// rewrites the messages; kinds are always written by hand.
func TestRecordedFaults(t *testing.T) {
	type recorded struct {
		Name          string            `json:"name"`
		Operation     string            `json:"operation"`
		Status        int               `json:"status"`
		Headers       map[string]string `json:"headers"`
		Body          string            `json:"body"`
		Kind          Kind              `json:"kind"`
		Message       string            `json:"message"`
		EffectUnknown bool              `json:"effectUnknown"`
	}
	var golden struct {
		About  string     `json:"about"`
		Faults []recorded `json:"faults"`
	}
	const path = "testdata/faults.json"
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &golden); err != nil {
		t.Fatal(err)
	}
	update := os.Getenv("UPDATE_GOLDEN") != ""
	for i, fault := range golden.Faults {
		t.Run(fault.Name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			client := logIn(t, cloud)
			cloud.Set(func() {
				cloud.Cinder = func(w http.ResponseWriter, _ *http.Request) {
					for name, value := range fault.Headers {
						w.Header().Set(name, value)
					}
					if fault.Status == http.StatusNoContent {
						w.WriteHeader(fault.Status)
						return
					}
					cindertest.Answer(w, fault.Status, fault.Body)
				}
			})
			err := call(t.Context(), client, fault.Operation)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v", err)
			}
			if update {
				golden.Faults[i].Message, golden.Faults[i].EffectUnknown = e.Error(), e.EffectUnknown
				return
			}
			equal(t, e.Error(), fault.Message)
			equal(t, e.Kind, fault.Kind)
			equal(t, e.EffectUnknown, fault.EffectUnknown)
			equal(t, e.Status, fault.Status)
			equal(t, e.Operation, fault.Operation)
			for name, value := range fault.Headers {
				if strings.EqualFold(name, "X-Openstack-Request-Id") {
					equal(t, e.RequestID, value)
				}
			}
		})
	}
	if update {
		content, err := json.MarshalIndent(golden, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(content, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// call makes one request of the named operation.
func call(ctx context.Context, client *Client, operation string) error {
	switch operation {
	case "volume.get":
		_, err := client.Volume(ctx, "v1")
		return err
	case "volume.create":
		_, err := client.CreateVolume(ctx, NewVolume{Name: "pvc-1", SizeGiB: 1})
		return err
	case "volume.list":
		return client.ListVolumes(ctx, Query{}, func([]Volume) bool { return true })
	case "volume.delete":
		return client.DeleteVolume(ctx, "v1")
	case "volume.force-delete":
		return client.ForceDeleteVolume(ctx, "v1")
	case "volume.os-reserve":
		return client.Reserve(ctx, "v1")
	case "volume.os-unreserve":
		return client.Unreserve(ctx, "v1")
	case "volume.os-attach":
		return client.Attach(ctx, "v1", "k8s", false)
	case "volume.os-detach":
		return client.Detach(ctx, "v1", "a1")
	case "volume.os-initialize_connection":
		_, err := client.InitializeConnection(ctx, "v1", Connector{Host: "k8s"})
		return err
	case "volume.os-terminate_connection":
		return client.TerminateConnection(ctx, "v1", Connector{Host: "k8s"})
	case "message.list":
		var answer any
		_, err := client.service.Get(withOperation(ctx, operation), client.service.ServiceURL("messages"), &answer, nil)
		return translate(client.backend, operation, err)
	}
	return fmt.Errorf("no operation %q", operation)
}

var mutations = []string{"volume.create", "volume.delete", "volume.force-delete", "volume.os-reserve", "volume.os-unreserve", "volume.os-attach",
	"volume.os-detach", "volume.os-initialize_connection", "volume.os-terminate_connection"}

// TestStatusTable covers what no recording contains.
func TestStatusTable(t *testing.T) {
	tests := []struct {
		status        int
		body          string
		header        http.Header
		kind          Kind
		message       string
		effectUnknown bool
		retryAfter    time.Duration
	}{
		{200, `{"volume": {"id": "v1"}}`, nil, KindInternal, "Cinder answered with status ok, which the API reference does not allow here", true, 0},
		{200, "", nil, KindConfig, emptyAnswer, true, 0},
		{400, "", nil, KindInvalid, "Cinder answered bad request", true, 0},
		{400, `["no object"]`, nil, KindInvalid, "Cinder answered bad request", true, 0},
		{400, `{"badRequest": {"code": 400, "message": "  two\tparts\r\nTraceback: secret "}}`, nil, KindInvalid, "two parts", false, 0},
		{400, `{"badRequest": {"code": 400, "message": "Key manager error"}}`, nil, KindInvalid, keyRole, false, 0},
		{400, `{"badRequest": {"code": 400, "message": 7}}`, nil, KindInvalid, "Cinder answered bad request", true, 0},
		{400, `{"b": {"message": "second"}, "a": {"message": "first"}}`, nil, KindInvalid, "first", false, 0},
		{400, `{"badRequest": {"message": "` + strings.Repeat("é", 200) + `"}}`, nil, KindInvalid, strings.Repeat("é", 150) + "...", false, 0},
		{400, `{"badRequest": {"message": "Invalid volume: Volume status must be available."}}`, nil, KindConflict, "Invalid volume: Volume status must be available", false, 0},
		{400, `{"badRequest": {"message": "Invalid snapshot: Snapshot status must be available or error."}}`, nil, KindConflict, "Invalid snapshot: Snapshot status must be available or error", false, 0},
		{401, "", nil, KindUnauthorized, "the credentials were rejected", false, 0},
		{401, `{"error": {"code": 401, "message": "The request you have made requires authentication."}}`, nil, KindUnauthorized, tokenRefused, false, 0},
		{401, "Authentication required", http.Header{"Www-Authenticate": {"Keystone uri=\"http://k\""}}, KindUnauthorized, tokenRefused, false, 0},
		{401, "<html>login</html>", nil, KindConfig, "something in front of Cinder, such as a proxy, demands a login of its own; let the program's requests pass there", false, 0},
		{401, "", http.Header{"Www-Authenticate": {"Basic realm=\"x\""}}, KindConfig, "something in front of Cinder, such as a proxy, demands a login of its own; let the program's requests pass there", false, 0},
		{403, "<html>", nil, KindForbidden, "something in front of Cinder, such as a proxy or a firewall, forbids the request; let the program's requests pass there", true, 0},
		{403, "", nil, KindForbidden, "the account may not do this", true, 0},
		{403, `{"forbidden": {"code": 403, "message": "Policy doesn't allow volume:create to be performed."}}`, nil, KindForbidden, "Policy doesn't allow volume:create to be performed", false, 0},
		{413, `{"overLimit": {"code": 413, "message": "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. Requested 500G, quota is 100G and 20G has been consumed."}}`, nil, KindOverQuota,
			"the request is larger than Cinder's quota for the OpenStack project or its largest volume, so it can never fit: VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. Requested 500G, quota is 100G and 20G has been consumed", false, 0},
		{413, `{"overLimit": {"code": 413, "message": "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. Requested 50G, quota is 100G and 90G has been consumed."}}`, nil, KindOverQuota,
			"the OpenStack project's Cinder quota, not the policy's, is exhausted: VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. Requested 50G, quota is 100G and 90G has been consumed", false, 0},
		{503, "<html>The Keystone service is temporarily unavailable.</html>", nil, KindUnavailable, tokenUnchecked, true, 0},
		{404, "404 page not found", nil, KindConfig, unprovenAbsence, true, 0},
		{404, `{"itemNotFound": {"code": 404, "message": ""}}`, nil, KindNotFound, "not found", false, 0},
		{405, "", nil, KindInternal, "Cinder answered method not allowed", true, 0},
		{408, "", nil, KindUnavailable, "Cinder answered request timeout", true, 0},
		{409, "", nil, KindConflict, "Cinder answered conflict", true, 0},
		{413, "", nil, KindInvalid, requestTooLarge, false, 0},
		{413, `{"overLimit": {"code": 413, "message": "Maximum number of volumes allowed (10) exceeded."}}`, http.Header{"Retry-After": {"0"}}, KindOverQuota,
			"the OpenStack project's Cinder quota, not the policy's, is exhausted: Maximum number of volumes allowed (10) exceeded", false, 0},
		{413, `{"overLimit": {"code": 413, "message": "This request was rate-limited."}}`, http.Header{"Retry-After": {"7"}}, KindRateLimited, "This request was rate-limited", false, 7 * time.Second},
		{429, "", http.Header{"Retry-After": {" 30 "}}, KindRateLimited, "Cinder asks for fewer requests", false, 30 * time.Second},
		{429, "", http.Header{"Retry-After": {"99999999999"}}, KindRateLimited, "Cinder asks for fewer requests", false, 10 * time.Minute},
		{429, "", http.Header{"Retry-After": {"-5"}}, KindRateLimited, "Cinder asks for fewer requests", false, 0},
		{429, "", http.Header{"Retry-After": {"Fri, 20 Nov 2026 15:21:22 GMT"}}, KindRateLimited, "Cinder asks for fewer requests", false, 0},
		{500, "", nil, KindUnavailable, "Cinder answered internal server error", true, 0},
		{502, "<html>bad gateway</html>", nil, KindUnavailable, "Cinder answered bad gateway", true, 0},
		{503, "", http.Header{"Retry-After": {"5"}}, KindUnavailable, "Cinder answered service unavailable", true, 5 * time.Second},
		{302, "", nil, KindConfig, "the endpoint redirects requests; configure the address that answers directly", true, 0},
		{418, "{}", nil, KindInternal, "Cinder answered i'm a teapot", true, 0},
		{600, "", nil, KindUnavailable, "Cinder answered an unknown status", true, 0},
		{599, "", nil, KindUnavailable, "Cinder answered an unknown status", true, 0},
	}
	for _, test := range tests {
		err := translate("gold", "volume.create", gophercloud.ErrUnexpectedResponseCode{Actual: test.status, Body: []byte(test.body), ResponseHeader: test.header})
		var e *Error
		if !errors.As(err, &e) {
			t.Fatal(err)
		}
		want := &Error{Kind: test.kind, Backend: "gold", Operation: "volume.create", Status: test.status, Message: test.message, EffectUnknown: test.effectUnknown, RetryAfter: test.retryAfter}
		if *e != *want {
			t.Errorf("%d %s\ngot  %+v\nwant %+v", test.status, test.body, e, want)
		}
	}
}

func TestBrokenExchanges(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := closed.Addr().String()
	closed.Close()
	hang := func(_ http.ResponseWriter, r *http.Request) { untilClientLeaves(r) }
	drop := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		cindertest.Answer(w, http.StatusAccepted, `{"volume": {"id": "v1", "sta`)
	}
	cutChunk := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(`{"volume": {"id": "v1"`))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	stalled := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(`{"volume": {"id": "v1"`))
		w.(http.Flusher).Flush()
		untilClientLeaves(r)
	}
	tests := map[string]struct {
		handler       http.HandlerFunc
		endpoint      string
		kind          Kind
		message       string
		effectUnknown bool
		cause         error
	}{
		"no answer":            {handler: hang, kind: KindUnavailable, message: "no answer in time", effectUnknown: true, cause: context.DeadlineExceeded},
		"half an answer":       {handler: stalled, kind: KindUnavailable, message: "no answer in time", effectUnknown: true, cause: context.DeadlineExceeded},
		"connection dropped":   {handler: drop, kind: KindUnavailable, message: "the connection ended before the answer was complete", effectUnknown: true},
		"body cut":             {handler: cut, kind: KindUnavailable, message: "the connection ended before the answer was complete", effectUnknown: true},
		"chunks cut":           {handler: cutChunk, kind: KindUnavailable, message: "the connection ended before the answer was complete", effectUnknown: true},
		"empty body":           {handler: fixed(202, ""), kind: KindUnavailable, message: "the connection ended before the answer was complete", effectUnknown: true},
		"HTML":                 {handler: fixed(202, "<html></html>"), kind: KindInternal, message: "unexpected response: not the JSON documented in the API reference", effectUnknown: true},
		"no volume in it":      {handler: fixed(202, `{"server": {}}`), kind: KindInternal, message: "the answer names no volume", effectUnknown: true},
		"no id in it":          {handler: fixed(202, `{"volume": {"metadata": {}}}`), kind: KindInternal, message: "the answer names no volume", effectUnknown: true},
		"wrong type in it":     {handler: fixed(202, `{"volume": {"id": "v1", "size": "big"}}`), kind: KindInternal, message: "unexpected response: not the JSON documented in the API reference", effectUnknown: true},
		"connection refused":   {endpoint: "http://" + refused + "/v3/", kind: KindUnavailable, message: "no connection to " + refused + ": connection refused"},
		"host without address": {endpoint: "http://cinder.invalid:8776/v3/", kind: KindUnavailable, message: `cannot resolve host "cinder.invalid"`},
		"TLS to a plain port":  {endpoint: "https", kind: KindUnavailable, message: "connection failed: http: server gave HTTP response to HTTPS client", effectUnknown: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			client := logIn(t, cloud)
			if test.cause == context.DeadlineExceeded {
				client.service.HTTPClient.Transport.(traced).next.(*transport).timeout = 50 * time.Millisecond
			}
			cloud.Set(func() { cloud.Cinder = test.handler })
			switch test.endpoint {
			case "":
			case "https":
				client.service.Endpoint = strings.Replace(cloud.URL, "http:", "https:", 1) + "/v3/"
			default:
				client.service.Endpoint = test.endpoint
			}
			_, err := client.CreateVolume(t.Context(), NewVolume{Name: "pvc-1", SizeGiB: 1})
			want := &Error{Kind: test.kind, Backend: "gold", Operation: "volume.create", Message: test.message, EffectUnknown: test.effectUnknown, Cause: test.cause}
			var e *Error
			if !errors.As(err, &e) || *e != *want {
				t.Errorf("got  %+v\nwant %+v", err, want)
			}
		})
	}
}

// untilClientLeaves returns when the client has closed the connection, which
// the server notices only once it has read the request.
func untilClientLeaves(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func TestUnansweredRequestIsCanceled(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	client := logIn(t, cloud)
	arrived := make(chan struct{})
	cloud.Set(func() {
		cloud.Cinder = func(_ http.ResponseWriter, r *http.Request) {
			close(arrived)
			untilClientLeaves(r)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	_, err := client.CreateVolume(ctx, NewVolume{Name: "pvc-1", SizeGiB: 1})
	equal(t, authtest.ErrorText(err), "backend gold: volume.create: the request was canceled")
	if !errors.Is(err, context.Canceled) || !effectUnknown(err) {
		t.Errorf("%#v is not a cancellation with unknown effect", err)
	}
}

// TestRefusedRenewal: after a 401, the renewal fails with an unknown effect;
// the rejected request itself still had none.
func TestRefusedRenewal(t *testing.T) {
	for name, test := range map[string]struct {
		keystone http.HandlerFunc
		kind     Kind
		want     string
	}{
		"Keystone is down":      {fixed(503, ""), KindUnavailable, "backend gold: auth.login: the answer is service unavailable (HTTP 503, req-1)"},
		"Keystone drops it":     {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, KindUnavailable, "backend gold: auth.login: the connection ended before the answer was complete"},
		"Keystone has moved":    {fixed(404, ""), KindConfig, "backend gold: auth.login: nothing was found at the address; check auth_url or the noauth endpoint (HTTP 404, req-1)"},
		"the password is wrong": {fixed(401, ""), KindUnauthorized, "backend gold: auth.login: the credentials were rejected; check user, password, project and domains (HTTP 401, req-1)"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			client := logIn(t, cloud)
			cloud.Set(func() { cloud.Keystone = test.keystone })
			cloud.Revoke()
			for i, operation := range append([]string{"volume.get", "volume.list"}, mutations...) {
				err := call(t.Context(), client, operation)
				want := test.want
				if i > 0 && test.kind == KindUnauthorized {
					want = strings.Replace(want, " (HTTP", "; unless they change, the next login waits 1 to 60 minutes, so that the account is not locked (HTTP", 1)
				}
				equal(t, authtest.ErrorText(err), want)
				equal(t, KindOf(err), test.kind)
				equal(t, effectUnknown(err), false)
			}
		})
	}
}

func TestErrorAfterRenewal(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	client := logIn(t, cloud)
	cloud.Set(func() {
		cloud.Cinder = fixed(400, `{"badRequest": {"code": 400, "message": "Invalid volume: Volume status must be available to reserve, but the status is attaching."}}`)
	})
	cloud.Revoke()
	err := client.Reserve(t.Context(), "v1")
	equal(t, authtest.ErrorText(err), "backend gold: volume.os-reserve: Invalid volume: Volume status must be available to reserve, but the status is attaching (HTTP 400, req-1)")
	equal(t, KindOf(err), KindConflict)
}

func TestUnknownFailureShowsOnlyItsType(t *testing.T) {
	err := translate("gold", "volume.create", fmt.Errorf("body was %s", "hunter2"))
	equal(t, authtest.ErrorText(err), "backend gold: volume.create: the exchange failed unexpectedly (*errors.errorString)")
	if !effectUnknown(err) {
		t.Error("the effect of an unknown failure counts as known")
	}
	equal(t, translate("gold", "volume.create", nil), nil)
}

func TestErrorHelpers(t *testing.T) {
	inner := &Error{Backend: "gold", Kind: KindForbidden, Message: "attached elsewhere"}
	wrapped := fmt.Errorf("volume v1: %w", inner)
	equal(t, KindOf(wrapped), KindForbidden)
	equal(t, IsKind(wrapped, KindForbidden), true)
	equal(t, IsKind(wrapped, KindConflict), false)
	equal(t, IsKind(nil, ""), false)
	equal(t, KindOf(errors.New("foreign")), Kind(""))
	equal(t, wrapped.Error(), "volume v1: backend gold: attached elsewhere")
	if translate("zinc", "volume.get", wrapped) != error(inner) {
		t.Error("an error of this package was translated again")
	}
}

// FuzzFault reads any answer as a fault: its message must fit into an event.
func FuzzFault(f *testing.F) {
	f.Add([]byte(cindertest.RoutingNotFound))
	f.Add([]byte(`{"badRequest": {"code": 400, "message": "Invalid volume: a\nTraceback"}}`))
	f.Add([]byte(`{"overLimit": {"message": "\u0000\ud800."}}`))
	f.Add([]byte(`{"message": ["x"]}`))
	f.Add([]byte("\xff"))
	f.Add([]byte(`{"badRequest": {"message": "Invalid volume: ."}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		message := readFault(body).message
		if strings.ContainsFunc(message, unicode.IsControl) || !utf8.ValidString(message) || len(message) > 303 || message != strings.TrimSpace(message) {
			t.Errorf("%q does not fit into an event", message)
		}
		for _, status := range []int{200, 204, 301, 400, 401, 403, 404, 409, 413, 429, 500} {
			var e *Error
			if !errors.As(translate("gold", "volume.create", gophercloud.ErrUnexpectedResponseCode{Actual: status, Body: body}), &e) || e.Message == "" || e.Kind == "" {
				t.Errorf("status %d becomes %+v", status, e)
			}
		}
	})
}

// TestNoSecretInAnyError logs in to servers that echo the request's body in
// every status and form, and looks for the password in the errors.
func TestNoSecretInAnyError(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		secret := "hunter" + rapid.StringMatching(`[a-z"\\<&#é]{6,12}`).Draw(rt, "secret")
		status := rapid.SampledFrom([]int{200, 201, 202, 204, 300, 301, 400, 401, 403, 404, 405, 409, 413, 418, 422, 429, 500, 502, 503, 504}).Draw(rt, "status")
		form := rapid.SampledFrom([]string{`{"error": {"code": 400, "message": %s}}`, `{"badRequest": {"message": %s}}`, `{"itemNotFound": {"message": %s}}`,
			`{"message": %s}`, `%s`, `{"token": %s}`, `{"volumes": %s}`, `<html>%s</html>`, `{"volume": {"id": %s}}`}).Draw(rt, "form")
		raw := rapid.Bool().Draw(rt, "raw")
		refuseToken := rapid.Bool().Draw(rt, "refuse the renewal")
		echo := func(w http.ResponseWriter, r *http.Request) {
			body := make([]byte, 10000)
			n, _ := r.Body.Read(body)
			text := string(body[:n]) + r.Header.Get("X-Auth-Token") + " " + secret
			encoded, _ := json.Marshal(text)
			if raw {
				encoded = []byte(text)
			}
			w.Header().Set("Location", "http://elsewhere/"+secret)
			w.Header().Set("Retry-After", secret)
			w.WriteHeader(status)
			if status != http.StatusNoContent {
				_, _ = fmt.Fprintf(w, form, encoded)
			}
		}
		tokens := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/auth/tokens") && refuseToken && tokens == 0 {
				tokens++
				w.Header().Set("X-Subject-Token", "tok")
				cindertest.Answer(w, http.StatusCreated, `{"token": {"catalog": [{"type": "volumev3", "endpoints": [{"interface": "public", "url": "http://`+r.Host+`/v3"}]}]}}`)
				return
			}
			if !strings.HasSuffix(r.URL.Path, "/auth/tokens") {
				cindertest.Answer(w, http.StatusUnauthorized, "")
				return
			}
			echo(w, r)
		}))
		defer server.Close()
		variables := map[string]string{"OS_AUTH_URL": server.URL, "OS_USER_ID": "u", "OS_PASSWORD": secret, "OS_PROJECT_ID": "x"}
		client, err := logInFrom(t, auth.Sources{Getenv: authtest.Environment(variables)}, auth.Config{Source: auth.Source{Environment: true}})
		if err == nil {
			_, err = client.Volume(t.Context(), "v1")
		}
		if err == nil {
			rt.Fatal("no error at all")
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(fmt.Sprintf("%v %+v %#v", e, e, e), "hunter") {
				rt.Fatalf("error %v contains the password", err)
			}
		}
	})
}
