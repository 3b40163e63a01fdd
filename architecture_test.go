package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/standalone-cinder/standalone-cinder"

// forbidden lists, by package (a trailing slash includes all packages below
// it), what a package must not import, directly or through other packages of
// this module. docs/architecture.md describes the same rules.
var forbidden = []struct {
	of    string
	never []string
	// except lists the imports that are allowed nevertheless.
	except []string
	// exceptIn lists the packages that the rule does not apply to.
	exceptIn []string
	why      string
}{
	{of: "policy/", except: []string{module + "/mappers/mapping/", module + "/mappers/template/"}, never: []string{"k8s.io/client-go/", "github.com/gophercloud/", "github.com/prometheus/", module + "/backends/", module + "/mappers/", module + "/provisioner/"},
		why: "policy is pure and decides the same way offline"},
	{of: "policy", never: []string{module + "/policy/cli/", module + "/policy/review/", module + "/policy/schema/"},
		why: "deciding needs neither the schema of the file, nor what exists in a cluster"},
	{of: "policy/review", never: []string{"github.com/", "k8s.io/"}, except: []string{module + "/policy/", module + "/policy/document/"},
		why: "a review compares what others have read"},
	{of: "policy/admission", never: []string{"github.com/", "k8s.io/"}, except: []string{"k8s.io/api/core/v1/", "k8s.io/api/storage/v1/", "k8s.io/apimachinery/pkg/util/validation/", module + "/policy/", module + "/mappers/mapping/"},
		why: "what is refused under any policy follows from the claim alone, for the daemon and for explain"},
	{of: "policy/schema", never: []string{module + "/policy/cli/", module + "/policy/document/", module + "/policy/review/"},
		why: "the schema follows from the types of the policy, and from nothing that is read"},
	{of: "policy/names", never: []string{"github.com/", "sigs.k8s.io/"}, except: []string{module + "/policy/document/"},
		why: "matching names is a leaf"},
	{of: "policy/selectors", never: []string{"github.com/", "sigs.k8s.io/"}, except: []string{module + "/policy/document/"},
		why: "comparing selectors is a leaf"},
	{of: "policy/hints", never: []string{"k8s.io/", "github.com/", "sigs.k8s.io/"}, except: []string{module + "/policy/document/"},
		why: "what is often misplaced is a table"},
	{of: "policy/document", never: []string{"k8s.io/", "github.com/", "sigs.k8s.io/", module + "/"},
		why: "the strict reader of YAML is a leaf: its caller passes in what to read"},
	{of: "backends/", never: []string{"k8s.io/", module + "/policy/", module + "/mappers/", module + "/provisioner/"},
		why: "backends and the packages below it know OpenStack, and nothing else"},
	{of: "backends", never: []string{"github.com/gophercloud/", "net/http/"},
		why: "the lives of volumes do not depend on the form of Cinder's requests"},
	{of: "backends/cinder", never: []string{"k8s.io/", module + "/"},
		except: []string{module + "/backends/auth/", module + "/backends/cinder/catalog/", module + "/backends/cinder/certificates/", module + "/backends/cinder/clock/", module + "/backends/cinder/jsonstream/", module + "/backends/cinder/turns/"},
		why:    "the OpenStack adapter knows credentials, but not who owns a volume"},
	{of: "backends/cinder/catalog", never: []string{"k8s.io/", module + "/"}, except: []string{module + "/backends/auth/"},
		why: "a catalog is read without a request"},
	{of: "backends/cinder/certificates", never: []string{"k8s.io/", "github.com/", module + "/"},
		why: "certificates expire whoever shows them"},
	{of: "backends/cinder/clock", never: []string{"k8s.io/", "github.com/", module + "/"},
		why: "reading a clock is a leaf"},
	{of: "backends/cinder/jsonstream", never: []string{"k8s.io/", "github.com/", module + "/"},
		why: "reading JSON does not depend on what it says"},
	{of: "backends/cinder/turns", never: []string{"k8s.io/", "github.com/", module + "/"},
		why: "who is next does not depend on what is sent"},
	{of: "backends/breaker", never: []string{"k8s.io/", "github.com/", module + "/"}, except: []string{module + "/backends/cinder/"},
		why: "whether a backend answers follows from the errors of requests, and from nothing that they are about"},
	{of: "backends/knowledge", never: []string{"k8s.io/", "github.com/", module + "/"}, except: []string{module + "/backends/cinder/", module + "/backends/cinder/turns/"},
		why: "what a term remembers is independent of what is done with it"},
	{of: "backends/watch", never: []string{"k8s.io/", "github.com/", module + "/"}, except: []string{module + "/backends/cinder/"},
		why: "waiting for volumes is independent of whose they are"},
	{of: "backends/stamps", never: []string{"k8s.io/", "github.com/", module + "/"}, except: []string{"github.com/google/uuid/", module + "/backends/cinder/"},
		why: "what is written on volumes is a leaf that the hub, the commands and audits read"},
	{of: "backends/steps", never: []string{"k8s.io/", "github.com/", module + "/"}, except: []string{module + "/backends/cinder/"},
		why: "the next step follows from a volume's state alone"},
	{of: "backends/auth", never: []string{"k8s.io/", module + "/"}, except: []string{module + "/backends/fingerprint/"},
		why: "the reader of credentials is a leaf"},
	{of: "backends/keyedmutex", never: []string{"k8s.io/", "github.com/", "sigs.k8s.io/", module + "/"},
		why: "locking by keys does not depend on what is locked"},
	{of: "backends/fingerprint", never: []string{"k8s.io/", "github.com/", "sigs.k8s.io/", module + "/"},
		why: "hashing values is a leaf"},
	{of: "./", never: []string{"github.com/gophercloud/"}, exceptIn: []string{"backends/auth", "backends/cinder", "backends/cinder/catalog"},
		why: "one package speaks OpenStack, with the credentials that another reads"},
	{of: "mappers/", never: []string{"k8s.io/client-go/", "github.com/gophercloud/", "github.com/prometheus/", module + "/policy/", module + "/backends/", module + "/provisioner/"},
		why: "mappers is pure"},
	{of: "mappers/template", never: []string{"k8s.io/", "github.com/", "sigs.k8s.io/", module + "/"},
		why: "the language of templates is a leaf that policy and mappers share"},
	{of: "mappers/mapping", except: []string{"k8s.io/api/core/v1/", "k8s.io/apimachinery/pkg/util/validation/", module + "/mappers/template/"}, never: []string{"k8s.io/", "github.com/", "sigs.k8s.io/", module + "/"},
		why: "what a mapping is and what is known about protocols is a leaf that policy and mappers share"},
	{of: "provisioner", never: []string{"github.com/gophercloud/", module + "/provisioner/app/", module + "/provisioner/cli/", module + "/provisioner/wiring/"},
		why: "the hub talks to OpenStack through backends, and does not wire itself"},
	{of: "provisioner/app/batches", never: []string{"k8s.io/", "github.com/", module + "/"},
		why: "how data is read does not depend on what it says"},
	{of: "provisioner/app/fence", never: []string{"github.com/", module + "/"},
		why: "what a lease permits does not depend on what is done with it"},
	{of: "provisioner/app/library", never: []string{module + "/"},
		why: "the library's habits concern no other part"},
	{of: "provisioner/app/portnames", never: []string{"github.com/", module + "/"},
		why: "reading nodes is a leaf"},
	{of: "provisioner/app/statuspage", never: []string{"k8s.io/", "github.com/", module + "/"}, except: []string{module + "/provisioner/", module + "/provisioner/statusreport/"},
		why: "serving a report needs nothing of what it is about"},
	{of: "provisioner/cli", never: []string{"github.com/gophercloud/", module + "/provisioner/"},
		except: []string{module + "/provisioner/audit/", module + "/provisioner/imports/", module + "/provisioner/move/", module + "/provisioner/nodeuse/", module + "/provisioner/proof/", module + "/provisioner/record/", module + "/provisioner/retype/", module + "/provisioner/statusreport/", module + "/provisioner/wiring/"},
		why:    "commands need neither the hub nor the daemon"},
	{of: "provisioner/move", never: []string{"github.com/gophercloud/", "github.com/prometheus/", module + "/mappers/", module + "/provisioner/"},
		except: []string{module + "/provisioner/nodeuse/", module + "/provisioner/paging/", module + "/provisioner/record/"},
		why:    "a command moves PersistentVolumes beside the hub, which stamps their volumes"},
	{of: "provisioner/wiring", never: []string{"github.com/gophercloud/", module + "/provisioner/"},
		why: "translation does not depend on its users"},
	{of: "provisioner/csi/", never: []string{"k8s.io/client-go/", "github.com/gophercloud/", module + "/policy/", module + "/backends/", module + "/mappers/", module + "/provisioner/"}, except: []string{module + "/provisioner/csi/host/", module + "/provisioner/csi/node/", module + "/provisioner/csi/registration/", module + "/provisioner/csi/wire/"},
		exceptIn: []string{"provisioner/csi/plugin", "provisioner/csi/staged"},
		why:      "the CSI driver's rooms know the specification, and ask the rest of the program through interfaces of their own"},
	{of: "provisioner/csi/plugin", never: []string{"github.com/gophercloud/", module + "/"},
		except: []string{module + "/provisioner/csi/host/", module + "/provisioner/csi/node/", module + "/provisioner/csi/registration/", module + "/provisioner/csi/staged/", module + "/provisioner/csi/wire/",
			module + "/provisioner/webserver/"},
		why: "the node plugin uses nothing of the provisioner"},
	{of: "provisioner/csi/staged", never: []string{"github.com/", module + "/"}, except: []string{module + "/provisioner/csi/wire/"},
		why: "the plugin writes what a node reports, and the engine reads it"},
	{of: "provisioner/csi/controller", never: []string{"k8s.io/", module + "/"}, except: []string{module + "/provisioner/csi/wire/"},
		why: "the controller's services translate requests and errors, and an engine does the rest"},
	{of: "provisioner/csi/socket", never: []string{"k8s.io/", module + "/"},
		why: "who serves when does not depend on what is served"},
	{of: "provisioner/csi/wire", never: []string{"k8s.io/", "github.com/", "google.golang.org/", module + "/"},
		why: "the forms that controller and nodes exchange are a leaf"},
	{of: "provisioner/csi/host", never: []string{"k8s.io/", "github.com/", "google.golang.org/", module + "/"},
		why: "what is done to a node does not depend on who asks for it"},
	{of: "provisioner/csi/node", never: []string{module + "/"}, except: []string{module + "/provisioner/csi/host/", module + "/provisioner/csi/wire/"},
		why: "the node service needs no controller"},
	{of: "provisioner/csi/registration", never: []string{"github.com/", module + "/"},
		why: "kubelet asks every plugin the same"},
	{of: "./", never: []string{"github.com/container-storage-interface/", "google.golang.org/grpc/"}, exceptIn: []string{"provisioner/csi/controller", "provisioner/csi/node", "provisioner/csi/plugin", "provisioner/csi/registration", "provisioner/csi/socket"},
		why: "the CSI driver's rooms alone know the specification"},
	{of: "provisioner/snapshot", never: []string{"github.com/gophercloud/", module + "/mappers/", module + "/provisioner/"},
		except: []string{module + "/provisioner/bound/", module + "/provisioner/csi/wire/", module + "/provisioner/follow/", module + "/provisioner/imports/", module + "/provisioner/ledger/", module + "/provisioner/liveness/",
			module + "/provisioner/paging/", module + "/provisioner/parking/", module + "/provisioner/placement/", module + "/provisioner/record/", module + "/provisioner/retry/", module + "/provisioner/trail/", module + "/provisioner/work/"},
		why: "snapshots are taken beside the hub, which does not know them"},
	{of: "provisioner/attach", never: []string{"github.com/gophercloud/", module + "/policy/", module + "/provisioner/"},
		except: []string{module + "/provisioner/csi/controller/", module + "/provisioner/csi/staged/", module + "/provisioner/csi/wire/", module + "/provisioner/paging/", module + "/provisioner/record/"},
		why:    "volumes are attached beside the hub, which does not know it, and whatever the policy says now"},
	{of: "provisioner/byclaim", never: []string{"github.com/gophercloud/", "github.com/prometheus/", module + "/mappers/", module + "/provisioner/"},
		except: []string{module + "/provisioner/csi/controller/", module + "/provisioner/csi/wire/", module + "/provisioner/record/"},
		why:    "volumes are asked for by claims, as tenants do, so that the hub alone provisions"},
	{of: "provisioner/audit", never: []string{"k8s.io/client-go/", "github.com/gophercloud/", module + "/provisioner/"}, except: []string{module + "/provisioner/proof/", module + "/provisioner/record/"},
		why: "an audit compares what its callers have read"},
	{of: "provisioner/expand", never: []string{"github.com/gophercloud/", module + "/mappers/", module + "/provisioner/"},
		except: []string{module + "/provisioner/backoff/", module + "/provisioner/ledger/", module + "/provisioner/liveness/", module + "/provisioner/parking/",
			module + "/provisioner/placement/", module + "/provisioner/record/", module + "/provisioner/retry/", module + "/provisioner/tracing/", module + "/provisioner/trail/", module + "/provisioner/work/"},
		why: "expansions are a controller of their own, which the hub does not know"},
	{of: "provisioner/fairshare", never: []string{"k8s.io/", "github.com/", "sigs.k8s.io/"},
		why: "sharing workers is independent of their work"},
	{of: "provisioner/work", never: []string{"github.com/", module + "/"},
		except: []string{module + "/provisioner/backoff/", module + "/provisioner/fairshare/", module + "/provisioner/liveness/", module + "/provisioner/parking/"},
		why:    "the loop is independent of what is worked on"},
	{of: "provisioner/backoff", never: []string{"k8s.io/", "github.com/", "sigs.k8s.io/"},
		why: "delays are independent of what is delayed"},
	{of: "provisioner/ledger", never: []string{"k8s.io/client-go/", "k8s.io/api/", module + "/backends/", module + "/mappers/", module + "/provisioner/"},
		why: "the ledger counts by the policy, and sends no requests"},
	{of: "provisioner/liveness", never: []string{"k8s.io/", "github.com/", "sigs.k8s.io/"},
		why: "noticing what is stuck is independent of what it is"},
	{of: "provisioner/follow", never: []string{"github.com/", module + "/"},
		why: "noticing a change does not depend on what follows from it"},
	{of: "provisioner/lastgood", never: []string{"github.com/", module + "/"},
		why: "a store does not know what it keeps"},
	{of: "provisioner/paging", never: []string{"k8s.io/client-go/", module + "/"},
		why: "reading in pages is a leaf"},
	{of: "provisioner/record", never: []string{"github.com/prometheus/", module + "/provisioner/"}, except: []string{module + "/provisioner/csi/wire/", module + "/provisioner/paging/", module + "/provisioner/trim/"},
		why: "records on objects do not depend on the hub"},
	{of: "provisioner/proof", never: []string{"github.com/prometheus/", module + "/policy/", module + "/mappers/", module + "/provisioner/"},
		except: []string{module + "/provisioner/nodeuse/", module + "/provisioner/record/", module + "/provisioner/secrets/"},
		why:    "removal is proven without the hub, so that commands can do it, too"},
	{of: "provisioner/imports", never: []string{"github.com/gophercloud/", "github.com/prometheus/", module + "/provisioner/"},
		except: []string{module + "/provisioner/csi/wire/", module + "/provisioner/nodeuse/", module + "/provisioner/paging/", module + "/provisioner/record/", module + "/provisioner/secrets/"},
		why:    "an import runs in a command, too, without the hub"},
	{of: "provisioner/retype", never: []string{"github.com/gophercloud/", "github.com/prometheus/", module + "/mappers/", module + "/provisioner/"},
		except: []string{module + "/provisioner/record/"},
		why:    "a type is changed by a command, without the hub"},
	{of: "provisioner/tenantimport", never: []string{"github.com/gophercloud/", "github.com/prometheus/", module + "/provisioner/"},
		except: []string{module + "/provisioner/backoff/", module + "/provisioner/bound/", module + "/provisioner/imports/", module + "/provisioner/ledger/", module + "/provisioner/liveness/",
			module + "/provisioner/nodeuse/", module + "/provisioner/parking/", module + "/provisioner/placement/", module + "/provisioner/record/", module + "/provisioner/retry/", module + "/provisioner/tracing/",
			module + "/provisioner/trail/", module + "/provisioner/work/"},
		why: "tenants' imports are a controller of their own, which the hub does not know"},
	{of: "provisioner/journal", never: []string{"k8s.io/client-go/", "github.com/", module + "/policy/", module + "/mappers/", module + "/provisioner/"},
		except: []string{module + "/backends/", module + "/backends/cinder/", module + "/backends/stamps/", module + "/provisioner/nodeuse/", module + "/provisioner/record/"},
		why:    "what a term remembers is independent of who asks"},
	{of: "provisioner/trail", never: []string{"k8s.io/client-go/", "github.com/", module + "/"}, except: []string{module + "/backends/cinder/"},
		why: "the audit trail collects what requests say, and sends none"},
	{of: "provisioner/placement", never: []string{"k8s.io/client-go/", "github.com/prometheus/", module + "/mappers/", module + "/provisioner/"},
		except: []string{module + "/provisioner/ledger/", module + "/provisioner/liveness/", module + "/provisioner/parking/", module + "/provisioner/record/"},
		why:    "where volumes go is decided without the hub, which acts on the answer"},
	{of: "provisioner/retry", never: []string{"k8s.io/", "github.com/prometheus/", module + "/policy/", module + "/provisioner/"},
		except: []string{module + "/provisioner/backoff/", module + "/provisioner/proof/", module + "/provisioner/record/"},
		why:    "the table of delays depends on errors, not on their sources"},
	{of: "provisioner/secrets", never: []string{"github.com/prometheus/", module + "/policy/", module + "/provisioner/"}, except: []string{module + "/provisioner/paging/", module + "/provisioner/record/"},
		why: "Secrets are managed without the hub, which only answers three questions"},
	{of: "provisioner/tracing", never: []string{"k8s.io/", "go.opentelemetry.io/otel/sdk/", "go.opentelemetry.io/otel/exporters/", module + "/"},
		why: "what a span says is independent of where spans go"},
	{of: "./", never: []string{"go.opentelemetry.io/otel/sdk/", "go.opentelemetry.io/otel/exporters/"}, exceptIn: []string{"provisioner/wiring"},
		why: "one package knows where spans go"},
	{of: "provisioner/statusreport", never: []string{"k8s.io/", "github.com/", "sigs.k8s.io/", module + "/"},
		why: "what a report says is a leaf that replicas and commands share"},
	{of: "provisioner/statusreport/cli", never: []string{"github.com/gophercloud/", "github.com/prometheus/", module + "/backends/", module + "/mappers/", module + "/provisioner/"},
		except: []string{module + "/provisioner/statusreport/", module + "/provisioner/wiring/", "github.com/prometheus/common/config/"},
		why:    "the status commands ask the program, and do not look into it"},
	{of: "provisioner/webserver", never: []string{"k8s.io/", module + "/"},
		why: "what bounds HTTP clients does not know what is served"},
	{of: "provisioner/bound", never: []string{"k8s.io/", module + "/"},
		why: "what cuts texts knows nothing else"},
	{of: "provisioner/trim", never: []string{"k8s.io/client-go/", module + "/"}, except: []string{module + "/provisioner/bound/"},
		why: "trimming is a leaf: its caller passes in which fields are read"},
	{of: "provisioner/parking", never: []string{"k8s.io/client-go/", "k8s.io/api/", module + "/"}, except: []string{module + "/provisioner/bound/"},
		why: "parking keeps objects of any kind, and knows none of them"},
	{of: "provisioner/nodeuse", never: []string{module + "/"}, except: []string{module + "/provisioner/csi/staged/", module + "/provisioner/csi/wire/"},
		why: "Kubernetes' objects, and the reports of the node plugins among them, show what nodes use"},
	{of: "provisioner/events", never: []string{"github.com/gophercloud/", module + "/"}, except: []string{module + "/provisioner/bound/"},
		why: "passing on events is a leaf"},
	{of: "./", never: []string{module + "/test/"},
		why: "nothing outside test/ uses the fixtures"},
	{of: "./", never: []string{"github.com/gophercloud/utils/"},
		why: "module registries do not always serve it; the tests use it as an oracle (test/cloudsoracle)"},
}

