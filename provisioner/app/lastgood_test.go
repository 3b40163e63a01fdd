package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/statuspage"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// starter is a replica on a fake API server, with its files.
type starter struct {
	*App
	client *fake.Clientset
	dir    string
	log    *bytes.Buffer
}

// newStarter makes a replica that has not started. An empty text means that the file
// does not exist.
func newStarter(t *testing.T, policyText, clouds string) *starter {
	t.Helper()
	s := &starter{dir: t.TempDir(), log: &bytes.Buffer{}}
	s.write(t, "policy.yaml", policyText)
	s.write(t, "clouds.yaml", clouds)
	options := defaults(t, "--policy="+filepath.Join(s.dir, "policy.yaml"), "--clouds-file="+filepath.Join(s.dir, "clouds.yaml"), "--namespace=storage", "--listen=127.0.0.1:0")
	options.Config = &rest.Config{Host: "https://127.0.0.1:1"}
	options.Protocols = mappers.BuiltIn()
	options.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(s.log, t.Output()), nil))
	options.Metrics = prometheus.NewRegistry()
	var err error
	if s.App, err = New(options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.server.listener.Close() })
	s.use(fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "kube-system-uid"}}))
	return s
}

// use replaces the API server, as if for the next replica.
func (s *starter) use(client *fake.Clientset) {
	s.client, s.replica.client, s.lastGood.Client = client, client, client
}

