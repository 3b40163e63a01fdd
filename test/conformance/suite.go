// Package conformance runs Kubernetes' own suite for storage drivers. The suite is a
// program of the nested module; test/e2e has the cluster in which it runs.
package conformance

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
)

// Version is the Kubernetes whose suite this is.
const Version = "1.36.1"

// Programs are what a run needs.
type Programs struct {
	root, suite, ginkgo, agnhost string
}

// Build compiles the programs into bin/, unless the go command finds that they are there.
// root is that of the repository.
func Build(ctx context.Context, root string) (Programs, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return Programs{}, err
	}
	bin := cmp.Or(os.Getenv("CONFORMANCE_BIN"), filepath.Join(root, "bin"))
	p := Programs{root: root, suite: filepath.Join(bin, "storage-suite.test"), ginkgo: filepath.Join(bin, "ginkgo"), agnhost: filepath.Join(bin, "agnhost")}
	for _, arguments := range [][]string{
		{"test", "-c", "-vet=off", "-trimpath", "-ldflags", controlplane.LinkerFlags("v" + Version), "-o", p.suite, "."},
		{"build", "-trimpath", "-ldflags=-s -w", "-o", p.ginkgo, "github.com/onsi/ginkgo/v2/ginkgo"},
		{"build", "-trimpath", "-ldflags=-s -w", "-o", p.agnhost, "k8s.io/kubernetes/test/images/agnhost"},
	} {
		if _, err := controlplane.RunGo(ctx, filepath.Join(root, "test", "conformance", "suite"), arguments...); err != nil {
			return Programs{}, err
		}
	}
	return p, nil
}

// busybox is Debian's, with everything that the cases call.
const busybox = "/bin/busybox"

// Images returns the images of the suite's pods, as far as its cases need what is in the
// published ones: a shell with its commands, the program agnhost, and a dd that knows
// oflag=nocache, which is that of this machine. BusyBox's shell would prefer its own.
func Images(p Programs) ([]kubelet.Image, error) {
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%w: install busybox-static", err)
	}
	image := func(name, user string) kubelet.Image {
		of := kubelet.Image{
			Name: "registry.k8s.io/e2e-test-images/" + name, User: user,
			Files: map[string]string{"bin/busybox": busybox}, Links: map[string]string{}, Entrypoint: nil, Arguments: []string{"/bin/sh"},
		}
		for applet := range strings.FieldsSeq(string(applets)) {
			if applet != "busybox" {
				of.Links["bin/"+applet] = "busybox"
			}
		}
		return of
	}
	agnhost := image("agnhost:2.63.0", "")
	agnhost.Files["agnhost"], agnhost.Entrypoint, agnhost.Arguments = p.agnhost, []string{"/agnhost"}, []string{"pause"}
	glibc := image("glibc-dns-testing:2.0.0", "")
	for _, program := range []string{"bin/dd", "bin/sh"} {
		delete(glibc.Links, program)
		glibc.Files[program] = "/" + program
	}
	for _, library := range []string{"lib/x86_64-linux-gnu/libc.so.6", "lib64/ld-linux-x86-64.so.2"} {
		glibc.Files[library] = "/" + library
	}
	return []kubelet.Image{image("busybox:1.37.0-1", ""), image("nginx:1.15-4", ""), agnhost, glibc}, nil
}

// Run says which cases run where.
type Run struct {
	// Driver is the file of test/conformance/drivers.
	Driver string
	// Kubeconfig is of an administrator.
	Kubeconfig string
	// Focus and Skip are patterns of the cases' names; empty means all, and none. Of a driver
	// whose volumes several nodes share, only the cases that sharing can change run.
	Focus, Skip string
	// Processes is how many cases run at once; empty means 4.
	Processes string
	// Resume leaves out the cases that have passed or were skipped before.
	Resume bool
	// Report is the file that gets the results.
	Report string
}

// Command returns the command of a run.
func (p Programs) Command(ctx context.Context, run Run) (*exec.Cmd, error) {
	focus := "External.Storage.*" + run.Focus
	if isShared(run.Driver) {
		focus = `External.Storage.*\] (` + strings.Join(sharedSuites, "|") + ") .*" + run.Focus
	}
	arguments := []string{
		"--procs=" + cmp.Or(run.Processes, "4"), "--focus=" + focus, "--timeout=20h", "--no-color", "--silence-skips",
		"--output-dir=" + filepath.Dir(run.Report), "--json-report=" + filepath.Base(run.Report),
	}
	for _, never := range neverRun {
		arguments = append(arguments, "--skip="+never.name.String())
	}
	if run.Skip != "" {
		arguments = append(arguments, "--skip="+run.Skip)
	}
	if run.Resume {
		known, err := Load(resultsPath(p.root))
		if err != nil {
			return nil, err
		}
		for _, r := range known {
			if r.State == "passed" || r.State == "skipped" {
				arguments = append(arguments, "--skip="+r.pattern())
			}
		}
	}
	arguments = append(arguments, p.suite, "--", "--kubeconfig="+run.Kubeconfig, "--provider=skeleton",
		"--storage.testdriver="+filepath.Join(p.root, "test", "conformance", "drivers", run.Driver+".yaml"))
	command := exec.CommandContext(ctx, p.ginkgo, arguments...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return command, nil
}
