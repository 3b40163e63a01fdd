package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// startForTest starts a control plane and ends it with the test, which fails
// if a component had ended by itself.
func startForTest(t *testing.T, options Options) *ControlPlane {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a control plane, and builds it the first time")
	}
	plane, err := Start(t.Context(), options)
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

func clientFrom(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// eventually waits until check returns nil.
func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("never came true: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func mustApply(t *testing.T, plane *ControlPlane, manifests ...string) {
	t.Helper()
	for _, manifest := range manifests {
		if err := plane.Apply(t.Context(), []byte(manifest)); err != nil {
			t.Fatal(err)
		}
	}
}

func bound(client kubernetes.Interface, namespace, name, volume string) func(context.Context) error {
	return func(ctx context.Context) error {
		claim, err := client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, meta.GetOptions{})
		switch {
		case err != nil:
			return err
		case claim.Status.Phase != core.ClaimBound || claim.Spec.VolumeName != volume:
			return fmt.Errorf("claim %s/%s is %s to %q", namespace, name, claim.Status.Phase, claim.Spec.VolumeName)
		}
		return nil
	}
}

// TestControlPlane uses one control plane for everything that does not need one
// of its own. The subtests run in the given order, since some end components.
//
//tier:apart
func TestControlPlane(t *testing.T) {
	plane := startForTest(t, Options{Scheduler: true})
	client := clientFrom(t, plane.KubeconfigPath())

	t.Run("reports its version as a release does", func(t *testing.T) {
		version, err := client.Discovery().ServerVersion()
		if err != nil {
			t.Fatal(err)
		}
		// A binary from elsewhere may be of any version.
		if minor, ok := strings.CutPrefix(filepath.Base(plane.binary), "controlplane-"); ok {
			_, want, err := sourceKey(filepath.Join("binaries", minor))
			if err != nil {
				t.Fatal(err)
			}
			if version.GitVersion != want {
				t.Errorf("got %s, want %s", version.GitVersion, want)
			}
		}
		if got := "v" + version.Major + "." + version.Minor + "."; !strings.HasPrefix(version.GitVersion, got) {
			t.Errorf("numbers %s do not fit %s", got, version.GitVersion)
		}
	})
	t.Run("starts without objects of its own making", func(t *testing.T) {
		volumes, err := client.CoreV1().PersistentVolumes().List(t.Context(), meta.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claims, err := client.CoreV1().PersistentVolumeClaims("").List(t.Context(), meta.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(volumes.Items) != 0 || len(claims.Items) != 0 {
			t.Errorf("found %d volumes and %d claims", len(volumes.Items), len(claims.Items))
		}
	})
	t.Run("binds a claim to its static volume and protects both", func(t *testing.T) { testBinding(t, plane, client) })
	t.Run("binds a claim of a scheduled pod", func(t *testing.T) { testScheduler(t, plane, client) })
	t.Run("removes a namespace with what is in it", func(t *testing.T) { testNamespaceRemoval(t, plane, client) })
	t.Run("grants a service account what RBAC grants", func(t *testing.T) { testRBAC(t, plane) })
	t.Run("issues no token for a service account that does not exist", func(t *testing.T) {
		_, err := plane.ServiceAccountKubeconfig(t.Context(), "default", "nobody")
		const want = `token of service account default/nobody: serviceaccounts "nobody" not found`
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
	t.Run("applies", func(t *testing.T) { testApply(t, plane, client) })
	t.Run("keeps data over a restart of the API server", func(t *testing.T) { testRestart(t, plane, client) })
	t.Run("waits for the API server's port", func(t *testing.T) { testPortTaken(t, plane, client) })
	t.Run("leaves no API server behind that it did not wait for", func(t *testing.T) { testLateRestart(t, plane) })
	t.Run("pauses the API server", func(t *testing.T) { testPause(t, plane, client) })
	t.Run("says at the end what had ended by itself", func(t *testing.T) { testCrash(t, plane) })
}

func testRestart(t *testing.T, plane *ControlPlane, client kubernetes.Interface) {
	mustApply(t, plane, "{kind: ConfigMap, apiVersion: v1, metadata: {name: kept}, data: {key: value}}")
	path, err := plane.ServiceAccountKubeconfig(t.Context(), "default", "default")
	if err != nil {
		t.Fatal(err)
	}
	account := clientFrom(t, path)

	if err := plane.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Discovery().ServerVersion(); err == nil {
		t.Error("the API server answers after it was killed")
	}
	if err := plane.PauseAPIServer(t.Context()); !errors.Is(err, errServerDown) {
		t.Errorf("pause of one that is down: got %v, want %v", err, errServerDown)
	}
	if err := plane.KillAPIServer(); err != nil {
		t.Errorf("second kill: %v", err)
	}
	// Once from down, once from up.
	for range 2 {
		if err := plane.RestartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", meta.GetOptions{})
		if err != nil || got.Data["key"] != "value" {
			t.Fatalf("after the restart: %v, %v", got.Data, err)
		}
		if _, err := account.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), meta.CreateOptions{}); err != nil {
			t.Errorf("a token from before the restart: %v", err)
		}
	}
	// The controllers find it again.
	bindStatic(t, client, "pv-restart", "claim-restart")
}

func testPortTaken(t *testing.T, plane *ControlPlane, client kubernetes.Interface) {
	if err := plane.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(plane.Dir(), "kube-apiserver.log")
	before, err := os.Stat(log)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", strings.TrimPrefix(plane.serverURL(), "https://"))
	if err != nil {
		t.Fatal(err)
	}
	restarted := make(chan error, 1)
	go func() { restarted <- plane.RestartAPIServer(context.WithoutCancel(t.Context())) }()
	eventually(t, func(context.Context) error {
		text, err := os.ReadFile(log)
		if err == nil && !strings.Contains(string(text[before.Size():]), "address already in use") {
			err = errors.New("the API server has not met the other listener")
		}
		return err
	})
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	if _, err := client.Discovery().ServerVersion(); err != nil {
		t.Error(err)
	}
}

func testLateRestart(t *testing.T, plane *ControlPlane) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := plane.RestartAPIServer(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	for _, p := range plane.processes {
		if p.name == "kube-apiserver" && running(t, strconv.Itoa(p.command.Process.Pid)) {
			t.Error("the API server that was not waited for still runs")
		}
	}
	if err := plane.RestartAPIServer(t.Context()); err != nil {
		t.Error(err)
	}
}

func testPause(t *testing.T, plane *ControlPlane, client kubernetes.Interface) {
	if err := plane.PauseAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := client.CoreV1().Namespaces().Get(ctx, "default", meta.GetOptions{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while paused: got %v, want no answer", err)
	}
	if err := plane.ResumeAPIServer(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().Get(t.Context(), "default", meta.GetOptions{}); err != nil {
		t.Errorf("after it was resumed: %v", err)
	}
}

func testCrash(t *testing.T, plane *ControlPlane) {
	for _, p := range plane.processes {
		if p.name == "kube-scheduler" {
			// The method kill is only for ends that are requested.
			if err := p.command.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-p.done
		}
	}
	err := plane.Stop()
	if err == nil || !strings.HasPrefix(err.Error(), "kube-scheduler ended by itself (signal: killed); its log ends:\n") {
		t.Errorf("got %v", err)
	}
	if err := plane.RestartAPIServer(t.Context()); err == nil || err.Error() != "restart API server: the control plane is stopped" {
		t.Errorf("restart after the end: %v", err)
	}
}

func TestStopLeavesNoProcessAndNoDirectory(t *testing.T) {
	plane := startForTest(t, Options{})
	var pids []string
	for _, p := range plane.processes {
		pids = append(pids, strconv.Itoa(p.command.Process.Pid))
	}
	if len(pids) != 3 {
		t.Errorf("%d processes run, want etcd, the API server and the controllers", len(pids))
	}
	if err := plane.PauseAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := plane.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range pids {
		if running(t, pid) {
			t.Errorf("process %s still runs", pid)
		}
	}
	if _, err := os.Stat(plane.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary directory: got %v, want it gone", err)
	}
}

func TestKeptDirectoryIsTakenUpAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first := startForTest(t, Options{Dir: dir})
	mustApply(t, first, "{kind: ConfigMap, apiVersion: v1, metadata: {name: kept}, data: {key: value}}")

	_, err := Start(t.Context(), Options{Dir: dir})
	want := "start control plane: state directory " + dir + " is in use by another control plane: stop that one or give another directory"
	if err == nil || err.Error() != want {
		t.Errorf("a second one on the same directory:\n got %v\nwant %s", err, want)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}

	second := startForTest(t, Options{Dir: dir})
	got, err := clientFrom(t, second.KubeconfigPath()).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", meta.GetOptions{})
	if err != nil || got.Data["key"] != "value" {
		t.Errorf("after the second start: %v, %v", got.Data, err)
	}
}

func TestStartThatFailsCarriesTheCulpritsLogAndLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane, and builds it the first time")
	}
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	_, err := Start(t.Context(), Options{Controllers: append(DefaultControllers(), "no-such-controller")})
	for _, want := range []string{"start control plane: ", "kube-controller-manager ended by itself (exit status 1); its log ends:\n", "no-such-controller"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want one with %q", err, want)
		}
	}
	left, err := os.ReadDir(temporary)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane, and builds it the first time")
	}
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	if _, err := Binary(t.Context(), os.Stderr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	left, err := os.ReadDir(temporary)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestControllersAreChosenAsByTheFlag(t *testing.T) {
	for _, test := range []struct {
		controllers string
		want        bool
	}{
		{"namespace-controller", true},
		{"*", true},
		{"*,-namespace-controller", false},
		{"other-controller", false},
	} {
		options := Options{Controllers: strings.Split(test.controllers, ",")}
		if got := options.runs("namespace-controller"); got != test.want {
			t.Errorf("%s: got %t, want %t", test.controllers, got, test.want)
		}
	}
}
