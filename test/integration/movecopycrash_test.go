package integration

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestCrashMatrixOfMovesToBackends kills the command that moves a volume to another backend at every
// request, before it has an effect and after, or loses request or answer, while a leader is
// at work. The same command, run again, ends with the copy under the claim and the former
// volume under the second claim. At no time may the only data be copied over.
//
//tier:matrix
func TestCrashMatrixOfMovesToBackends(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	s := openSite(ctx, t, "movecrash", siteOptions{csi: true, silver: true, workflow: "attachment", cinder: cindersim.Options{}})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, s.news())
		}
	}
	must(s.replace(ctx))
	claim, err := s.claim(ctx, "data")
	must(err)
	must(s.served(ctx, claim))
	nothing := func(context.Context, csiVolume) error { return nil }
	node := &copyingNode{namespace: s.namespace, attach: nothing, detach: nothing}
	node.prepare("{}", nil)
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- node.run(running) }()
	defer func() {
		stop()
		must(<-done)
	}()

	dir := t.TempDir()
	must(s.move(ctx, dir, claim, step{}, mishap{}))
	const by = "the operator: kubernetes "
	crashTable{
		site: s, steps: s.steps(), mishaps: importMishaps,
		must: []string{
			by + "POST api/v1/namespaces/NAMESPACE/persistentvolumeclaims", by + "POST api/v1/namespaces/NAMESPACE/pods", by + "PATCH api/v1/namespaces/NAMESPACE/pods/copy-ID",
			by + "PATCH api/v1/namespaces/NAMESPACE/persistentvolumeclaims/data-former", by + "PATCH api/v1/persistentvolumes/pvc-ID", by + "DELETE api/v1/namespaces/NAMESPACE/pods/copy-ID",
		},
		fits: func(_ mishap, at step) bool { return !at.reads() && strings.HasPrefix(at.what, "the operator: ") },
		run:  func(at step, m mishap) error { return s.move(ctx, dir, claim, at, m) },
	}.runAll(t)
	must(s.deleteClaim(ctx, "data"))
	must(s.gone(ctx))
}

// move moves the volume of a claim to the other backend, while a mishap befalls a step, and
// again. Then it deletes what keeps the former volume.
func (s *site) move(ctx context.Context, dir string, claim *corev1.PersistentVolumeClaim, at step, m mishap) error {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	before, err := s.volumesOf(ctx, []*corev1.PersistentVolumeClaim{claim})
	if err != nil {
		return err
	}
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, pvName(claim), metav1.GetOptions{})
	if err != nil {
		return err
	}
	to, class := "silver", s.class+"-silver"
	if pv.Annotations[annotation("backend")] == to {
		to, class = "gold", s.class
	}
	arguments := []string{claim.Namespace + "/" + claim.Name, "--to-backend", to, "--storage-class", class, "--image", "none.example/program", "--apply"}
	s.begin()
	var missed error
	if at != (step{}) {
		operator, command, err := s.volumeCommand(ctx, dir, "move", arguments...)
		if err != nil {
			return err
		}
		s.countApart(operator)
		if missed = s.interrupted(ctx, operator, command, at, m); missed != nil && !errors.Is(missed, errNotReached) {
			return missed
		}
	}
	if err := s.movedAgain(ctx, dir, arguments); err != nil {
		return err
	}
	claims := suite.Client.CoreV1().PersistentVolumeClaims(s.namespace)
	former, err := claims.Get(ctx, claim.Name+"-former", metav1.GetOptions{})
	if err != nil {
		return err
	}
	after, err := s.volumesOf(ctx, []*corev1.PersistentVolumeClaim{claim, former})
	if err != nil {
		return err
	}
	if after[0] == before[0] || after[1] != before[0] {
		return fmt.Errorf("the claim had volume %s; the claims have %s", before[0], after)
	}
	for _, v := range s.ours() {
		if v.Metadata[annotation("swap")] != "" {
			return fmt.Errorf("volume %s is still marked: %v", v.ID, v.Metadata)
		}
	}
	if err := s.served(ctx, claim, former); err != nil {
		return err
	}
	if err := s.deleteClaim(ctx, former.Name); err != nil {
		return err
	}
	return errors.Join(s.served(ctx, claim), missed)
}

// movedAgain runs the command until it succeeds, as it says.
func (s *site) movedAgain(ctx context.Context, dir string, arguments []string) error {
	return harness.Eventually(ctx, func() (string, error) {
		operator, command, err := s.volumeCommand(ctx, dir, "move", arguments...)
		if err != nil {
			return "", err
		}
		s.countApart(operator)
		output, err := command.CombinedOutput()
		if _, exited := errors.AsType[*exec.ExitError](err); err == nil || !exited {
			return "", err
		}
		said := string(output)
		if strings.Contains(said, "claim movecrash/data-former may have more than a copy") { // it was killed before it could tell
			return said, s.deleteClaim(ctx, "data-former")
		}
		for _, passes := range []string{"stop it first", "wait for its end, or delete the pod", "wait until it is gone", "run the command again", "run it again"} {
			if strings.Contains(said, passes) {
				return said, nil
			}
		}
		return "", fmt.Errorf("run again: %w: %s", err, said)
	})
}
