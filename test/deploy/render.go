// Package deploy renders the chart and the kustomizations of deploy/, with the
// tools that operators use.
package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// The tools, at versions that build with this module's Go.
const (
	helm      = "helm.sh/helm/v4/cmd/helm@v4.3.1"
	kustomize = "sigs.k8s.io/kustomize/kustomize/v5@v5.8.1"
)

// Release and Namespace are what deploy/base is rendered with. NodeNamespace is where
// the component csi has its DaemonSet, and GrowNamespace where node-grow has its pods.
const (
	Release       = "standalone-cinder"
	Namespace     = "standalone-cinder"
	NodeNamespace = "standalone-cinder-node"
	GrowNamespace = "standalone-cinder-grow"
)

// Chart renders deploy/chart with more arguments of `helm template`.
func Chart(ctx context.Context, arguments ...string) ([]byte, error) {
	return run(ctx, helm, append([]string{"template", Release, Path("chart"), "--namespace", Namespace}, arguments...)...)
}

// Lint runs `helm lint --strict` on the chart.
func Lint(ctx context.Context, arguments ...string) error {
	_, err := run(ctx, helm, append([]string{"lint", Path("chart"), "--strict"}, arguments...)...)
	return err
}

// InstallHelm builds the same helm into a directory.
func InstallHelm(ctx context.Context, directory string) error { return install(ctx, helm, directory) }

// Kustomization renders a directory.
func Kustomization(ctx context.Context, directory string) ([]byte, error) {
	return run(ctx, kustomize, "build", "--load-restrictor", "LoadRestrictionsNone", directory)
}

// Overlay renders a copy of the example with components, as an operator makes it:
// by removing the comment before their lines. The copy is written to directory.
func Overlay(ctx context.Context, directory string, components ...string) ([]byte, error) {
	files, err := filepath.Glob(Path("overlays", "example", "*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if filepath.Base(path) == "kustomization.yaml" {
			if content, err = chosen(content, directory, components); err != nil {
				return nil, err
			}
		}
		if err := os.WriteFile(filepath.Join(directory, filepath.Base(path)), content, 0o600); err != nil {
			return nil, err
		}
	}
	return Kustomization(ctx, directory)
}

// chosen returns the example's kustomization.yaml with components, for a
// directory.
func chosen(kustomization []byte, directory string, components []string) ([]byte, error) {
	deploy, err := filepath.Rel(directory, Path())
	if err != nil {
		return nil, err
	}
	text := strings.ReplaceAll(string(kustomization), "- ../../base", "- "+deploy+"/base")
	for _, component := range components {
		line := regexp.MustCompile(`#   - \.\./\.\./components/` + regexp.QuoteMeta(component) + `(\s)`)
		if !line.MatchString(text) {
			return nil, fmt.Errorf("the example does not mention component %s", component)
		}
		text = strings.ReplaceAll(text, "# components:", "components:")
		text = line.ReplaceAllString(text, "  - "+deploy+"/components/"+component+"$1")
	}
	return []byte(text), nil
}

// Path returns a path below deploy/.
func Path(parts ...string) string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(append([]string{filepath.Dir(file), "..", "..", "deploy"}, parts...)...)
}

// Objects decodes rendered manifests.
func Objects(rendered []byte) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(rendered), 4096)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

func run(ctx context.Context, tool string, arguments ...string) ([]byte, error) {
	program, err := built(ctx, tool)
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, program, arguments...)
	command.Dir = Path()
	var output, failure bytes.Buffer
	command.Stdout, command.Stderr = &output, &failure
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s%s", tool, strings.Join(arguments, " "), err, failure.Bytes(), output.Bytes())
	}
	return output.Bytes(), nil
}

// majorVersion ends the path of a package that is not named by it.
var majorVersion = regexp.MustCompile(`/v[0-9]+$`)

// built returns the path of a tool, which is built once for each version: `go run` would
// look at all its packages each time.
func built(ctx context.Context, tool string) (string, error) {
	path, version, _ := strings.Cut(tool, "@")
	name := filepath.Base(majorVersion.ReplaceAllString(path, ""))
	directory := Path("..", "bin", name+"-"+version+"-"+runtime.Version())
	program := filepath.Join(directory, name)
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	return program, install(ctx, tool, directory)
}

// install builds a tool into a directory. A tool is built by its own module, not by this
// one or a nested one.
func install(ctx context.Context, tool, directory string) error {
	command := exec.CommandContext(ctx, "go", "install", tool)
	command.Dir, command.Env = Path(), append(os.Environ(), "GOBIN="+directory)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("install %s: %w\n%s", tool, err, output)
	}
	return nil
}