func TestImportDirections(t *testing.T) {
	imports := moduleImports(t)
	for _, rule := range forbidden {
		found := false
		for pkg, direct := range imports {
			if !covers(rule.of, pkg) || slices.Contains(rule.exceptIn, pkg) {
				continue
			}
			found = true
			for _, imported := range direct {
				for _, never := range rule.never {
					if strings.HasPrefix(imported+"/", never) && !slices.Contains(rule.except, imported+"/") {
						t.Errorf("%s imports %s: %s", pkg, imported, rule.why)
					}
				}
			}
		}
		if !found {
			t.Errorf("no package matches the rule for %q; is its name still right?", rule.of)
		}
	}
}

// moduleImports lists the direct imports of every package of the program in
// this module, without test files. A forbidden import through another package
// of the module is a direct import of that package, which has its own rule.
func moduleImports(t *testing.T) map[string][]string {
	t.Helper()
	output, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, output)
	}
	imports := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(output)), "\n") {
		words := strings.Fields(line)
		pkg := strings.TrimPrefix(strings.TrimPrefix(words[0], module), "/")
		if pkg == "test" || strings.HasPrefix(pkg, "test/") {
			continue
		}
		imports[pkg] = words[1:]
	}
	return imports
}

// covers reports whether a rule's pattern covers a package: "./" covers all of
// them, "a/" covers a and everything below it, "a" only a.
func covers(pattern, pkg string) bool {
	if pattern == "./" {
		return true
	}
	if below, ok := strings.CutSuffix(pattern, "/"); ok {
		return pkg == below || strings.HasPrefix(pkg, pattern)
	}
	return pkg == pattern
}

