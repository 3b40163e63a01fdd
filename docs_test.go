package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/standalone-cinder/standalone-cinder/test/docs"
)

const commandsFile = "docs/reference/commands.md"

// TestCommandsReferenceIsUpToDate keeps the page of commands and flags equal to
// what the program says.
func TestCommandsReferenceIsUpToDate(t *testing.T) {
	plugin, ofProgram := newPlugin()
	commands := slices.Concat(withSubcommands(newCommand(io.Discard)), withSubcommands(plugin))
	users := map[string]int{} // the commands that have a row
	for _, command := range commands {
		for _, row := range flagRows(command) {
			users[row.text]++
		}
	}
	var shared []string
	for row, n := range users {
		if n >= shareFrom {
			shared = append(shared, row)
		}
	}
	slices.Sort(shared)

	var b strings.Builder
	b.WriteString("# Commands and flags\n\n" +
		"Generated from the program; do not edit. `go test -run TestCommandsReferenceIsUpToDate -update .` regenerates it.\n" +
		"\n## Flags of several commands\n\n" + flagTable(shared))
	for i, command := range commands {
		describe(&b, command, commands[:i], shared)
		if command == plugin {
			fmt.Fprintf(&b, "\nIt also has these commands of `standalone-cinder`: %s.\n", strings.Join(ofProgram, ", "))
		}
	}
	if *update {
		if err := os.WriteFile(commandsFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(commandsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("%s is not what the program says; run go test -run TestCommandsReferenceIsUpToDate -update .", commandsFile)
	}
}

// shareFrom is how many commands have a flag before the page shows it only once.
const shareFrom = 3

type flagRow struct{ name, text string }

func withSubcommands(command *cobra.Command) []*cobra.Command {
	found := []*cobra.Command{command}
	for _, below := range command.Commands() {
		if !below.Hidden {
			found = append(found, withSubcommands(below)...)
		}
	}
	return found
}

// ofKubectl reports whether a flag is one of kubectl's own.
func ofKubectl(f *pflag.Flag) bool {
	all := pflag.NewFlagSet("kubectl", pflag.ContinueOnError)
	clientcmd.BindOverrideFlags(&clientcmd.ConfigOverrides{}, all, clientcmd.RecommendedConfigOverrideFlags(""))
	same := all.Lookup(f.Name)
	return same != nil && same.Usage == f.Usage
}

// flagRows returns rows for the flags of a command that are not kubectl's.
func flagRows(command *cobra.Command) []flagRow {
	var rows []flagRow
	command.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if ofKubectl(f) {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		usage = strings.ReplaceAll(usage, "|", `\|`)
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
			usage += " (default `" + f.DefValue + "`)"
		}
		text := fmt.Sprintf("| `%s` | %s |\n", strings.TrimSpace(name+" "+kind), usage)
		rows = append(rows, flagRow{name, text})
	})
	return rows
}

func flagTable(rows []string) string {
	return "| flag | |\n|---|---|\n" + strings.Join(rows, "")
}

// describe shows a command, with rows for those of its flags that are not shared, or
// says which one of those before it is the same.
func describe(b *strings.Builder, command *cobra.Command, before []*cobra.Command, shared []string) {
	fmt.Fprintf(b, "\n## %s\n\n%s.\n", command.CommandPath(), strings.TrimSuffix(command.Short, "."))
	if command.Runnable() && command.HasParent() {
		fmt.Fprintf(b, "\n    %s\n", command.UseLine())
	}
	for _, other := range before {
		if command.Runnable() && other.Short == command.Short && slices.Equal(flagRows(other), flagRows(command)) {
			fmt.Fprintf(b, "\nThe same as `%s`.\n", other.CommandPath())
			return
		}
	}
	var own, above []string
	for _, row := range flagRows(command) {
		if slices.Contains(shared, row.text) {
			above = append(above, "`"+row.name+"`")
		} else {
			own = append(own, row.text)
		}
	}
	kubectls := ""
	if f := command.LocalFlags().Lookup(clientcmd.FlagImpersonate); f != nil && ofKubectl(f) {
		kubectls = ", and those of `kubectl options`"
	}
	if len(above) > 0 {
		fmt.Fprintf(b, "\n[Shared](#flags-of-several-commands): %s%s.\n", strings.Join(above, ", "), kubectls)
	}
	if len(own) > 0 {
		b.WriteString("\n" + flagTable(own))
	}
}

