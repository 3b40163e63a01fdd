package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// importSites are the ways to import a volume.
var importSites = map[string]siteOptions{
	"reserve":    {workflow: "reserve"},
	"attachment": {workflow: "attachment"},
	"csi":        {workflow: "attachment", csi: true, rule: "mode: csi\n        import: {names: [old data]}"},
}

// oldFilesystem is the UUID of the filesystem on a volume that existed before.
const oldFilesystem = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"

// importSteps are the changes that an import is made of.
var importSteps = map[string][]step{
	"csi": {
		{"kubernetes POST api/v1/namespaces/NAMESPACE/persistentvolumeclaims", 1},
		{"cinder POST volumes/ID/metadata", 1},
		{stepSecret, 1},
		{stepRecord, 1},
	},
	"reserve": {
		{"kubernetes POST api/v1/namespaces/NAMESPACE/persistentvolumeclaims", 1},
		{"cinder POST volumes/ID/metadata", 1},
		{stepReserve, 1},
		{stepInitialize, 1},
		{stepSecret, 1},
		{stepRecord, 1},
	},
	"attachment": {
		{"cinder POST volumes/ID/metadata", 1},
		{stepOpen, 1},
		{stepRecord, 1},
	},
}

// importMishaps are what happens to each step of an import.
var importMishaps = []mishap{
	{name: "killed before", verdict: faultproxy.HoldBefore, kill: true},
	{name: "killed after", verdict: faultproxy.HoldAfter, kill: true},
	{name: "request lost", verdict: faultproxy.LoseBefore},
	{name: "answer lost", verdict: faultproxy.LoseAfter},
}

// TestCrashMatrixOfImports kills the command at every request, before it has an
// effect and after, or loses request or answer, while a leader is at work. The
// same command, run again, completes the import. Claim, PersistentVolume, Secret
// and volume then live and end like any other.
//
//tier:matrix
func TestCrashMatrixOfImports(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	var group sync.WaitGroup
	for workflow, steps := range importSteps {
		group.Go(func() {
			t.Run(workflow, func(t *testing.T) {
				s := openSite(ctx, t, "importcrash"+workflow, importSites[workflow])
				if err := s.replace(ctx); err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				run := func(at step, m mishap) error { return s.importWith(ctx, dir, at, m) }
				if err := run(step{}, mishap{}); err != nil {
					t.Fatalf("undisturbed: %v\n%s", err, s.news())
				}
				crashTable{site: s, steps: steps, mishaps: importMishaps, run: run}.runAll(t)
			})
		})
	}
	group.Wait()
}

// importWith imports a volume while a mishap befalls a step, and again.
func (s *site) importWith(ctx context.Context, dir string, at step, m mishap) error {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	id, err := s.sim.AddVolume(cindersim.Volume{Name: "old data", Project: s.project(), SizeGiB: 1, Metadata: map[string]string{"owner": "somebody"}})
	if err != nil {
		return err
	}
	s.begin()
	if at != (step{}) {
		operator, command, err := s.importCommand(ctx, dir, id)
		if err != nil {
			return err
		}
		if err := s.interrupted(ctx, operator, command, at, m); err != nil {
			return err
		}
	}
	if n := s.leftOver(ctx); n != "" {
		return errors.New(n)
	}
	_, command, err := s.importCommand(ctx, dir, id)
	if err != nil {
		return err
	}
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("run again: %w: %s", err, output)
	}
	if err := s.eventually(ctx, func() (string, error) { return s.unlikeImported(ctx, id) }); err != nil {
		return err
	}
	if creates := s.creates(); creates != 0 {
		return fmt.Errorf("%d volumes were made", creates)
	}
	if err := s.deleteClaim(ctx, "data"); err != nil {
		return err
	}
	return s.gone(ctx)
}

// leftOver returns what an interrupted import must not have done.
func (s *site) leftOver(ctx context.Context) string {
	for _, v := range s.ours() {
		if v.Metadata["owner"] != "somebody" || len(v.Attachments) > 1 {
			return "after the first run: " + describe([]cindersim.Volume{v})
		}
	}
	if pvs, err := suite.PersistentVolumes(ctx, s.provisioner); err != nil || len(pvs) > 1 {
		return fmt.Sprintf("%d PersistentVolumes, error %v", len(pvs), err)
	}
	return ""
}

// importCommand returns the command that imports a volume.
func (s *site) importCommand(ctx context.Context, dir, volume string) (*node, *exec.Cmd, error) {
	flags := []string{"--backend", "gold", "--volume", volume, "--namespace", s.namespace, "--claim", "data", "--storage-class", s.class,
		"--secret-namespace", harness.Namespace, "--reclaim-policy", "Delete", "--apply"}
	if s.options.csi {
		flags = append(flags, "--filesystem-uuid", oldFilesystem)
	}
	return s.volumeCommand(ctx, dir, "import", flags...)
}

