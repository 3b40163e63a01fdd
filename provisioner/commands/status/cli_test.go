package status

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
)

const leading = `"apiVersion":"standalone-cinder.openstack.org/v1alpha1","kind":"Status","replica":{"identity":"p_1","leads":true,"ready":true},"leader":{"identity":"p_1"}`

func runCommand(c *cobra.Command, arguments ...string) (code int, output string) {
	var out bytes.Buffer
	c.SetArgs(arguments)
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.Execute()
	if err != nil {
		out.WriteString(err.Error())
	}
	return policycli.ExitCode(err), out.String()
}

// TestAnswersDecideTheExitCode: it does not matter who sent them.
func TestAnswersDecideTheExitCode(t *testing.T) {
	for name, c := range map[string]struct {
		status, body string
		code         int
		want         string
	}{
		"all is well":       {"200", "{" + leading + "}", 0, "replica  p_1"},
		"a trouble":         {"200", "{" + leading + `,"backends":[{"name":"gold","state":"circuitOpen"}]}`, 1, "backend gold does not answer"},
		"no leader":         {"200", strings.Replace("{"+leading+"}", `"leader":{"identity":"p_1"}`, `"leader":{}`, 1), 1, "no replica is known to lead"},
		"a newer field":     {"200", "{" + leading + `,"weather":"fine"}`, 0, "replica  p_1"},
		"another document":  {"200", `{"apiVersion":"v1","kind":"Pod"}`, 2, `a document of kind "Pod" and version "v1"`},
		"another version":   {"200", strings.Replace("{"+leading+"}", "v1alpha1", "v9", 1), 2, `version "standalone-cinder.openstack.org/v9"`},
		"no document":       {"200", "<html>", 2, "did not send a status report"},
		"an earlier binary": {"404", "404 page not found", 2, "404 Not Found: 404 page not found"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/below/status.json" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				if c.status == "404" {
					w.WriteHeader(http.StatusNotFound)
				}
				_, _ = w.Write([]byte(c.body))
			}))
			defer server.Close()
			code, output := runCommand(NewStatusCommand(), "--url", server.URL+"/below/")
			if code != c.code || !strings.Contains(output, c.want) {
				t.Errorf("exit code %d, want %d with %q:\n%s", code, c.code, c.want, output)
			}
		})
	}
}

func TestQuotaAsksForItsNamespace(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "namespace=team+a" {
			t.Errorf("asked for %s", r.URL.RawQuery)
		}
		_, _ = w.Write([]byte("{" + leading + `,"selection":{"namespace":"team a","tenant":"a"},"tenants":[{"name":"a","quotas":[{"resource":"volumes","limit":5,"used":2}]}]}`))
	}))
	defer server.Close()
	for _, c := range []struct {
		arguments []string
		code      int
		want      string
	}{
		{[]string{"team a"}, 0, "2 of 5"},
		{[]string{"-n", "team a"}, 0, "2 of 5"},
		{[]string{"team a", "-n", "team b"}, 2, "needs one NAMESPACE"},
		{nil, 2, "needs one NAMESPACE"},
		{[]string{"ns/team-a"}, 2, `"ns/team-a" is not the name of a namespace; give the name alone: kubectl cinder quota team-a`},
	} {
		if code, output := runCommand(NewPlugin(), append([]string{"quota", "--url", server.URL}, c.arguments...)...); code != c.code || !strings.Contains(output, c.want) {
			t.Errorf("%q: exit code %d, want %d with %q: %s", c.arguments, code, c.code, c.want, output)
		}
	}
}

