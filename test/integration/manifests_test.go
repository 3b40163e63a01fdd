package integration

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// TestManifestsAreAcceptedByTheAPIServer applies everything under deploy/, and
// reads the policy that the base ships.
func TestManifestsAreAcceptedByTheAPIServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := suite.CreateNamespace(ctx, "team-a", nil); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join("..", "..")
	applied := 0
	// Walking in lexical order meets the namespace after what lives in it.
	if err := suite.ApplyFile(ctx, "deploy/base/namespace.yaml"); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(filepath.Join(root, "deploy"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" || filepath.Base(path) == "kustomization.yaml" {
			return err
		}
		applied++
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return suite.ApplyFile(ctx, relative)
	})
	if err != nil {
		t.Fatal(err)
	}
	if applied < 8 {
		t.Errorf("only %d manifests were found", applied)
	}
	if err := suite.DeleteClaims(ctx, "team-a"); err != nil {
		t.Fatal(err)
	}

	shipped, err := suite.Client.CoreV1().ConfigMaps("standalone-cinder").Get(ctx, "standalone-cinder-policy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := policy.Parse([]byte(shipped.Data["policy.yaml"]), "configmap.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	for _, warning := range parsed.Warnings {
		t.Errorf("the shipped policy: %s", warning.Error())
	}
	deployment, err := suite.Client.AppsV1().Deployments("standalone-cinder").Get(ctx, "standalone-cinder", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if replicas := deployment.Spec.Replicas; replicas == nil || *replicas != 3 {
		t.Error("the Deployment has not three replicas")
	}
	checkMounts(t, deployment.Spec.Template.Spec)
}

// checkMounts compares the container's arguments with its mounts: a file in an
// argument must be in a mounted directory.
func checkMounts(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	container := pod.Containers[0]
	for _, argument := range container.Args {
		_, file, named := strings.Cut(argument, "=/")
		if !named {
			continue
		}
		mounted := false
		for _, mount := range container.VolumeMounts {
			mounted = mounted || filepath.Dir("/"+file) == mount.MountPath && mount.SubPath == ""
		}
		if !mounted {
			t.Errorf("argument %s names a file that no whole directory is mounted for", argument)
		}
	}
}

// TestKustomizationsListEveryManifest keeps a new file from being forgotten.
func TestKustomizationsListEveryManifest(t *testing.T) {
	t.Parallel()
	directories, err := filepath.Glob(filepath.Join("..", "..", "deploy", "*", "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(filepath.Join("..", "..", "deploy", "components", "*", "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(directories, more...) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var kustomization struct {
			Resources []string `json:"resources"`
		}
		if err := yaml.Unmarshal(content, &kustomization); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		listed := map[string]bool{"kustomization.yaml": true}
		for _, resource := range kustomization.Resources {
			listed[resource] = true
		}
		files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != len(listed) {
			t.Errorf("%s lists %d files, its directory has %d", path, len(listed)-1, len(files)-1)
		}
		for _, file := range files {
			if !listed[filepath.Base(file)] {
				t.Errorf("%s does not list %s", path, filepath.Base(file))
			}
		}
	}
}
