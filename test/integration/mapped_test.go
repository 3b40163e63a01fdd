package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestMappedConnectionsAreAcceptedByTheAPIServer sends the PersistentVolume and
// the Secret of every golden case of the mappers to a real API server, which
// validates more than their types can. Nothing is stored.
func TestMappedConnectionsAreAcceptedByTheAPIServer(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../mappers/testdata/*/*.golden.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden cases: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimPrefix(strings.TrimSuffix(path, ".golden.yaml"), "../../mappers/testdata/"), func(t *testing.T) {
			var asked struct {
				Request struct {
					Block       bool
					AccessModes []corev1.PersistentVolumeAccessMode
				}
			}
			readYAML(t, strings.TrimSuffix(path, ".golden.yaml")+".json", &asked)
			var mapped struct {
				Source       corev1.PersistentVolumeSource
				MountOptions []string
				Secret       *struct {
					Name   string
					Type   corev1.SecretType
					Values map[string]string
				}
			}
			readYAML(t, path, &mapped)
			mode := corev1.PersistentVolumeFilesystem
			if asked.Request.Block {
				mode = corev1.PersistentVolumeBlock
			}
			if asked.Request.AccessModes == nil {
				asked.Request.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
			}
			dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
			_, err := suite.Client.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: "pvc-5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d0001"},
				Spec: corev1.PersistentVolumeSpec{
					Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
					AccessModes:            asked.Request.AccessModes,
					VolumeMode:             &mode,
					MountOptions:           mapped.MountOptions,
					PersistentVolumeSource: mapped.Source,
				},
			}, dryRun)
			if err != nil {
				t.Error(err)
			}
			if mapped.Secret == nil {
				return
			}
			_, err = suite.Client.CoreV1().Secrets(harness.Namespace).Create(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: mapped.Secret.Name}, Type: mapped.Secret.Type, StringData: mapped.Secret.Values,
			}, dryRun)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAttributesClassNeedsACSISource holds the reason why claims with a
// VolumeAttributesClass are refused.
func TestAttributesClassNeedsACSISource(t *testing.T) {
	t.Parallel()
	_, err := suite.Client.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d0002"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                  corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:               []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeAttributesClassName: new("quick"),
			PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
				TargetPortal: "192.0.2.1:3260", IQN: "iqn.2010-10.org.openstack:volume-1", Lun: 1,
			}},
		},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	const want = "spec.csi: Required value: has to be specified when using volumeAttributesClassName"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