func TestRulePatternsCoverWhatTheySay(t *testing.T) {
	for _, c := range []struct {
		pattern, pkg string
		want         bool
	}{
		{"./", "policy/cli", true},
		{"policy/", "policy", true},
		{"policy/", "policy/cli", true},
		{"policy/", "policyother", false},
		{"provisioner", "provisioner", true},
		{"provisioner", "provisioner/app", false},
	} {
		if got := covers(c.pattern, c.pkg); got != c.want {
			t.Errorf("covers(%q, %q) = %t", c.pattern, c.pkg, got)
		}
	}
	if !slices.ContainsFunc(forbidden[0].never, func(s string) bool { return strings.HasPrefix("k8s.io/client-go/kubernetes/", s) }) {
		t.Error("the rule for policy does not forbid client-go")
	}
}

// mentioned matches the name of a file that docs mention.
var mentioned = regexp.MustCompile("`([a-z0-9_/]+\\.go|testdata/[a-z_]+\\.txt)`")

// TestDocumentedFilesExist keeps docs/ from naming files that were moved. A
// name without a folder may be anywhere.
func TestDocumentedFilesExist(t *testing.T) {
	names := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names[filepath.Base(path)], names[path] = true, true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	below, err := filepath.Glob("docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range append(append(documents, below...), "README.md", "mappers/README.md") {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range mentioned.FindAllStringSubmatch(string(text), -1) {
			if name := found[1]; !names[name] && !names[filepath.Join("provisioner", name)] && !names[filepath.Join(filepath.Dir(document), name)] {
				t.Errorf("%s mentions %s, which does not exist", document, name)
			}
		}
	}
}