// volumeCommand returns an operator's command, behind networks of its own.
func (s *site) volumeCommand(ctx context.Context, dir, name string, arguments ...string) (*node, *exec.Cmd, error) {
	n := &node{name: "the operator", killed: true}
	transport, err := suite.APIServerTransport()
	if err != nil {
		return nil, nil, err
	}
	if n.api, err = faultproxy.Start(faultproxy.Options{Target: suite.Config.Host, Transport: transport, TLS: true, Patience: s.options.apiPatience}); err != nil {
		return nil, nil, err
	}
	s.listen(n, "kubernetes", n.api)
	if n.cinder, err = s.network(n, "cinder", s.sim.NoauthEndpoint()); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	s.nodes = append(s.nodes, n)
	s.mu.Unlock()
	dir, err = os.MkdirTemp(dir, "command-")
	if err != nil {
		return nil, nil, err
	}
	kubeconfig, err := suite.Administrator(dir, n.api.URL(), n.api.Authority())
	if err != nil {
		return nil, nil, err
	}
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(s.policy()), 0o600); err != nil {
		return nil, nil, err
	}
	command := exec.CommandContext(ctx, suite.Program, append([]string{"volume", name, "--policy", policy, "--kubeconfig", kubeconfig, "--provisioner-name", s.provisioner}, arguments...)...)
	command.Env = append(os.Environ(), "HTTP_PROXY="+n.cinder.URL(), "NO_PROXY=", "no_proxy=")
	return n, command, nil
}

// interrupted starts an operator's command, makes a mishap befall one of its
// steps, and waits until it has ended. It must not succeed, unless all it lost is
// a read, which it may repeat. If it succeeds without the step, the error is
// errNotReached.
func (s *site) interrupted(ctx context.Context, operator *node, command *exec.Cmd, at step, m mishap) error {
	t := s.set(at, m.verdict)
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	reached := true
	var err error
	select {
	case <-t.caught():
		if m.kill {
			if err := command.Process.Kill(); err != nil {
				return err
			}
		}
		err = <-ended
	case err = <-ended:
		select {
		case <-t.caught():
		default:
			reached = false
		}
	}
	operator.api.Close()
	operator.cinder.Close()
	s.begin()
	switch {
	case !reached && err == nil:
		return errNotReached
	case !reached:
		return fmt.Errorf("the command failed before the step: %w", err)
	case err == nil && (m.kill || !at.reads()):
		return errors.New("the command succeeded although a step was lost")
	}
	return nil
}

// unlikeImported lists deviations from the state after a volume is imported.
func (s *site) unlikeImported(ctx context.Context, id string) (complaint string, err error) {
	claim, err := suite.Client.CoreV1().PersistentVolumeClaims(s.namespace).Get(ctx, "data", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	volumes := s.ours()
	switch {
	case len(volumes) != 1 || volumes[0].ID != id || volumes[0].Metadata["owner"] != "somebody":
		return "not the one volume: " + describe(volumes), nil
	case s.options.csi && (volumes[0].Status != "available" || len(volumes[0].Attachments) != 0 || volumes[0].Metadata[annotation("attached")] != "true" || volumes[0].Metadata[annotation("mode")] != "csi"):
		return "the volume is not available and marked: " + describe(volumes), nil
	case !s.options.csi && (volumes[0].Status != "in-use" || len(volumes[0].Attachments) != 1 || !slices.Equal(volumes[0].Export.ConnectedHosts, []string{"k8s"})):
		return "the volume is not in use once: " + describe(volumes), nil
	}
	pvs, err := suite.PersistentVolumes(ctx, s.provisioner)
	if err != nil {
		return "", err
	}
	secrets, err := s.secrets(ctx)
	if err != nil {
		return "", err
	}
	if len(pvs) != 1 || len(secrets) != 1 || pvs[0].Name != "imported-"+id || pvs[0].Status.Phase != corev1.VolumeBound ||
		claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != pvs[0].Name || !strings.HasPrefix(secrets[0].Name, pvs[0].Name) {
		return fmt.Sprintf("%d PersistentVolumes, %d Secrets, and the claim is %s to %q", len(pvs), len(secrets), claim.Status.Phase, claim.Spec.VolumeName), nil
	}
	return s.unlikeOurs(pvs[0], map[string]cindersim.Volume{id: volumes[0]}, secrets), nil
}
