// Package install follows the pages that say how to install and try the program,
// as a reader would who copies every command.
package install

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
	"github.com/standalone-cinder/standalone-cinder/test/deploy"
	"github.com/standalone-cinder/standalone-cinder/test/docs"
)

// TestInstall follows the section "Install" of README.md in a fresh clone. There
// is no kubelet: Node runs the pods of the Deployment as processes.
func TestInstall(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	readme, err := docs.Read("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := readme.Section("Install")
	if len(blocks) < 5 {
		t.Fatalf("README.md has %d blocks below Install", len(blocks))
	}
	sim := startCinder(t)
	credential := sim.ApplicationCredentials()[0]
	plane := startPlane(ctx, t)
	client, err := kubernetes.NewForConfig(plane.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	announceAPIServer(ctx, t, client)
	session := &docs.Session{
		Dir:         clone(ctx, t),
		Environment: tools(ctx, t, "KUBECONFIG="+plane.KubeconfigPath()),
		Replaced: strings.NewReplacer(
			"https://keystone.example:5000/v3", sim.KeystoneURL(),
			"REPLACE-WITH-ITS-ID", credential.ID,
			"REPLACE-WITH-ITS-SECRET", credential.Secret,
			// make release-check pushes to a registry and reads it back, and builds the
			// plugin for all systems.
			" REGISTRY=registry.example", " PLUGINS=linux/amd64",
		),
		Log: t.Logf,
	}
	defer session.Close()
	ctx, node := startNode(ctx, t, plane, session.Dir)
	if err := session.Follow(ctx, readme, blocks); err != nil {
		t.Fatalf("%v\nThe pods wrote:\n%s", err, node.Logs())
	}

	if images := node.Images(); len(images) != 1 || !images["registry.example/standalone-cinder:v0.1.0"] {
		t.Errorf("the pods have the images %v, not the one that README.md pushes", images)
	}
	checkAPIServerIsAdmitted(ctx, t, client)
	volumes := sim.Volumes()
	if len(volumes) != 2 {
		t.Errorf("Cinder has %d volumes for the two claims of deploy/examples", len(volumes))
	}
	for _, volume := range volumes {
		if volume.Metadata["standalone-cinder.openstack.org/tenant"] != "team-a" {
			t.Errorf("volume %s is stamped %v", volume.Name, volume.Metadata)
		}
	}

	for _, path := range docs.Lifecycle {
		page, err := docs.Read(path)
		if err == nil {
			err = session.Follow(ctx, page, page.Blocks)
		}
		if err != nil {
			t.Fatalf("%v\nThe pods wrote:\n%s", err, node.Logs())
		}
	}
	if left := sim.Volumes(); len(left) > 0 {
		t.Errorf("Cinder has %d volumes after docs/how-to/uninstall.md, such as %+v", len(left), left[0])
	}
}

// apiServer is the address that the control plane announces here. That of these tests
// announces none, since it listens on the loopback interface.
const apiServer = "192.0.2.10"

func announceAPIServer(ctx context.Context, t *testing.T, client kubernetes.Interface) {
	t.Helper()
	_, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{apiServer}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// checkAPIServerIsAdmitted: `standalone-cinder status` asks the replicas through it.
func checkAPIServerIsAdmitted(ctx context.Context, t *testing.T, client kubernetes.Interface) {
	t.Helper()
	installed, err := client.NetworkingV1().NetworkPolicies(deploy.Namespace).Get(ctx, deploy.Release, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if peers := installed.Spec.Ingress[0].From; len(peers) != 2 || peers[1].IPBlock == nil || peers[1].IPBlock.CIDR != apiServer+"/32" {
		t.Errorf("the replicas are reached by %v", peers)
	}
}

// startCinder starts a simulated Cinder with an application credential.
func startCinder(t *testing.T) *cindersim.Simulator {
	t.Helper()
	sim, err := cindersim.New(cindersim.Options{Identity: keystone.Identity{
		Users:                  []keystone.User{{Name: "gold", Password: "not-a-real-secret", Projects: []string{"gold"}}},
		Projects:               []keystone.Project{{Name: "gold"}},
		ApplicationCredentials: []keystone.ApplicationCredential{{Name: "standalone-cinder", Secret: "not-a-real-secret", User: "gold", Project: "gold"}},
	}})
	if err == nil {
		err = sim.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	return sim
}

// startPlane starts a control plane that also rolls out Deployments.
func startPlane(ctx context.Context, t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	plane, err := controlplane.Start(ctx, controlplane.Options{
		Controllers: append(controlplane.DefaultControllers(), "deployment-controller", "replicaset-controller"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	return plane
}

// startNode runs the pods with the program that the reader builds in a
// directory. The context that it returns ends if the node fails, since nobody
// would wait for pods that nothing runs.
func startNode(ctx context.Context, t *testing.T, plane *controlplane.ControlPlane, directory string) (context.Context, *docs.Node) {
	t.Helper()
	client, err := kubernetes.NewForConfig(plane.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	node := &docs.Node{
		Client: client, Namespace: deploy.Namespace, Program: filepath.Join(directory, "bin", "standalone-cinder"),
		Kubeconfig: plane.ServiceAccountKubeconfig, Dir: t.TempDir(),
	}
	running, stop := context.WithCancelCause(ctx)
	done := make(chan error, 1)
	go func() {
		err := node.Run(running)
		stop(err)
		done <- err
	}()
	t.Cleanup(func() {
		stop(nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return running, node
}

// clone returns a clone of the repository with what is not committed yet.
func clone(ctx context.Context, t *testing.T) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "standalone-cinder")
	output(ctx, t, "", "git", "clone", "--quiet", "--shared", docs.Root(), directory)
	for _, deleted := range lines(output(ctx, t, docs.Root(), "git", "ls-files", "--deleted")) {
		if err := os.Remove(filepath.Join(directory, deleted)); err != nil {
			t.Fatal(err)
		}
	}
	for _, changed := range lines(output(ctx, t, docs.Root(), "git", "ls-files", "--modified", "--others", "--exclude-standard")) {
		content, err := os.ReadFile(filepath.Join(docs.Root(), changed))
		if os.IsNotExist(err) {
			continue
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(directory, changed)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(directory, changed), content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

// tools returns an environment in which kubectl and helm are found.
func tools(ctx context.Context, t *testing.T, more ...string) []string {
	t.Helper()
	directory := t.TempDir()
	buildKubectl(ctx, t, filepath.Join(directory, "kubectl"))
	if err := deploy.InstallHelm(ctx, directory); err != nil {
		t.Fatal(err)
	}
	return append(append(os.Environ(), more...), "PATH="+directory+":"+os.Getenv("PATH"), "KUBECACHEDIR="+t.TempDir(),
		"HELM_CACHE_HOME="+directory, "HELM_CONFIG_HOME="+directory, "HELM_DATA_HOME="+directory)
}

// buildKubectl builds kubectl as the tutorial does, so that the tutorial's build
// is ready at once.
func buildKubectl(ctx context.Context, t *testing.T, path string) {
	t.Helper()
	output(ctx, t, filepath.Join(docs.Root(), "test", "install", "kubectl"), "env", "CGO_ENABLED=0", "go", "build", "-o", path, ".")
}

func output(ctx context.Context, t *testing.T, directory string, name string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir = directory
	var problems bytes.Buffer
	command.Stderr = &problems
	text, err := command.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, problems.Bytes())
	}
	return string(text)
}

func lines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}
