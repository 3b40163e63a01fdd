package tour

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// The simulated storage's delay. A second is what a fast array needs, and long
// enough for a failover in between.
const (
	createDelay = time.Second
	deleteDelay = 500 * time.Millisecond
	latency     = 10 * time.Millisecond
)

// labelTour marks the tour's objects in a shared cluster.
const labelTour = "standalone-cinder-demo"

// startServers builds and starts everything that the program talks to.
func (t *tour) startServers(ctx context.Context) error {
	t.out.Step("A cluster and a Cinder")
	if path := t.options.Kubeconfig; path != "" {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the kubeconfig cannot be read: %w", err)
		}
		t.out.Say("Building the program: a few seconds, or about a minute if nothing is compiled yet.")
	} else {
		t.out.Say("Building the program and a control plane: a few seconds, or about 6 minutes on two cores if nothing is compiled yet.")
	}
	stillBuilding := t.out.EveryMinute("still building")
	suite, err := harness.StartSuite(ctx, harness.SuiteOptions{Kubeconfig: t.options.Kubeconfig, Log: t.out})
	stillBuilding()
	if err != nil {
		return err
	}
	t.suite, t.built = suite, time.Now()
	version, err := t.suite.Client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("the API server does not answer: %w", err)
	}
	if err := t.prepareCluster(ctx); err != nil {
		return err
	}
	t.sim, err = cindersim.New(cindersim.Options{
		CreateDelay: createDelay,
		DeleteDelay: deleteDelay,
		Latency:     latency,
		Identity: keystone.Identity{
			Projects: []keystone.Project{{Name: "shop"}},
			Users:    []keystone.User{{Name: "shop", Password: t.password, Projects: []string{"shop"}}},
		},
	})
	if err == nil {
		err = t.sim.Start()
	}
	if err != nil {
		return fmt.Errorf("the simulated Cinder does not start: %w", err)
	}
	whose := "real etcd, kube-apiserver and kube-controller-manager run here, without nodes"
	if t.names.id != "" {
		whose = fmt.Sprintf("your cluster; the tour labels everything it makes there with %s=%s and removes it at the end", labelTour, t.names.id)
	}
	t.out.Say("Kubernetes %s at %s: %s.", version.GitVersion, t.suite.Config.Host, whose)
	t.out.Say("Simulated Cinder, two endpoints for one set of volumes: with Keystone at %s, without at %s. A volume takes %s to create.",
		t.sim.KeystoneURL(), t.sim.NoauthEndpoint(), createDelay)
	return nil
}

// prepareCluster creates the program's namespace if it is missing. In the local
// control plane it comes from the base manifests.
func (t *tour) prepareCluster(ctx context.Context) error {
	namespaces := t.suite.Client.CoreV1().Namespaces()
	_, err := namespaces.Get(ctx, harness.Namespace, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return wrapped(err, "namespace %s cannot be read", harness.Namespace)
	}
	_, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: harness.Namespace, Labels: t.labels()}}, metav1.CreateOptions{})
	t.madeNamespace = err == nil
	t.changed = t.changed || t.madeNamespace
	return wrapped(err, "namespace %s cannot be created", harness.Namespace)
}

// labels mark an object as the tour's.
func (t *tour) labels() map[string]string {
	if t.names.id == "" {
		return nil
	}
	return map[string]string{labelTour: t.names.id}
}

// namespaceLabels returns the labels of a tenant's namespace.
func (t *tour) namespaceLabels(namespace string) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, t.labels())
	if namespace == t.names.research() {
		labels["team"] = "research"
	}
	return labels
}

// showPolicy shows the rules and runs policy check on them.
func (t *tour) showPolicy(ctx context.Context) error {
	t.out.Step("The policy: who may have which volumes")
	head, rules := policyOf(t.names, t.sim.NoauthEndpoint(), cindersim.DefaultNoauthProject)
	t.policy = head + rules
	t.out.Quote(rules)
	dir, err := os.MkdirTemp("", "standalone-cinder-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(t.policy), 0o600); err != nil {
		return err
	}
	check := exec.CommandContext(ctx, t.suite.Program, "policy", "check", "policy.yaml")
	check.Dir = dir
	answer, err := check.CombinedOutput()
	if err != nil {
		return fmt.Errorf("the policy does not pass its check: %w\n%s", err, answer)
	}
	t.out.Command("standalone-cinder policy check policy.yaml")
	t.out.Quote(string(answer))
	return nil
}

// startReplicas starts the program as its Deployment would.
func (t *tour) startReplicas(ctx context.Context) error {
	t.out.Step("Three replicas of the program, one of which leads")
	t.out.Command("standalone-cinder run --policy policy.yaml --clouds-file clouds.yaml --kubeconfig ... (three times)")
	t.changed = true // by the Lease
	for range replicaCount {
		if err := t.start(ctx); err != nil {
			return err
		}
	}
	leader, err := t.leader(ctx, 30)
	if err != nil {
		return err
	}
	rows := [][]string{{"REPLICA", "PROCESS", "STATUS PAGE", ""}}
	for _, r := range t.replicas {
		role := "follows"
		if r == leader {
			role = "holds the lease and provisions"
		}
		rows = append(rows, []string{fmt.Sprint(r.number), fmt.Sprint(r.PID()), "http://" + r.Address, role})
	}
	t.out.Table(rows)
	if t.names.id == "" {
		t.out.Say("They have the rights that deploy/base/rbac.yaml grants, and no others.")
	}
	return nil
}

// makeTenants creates namespaces and StorageClasses.
func (t *tour) makeTenants(ctx context.Context) error {
	for _, name := range t.names.namespaces() {
		if err := t.suite.CreateNamespace(ctx, name, t.namespaceLabels(name)); err != nil {
			return fmt.Errorf("namespace %s cannot be created: %w", name, err)
		}
	}
	for _, name := range t.names.classes() {
		err := t.suite.CreateClass(ctx, name, t.names.provisioner, func(class *storagev1.StorageClass) {
			class.Labels = t.labels()
		})
		if err != nil {
			return fmt.Errorf("StorageClass %s cannot be created: %w", name, err)
		}
	}
	return nil
}

// wrapped adds a text to an error. It returns nil if there is no error.
func wrapped(err error, format string, arguments ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, arguments...), err)
}
