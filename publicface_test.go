package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/client"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// TestPublicFace compares the names that scripts, dashboards, alerts and
// objects in clusters rely on with a golden file. Removing or changing a line
// there breaks users; it must be on purpose, and in the release notes.
func TestPublicFace(t *testing.T) {
	const golden = "testdata/public_face.txt"
	written := writtenNames(t)
	var b strings.Builder
	for _, part := range []struct {
		title string
		lines []string
	}{
		{"commands and flags", append(commandLines(newCommand(io.Discard)), pluginLines(t)...)},
		{"metrics", metricLines(t)},
		{"keys of annotations, labels, metadata, parameters and finalizers", written.keys},
		{"reasons of events, findings and refusals", written.reasons},
	} {
		fmt.Fprintf(&b, "# %s\n%s\n\n", part.title, strings.Join(part.lines, "\n"))
	}
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("the public face no longer matches %s; if that is on purpose, rewrite it with go test -run TestPublicFace -update .\n%s", golden, difference(string(want), got))
	}
}

// TestExitCodes checks the codes that scripts rely on.
func TestExitCodes(t *testing.T) {
	const program, plugin = "standalone-cinder", "/usr/local/bin/kubectl-cinder"
	for _, c := range []struct {
		name, arguments string
		want            int
	}{
		{program, "", 0},
		{program, "version", 0},
		{program, "--version", 0},
		{program, "version --output yaml", 2},
		{program, "policy check config.example.yaml", 0},
		{program, "policy check go.mod", 1},
		{program, "policy check no-such-file", 2},
		{program, "run", 2},
		{program, "node", 2},
		{program, "node check --mode both", 2},
		{program, "node check --output yaml", 2},
		{program, "node grow", 2},
		{program, "run --policy no-such-file", 1},
		{program, "no-such-command", 2},
		{program, "policy check --no-such-flag", 2},
		{program, "policy check --fail-on=warnings config.example.yaml", 0},
		{program, "policy explain --policy config.example.yaml --namespace team-a --storage-class fast --size 1Gi", 0},
		{program, "policy explain --policy config.example.yaml --namespace nobody --storage-class fast --size 1Gi", 0},
		{program, "policy explain --policy config.example.yaml --namespace team-a --storage-class fast --size 1Gi --access-mode RWX", 3},
		{program, "status --output xml", 2},
		{program, "status --url http://127.0.0.1:1", 2},
		{program, "status --url nowhere", 2},
		{program, "why data", 2},
		{program, "volume", 2},
		{program, "volume export", 2},
		{program, "volume list", 2},
		{program, "volume list --output xml", 2},
		{program, "volume import --policy config.example.yaml", 2},
		{program, "volume import --policy config.example.yaml --backend none --volume v --namespace team-a --claim data --storage-class fast", 2},
		{program, "volume import --policy config.example.yaml --backend gold --volume v --namespace team-a --claim data --storage-class fast --size 0", 2},
		{program, "volume import --policy config.example.yaml --backend gold --volume v --namespace team-a --claim data --storage-class fast --reclaim-policy Recycle", 2},
		{program, "volume rebind --policy config.example.yaml --to team-a/data", 2},
		{program, "volume rebind pvc-1 pvc-2 --policy config.example.yaml --to team-a/data", 2},
		{program, "volume rebind pvc-1 --policy config.example.yaml", 2},
		{program, "volume rebind pvc-1 --policy config.example.yaml --to data", 2},
		{program, "volume rebind pvc-1 --policy config.example.yaml --to team-a/data/old", 2},
		{program, "volume rebind pvc-1 --policy config.example.yaml --to team-a/data --timeout 0s", 2},
		{program, "volume rebind pvc-1 --policy config.example.yaml --to team-a/data --kubeconfig no-such-file", 2},
		{plugin, "", 0},
		{plugin, "policy", 2},
		{plugin, "policy check config.example.yaml", 0},
		{plugin, "run", 2},
		{plugin, "version", 0},
		{plugin, "quota", 2},
		{plugin, "quota team-a --url http://127.0.0.1:1", 2},
		{plugin, "grow", 2},
		{plugin, "grow data --timeout 0s", 2},
		{plugin, "grow data --kubeconfig no-such-file", 2},
		{plugin, "why", 2},
		{plugin, "why data --kubeconfig no-such-file", 2},
	} {
		if got := run(c.name, strings.Fields(c.arguments), io.Discard, io.Discard); got != c.want {
			t.Errorf("%s %s: exit code %d, want %d", c.name, c.arguments, got, c.want)
		}
	}
}

