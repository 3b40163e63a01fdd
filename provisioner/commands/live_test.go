package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// cloud is a simulated Keystone and Cinder for the command.
type cloud struct {
	*cindersim.Simulator
	t *testing.T
	// clouds is a clouds.yaml with an entry for every user.
	clouds string
	// silent is an address that accepts connections and never answers.
	silent string
	live   *LiveCheck
}

// newCloud serves Cinder over HTTP, with its clock ahead, and Keystone over HTTPS if
// https is set.
func newCloud(t *testing.T, options cindersim.Options, ahead time.Duration, https bool) *cloud {
	t.Helper()
	options.Now = func() time.Time { return time.Now().Add(ahead) }
	simulator, err := cindersim.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(simulator.Close)
	dated := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
			next.ServeHTTP(w, r)
		})
	}
	serve := func(handler http.Handler, start func(http.Handler) *httptest.Server) string {
		server := start(dated(handler))
		t.Cleanup(server.Close)
		return server.URL + "/v3"
	}
	startKeystone, authority := httptest.NewServer, ""
	if https {
		startKeystone = func(handler http.Handler) *httptest.Server {
			server := httptest.NewTLSServer(handler)
			authority = "    cacert: " + write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))) + "\n"
			return server
		}
	}
	simulator.SetURLs(serve(simulator.NoauthHandler(), httptest.NewServer), serve(simulator.CinderHandler(), httptest.NewServer), serve(simulator.KeystoneHandler(), startKeystone))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	live := NewLiveCheck(mappers.BuiltIn())
	live.pause = time.Millisecond
	text := strings.ReplaceAll(simulator.CloudsYAML(), "    region_name:", authority+"    region_name:")
	return &cloud{Simulator: simulator, t: t, clouds: write(t, "clouds.yaml", text), silent: silent.Addr().String(), live: live}
}

// answered is what the command printed.
type answered struct {
	code           int
	stdout, stderr string
	Valid          bool
	Errors         policy.ErrorList
	Warnings       policy.ErrorList
	Live           policycli.LiveReport
}

// findings returns the errors and warnings, without the file's name.
func (a answered) findings() []string {
	var all []string
	for mark, list := range map[string]policy.ErrorList{"error": a.Errors, "warning": a.Warnings} {
		for _, e := range list {
			line := ""
			if e.Line == 0 {
				line = " without a line"
			}
			all = append(all, fmt.Sprintf("%s%s %s: %s", mark, line, e.Path, e.Message))
		}
	}
	slices.Sort(all)
	return all
}

func (c *cloud) check(ctx context.Context, text string, arguments ...string) answered {
	c.t.Helper()
	text = strings.NewReplacer("$SILENT", "http://"+c.silent+"/v3", "$NOAUTH", c.NoauthEndpoint(), "$PROJECT", cindersim.DefaultNoauthProject).Replace(
		"apiVersion: " + policy.APIVersion + "\nkind: Policy\nclusterID: prod\n" + text)
	file := write(c.t, "policy.yaml", text)
	var a answered
	run := func(output string) string {
		command := policycli.NewCommand(policycli.Options{
			Credentials: CheckCredentials, Places: Places, Live: c.live.Check, Protocols: mappers.BuiltIn().Describe(), ProvisionerName: "p",
		})
		var stdout, stderr bytes.Buffer
		command.SetOut(&stdout)
		command.SetErr(&stderr)
		command.SetArgs(append([]string{"check", file, "--live", "--clouds-file", c.clouds, "--output", output}, arguments...))
		a.code = policycli.ExitCode(command.ExecuteContext(ctx))
		a.stderr = stderr.String()
		return stdout.String()
	}
	if slices.Contains(arguments, "text") {
		a.stdout = strings.ReplaceAll(run("text"), file, "FILE")
		return a
	}
	a.stdout = run("json")
	if err := json.Unmarshal([]byte(a.stdout), &a); err != nil {
		c.t.Fatalf("%v\n%s", err, a.stdout)
	}
	for _, secret := range []string{"team-a-pass", "wrong-pass"} {
		if strings.Contains(a.stdout+a.stderr, secret) {
			c.t.Errorf("the answer shows a password")
		}
	}
	return a
}

