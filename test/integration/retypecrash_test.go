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

// retyping is a command that changes the type of a volume, to and fro.
type retyping struct {
	types     []string
	csi       bool
	arguments func(claim *corev1.PersistentVolumeClaim, to string) []string
}

// TestCrashMatrixOfRetypes kills the command at every request to Cinder, before it has
// an effect and after, or loses request or answer, while a leader is at work. The same
// command, run again, ends with the volume in use as before, under the new type. At
// Kubernetes it only reads.
//
//tier:matrix
func TestCrashMatrixOfRetypes(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	crashRetypes(ctx, t, "retypecrash", retyping{types: []string{"iscsi", "other"}, arguments: func(claim *corev1.PersistentVolumeClaim, to string) []string {
		return []string{"retype", "--namespace", claim.Namespace, "--claim", claim.Name, "--type", to}
	}})
}

// TestCrashMatrixOfMoves does the same while Cinder copies the volume to another storage.
//
//tier:matrix
func TestCrashMatrixOfMoves(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	crashRetypes(ctx, t, "movecrash", retyping{types: []string{"iscsi", "iscsi-mp"}, csi: true, arguments: func(claim *corev1.PersistentVolumeClaim, to string) []string {
		return []string{"move", claim.Namespace + "/" + claim.Name, "--to", to}
	}})
}

func crashRetypes(ctx context.Context, t *testing.T, name string, way retyping) {
	t.Helper()
	options := siteOptions{csi: way.csi, cinder: cindersim.Options{
		ExtendDelay: 100 * time.Millisecond, MigrationDelay: 100 * time.Millisecond,
		Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: "other", Backend: "iscsi", RequiresInitiator: true}),
	}}
	if way.csi {
		options.workflow = "attachment"
	}
	s := openSite(ctx, t, name, options)
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
	must(s.retype(ctx, dir, claim, way, step{}, mishap{}))
	crashTable{
		site: s, steps: s.steps(), mishaps: importMishaps, must: []string{stepRetype}, mayMiss: step.reads, // polls vary
		fits: func(_ mishap, at step) bool { return strings.HasPrefix(at.what, "cinder ") },
		run: func(at step, m mishap) error {
			slices.Reverse(way.types)
			return s.retype(ctx, dir, claim, way, at, m)
		},
	}.runAll(t)
	must(s.deleteClaim(ctx, "data"))
	must(s.gone(ctx))
}

// retype gives the claim's volume the second type while a mishap befalls a step, and
// again.
func (s *site) retype(ctx context.Context, dir string, claim *corev1.PersistentVolumeClaim, way retyping, at step, m mishap) error {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	kind := way.types[1]
	arguments := append(way.arguments(claim, kind), "--apply")
	s.begin()
	var missed error
	if at != (step{}) {
		operator, command, err := s.volumeCommand(ctx, dir, arguments[0], arguments[1:]...)
		if err != nil {
			return err
		}
		if missed = s.interrupted(ctx, operator, command, at, m); missed != nil && !errors.Is(missed, errNotReached) {
			return missed
		}
	}
	_, command, err := s.volumeCommand(ctx, dir, arguments[0], arguments[1:]...)
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