// TestFaultsNameTestsThatExist keeps docs/faults.md from naming tests that no
// longer exist.
func TestFaultsNameTestsThatExist(t *testing.T) { namesExistingTests(t, "docs/faults.md", 20) }

// namesExistingTests checks that a page names at least that many tests, and
// that all of them exist.
func namesExistingTests(t *testing.T, page string, least int) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	err = filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for line := range strings.Lines(string(source)) {
			if name, ok := strings.CutPrefix(line, "func Test"); ok {
				name, _, _ = strings.Cut(name, "(")
				declared["Test"+name] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < least {
		t.Errorf("%s names only %d tests", page, len(named))
	}
	for _, found := range named {
		if !declared[found[1]] {
			t.Errorf("%s names %s, which does not exist", page, found[1])
		}
	}
}

// The bounds of docs/decisions.md. Whoever changes the architecture reads all of it.
const (
	mostDecisions          = 40
	mostLinesOfOneDecision = 15
)

// TestDecisionsAreFewAndShort: every decision has a number, a day and a line in the
// index, and the page stays short enough to be read.
func TestDecisionsAreFewAndShort(t *testing.T) {
	titles, text := decisions(t)
	if all := strings.Count(text, "\n## "); len(titles) != all || all > mostDecisions {
		t.Errorf("%d of %d decisions are numbered in order and have a day; there may be %d", len(titles), all, mostDecisions)
	}
	for i, title := range titles {
		if entry := fmt.Sprintf("\n%d. [%s](#%d-", i+1, title, i+1); !strings.Contains(text, entry) {
			t.Errorf("decision %q is not in the index", title)
		}
	}
	for _, record := range strings.Split(text, "\n## ")[1:] {
		lines := slices.DeleteFunc(strings.Split(record, "\n"), func(line string) bool { return line == "" })
		if len(lines) > mostLinesOfOneDecision {
			t.Errorf("decision %q has %d lines, more than %d: what it does belongs into the package, what it costs and what was rejected stays", lines[0], len(lines), mostLinesOfOneDecision)
		}
	}
}

// decisions returns the titles of the records of docs/decisions.md, as long as they
// are numbered in order and have a day, and the text of the page.
func decisions(t *testing.T) (titles []string, text string) {
	t.Helper()
	content, err := os.ReadFile("docs/decisions.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, heading := range regexp.MustCompile(`(?m)^## (\d+)\. (.+)\n\n\*\d{4}-\d\d-\d\d\*$`).FindAllStringSubmatch(string(content), -1) {
		if heading[1] == strconv.Itoa(len(titles)+1) {
			titles = append(titles, heading[2])
		}
	}
	return titles, string(content)
}

// TestCommentsCiteDecisionsThatExist: comments cite a decision by its title, since
// numbers change.
func TestCommentsCiteDecisionsThatExist(t *testing.T) {
	titles, _ := decisions(t)
	cited := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, found := range regexp.MustCompile(`(?m)^\s*// .*See docs/decisions\.md, "([^"]*)`).FindAllStringSubmatch(string(content), -1) {
			cited++
			if !slices.Contains(titles, found[1]) {
				t.Errorf("%s cites decision %q, which does not exist", path, found[1])
			}
		}
		return err
	})
	if err != nil || cited < 5 {
		t.Errorf("%d citations of decisions, %v", cited, err)
	}
}

// TestNoFolderIsTooFull: a folder with more files than a newcomer can take in at a
// glance should be split.
func TestNoFolderIsTooFull(t *testing.T) {
	const most = 20
	files := map[string]int{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			files[filepath.Dir(path)]++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder, n := range files {
		if n > most {
			t.Errorf("%s has %d files besides tests, more than %d: which of them make a package of their own?", folder, n, most)
		}
	}
}