// These match a command line of the program, or a flag, in a page.
var (
	inlineCommand = regexp.MustCompile("`(standalone-cinder [^`]*)`")
	inlineFlag    = regexp.MustCompile("`(--[a-z][a-z0-9-]*)[^`]*`")
	calledProgram = regexp.MustCompile(`(?:^|-- /|^bin/|[ ;]bin/)standalone-cinder (.*)`)
	// The series of a histogram have suffixes that its name lacks.
	seriesOfHistogram = regexp.MustCompile(`_seconds_(?:bucket|count|sum)$`)
	lineEnd           = regexp.MustCompile(`\s(?:\||>|&&|;|<<).*`)
)

// foreignFlags are flags of other programs that the pages name.
var foreignFlags = map[string]string{
	"--disable-force-detach-on-timeout": "kube-controller-manager",
	"--build-arg":                       "docker build",
	"--help":                            "every command",
	"--reconcile-sync":                  "csi-attacher",
	"--extra-create-metadata":           "csi-provisioner",
	"--force":                           "kubectl delete",
	"--reuse-values":                    "helm upgrade",
	"--reset-then-reuse-values":         "helm upgrade",
	"--namespace-mappings":              "velero restore create",
	"--snapshot-move-data":              "velero backup create",
}

// TestCommandLinesOfThePagesParse gives every command line of the program that a
// page shows to the program itself, which only parses it.
func TestCommandLinesOfThePagesParse(t *testing.T) {
	pages, err := docs.Pages()
	if err != nil {
		t.Fatal(err)
	}
	parsed := 0
	for _, page := range pages {
		for _, block := range page.Blocks {
			if block.Language != "sh" && block.Language != "console" {
				continue
			}
			for _, command := range block.Commands() {
				text := strings.ReplaceAll(command.Text, "\\\n", " ")
				for _, part := range strings.Split(text, " | ") {
					found := calledProgram.FindStringSubmatch(part)
					if found == nil {
						continue
					}
					parsed++
					if err := parse(found[1], true); err != nil {
						t.Errorf("%s:%d: %s: %v", page.Path, command.Line, text, err)
					}
				}
			}
		}
		if page.Path == "CHANGELOG.md" {
			continue
		}
		for _, found := range inlineCommand.FindAllStringSubmatch(page.Prose, -1) {
			parsed++
			if err := parse(strings.TrimPrefix(found[1], "standalone-cinder "), false); err != nil {
				t.Errorf("%s: %s: %v", page.Path, found[1], err)
			}
		}
	}
	if parsed < 35 {
		t.Errorf("the pages have only %d command lines", parsed)
	}
}

// parse parses a command line, which may be abridged in a sentence.
func parse(line string, whole bool) error {
	line = lineEnd.ReplaceAllString(line, "")
	line = strings.NewReplacer("'", "", `"`, "", "[", "", "]", "", "...", "").Replace(line)
	command, rest, err := newCommand(io.Discard).Find(strings.Fields(line))
	if err != nil {
		return err
	}
	command.InitDefaultHelpFlag()
	err = command.ParseFlags(rest)
	switch {
	case err != nil && !whole && strings.Contains(err.Error(), "needs an argument"):
		return nil
	case err != nil || !whole || !command.Runnable():
		return err
	}
	return command.ValidateArgs(command.Flags().Args())
}

