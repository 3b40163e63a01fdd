package cli

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// site is an installation whose replicas learn of the ConfigMap one look after another.
type site struct {
	held     Held
	heldErr  error
	writeErr error
	writes   int
	exists   review.Existing
	readErr  error
	// looks are the answers of the replicas; the last one stays.
	looks [][]Replica
	// beforeLook happens before each look.
	beforeLook func()
}

func (s *site) Held(context.Context) (Held, error) { return s.held, s.heldErr }

// key is what a ConfigMap with one policy has.
func key(text []byte) policy.Files {
	return policy.Files{{Name: policy.MountedKey, Text: text}}
}

func (s *site) Write(_ context.Context, held Held, texts map[string][]byte, dryRun bool) error {
	if s.writeErr != nil {
		return s.writeErr
	}
	if held.Version != s.held.Version {
		return errors.New("written without a look")
	}
	if dryRun {
		return nil
	}
	s.writes++
	s.held.Files = slices.DeleteFunc(slices.Clone(s.held.Files), func(f policy.File) bool { _, written := texts[f.Name]; return written })
	for name, text := range texts {
		if text != nil {
			s.held.Files = append(s.held.Files, policy.File{Name: name, Text: text})
		}
	}
	slices.SortFunc(s.held.Files, func(a, b policy.File) int { return strings.Compare(a.Name, b.Name) })
	s.held.Version += "'"
	return nil
}

func (s *site) Replicas(context.Context) ([]Replica, error) {
	if s.beforeLook != nil {
		s.beforeLook()
	}
	now := s.looks[0]
	if len(s.looks) > 1 {
		s.looks = s.looks[1:]
	}
	return now, nil
}

func (s *site) Existing(context.Context) (review.Existing, error) { return s.exists, s.readErr }
func (s *site) CSI(context.Context) (*review.CSI, error)          { return nil, nil }

func (s *site) apply(text string, args ...string) result {
	options := testOptions
	options.Pause = time.Millisecond
	options.Connect = func(Place) (Installation, error) { return s, nil }
	return runWith(options, text, append([]string{"apply", "-"}, args...)...)
}

