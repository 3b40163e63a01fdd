package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// answering returns options whose backends answer with the report.
func answering(report LiveReport) (options Options, asked *[]LiveOptions) {
	asked = &[]LiveOptions{}
	options = clusterWith(reviewed())
	options.Live = func(_ context.Context, _ *policy.Policy, with LiveOptions) LiveReport {
		*asked = append(*asked, with)
		return report
	}
	return options, asked
}

func TestLiveAsText(t *testing.T) {
	ahead := int64(-7)
	options, asked := answering(LiveReport{
		Backends: []LiveBackend{
			{Name: "gold", Reachable: true, Endpoint: "https://c/v3/p/", Microversion: "3.70", ClockAheadSeconds: &ahead,
				Quota: &LiveQuota{Volumes: LiveLimit{Limit: 5, Used: 1}, Gigabytes: LiveLimit{Limit: -1, Used: 10}}},
			{Name: "down", Error: "no answer"},
		},
		Trials: []Trial{
			{Backend: "gold", Rules: []string{"r1", "r2"}, VolumeType: "ssd", Volume: "v1", Warnings: []string{"odd"}, Secret: "secret a/b (key)",
				Source: &corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1:3260", IQN: "iqn.a:b"}}},
			{Backend: "gold", Rules: []string{"r3"}, Step: StepConnect, Error: "HTTP 500", Volume: "v2", Left: "volume v2 is not removed"},
			{Backend: "gold", Rules: []string{"r4"}, Step: StepBegin, Error: "no such type"},
		},
		Findings: []Finding{{Path: "backends[0]", Message: "too bad"}, {Path: "backends[0]", Message: "not so bad", Warning: true}},
	})
	got := runWith(options, good, "check", "-", "--live", "--make-volume", "--clouds-file", write(t, "clouds: {}"))
	want := `<stdin>:4: backends[0]: too bad
<stdin>:4: backends[0]: warning: not so bad

backend gold: reachable at https://c/v3/p/, microversion 3.70, Cinder's quota 1 of 5 volumes and 10 of unlimited GiB, clock 7 s behind this machine's
backend down: not usable

volume on backend gold for r1, r2, type ssd:
  volume v1
  would be mounted as {"iscsi":{"targetPortal":"192.0.2.1:3260","iqn":"iqn.a:b","lun":0}}
  with secret a/b (key)
  note: odd
  removed

volume on backend gold for r3:
  volume v2
  failed at step connect: HTTP 500
  left: volume v2 is not removed

volume on backend gold for r4:
  not tried: no such type
`
	if got.stdout != want || message(got.err) != "<stdin> has 1 error" || ExitCode(got.err) != ExitFailed {
		t.Errorf("%v\n got %s\nwant %s", got.err, got.stdout, want)
	}
	if len(*asked) != 1 || !(*asked)[0].MakeVolume || !strings.HasSuffix((*asked)[0].CloudsFile, "policy.yaml") {
		t.Errorf("%+v", *asked)
	}
}

// TestLiveComesLast: backends are not asked about a policy with mistakes, nor if
// the command fails first.
func TestLiveComesLast(t *testing.T) {
	options, asked := answering(LiveReport{Findings: []Finding{{Path: "backends[0]", Message: "slow", Warning: true}}})
	options.ReadCluster = func(context.Context, string, string) (review.Existing, error) {
		return review.Existing{}, errors.New("no cluster")
	}
	for _, test := range []struct {
		text  string
		args  []string
		code  int
		asked int
	}{
		{good, []string{"--live"}, ExitOK, 1},
		{good, []string{"--live", "--fail-on=warnings"}, ExitFailed, 1},
		{good, nil, ExitOK, 0},
		{strings.Replace(good, "kind: Policy", "kind: Polizei", 1), []string{"--live"}, ExitFailed, 0},
		{good, []string{"--live", "--kubeconfig", "x"}, ExitUsage, 0},
	} {
		*asked = nil
		got := runWith(options, test.text, append([]string{"check", "-"}, test.args...)...)
		if ExitCode(got.err) != test.code || len(*asked) != test.asked {
			t.Errorf("%v: code %d, asked %d times", test.args, ExitCode(got.err), len(*asked))
		}
	}
}

// TestLiveLeavesCredentialsToTheLogin: otherwise one mistake would be two.
func TestLiveLeavesCredentialsToTheLogin(t *testing.T) {
	options, _ := answering(LiveReport{Findings: []Finding{{Path: "backends[0].auth", Message: "cannot log in"}}})
	options.Credentials = func(*policy.Policy, string) []Finding {
		return []Finding{{Path: "backends[0].auth", Message: "no password"}, {Path: "backends[0].auth", Message: "a stray key", Warning: true}}
	}
	got := runWith(options, good, "check", "-", "--live")
	if !strings.Contains(got.stdout, "auth: cannot log in\n") || !strings.Contains(got.stdout, "warning: a stray key\n") || strings.Contains(got.stdout, "no password") {
		t.Errorf("%s", got.stdout)
	}
}

// TestLiveFindsOneProjectBehindTwoClouds: nothing but Cinder's answers shows that both
// modes lead to one project.
func TestLiveFindsOneProjectBehindTwoClouds(t *testing.T) {
	const text = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends: [{name: gold, auth: {cloud: a}, mode: csi}, {name: silver, auth: {cloud: b}}]
tenants: [{name: t, namespaces: [n], classes: [{storageClasses: [c], backends: [gold, silver]}]}]
`
	for project, found := range map[string]bool{"p": true, "q": false, "": false} {
		options, _ := answering(LiveReport{Backends: []LiveBackend{{Name: "gold", Endpoint: "https://c/v3/", Project: "p"}, {Name: "silver", Endpoint: "https://c/v3/", Project: project}}})
		got := runWith(options, text, "check", "-", "--live")
		if strings.Contains(got.stdout, `backend "gold" has volumes in mode csi, and backend "silver" native ones of the same project (project p at https://c/v3/)`) != found {
			t.Errorf("project %q: %s", project, got.stdout)
		}
	}
}