const (
	noauthBackend = "  - {name: lab, auth: {noauth: {endpoint: $NOAUTH, project: $PROJECT}}}\n"
	teamBackend   = "  - {name: gold, auth: {cloud: team-a}}\n"
)

func tenant(backend, rule string) string {
	return "tenants:\n  - name: a\n    namespaces: [a]\n    quota: {volumes: 10, gigabytes: 100, snapshots: 0}\n    classes:\n      - {storageClasses: [c], backends: [" + backend + "]" + rule + "}\n"
}

// zonesOf returns YAML that ends a backend and maps zones to nodes.
func zonesOf(names ...string) string {
	var zones []string
	for _, name := range names {
		zones = append(zones, "{name: "+name+", nodeLabels: {zone: "+name+"}}")
	}
	return ", zones: [" + strings.Join(zones, ", ") + "]"
}

func TestLiveFindings(t *testing.T) {
	wide := cindersim.Options{Zones: []string{"az1", "az2"}}
	tests := map[string]struct {
		options cindersim.Options
		ahead   time.Duration
		https   bool
		policy  string
		code    int
		want    []string
	}{
		"a good policy, noauth":   {options: wide, policy: "backends:\n" + noauthBackend + tenant("lab", ", volumeType: iscsi, availabilityZone: az2")},
		"a good policy, Keystone": {options: wide, policy: "backends:\n" + teamBackend + tenant("gold", ", volumeType: rbd, availabilityZone: az1")},
		"a missing type": {policy: "backends:\n" + noauthBackend + tenant("lab", ", volumeType: ssd"), code: 1, want: []string{
			`error tenants[0].classes[0].volumeType: backend lab has no volume type "ssd"; it has iscsi, iscsi-mp, rbd, fail`,
		}},
		"a type in another case": {policy: "backends:\n" + noauthBackend + tenant("lab", ", volumeType: RBD"), want: []string{
			`warning tenants[0].classes[0].volumeType: backend lab lists the volume type as "rbd", not "RBD"; write it in the same way`,
		}},
		"a missing type that a class may give": {policy: "backends:\n" + noauthBackend + tenant("lab", ", mode: csi, volumeTypes: [rbd, ssd]"), code: 1, want: []string{
			`error tenants[0].classes[0].volumeTypes[1]: backend lab has no volume type "ssd"; it has iscsi, iscsi-mp, rbd, fail`,
		}},
		"a missing zone": {options: wide, policy: "backends:\n" + teamBackend + tenant("gold", ", availabilityZone: az3"), code: 1, want: []string{
			`error tenants[0].classes[0].availabilityZone: backend gold has no availability zone "az3"; it has az1, az2`,
		}},
		"a missing zone of the map": {options: wide, policy: "backends:\n" + strings.Replace(teamBackend, "}\n", zonesOf("az1", "az3")+"}\n", 1) + tenant("gold", ", availabilityZone: az3"), code: 1, want: []string{
			`error backends[0].zones[1].name: backend gold has no availability zone "az3"; it has az1, az2`,
		}},
		"a zone of the map in another case": {options: wide, policy: "backends:\n" + strings.Replace(teamBackend, "}\n", zonesOf("az1", "AZ2")+"}\n", 1) + tenant("gold", ""), want: []string{
			`warning backends[0].zones[1].name: backend gold lists the availability zone as "az2", not "AZ2"; write it in the same way`,
		}},
		"the zones of the map":                  {options: wide, policy: "backends:\n" + strings.Replace(teamBackend, "}\n", zonesOf("az1", "az2")+"}\n", 1) + tenant("gold", "")},
		"a missing type of a suspended backend": {policy: "backends:\n" + strings.Replace(teamBackend, "name: gold", "name: gold, suspended: true", 1) + noauthBackend + tenant("gold, lab", ", volumeType: iscsi")},
		"a small quota at Cinder": {options: cindersim.Options{Quota: map[string]int{"volumes": 5, "gigabytes": 70}}, policy: "backends:\n" + teamBackend + tenant("gold", ", quota: {volumes: 5, gigabytes: 80, snapshotGigabytes: 90}"), want: []string{
			"warning tenants[0].classes[0].quota.gigabytes: StorageClasses [c] of tenant a may have 80 GiB, but Cinder's own quota for backend gold is 70 GiB; raise it, or lower this one",
			"warning tenants[0].classes[0].quota.snapshotGigabytes: StorageClasses [c] of tenant a may have 90 GiB, but Cinder's own quota for backend gold is 70 GiB; raise it, or lower this one",
			"warning tenants[0].quota.gigabytes: tenant a may have 100 GiB, but Cinder's own quota for backend gold is 70 GiB; raise it, or lower this one",
			"warning tenants[0].quota.volumes: tenant a may have 10 volumes, but Cinder's own quota for backend gold is 5 volumes; raise it, or lower this one",
		}},
		"two backends at one place share its quota": {options: cindersim.Options{Quota: map[string]int{"volumes": 9}},
			policy: "backends:\n" + teamBackend + "  - {name: same, auth: {cloud: team-a}, connector: {multipath: true}}\n" + tenant("gold, same", ""), want: []string{
				"warning tenants[0].quota.volumes: tenant a may have 10 volumes, but Cinder's own quota for backends gold, same together is 9 volumes; raise it, or lower this one",
			}},
		"two places have two quotas": {options: cindersim.Options{Quota: map[string]int{"volumes": 9}}, policy: "backends:\n" + teamBackend + noauthBackend + tenant("gold, lab", "")},
		"no room at Cinder": {options: cindersim.Options{Quota: map[string]int{"gigabytes": 0}}, policy: "backends:\n" + noauthBackend + strings.Replace(tenant("lab", ""), ", gigabytes: 100", "", 1), want: []string{
			"warning backends[0]: backend lab: Cinder's quota of the project has no room for another volume: 0 of unlimited volumes and 0 of 0 GiB are used",
		}},
		"a clock ahead": {ahead: 5 * time.Minute, policy: "backends:\n" + noauthBackend + tenant("lab", ""), want: []string{
			"warning backends[0]: backend lab: its clock is 5m0s ahead of this machine's, more than 1m0s; fix the one that is wrong, since the ages of volumes and tokens are judged by them",
		}},
		"a clock two days behind": {ahead: -48 * time.Hour, policy: "backends:\n" + noauthBackend + tenant("lab", ""), want: []string{
			"warning backends[0]: backend lab: its clock is 48h0m0s behind this machine's, more than 1m0s; fix the one that is wrong, since the ages of volumes and tokens are judged by them",
		}},
		"a catalog that leaves https": {https: true, policy: "backends:\n" + teamBackend + tenant("gold", ""), want: []string{
			"warning backends[0].auth: backend gold: Keystone is reached by https, but its service catalog lists block storage at $CINDER/$TEAM/: tokens cross the network in plain text; fix the catalog, or select another interface",
		}},
		"mode csi without the attachments API": {options: cindersim.Options{MaxMicroversion: "3.27"}, policy: "backends:\n" + strings.Replace(noauthBackend, "name: lab", "name: lab, mode: csi", 1) + tenant("lab", ""), code: 1, want: []string{
			"error tenants[0].classes[0]: mode csi needs microversion 3.44, but backend lab offers only up to 3.27; use mode native",
		}},
		"a workflow that the endpoint lacks": {options: cindersim.Options{MaxMicroversion: "3.27"}, policy: "backends:\n" + strings.Replace(noauthBackend, "name: lab", "name: lab, workflow: attachment", 1) + tenant("lab", ""), code: 1, want: []string{
			"error backends[0].workflow: backend lab: workflow attachment needs microversion 3.44, but the endpoint offers only up to 3.27; use workflow reserve or auto",
		}},
		"no messages": {options: cindersim.Options{MaxMicroversion: "3.0"}, policy: "backends:\n" + noauthBackend + tenant("lab", ""), want: []string{
			"warning backends[0]: backend lab offers microversions only up to 3.0; without 3.3, events do not say why Cinder failed to create a volume",
		}},
		"an entry that clouds.yaml lacks does not hide the others": {policy: "backends:\n  - {name: gone, auth: {cloud: gone}}\n" + noauthBackend + tenant("gone, lab", ", volumeType: ssd"), code: 1, want: []string{
			`error backends[0].auth: backend gone cannot log in with these credentials: clouds.yaml has no cloud "gone"; it has "admin", "team-a", "team-b"`,
			`error tenants[0].classes[0].volumeType: backend lab has no volume type "ssd"; it has iscsi, iscsi-mp, rbd, fail`,
		}},
		"a backend that does not answer does not hide the others": {policy: "backends:\n  - {name: down, auth: {noauth: {endpoint: \"http://127.0.0.1:1/v3\", project: $PROJECT}}}\n" + noauthBackend + tenant("down, lab", ""), code: 1, want: []string{
			"error backends[0].auth: backend down: auth.discover: no connection to 127.0.0.1:1: connection refused",
		}},
		"a silent backend does not hide the others": {policy: "backends:\n  - {name: mute, timeouts: {request: 1s}, auth: {noauth: {endpoint: $SILENT, project: $PROJECT}}}\n" + noauthBackend + tenant("mute, lab", ", volumeType: ssd"), code: 1, want: []string{
			"error backends[0].auth: backend mute: auth.discover: no answer in time",
			`error tenants[0].classes[0].volumeType: backend lab has no volume type "ssd"; it has iscsi, iscsi-mp, rbd, fail`,
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t, test.options, test.ahead, test.https)
			got := c.check(t.Context(), test.policy)
			want := slices.Clone(test.want)
			for i := range want {
				want[i] = strings.NewReplacer("$CINDER", c.CinderURL(), "$TEAM", c.ProjectID("team-a")).Replace(want[i])
			}
			findings := got.findings()
			for i := range findings {
				// A Date header gives the second in which the answer was sent.
				findings[i] = strings.NewReplacer(filepath.Dir(c.clouds)+"/", "", "4m59s", "5m0s", "48h0m1s", "48h0m0s").Replace(findings[i])
			}
			if !slices.Equal(findings, want) {
				t.Errorf("\n got %s\nwant %s", strings.Join(findings, "\n     "), strings.Join(want, "\n     "))
			}
			if got.code != test.code || got.Valid != (test.code == 0) {
				t.Errorf("code %d, valid %t", got.code, got.Valid)
			}
			if fails := c.check(t.Context(), test.policy, "--fail-on=warnings").code; fails == 0 != (len(want) == 0) {
				t.Errorf("--fail-on=warnings gives %d", fails)
			}
		})
	}
}

