package commands

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/rebind"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
)

// TestNothingOfAVolumeReachesTheTerminalUnescaped: anybody who may create volumes in
// the project chooses their names and metadata. import prints YAML, which may be
// applied.
func TestNothingOfAVolumeReachesTheTerminalUnescaped(t *testing.T) {
	const name = "\x1b]0;owned\x07\u009b2J\n---\nkind: Planted"
	check := func(text string) {
		t.Helper()
		if strings.ContainsAny(text, "\x1b\x07\u009b") || strings.Contains(text, "\nkind: Planted") || !strings.Contains(text, "owned") {
			t.Errorf("%q", text)
		}
	}
	var text bytes.Buffer
	list := volumeList{Volumes: []imports.Listed{{ID: "1", Name: name, Type: name, Zone: name, Cluster: name, Claim: name, Why: name}}}
	if err := list.print(&text); err != nil {
		t.Fatal(err)
	}
	check(text.String())
	if lines := strings.Count(text.String(), "\n"); lines != 2 {
		t.Errorf("%d lines for a heading and a volume", lines)
	}

	text.Reset()
	snapshots := snapshotList{Snapshots: []imports.ListedSnapshot{{ID: "1", Name: name, Volume: name, Cluster: name, VolumeSnapshot: name, Why: name}}}
	if err := snapshots.print(&text); err != nil {
		t.Fatal(err)
	}
	check(text.String())

	text.Reset()
	objects := &imports.SnapshotObjects{Content: &snapshotv1.VolumeSnapshotContent{}, Snapshot: &snapshotv1.VolumeSnapshot{}, Steps: []string{name}}
	if err := (&snapshotImportFlags{}).report(&text, objects); err != nil {
		t.Fatal(err)
	}
	check(text.String())

	text.Reset()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "imported-1"}}
	plan := &imports.Plan{Volume: cinder.Volume{ID: "1"}, Claim: &corev1.PersistentVolumeClaim{}, Steps: []string{"stamp volume 1 (" + name + ")"}, Warnings: []string{name}}
	var warnings bytes.Buffer
	if err := (&importFlags{}).report(&text, &warnings, plan, pv); err != nil {
		t.Fatal(err)
	}
	check(text.String())
	check(warnings.String())

	flags := &rebindFlags{}
	check(flags.outcome(&rebind.Plan{Steps: []string{name}}))
	check(flags.failure(errors.New(name)).Error())
	check(flags.failure(&rebind.RefusedError{Problems: []string{name, "another"}}).Error())
}

// TestNamesAreGivenAlone: kubectl's own forms, such as pvc/data, would be read as names.
func TestNamesAreGivenAlone(t *testing.T) {
	for want, arguments := range map[string][]string{
		`--claim is "pvc/data"; give the name alone, without its kind or namespace`:        {"retype", "--policy", "p", "-n", "team-a", "--claim", "pvc/data", "--type", "ssd"},
		`--claim is "team-a/data"; give the name alone, without its kind or namespace`:     {"import", "--policy", "p", "--backend", "b", "--volume", "v", "-n", "team-a", "--claim", "team-a/data", "--storage-class", "c"},
		`--storage-class is "sc/gold"; give the name alone, without its kind or namespace`: {"import", "--policy", "p", "--backend", "b", "--volume", "v", "-n", "team-a", "--claim", "data", "--storage-class", "sc/gold"},
		`--namespace is "ns/team-a"; give the name alone, without its kind or namespace`:   {"retype", "--policy", "p", "-n", "ns/team-a", "--claim", "data", "--type", "ssd"},
	} {
		command := NewVolumeCommand(nil)
		command.SilenceErrors, command.SilenceUsage = true, true
		command.SetArgs(arguments)
		if err := command.ExecuteContext(t.Context()); err == nil || policycli.ExitCode(err) != policycli.ExitUsage || err.Error() != want {
			t.Errorf("%q: %v", arguments, err)
		}
	}
}