// TestNamesOfThePagesExist: flags, metrics, annotations and reasons that pages
// name exist in the program.
func TestNamesOfThePagesExist(t *testing.T) {
	face, err := os.ReadFile("testdata/public_face.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, word := range regexp.MustCompile(`--[a-z0-9-]+|standalone_cinder_\w+|[a-z0-9.-]+\.(?:org|io)/[a-zA-Z0-9./-]+`).FindAllString(string(face), -1) {
		known[strings.TrimSuffix(word, ".")] = true // a prefix of keys ends in a dot
	}
	named := regexp.MustCompile(`standalone_cinder_[a-z_]+[a-z]|standalone-cinder\.openstack\.org/[a-z0-9-]+`)
	pages, err := docs.Pages()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if page.Path == "CHANGELOG.md" {
			continue // it also names what is gone
		}
		words := map[string]bool{}
		for _, found := range inlineFlag.FindAllStringSubmatch(page.Prose, -1) {
			words[found[1]] = strings.HasPrefix(page.Path, "docs/") && page.Path != "docs/chaos.md"
		}
		for _, found := range named.FindAllString(page.Prose, -1) {
			words[seriesOfHistogram.ReplaceAllString(found, "_seconds")] = true
		}
		for _, word := range slices.Sorted(maps.Keys(words)) {
			if words[word] && !known[word] && foreignFlags[word] == "" {
				t.Errorf("%s names %s, which testdata/public_face.txt does not have", page.Path, word)
			}
		}
	}
}

const keysFile = "docs/reference/annotations.md"

// notKeys are lines among the keys of the public face that are none.
var notKeys = map[string]string{
	"app.kubernetes.io/instance":               "a label of the program's own pods",
	"coordination.k8s.io/v1":                   "an API version",
	"csi.storage.k8s.io/fstype":                "a parameter of StorageClasses",
	"openstack.org/standalone-cinder":          "the provisioner's name",
	"standalone-cinder.openstack.org/v1alpha1": "an API version",
	"storage.k8s.io/v1":                        "an API version",
}

// TestKeysAreDocumented: a page explains every key of annotations, labels and metadata,
// and every finalizer, that users find on their objects and volumes.
func TestKeysAreDocumented(t *testing.T) {
	face, err := os.ReadFile("testdata/public_face.txt")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(keysFile)
	if err != nil {
		t.Fatal(err)
	}
	_, keys, _ := strings.Cut(string(face), "# keys of annotations, labels, metadata, parameters and finalizers\n")
	keys, _, found := strings.Cut(keys, "\n\n")
	if !found || len(strings.Fields(keys)) < 60 {
		t.Fatalf("the public face has these keys only: %s", keys)
	}
	for _, key := range strings.Fields(keys) {
		_, excepted := notKeys[key]
		if documented := strings.Contains(string(page), "`"+key+"`") || strings.Contains(string(page), "`"+key+": "); documented == excepted {
			t.Errorf("%s has %s: %t", keysFile, key, documented)
		}
	}
}

// TestReasonsAreDocumented: every reason that a user may read has an
// explanation.
func TestReasonsAreDocumented(t *testing.T) {
	face, err := os.ReadFile("testdata/public_face.txt")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := docs.Pages()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, page := range pages {
		if strings.HasPrefix(page.Path, "docs/") && page.Path != "docs/decisions.md" {
			all.WriteString(page.Prose)
		}
	}
	_, reasons, _ := strings.Cut(string(face), "# reasons of events, findings and refusals\n")
	for _, reason := range strings.Fields(reasons) {
		if !strings.Contains(all.String(), "`"+reason+"`") && !slices.Contains(internal, reason) {
			t.Errorf("no page explains %s", reason)
		}
	}
}

// internal are kinds of errors, which decide what is retried when, and what sidecars
// are told. No user reads them.
var internal = []string{"NotShown", "AlreadyExists", "HasBackups", "HasSnapshots", "InUse", "NativeInUse", "NoRoom", "NodeFull", "NodeUnknown", "NotFound", "NotOurs", "OnOtherNode", "OutOfRange", "RateLimited", "VolumeFailed"}

// TestPromisesNameTestsThatExist keeps the page of promises from naming tests
// that no longer exist.
func TestPromisesNameTestsThatExist(t *testing.T) {
	namesExistingTests(t, "docs/explanation/promises.md", 20)
}