// TestLiveSaysWhatABackendOffers compares the whole answer about one backend.
func TestLiveSaysWhatABackendOffers(t *testing.T) {
	c := newCloud(t, cindersim.Options{Quota: map[string]int{"volumes": 50}}, 0, false)
	if _, err := c.AddVolume(cindersim.Volume{Project: "team-a", SizeGiB: 3}); err != nil {
		t.Fatal(err)
	}
	text := "backends:\n" + teamBackend + tenant("gold", "")
	got := c.check(t.Context(), text)
	none := int64(0)
	want := policycli.LiveBackend{
		Name: "gold", Reachable: true, Endpoint: c.CinderURL() + "/" + c.ProjectID("team-a") + "/", Project: c.ProjectID("team-a"), Region: "RegionOne",
		Interface: "public", Microversion: "3.70", Workflow: "attachment", DefaultType: "iscsi", VolumeTypes: []string{"iscsi", "iscsi-mp", "rbd", "fail"},
		Zones: []string{"nova"}, ClockAheadSeconds: &none,
		Quota: &policycli.LiveQuota{Volumes: policycli.LiveLimit{Limit: 50, Used: 1}, Gigabytes: policycli.LiveLimit{Limit: -1, Used: 3}},
	}
	if len(got.Live.Backends) != 1 {
		t.Fatalf("%s", got.stdout)
	}
	// The Date header gives the second in which the answer was sent.
	if seconds := got.Live.Backends[0].ClockAheadSeconds; seconds == nil || *seconds < -2 || *seconds > 2 {
		t.Errorf("the clock is %v s ahead", seconds)
	}
	got.Live.Backends[0].ClockAheadSeconds = &none
	if a, b := asJSON(t, got.Live.Backends[0]), asJSON(t, want); a != b {
		t.Errorf("\n got %s\nwant %s", a, b)
	}
	shown := c.check(t.Context(), text, "--output", "text").stdout
	if !strings.Contains(shown, "\nbackend gold: reachable at "+want.Endpoint+", project "+want.Project+
		", region RegionOne, interface public, microversion 3.70, workflow attachment, Cinder's quota 1 of 50 volumes and 3 of unlimited GiB, clock ") {
		t.Errorf("%s", shown)
	}
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// TestWrongPasswordIsTriedOnce: Keystone locks accounts after a few wrong passwords.
// Three backends of two files share the account; the account of another backend is
// right.
func TestWrongPasswordIsTriedOnce(t *testing.T) {
	c := newCloud(t, cindersim.Options{}, 0, false)
	text := strings.Replace(c.CloudsYAML(), "team-a-pass", "wrong-pass", 1)
	c.clouds = write(t, "clouds.yaml", text)
	policyText := "backends:\n" + teamBackend + "  - {name: again, auth: {cloud: team-a}, connector: {multipath: true}}\n  - {name: other, auth: {cloud: team-b}}\n" + tenant("gold, again, other", "")
	for range 2 {
		got := c.check(t.Context(), policyText, "--make-volume")
		var usable []string
		for _, b := range got.Live.Backends {
			if b.Reachable {
				usable = append(usable, b.Name)
			}
		}
		if !slices.Equal(usable, []string{"other"}) || got.code != policycli.ExitFailed || len(got.Errors) != 2 {
			t.Errorf("usable %v, code %d\n%s", usable, got.code, got.stdout)
		}
		for _, e := range got.Errors {
			if !strings.Contains(e.Message, "auth.login: ") || !strings.Contains(e.Message, "(HTTP 401") {
				t.Errorf("%s", e.Message)
			}
		}
	}
	rejected := 0
	for _, entry := range c.Journal() {
		if entry.Operation == "auth.tokens.create" && entry.Status == http.StatusUnauthorized {
			rejected++
		}
	}
	if rejected != 1 {
		t.Errorf("%d logins were rejected", rejected)
	}
	if left := c.Volumes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// TestSilentKeystoneIsAskedOnce: a second login would only wait as long, and might be
// one more wrong password.
func TestSilentKeystoneIsAskedOnce(t *testing.T) {
	c := newCloud(t, cindersim.Options{}, 0, false)
	c.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "auth.tokens.create", Code: http.StatusServiceUnavailable})
	got := c.check(t.Context(), "backends:\n"+teamBackend+"  - {name: again, auth: {cloud: team-a}, connector: {multipath: true}}\n"+tenant("gold, again", ""))
	if logins := c.CountByOperation()["auth.tokens.create"]; logins != 1 || len(got.Errors) != 2 || got.code != policycli.ExitFailed {
		t.Errorf("%d logins, %q", logins, got.findings())
	}
}

// TestWhatCannotBeReadIsNotJudged: a cloud may forbid a list.
func TestWhatCannotBeReadIsNotJudged(t *testing.T) {
	for _, operation := range []string{"type.list", "type.get", "zone.list", "limits.get", "version.get"} {
		t.Run(operation, func(t *testing.T) {
			c := newCloud(t, cindersim.Options{}, 0, false)
			c.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: operation, Code: http.StatusForbidden})
			got := c.check(t.Context(), "backends:\n"+noauthBackend+tenant("lab", ", volumeType: iscsi, availabilityZone: nova"))
			if findings := got.findings(); len(findings) != 1 || got.code != 0 ||
				!strings.HasPrefix(findings[0], "warning backends[0]: ") || !strings.Contains(findings[0], " cannot be read and are not checked: backend lab: "+operation+": ") {
				t.Errorf("%d %q", got.code, findings)
			}
		})
	}
}