func TestApply(t *testing.T) {
	changed := strings.Replace(compared, "volumes: 10", "volumes: 20", 1)
	was, will := policy.RevisionOf([]byte(compared)), policy.RevisionOf([]byte(changed))
	runs := func(revision string, pods ...string) (all []Replica) {
		for _, pod := range pods {
			all = append(all, Replica{Pod: pod, Revision: revision})
		}
		return all
	}
	refuses := func(pod, revision string) Replica {
		return Replica{Pod: pod, Revision: was, Refused: revision, Why: []string{"clusterID: changing it"}}
	}
	for name, c := range map[string]struct {
		site     site
		text     string
		args     []string
		code     int
		writes   int
		out, err []string // parts of the output and of the error
	}{
		"every replica follows": {
			site: site{looks: [][]Replica{runs(was, "a", "b"), {{Pod: "a", Revision: will}, {Pod: "b", Silent: "no answer"}}, runs(will, "a", "b")}},
			text: changed, writes: 1,
			out: []string{"<stdin>: good: 2 backends", "What changes since revision " + was + ", which ConfigMap standalone-cinder/standalone-cinder-policy holds:\n~ tenants[a].quota.volumes: 10 -> 20\n",
				"Gained:\n  tenant a: quota.volumes 10 -> 20\n", "holds revision " + will + " now (before: " + was + ")",
				"replica a runs revision " + will + "\nreplica b runs revision " + will + "\nevery replica (2) runs revision " + will + "\n"},
		},
		"nothing is written twice": {
			site: site{held: Held{Files: key([]byte(changed))}, looks: [][]Replica{runs(will, "a")}}, text: changed,
			out: []string{"nothing changes\n", "holds revision " + will + " already\n", "every replica (1) runs"},
		},
		"a dry run": {text: changed, args: []string{"--dry-run"}, out: []string{"quota.volumes 10 -> 20", "stays as it is (--dry-run)"}},
		"a dry run of what the API server refuses": {site: site{writeErr: errors.New("it is immutable")}, text: changed, args: []string{"--dry-run"}, code: ExitFailed, err: []string{"it is immutable"}},
		"a dry run of what a tool manages": {site: site{held: Held{Files: key([]byte(compared)), Manager: "Helm"}}, text: changed, args: []string{"--dry-run"},
			out: []string{"is managed by Helm, which will bring its own policy back: give it this one, too"}},
		"line ends, a byte order mark and comments stay": {text: "\ufeff# comment\r\n" + strings.ReplaceAll(changed, "\n", "\r\n"), args: []string{"--timeout", "0"}, writes: 1},
		"a manifest": {text: manifestOf("standalone-cinder", "standalone-cinder-policy", changed), args: []string{"--timeout", "0"}, writes: 1, out: []string{"holds revision " + will + " now"}},
		"a manifest of another ConfigMap": {text: manifestOf("standalone-cinder", "policy-of-another", changed), code: ExitUsage,
			err: []string{"is the manifest of ConfigMap standalone-cinder/policy-of-another, not of ConfigMap standalone-cinder/standalone-cinder-policy; give --namespace and --configmap"}},
		"a manifest of another namespace": {text: manifestOf("staging", "standalone-cinder-policy", changed), code: ExitUsage, err: []string{"is the manifest of ConfigMap staging/standalone-cinder-policy"}},
		"a manifest without a namespace":  {text: manifestOf("", "standalone-cinder-policy", changed), args: []string{"--timeout", "0"}, writes: 1},
		"no wait":                         {text: changed, args: []string{"--timeout", "0"}, writes: 1, out: []string{"holds revision " + will + " now"}},
		"mistakes": {text: strings.Replace(compared, "backends: [gold]", "backends: [golt]", 1), code: ExitFailed,
			out: []string{`unknown backend "golt"`}, err: []string{"<stdin> has 1 error"}},
		"a backend goes that volumes need": {
			site: site{exists: review.Existing{Volumes: []review.Volume{{Name: "pv", Backend: "silver"}}}},
			text: strings.NewReplacer("  - {name: silver, auth: {cloud: silver}, suspended: true}\n", "", "[silver, gold]", "[gold]").Replace(compared), code: ExitFailed,
			out: []string{"BackendGone"}, err: []string{"leaves volumes that cannot be deleted"},
		},
		"the same without the review": {
			site: site{exists: review.Existing{Volumes: []review.Volume{{Name: "pv", Backend: "silver"}}}},
			text: strings.NewReplacer("  - {name: silver, auth: {cloud: silver}, suspended: true}\n", "", "[silver, gold]", "[gold]").Replace(compared),
			args: []string{"--skip-review", "--timeout", "0"}, writes: 1, out: []string{"Lost:\n  backend silver goes\n  tenant a: backend silver for StorageClasses *\n"},
		},
		"a cluster that cannot be read": {site: site{readErr: errors.New("forbidden")}, text: changed, code: ExitUsage, err: []string{"forbidden; --skip-review applies the policy without knowing"}},
		"no ConfigMap":                  {site: site{heldErr: errors.New("there is none")}, text: changed, code: ExitUsage, err: []string{"there is none"}},
		"somebody else was faster":      {site: site{writeErr: errors.New("somebody has changed it")}, text: changed, code: ExitFailed, err: []string{"somebody has changed it"}},
		"a ConfigMap without a policy": {
			site: site{held: Held{Version: "1"}, looks: [][]Replica{runs(will, "a")}}, text: changed, writes: 1,
			out: []string{"holds no policy under the key policy.yaml; its keys: none\n", "(before: none)"},
		},
		"a wrong key": {
			site: site{looks: [][]Replica{{{Pod: "a", File: "/etc/policy/" + policy.MountedKey}}}}, text: changed, args: []string{"--key", "polcy.yaml"}, code: ExitUsage,
			out: []string{"holds no policy under the key polcy.yaml; its keys: policy.yaml\n"},
			err: []string{"replica a reads the key policy.yaml of ConfigMap standalone-cinder/standalone-cinder-policy, which has no key polcy.yaml; give --key policy.yaml"},
		},
		"a key that replicas see by another name": {
			site: site{looks: [][]Replica{{{Pod: "a", File: "/etc/policy/mounted.yaml", Revision: will}}}}, text: changed, args: []string{"--key", "next.yaml"}, writes: 1,
		},
		"a policy with mistakes is replaced": {
			site: site{held: Held{Files: key([]byte("kind: \"Pol\\eizei\"\n"))}, looks: [][]Replica{runs(will, "a")}}, text: changed, writes: 1,
			out: []string{"holds a policy with 4 errors, so there is nothing to compare with; the first: ConfigMap standalone-cinder/standalone-cinder-policy:1:"},
		},
		"a tool that manages the ConfigMap": {
			site: site{held: Held{Files: key([]byte(compared)), Manager: "Helm"}}, text: changed, args: []string{"--timeout", "0"}, writes: 1,
			out: []string{"is managed by Helm, which will bring its own policy back: give it this one, too"},
		},
		"replicas refuse it": {
			site: site{looks: [][]Replica{{refuses("a", "of earlier"), refuses("b", will)}, {refuses("a", will), refuses("b", will)}}}, text: changed, writes: 1, code: ExitFailed,
			out: []string{"replica b refuses revision " + will + ", and keeps " + was + ": clusterID: changing it\nreplica a refuses"},
			err: []string{"2 of 2 replicas refused revision " + will},
		},
		"time is up": {
			site: site{looks: [][]Replica{{{Pod: "a", Revision: will}, {Pod: "b", Silent: "its pod is Pending"}, {Pod: "c", Revision: was}, refuses("d", "of earlier")}}},
			text: changed, args: []string{"--timeout", "50ms"}, writes: 1, code: ExitFailed,
			err: []string{"not finished after 50ms; ConfigMap standalone-cinder/standalone-cinder-policy holds revision " + will + ", but replica b does not answer: its pod is Pending; replica c runs revision " + was +
				"; replica d runs revision " + was + ", and refuses another one: clusterID: changing it; run the same command again to wait on; a kubelet updates no file that a pod mounts with subPath"},
		},
		"no replica": {site: site{looks: [][]Replica{{}}}, text: changed, args: []string{"--timeout", "50ms", "--selector", "x=y"}, writes: 1, code: ExitFailed,
			err: []string{"no pod in namespace standalone-cinder with the labels x=y runs provisioner " + testOptions.ProvisionerName}},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.site
			if s.held.Files == nil && s.held.Version == "" {
				s.held = Held{Files: key([]byte(compared))}
			}
			got := s.apply(c.text, c.args...)
			if ExitCode(got.err) != c.code || s.writes != c.writes {
				t.Errorf("exit code %d, %d writes; want %d, %d", ExitCode(got.err), s.writes, c.code, c.writes)
			}
			for _, want := range c.out {
				if !strings.Contains(got.stdout, want) {
					t.Errorf("the output lacks %q", want)
				}
			}
			for _, want := range c.err {
				if !strings.Contains(message(got.err), want) {
					t.Errorf("the error lacks %q", want)
				}
			}
			if strings.ContainsFunc(got.stdout, func(r rune) bool { return r < ' ' && r != '\n' }) {
				t.Error("the output has control characters")
			}
			if t.Failed() {
				t.Logf("%s%s%v", got.stdout, got.stderr, got.err)
			}
		})
	}
}

