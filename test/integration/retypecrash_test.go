package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
)

// stepRetype asks Cinder for another volume type.
const stepRetype = "cinder POST volumes/ID/action os-retype"

// TestCrashMatrixOfRetypes kills the command at every request to Cinder, before it has
// an effect and after, or loses request or answer, while a leader is at work. The same
// command, run again, ends with the volume in use as before, under the new type. At
// Kubernetes it only reads.
//
//tier:matrix
func TestCrashMatrixOfRetypes(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	types := []string{"iscsi", "other"}
	s := openSite(ctx, t, "retypecrash", siteOptions{cinder: cindersim.Options{
		ExtendDelay: 100 * time.Millisecond,
		Types:       append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: types[1], Backend: "iscsi", RequiresInitiator: true}),
	}})
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

	dir := t.TempDir()
	must(s.retype(ctx, dir, claim, types[1], step{}, mishap{}))
	crashTable{
		site: s, steps: s.steps(), mishaps: importMishaps, must: []string{stepRetype}, mayMiss: step.reads, // polls vary
		fits: func(_ mishap, at step) bool { return strings.HasPrefix(at.what, "cinder ") },
		run: func(at step, m mishap) error {
			slices.Reverse(types)
			return s.retype(ctx, dir, claim, types[1], at, m)
		},
	}.runAll(t)
	must(s.deleteClaim(ctx, "data"))
	must(s.gone(ctx))
}

// retype changes the type of the claim's volume while a mishap befalls a step, and
// again.
func (s *site) retype(ctx context.Context, dir string, claim *corev1.PersistentVolumeClaim, kind string, at step, m mishap) error {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	arguments := []string{"--namespace", s.namespace, "--claim", claim.Name, "--type", kind, "--apply"}
	s.begin()
	var missed error
	if at != (step{}) {
		operator, command, err := s.volumeCommand(ctx, dir, "retype", arguments...)
		if err != nil {
			return err
		}
		if missed = s.interrupted(ctx, operator, command, at, m); missed != nil && !errors.Is(missed, errNotReached) {
			return missed
		}
	}
	_, command, err := s.volumeCommand(ctx, dir, "retype", arguments...)
	if err != nil {
		return err
	}
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("run again: %w: %s", err, output)
	}
	volumes := s.ours()
	if len(volumes) != 1 || volumes[0].Type != kind {
		return fmt.Errorf("the volume does not have type %q: %s", kind, describe(volumes))
	}
	if err := s.served(ctx, claim); err != nil {
		return err
	}
	return missed
}
