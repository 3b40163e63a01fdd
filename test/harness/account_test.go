package harness

import (
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/app/lastgood"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestManifestsOfAnotherProvisioner: nothing of the default account is left but the
// namespace, the labels' values, the driver's name, the operator's Secrets and what the
// program itself writes.
func TestManifestsOfAnotherProvisioner(t *testing.T) {
	root, err := repositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	s := &Suite{root: root}
	for _, file := range []string{"serviceaccount.yaml", "rbac.yaml", "admissionpolicy.yaml"} {
		manifest, err := s.manifestOf(file, "test.example/one", "other")
		if err != nil {
			t.Fatal(err)
		}
		for number, line := range strings.Split(string(manifest), "\n") {
			text := strings.TrimSpace(line)
			switch {
			case !strings.Contains(text, "standalone-cinder"), strings.HasPrefix(text, "#"):
			case strings.HasPrefix(text, "namespace: "), strings.HasPrefix(text, "app.kubernetes.io/"):
			case strings.Contains(text, "managed-by"), strings.HasPrefix(text, "message: "):
			case strings.Contains(text, "'"+objects.LabelSchedule+"'"), strings.Contains(text, "'"+objects.LabelClaimUID+"'"), strings.Contains(text, "'"+objects.AnnotationSnapshotName+"'"):
			case strings.Contains(text, string(lastgood.SecretType)), strings.Contains(text, objects.CopyFinalizer):
			case strings.Contains(text, "'"+wire.DriverName+"'"), strings.Contains(text, "-clouds'"), strings.Contains(text, "'the account of"):
			default:
				t.Errorf("%s:%d: %s", file, number+1, line)
			}
		}
		if file != "serviceaccount.yaml" && !strings.Contains(string(manifest), "test.example") {
			t.Errorf("%s does not name the provisioner", file)
		}
	}
}