// TestApplyNoticesThatSomebodyElseApplies: the replicas will never run the policy then.
func TestApplyNoticesThatSomebodyElseApplies(t *testing.T) {
	s := &site{held: Held{Files: key([]byte(good))}, looks: [][]Replica{{{Pod: "a"}}}}
	s.beforeLook = func() { s.held.Files = key([]byte("theirs")) }
	got := s.apply(compared)
	if ExitCode(got.err) != ExitFailed || !strings.Contains(message(got.err), "by revision "+policy.RevisionOf([]byte("theirs"))+" in the meantime") {
		t.Errorf("%v\n%s", got.err, got.stdout)
	}
}

func TestApplyNoticesThatSomebodyRemovesThePolicy(t *testing.T) {
	s := &site{held: Held{Files: key([]byte(good))}, looks: [][]Replica{{{Pod: "a"}}}}
	s.beforeLook = func() { s.held.Files = nil }
	if got := s.apply(compared); ExitCode(got.err) != ExitFailed || !strings.Contains(message(got.err), "somebody has removed the policy from ConfigMap") {
		t.Errorf("%v\n%s", got.err, got.stdout)
	}
}

// TestApplyDoesNotClaimToKnowWhatItCannotRead: the ConfigMap may be gone by then.
func TestApplyDoesNotClaimToKnowWhatItCannotRead(t *testing.T) {
	s := &site{held: Held{Files: key([]byte(good))}, looks: [][]Replica{{{Pod: "a"}}}}
	s.beforeLook = func() { s.heldErr = errors.New("there is no ConfigMap") }
	got := s.apply(compared, "--timeout", "50ms")
	if want := "held revision " + policy.RevisionOf([]byte(compared)); ExitCode(got.err) != ExitFailed || !strings.Contains(message(got.err), want) || !strings.Contains(message(got.err), "there is no ConfigMap") {
		t.Errorf("%v, want %s", got.err, want)
	}
}

// manifestOf returns the manifest of a ConfigMap with a policy.
func manifestOf(namespace, name, text string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: \"" + namespace + "\"}\ndata:\n  policy.yaml: |\n    " + strings.TrimSuffix(strings.ReplaceAll(text, "\n", "\n    "), "    ")
}

func TestApplyAsJSON(t *testing.T) {
	s := &site{held: Held{Files: key([]byte(good))}, looks: [][]Replica{{{Pod: "a", Revision: policy.RevisionOf([]byte(compared))}}}}
	got := s.apply(compared, "-o", "json")
	var answer applied
	if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || got.err != nil {
		t.Fatalf("%v, %v:\n%s", err, got.err, got.stdout)
	}
	if !answer.Written || answer.Before != policy.RevisionOf([]byte(good)) || len(answer.Changes) == 0 || !slices.Contains(answer.Gained, "tenant z is new") || len(answer.Replicas) != 1 || !answer.Check.Valid {
		t.Errorf("%s", got.stdout)
	}
	if !strings.Contains(got.stderr, "every replica (1) runs") {
		t.Errorf("progress: %s", got.stderr)
	}
}

func TestWhatApplyRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no file":            {nil, "needs one FILE"},
		"two files":          {[]string{"a", "b"}, "needs one FILE"},
		"no such file":       {[]string{"absent.yaml"}, "read policy: open absent.yaml"},
		"another format":     {[]string{"-", "-o", "xml"}, "--output must be text or json"},
		"a negative timeout": {[]string{"-", "--timeout", "-1s"}, "--timeout must not be negative"},
		"no selector":        {[]string{"-", "--selector", "app=a b"}, `--selector is "app=a b"; write it as kubectl does, such as app=a,tier=b: found 'b', expected: ',' or 'end of string'`},
		"no namespace":       {[]string{"-", "--namespace", ""}, "--namespace is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			got := run("", append([]string{"apply"}, c.args...)...)
			if ExitCode(got.err) != ExitUsage || !strings.Contains(message(got.err), c.want) {
				t.Errorf("%v, want %s", got.err, c.want)
			}
		})
	}
}

func TestWhoGainsAndLoses(t *testing.T) {
	for name, c := range map[string]struct {
		change []string
		want   string
	}{
		"a namespace moves":             {[]string{"[a, b]", "[a]", "namespaceSelector: {matchLabels: {team: z}}", "namespaces: [b]"}, "Lost:\n  tenant z: the namespaces of the selector team=z\nMoved:\n  namespace b moves from tenant a to tenant z"},
		"a namespace":                   {[]string{"[a, b]", "[a, c]"}, "Gained:\n  tenant a: namespace c\nLost:\n  tenant a: namespace b"},
		"a quota falls":                 {[]string{"volumes: 10", "volumes: 9"}, "Lost:\n  tenant a: quota.volumes 10 -> 9"},
		"a quota is lifted":             {[]string{"volumes: 10", "gigabytes: 5"}, "Gained:\n  tenant a: quota.volumes 10 -> without bound\nLost:\n  tenant a: quota.gigabytes without bound -> 5"},
		"sizes have units":              {[]string{"max: 100Gi", "max: 1Ti"}, "Gained:\n  tenant a: volumeSize.max 100Gi -> 1Ti\n  tenant z: volumeSize.max 100Gi -> 1Ti"},
		"other namespaces":              {[]string{"{team: z}", "{team: y}"}, "Gained:\n  tenant z: the namespaces of the selector team=y\nLost:\n  tenant z: the namespaces of the selector team=z"},
		"no namespaces by labels":       {[]string{"namespaceSelector: {matchLabels: {team: z}}", "namespaces: [z]"}, "Gained:\n  tenant z: namespace z\nLost:\n  tenant z: the namespaces of the selector team=z"},
		"small volumes":                 {[]string{"max: 100Gi", "max: 100Gi, min: 5Gi"}, "Lost:\n  tenant a: volumeSize.min without bound -> 5Gi\n  tenant z: volumeSize.min without bound -> 5Gi"},
		"all snapshots":                 {[]string{"namespaces: [a, b]", "namespaces: [a, b]\n    restoreAnySnapshot: true"}, "Gained:\n  tenant a: may restore any snapshot"},
		"a backend is used again":       {[]string{", suspended: true", ""}, "Gained:\n  backend silver takes new volumes again"},
		"a StorageClass goes":           {[]string{"      - {storageClasses: [fast], backends: [gold], volumeType: ssd}\n", ""}, "Lost:\n  tenant a: StorageClasses fast"},
		"a rule gets a backend":         {[]string{"[gold], volumeType", "[gold, silver], volumeType"}, "Gained:\n  tenant a: backend silver for StorageClasses fast"},
		"another order of the backends": {[]string{"[silver, gold]", "[gold, silver]"}, ""},
		"another volume type":           {[]string{"ssd", "hdd"}, ""},
		"a tenant goes":                 {[]string{"  - name: z\n    namespaceSelector: {matchLabels: {team: z}}\n    classes: [{storageClasses: [\"*\"], backends: [gold]}]\n", ""}, "Lost:\n  tenant z goes"},
	} {
		t.Run(name, func(t *testing.T) {
			parse := func(text string) *policy.Policy {
				p, err := policy.Parse([]byte(text), "policy.yaml", testOptions.Protocols)
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			var lines []string
			effectsOf(differencesOf(parse(compared), parse(strings.NewReplacer(c.change...).Replace(compared))).Changes).each(func(line string) { lines = append(lines, line) })
			if got := strings.Join(lines, "\n"); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}