// newPlugin returns the root of the kubectl plugin, with the commands that it shares with the
// program removed, and their names.
func newPlugin() (plugin *cobra.Command, shared []string) {
	plugin = client.NewPlugin(mappers.BuiltIn(), wiring.Build{})
	for _, command := range newCommand(io.Discard).Commands() {
		for _, same := range plugin.Commands() {
			if same.Name() == command.Name() {
				plugin.RemoveCommand(same)
				shared = append(shared, same.Name())
			}
		}
	}
	return plugin, shared
}

// pluginLines returns the plugin's commands. Those of the program have no flags of their own.
func pluginLines(t *testing.T) []string {
	plugin, shared := newPlugin()
	if len(shared) != 7 {
		t.Errorf("the plugin has these commands of the program: %v", shared)
	}
	lines := commandLines(plugin)
	for _, name := range shared {
		lines = append(lines, plugin.CommandPath()+" "+name)
	}
	return lines
}

// commandLines returns the commands, each with its flags.
func commandLines(command *cobra.Command) []string {
	lines := []string{command.CommandPath()}
	command.LocalFlags().VisitAll(func(f *pflag.Flag) {
		shorthand := ""
		if f.Shorthand != "" {
			shorthand = ", -" + f.Shorthand
		}
		lines = append(lines, fmt.Sprintf("  --%s%s (%s, default %q)", f.Name, shorthand, f.Value.Type(), f.DefValue))
	})
	for _, below := range command.Commands() {
		if !below.Hidden {
			lines = append(lines, commandLines(below)...)
		}
	}
	return lines
}

// metricLines returns the program's metrics with their labels.
func metricLines(t *testing.T) []string {
	t.Helper()
	var lines []string
	for _, m := range describedMetrics(t) {
		lines = append(lines, m.name+"{"+strings.Join(m.labels, ",")+"}")
	}
	return lines
}

type names struct{ keys, reasons []string }

var (
	isKey    = regexp.MustCompile(`^[a-z0-9.-]+\.(org|io)/[a-z0-9./-]*[a-z0-9]$`)
	isReason = regexp.MustCompile(`^([A-Z]+[a-z]+){2,}(ID)?$`)
)

// kinds are words that look like reasons.
var kinds = []string{
	"ConfigMap", "DaemonSet", "DeletionByTaintManager", "GetPluginInfo", "ImportFilter", "LabelSelector", "LabelSelectorRequirement", "MappingSecret", "PersistentVolume", "PersistentVolumeClaim", "PersistentVolumeClaims",
	"PersistentVolumes", "ReplicaSet", "ReplicationController", "VolumeAttachment", "VolumeAttachments", "PolicyTest", "SecretRef", "VolumeSnapshot", "VolumeSnapshotContent", "VolumeSnapshotContents", "VolumeSnapshots", "VolumeGroupSnapshot", "VolumeGroupSnapshotContent", "VolumeGroupSnapshotContents", "StorageClass", "VolumeAttributesClass", "StorageClasses", "TenantLimits", "TenantStatus",
}

// writtenNames collects string literals that look like keys and reasons from
// the program's sources. A key may be composed with a constant that names its
// prefix.
func writtenNames(t *testing.T) names {
	t.Helper()
	keys, reasons := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasSuffix(path, "test") || path != "." && (strings.HasPrefix(entry.Name(), ".") || isModule(path))):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.BinaryExpr:
				prefix, isName := n.X.(*ast.Ident)
				if of, isOfAnother := n.X.(*ast.SelectorExpr); isOfAnother {
					prefix, isName = of.Sel, true
				}
				if isName && (prefix.Name == "StampPrefix" || prefix.Name == "Prefix") {
					keys["standalone-cinder.openstack.org/"+text(n.Y)] = true
				}
			case *ast.BasicLit:
				if s := text(n); isKey.MatchString(s) {
					keys[s] = true
				} else if isReason.MatchString(s) && !slices.Contains(kinds, s) {
					reasons[s] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names{slices.Sorted(maps.Keys(keys)), slices.Sorted(maps.Keys(reasons))}
}

// isModule reports whether a directory is the top of a module.
func isModule(directory string) bool {
	_, err := os.Stat(filepath.Join(directory, "go.mod"))
	return err == nil
}

// text returns the value of a string literal, empty for anything else.
func text(node ast.Node) string {
	literal, ok := node.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return ""
	}
	value, _ := strconv.Unquote(literal.Value)
	return value
}

// difference lists the lines that only one of two texts has.
func difference(want, got string) string {
	var lines []string
	for sign, pair := range map[string][2]string{"- ": {want, got}, "+ ": {got, want}} {
		others := strings.Split(pair[1], "\n")
		for _, line := range strings.Split(pair[0], "\n") {
			if !slices.Contains(others, line) {
				lines = append(lines, sign+line)
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