func (s *starter) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if text == "" {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start begins, and looks at the files once.
func (s *starter) start(t *testing.T) (*reloader, error) {
	t.Helper()
	err := s.reloader.begin(t.Context())
	if err == nil {
		s.reloader.checkPolicyFile()
		s.reloader.checkCredentials()
	}
	return s.reloader, err
}

// keepNow keeps what is in force.
func (s *starter) keepNow(t *testing.T) error {
	k := &keeper{replica: s.replica}
	return k.keep(t.Context(), k.inForce())
}

// save keeps the given policy, whatever was kept before.
func (s *starter) save(t *testing.T, policyText string) {
	t.Helper()
	if err := s.reloader.findCluster(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept, err := s.lastGood.Load(t.Context())
	if err == nil {
		err = s.lastGood.Save(t.Context(), kept, []byte(policyText))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// kept returns what the cluster keeps.
func (s *starter) kept(t *testing.T) (policyText string) {
	t.Helper()
	kept, err := s.lastGood.Load(t.Context())
	if err != nil || kept.Unusable != nil {
		t.Fatal(err, kept.Unusable)
	}
	return string(kept.Policy)
}

// policyOf returns a policy with a comment, which gives each its own revision.
func policyOf(comment, cluster string) string {
	return "# " + comment + "\napiVersion: " + policy.APIVersion + "\nkind: Policy\n" + cluster + "backends:\n  - {name: gold, auth: {cloud: gold}}\n" +
		"tenants:\n  - {name: a, namespaces: [a], classes: [{storageClasses: [c], backends: [gold]}]}\n"
}

func cloudsOf(password string) string {
	return "clouds: {gold: {auth: {auth_url: 'http://k/v3', user_id: u, password: " + password + ", project_id: x}}}\n"
}

// TestAnyBadFileStartsWithTheLastGood: a good file always wins. Bad credentials stop only
// the backends that need them, and no replica.
func TestAnyBadFileStartsWithTheLastGood(t *testing.T) {
	first := newStarter(t, policyOf("first", ""), cloudsOf("hunter2"))
	if _, err := first.start(t); err != nil {
		t.Fatal(err)
	}
	if err := first.keepNow(t); err != nil {
		t.Fatal(err)
	}
	good := policy.RevisionOf([]byte(policyOf("first", "")))
	for name, c := range map[string]struct{ policy, clouds, revision string }{
		"both good":              {policyOf("second", ""), cloudsOf("n3w"), policy.RevisionOf([]byte(policyOf("second", "")))},
		"the ID is written out":  {policyOf("second", "clusterID: kube-system-uid\n"), cloudsOf("n3w"), policy.RevisionOf([]byte(policyOf("second", "clusterID: kube-system-uid\n")))},
		"no policy":              {"", cloudsOf("n3w"), good},
		"no YAML":                {"tenants: [", cloudsOf("n3w"), good},
		"an unknown backend":     {strings.Replace(policyOf("x", ""), "backends: [gold]", "backends: [golt]", 1), cloudsOf("n3w"), good},
		"another cluster":        {policyOf("x", "clusterID: another\n"), cloudsOf("n3w"), good},
		"clouds are half":        {policyOf("first", ""), cloudsOf("hunter2")[:20], good},
		"the entry is gone":      {policyOf("first", ""), "clouds: {zinc: {}}\n", good},
		"both are something new": {"a", "b", good},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStarter(t, c.policy, c.clouds)
			s.use(first.client)
			r, err := s.start(t)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.policy.Load().Revision(); got != c.revision {
				t.Errorf("revision %s is in force, want %s", got, c.revision)
			}
			policyBad, cloudsBad := c.policy == "" || c.revision == good && c.policy != policyOf("first", ""), c.clouds != cloudsOf("n3w")
			if got := testutil.ToFloat64(s.reloads.success); got == 1 == policyBad {
				t.Errorf("the gauge of the policy is %g", got)
			}
			unreadable, refused := s.status.troubles()
			if refused != nil != policyBad || len(unreadable) > 0 != cloudsBad {
				t.Errorf("refused %v, unreadable %v", refused, unreadable)
			}
			report := s.server.report(statuspage.Request{})
			if fromKept := report.Policy.Source == statusreport.FromLastGood; fromKept != policyBad || report.Policy.Revision != c.revision ||
				report.Policy.KeptIn != "Secret storage/openstack.org-standalone-cinder-last-good" || len(report.Policy.Refused) > 0 != policyBad || len(report.Credentials) > 0 != cloudsBad {
				t.Errorf("the report says %+v, credentials %+v", report.Policy, report.Credentials)
			}
			// A replica that started from the last good policy keeps what the next one
			// needs.
			if err := s.keepNow(t); err != nil {
				t.Fatal(err)
			}
			if got := policy.RevisionOf([]byte(s.kept(t))); got != c.revision {
				t.Errorf("revision %s is kept", got)
			}

			s.write(t, "policy.yaml", policyOf("third", ""))
			s.write(t, "clouds.yaml", cloudsOf("third"))
			r.checkPolicyFile()
			r.checkCredentials()
			unreadable, refused = s.status.troubles()
			if refused != nil || len(unreadable) > 0 || testutil.ToFloat64(s.reloads.success) != 1 || s.fromKept.Load() {
				t.Errorf("after the files were mended: refused %v, unreadable %v", refused, unreadable)
			}
			if got := s.policy.Load().Revision(); got != policy.RevisionOf([]byte(policyOf("third", ""))) {
				t.Errorf("after the files were mended, revision %s is in force", got)
			}
			if strings.Contains(s.log.String(), "hunter2") || strings.Contains(s.log.String(), "n3w") {
				t.Error("a password is in the log")
			}

			// The next case must find what this one found.
			if err := first.keepNow(t); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestNothingKeptEndsTheStartWithBothErrors: of the file, and of what is kept.
func TestNothingKeptEndsTheStartWithBothErrors(t *testing.T) {
	forbidden := apierrors.NewForbidden(corev1.Resource("secrets"), "x", errors.New("no"))
	for name, c := range map[string]struct {
		prepare func(*testing.T, *starter)
		want    string
	}{
		"the first start": {func(*testing.T, *starter) {}, "no earlier policy is kept in Secret storage/openstack.org-standalone-cinder-last-good that could be used instead"},
		"no right to read": {func(_ *testing.T, s *starter) {
			s.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
		}, "cannot be used either: cannot read Secret storage/openstack.org-standalone-cinder-last-good: " + forbidden.Error()},
		"a policy that this version refuses": {func(t *testing.T, s *starter) {
			s.save(t, "kind: Plicy\n")
		}, "the last good policy, kept in Secret storage/openstack.org-standalone-cinder-last-good, cannot be used either: Secret storage/openstack.org-standalone-cinder-last-good:1:1: apiVersion: is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStarter(t, "tenants: [", cloudsOf("hunter2"))
			c.prepare(t, s)
			_, err := s.start(t)
			if err == nil || !strings.Contains(err.Error(), "policy.yaml:1: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v\nwant %s", err, c.want)
			}
			// With a good file, nothing else is needed.
			s.write(t, "policy.yaml", policyOf("good", ""))
			if _, err := s.start(t); err != nil {
				t.Errorf("with a good file: %v", err)
			}
		})
	}
}

// TestWhatAnotherClusterKeptIsNotUsed: a backup of the namespace is restored into a
// second cluster (a drill or a clone), with the Secret that the first cluster's leader
// wrote. With that policy, the second cluster would take the volumes of the first for
// its own, and those not yet recorded for unneeded.
func TestWhatAnotherClusterKeptIsNotUsed(t *testing.T) {
	first := newStarter(t, policyOf("first", "clusterID: production\n"), cloudsOf("hunter2"))
	if _, err := first.start(t); err != nil {
		t.Fatal(err)
	}
	if err := first.keepNow(t); err != nil {
		t.Fatal(err)
	}
	restored, err := first.client.CoreV1().Secrets("storage").Get(t.Context(), first.lastGood.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	drill := newStarter(t, policyOf("drill", "clusterID: drill\n"), cloudsOf("hunter2"))
	kubeSystem, err := drill.client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubeSystem.UID = "another-kube-system-uid"
	if _, err := drill.client.CoreV1().Namespaces().Update(t.Context(), kubeSystem, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	copied := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: restored.Name, Namespace: restored.Namespace, Labels: restored.Labels, Annotations: restored.Annotations},
		Type: restored.Type, Data: restored.Data}
	if _, err := drill.client.CoreV1().Secrets("storage").Create(t.Context(), copied, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := drill.start(t); err != nil {
		t.Fatal(err)
	}
	if drill.App.cluster != "drill" {
		t.Errorf("the replica works as cluster %q, want drill", drill.App.cluster)
	}
	if !strings.Contains(drill.log.String(), "it was written in another cluster") {
		t.Error("the log does not tell it")
	}
	if err := drill.keepNow(t); err != nil {
		t.Fatal(err)
	}
	if text := drill.kept(t); text != policyOf("drill", "clusterID: drill\n") {
		t.Errorf("the Secret of the other cluster was not replaced; kept %q", text)
	}
}

// TestAGoodFileStartsAlthoughSecretsCannotBeRead: with a bad file, the start waits for
// them.
func TestAGoodFileStartsAlthoughSecretsCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newStarter(t, policyOf("own", ""), cloudsOf("hunter2"))
	asked := 0
	s.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		return true, nil, apierrors.NewInternalError(errors.New("no key to decrypt with"))
	})
	if _, err := s.start(t); err != nil || asked != maxLoadAttempts {
		t.Errorf("after %d tries: %v", asked, err)
	}
	s.write(t, "policy.yaml", "tenants: [")
	ctx, cancel := context.WithCancel(t.Context())
	s.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		if asked++; asked > 2*maxLoadAttempts {
			cancel()
		}
		return false, nil, nil
	})
	if err := s.reloader.begin(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a bad file: %v", err)
	}
}