// TestClaimForAPopulatorIsExplainedByItself: the program need not be asked.
func TestClaimForAPopulatorIsExplainedByItself(t *testing.T) {
	group := "example.org"
	client := fake.NewClientset(
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-1"},
			Spec:       corev1.PersistentVolumeClaimSpec{DataSourceRef: &corev1.TypedObjectReference{APIGroup: &group, Kind: "Image", Name: "debian"}},
		},
		&corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data.1"}, Type: corev1.EventTypeWarning, Reason: "PopulatorDataSourceNotFound", Message: "Data source team-a/debian not found",
			InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "team-a", Name: "data", UID: "uid-1"},
		},
	)
	a, err := ask(t, &inquiry{connection: &connection{}, client: client}, "pvc/data")
	const want = "it waits for a volume populator of example.org/Image, which has its volume made for a claim of its own"
	if err != nil || !a.Explained || len(a.Because) != 1 || a.Because[0] != want || len(a.Events) != 1 {
		t.Errorf("%v: %+v", err, a)
	}
}

func TestALeaseWithoutALeaderIsExplained(t *testing.T) {
	lease := func(holder *string) []runtime.Object {
		return []runtime.Object{&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x-y"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: holder}}}
	}
	text := func(s string) *string { return &s }
	for name, c := range map[string]struct {
		objects []runtime.Object
		want    string
	}{
		"no Lease":        {nil, "there is no Lease ns/x-y: "},
		"never held":      {lease(nil), "no replica leads: nobody holds Lease ns/x-y"},
		"released":        {lease(text("")), "no replica leads: nobody holds Lease ns/x-y"},
		"another program": {lease(text("someone")), `the holder of Lease ns/x-y, "someone", names no pod`},
		"held":            {lease(text("pod-1_uid")), ""},
	} {
		o := connection{namespace: "ns", provisionerName: "x/y"}
		pod, err := o.leader(t.Context(), fake.NewClientset(c.objects...))
		switch {
		case c.want == "" && (err != nil || pod != "pod-1"):
			t.Errorf("%s: pod %q, error %v", name, pod, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
	}
}

// TestNothingReachesTheTerminalUnescaped: anybody may answer, or write an event.
func TestNothingReachesTheTerminalUnescaped(t *testing.T) {
	const escape = "\x1b]0;owned\x07\u009b2J"
	for name, c := range map[string]struct {
		status int
		body   string
	}{
		"an error":  {http.StatusNotFound, escape},
		"a trouble": {http.StatusOK, "{" + leading + `,"backends":[{"name":"\u001b]0;owned\u0007\u009b2J","state":"circuitOpen"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer server.Close()
			if _, output := runCommand(NewStatusCommand(), "--url", server.URL); strings.ContainsAny(output, "\x1b\x07\u009b") || !strings.Contains(output, "owned") {
				t.Errorf("%q", output)
			}
		})
	}
	var text bytes.Buffer
	answer := whyAnswer{Namespace: "a", Name: "b", Events: []whyEvent{{Reason: escape, Message: escape}}}
	if err := answer.write(&text); err != nil || strings.ContainsAny(text.String(), "\x1b\x07\u009b") {
		t.Errorf("%q, %v", text.String(), err)
	}
}

func TestAPodThatNeverStopsSendingIsCutOff(t *testing.T) {
	sent := 0
	answer, err := boundedAnswers{transportFunc(func(*http.Request) (*http.Response, error) {
		return &http.Response{Body: io.NopCloser(readerFunc(func(p []byte) (int, error) {
			sent += len(p)
			return len(p), nil
		}))}, nil
	})}.RoundTrip(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err == nil || sent != maxReport {
		t.Errorf("%v after %d bytes", err, sent)
	}
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestWhoRefusedIsNamed: if the API server itself refuses a request, the pod is not
// blamed.
func TestWhoRefusedIsNamed(t *testing.T) {
	const login = "asks for a login, and the API server's proxy passes none on; run kubectl -n ns port-forward p 8080, and give --url http://127.0.0.1:8080 and --http-config-file"
	for name, c := range map[string]struct {
		status                  int
		contentType, body, want string
	}{
		"a login of the API server": {401, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","message":"Unauthorized","code":401}`, "cannot be asked through the API server's proxy (port 8080; it needs the right to get pods/proxy): Unauthorized"},
		"a login of the pod":        {401, "text/plain; charset=utf-8", "Unauthorized\n", login},
		"a pod out of reach":        {503, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","message":"error trying to reach service: dial tcp 10.0.0.7:8080: i/o timeout","code":503}`, "does not reach pod ns/p at port 8080; if the pod runs, does a NetworkPolicy keep the API server out (networkPolicy of the chart)? run kubectl -n ns port-forward p 8080"},
		"a pod without an address":  {400, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"BadRequest","message":"address not allowed","code":400}`, "address not allowed"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if want := "/api/v1/namespaces/ns/pods/p:8080/proxy/status.json"; r.URL.Path != want {
				t.Errorf("%s: asked for %s, want %s", name, r.URL.Path, want)
			}
			w.Header().Set("Content-Type", c.contentType)
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		}))
		defer server.Close()
		client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		o := connection{namespace: "ns", port: 8080}
		if _, err = o.askPod(t.Context(), client, "p", nil); err == nil || !strings.Contains(err.Error(), "pod ns/p ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// TestProtectedReplicaIsAsked: the TLS settings and the login come from a file.
func TestProtectedReplicaIsAsked(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "operator" || password != "hidden" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte("{" + leading + "}"))
	}))
	defer server.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	https, http := strings.Replace(plain.URL, "http:", "https:", 1), strings.Replace(server.URL, "https:", "http:", 1)
	directory := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	write("password", "hidden")
	full := write("full.yaml", "tls_config: {ca_file: ca.crt}\nbasic_auth: {username: operator, password_file: password}\n")
	withoutLogin := write("without-login.yaml", "tls_config: {ca_file: ca.crt}\n")
	withoutFile := write("without-file.yaml", "basic_auth: {username: operator, password_file: lost}\n")
	misspelled := write("misspelled.yaml", "tls: {ca_file: ca.crt}\n")

	for name, c := range map[string]struct {
		arguments []string
		code      int
		want      string
	}{
		"with TLS and login": {[]string{"--url", server.URL, "--http-config-file", full}, 0, "replica  p_1"},
		"without the login":  {[]string{"--url", server.URL, "--http-config-file", withoutLogin}, 2, "401 Unauthorized: give its login in --http-config-file"},
		"without the file":   {[]string{"--url", server.URL}, 2, "--url: cannot reach " + server.URL + " (name its authority in --http-config-file): tls: failed to verify certificate"},
		"without a scheme":   {[]string{"--url", "127.0.0.1:8080"}, 2, "--url is not an address such as http://127.0.0.1:8080: it must begin with http:// or https:// and a host"},
		"with --pod":         {[]string{"--url", server.URL, "--pod", "p"}, 2, "--url and --pod each name a replica to ask; give one of them"},
		"nobody listens":     {[]string{"--url", "http://127.0.0.1:1"}, 2, "--url: cannot reach http://127.0.0.1:1 (is kubectl port-forward running?): dial tcp 127.0.0.1:1: connect: connection refused"},
		"https for HTTP":     {[]string{"--url", https}, 2, "--url: cannot reach " + https + " (it speaks HTTP; write http:// instead of https://): http: server gave HTTP response to HTTPS client"},
		"http for HTTPS":     {[]string{"--url", http}, 2, http + " speaks HTTPS; write https:// instead of http://"},
		"a misspelled key":   {[]string{"--url", server.URL, "--http-config-file", misspelled}, 2, "cannot be read as tls_config and basic_auth: yaml: unmarshal errors:   line 1: field tls not found"},
		"a missing file":     {[]string{"--url", server.URL, "--http-config-file", withoutFile}, 2, "lost: no such file or directory"},
		"without --url":      {[]string{"--http-config-file", full, "--kubeconfig", "none"}, 2, "--http-config-file needs --url"},
	} {
		code, output := runCommand(NewStatusCommand(), c.arguments...)
		if code != c.code || !strings.Contains(output, c.want) || strings.Contains(output, "hidden") {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s", name, code, c.code, c.want, output)
		}
	}
}

// TestOutputsForPrograms: each form has what JSON has, and a template selects from it.
func TestOutputsForPrograms(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{" + leading + `,"backends":[{"name":"gold\u001b[31m","state":"answers"},{"name":"silver","state":"unused"}]}`))
	}))
	defer server.Close()
	for form, c := range map[string]struct {
		code int
		want string
	}{
		"json":                         {0, `"name": "silver"`},
		"yaml":                         {0, "  name: silver\n"},
		`jsonpath={.backends[*].name}`: {0, "gold [31m silver\n"},
		`jsonpath={.leader.identity}`:  {0, "p_1\n"},
		`jsonpath={.nothing}`:          {0, "\n"},
		`jsonpath={.backends[`:         {2, "--output jsonpath={.backends[: "},
		`jsonpath={.backends[9].name}`: {2, "array index out of bounds"},
		"xml":                          {2, `--output must be table, json, yaml or jsonpath=TEMPLATE, not "xml"`},
	} {
		code, output := runCommand(NewStatusCommand(), "--url", server.URL, "-o", form)
		if code != c.code || !strings.Contains(output, c.want) || strings.Contains(output, "\x1b") {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s", form, code, c.code, c.want, output)
		}
	}
}

// TestWatchPrintsWhatChanges: an answer that is the same is not repeated, and a leader that
// cannot be asked for a while does not end the command.
func TestWatchPrintsWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
		defer cancel()
		c := &cobra.Command{}
		c.SetContext(ctx)
		var out bytes.Buffer
		c.SetOut(&out)
		answers := []string{"pending", "pending", "", "pending", "bound", "bound"}
		o := output{human: "text", form: "text", watch: true}
		err := o.print(c, func() (reply, error) {
			now := answers[0]
			answers = answers[1:]
			if now == "" {
				return reply{}, errors.New("no replica leads")
			}
			return reply{text: func(w io.Writer) error {
				_, err := fmt.Fprintln(w, now)
				return err
			}}, nil
		})
		if want := "pending\nno replica leads\npending\nbound\n"; err != nil || out.String() != want {
			t.Errorf("%q, %v, want %q", out.String(), err, want)
		}
	})
}

// TestKubectlsOwnFlagsAreUnderstood: they reach the client as kubectl would pass them.
func TestKubectlsOwnFlagsAreUnderstood(t *testing.T) {
	var asked http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	t.Setenv("KUBECONFIG", os.DevNull)
	code, output := runCommand(NewPlugin(), "why", "data", "-n", "team-a", "--server", server.URL, "--as", "anna", "--as-group", "developers", "--request-timeout", "5s")
	if code != 2 || asked.Get("Impersonate-User") != "anna" || asked.Get("Impersonate-Group") != "developers" || !strings.Contains(output, "claim team-a/data: ") {
		t.Errorf("exit code %d, %v: %s", code, asked, output)
	}
}

// TestWhoMayNotAskIsToldWhatTheNamespaceShows: an editor of a namespace reads no Lease of the
// program's.
func TestWhoMayNotAskIsToldWhatTheNamespaceShows(t *testing.T) {
	for refused, path := range map[string]string{"the Lease": "/leases/", "the pod": "/proxy/"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if strings.Contains(r.URL.Path, path) {
				w.WriteHeader(http.StatusForbidden)
				_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"forbidden","code":403}`))
				return
			}
			_, _ = w.Write([]byte(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","spec":{"holderIdentity":"pod-1_uid"}}`))
		}))
		defer server.Close()
		t.Setenv("KUBECONFIG", os.DevNull)
		const want = ": forbidden; kubectl get tst -n team-a shows the namespace's own tenant, where the component tenant-status is installed"
		if code, output := runCommand(NewPlugin(), "quota", "team-a", "--server", server.URL); code != 2 || !strings.Contains(output, want) {
			t.Errorf("%s: exit code %d: %s", refused, code, output)
		}
	}
}
