package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestMappedConnectionsAreAcceptedByTheAPIServer sends the PersistentVolume and
// the Secret of every golden case of the mappers to a real API server, which
// validates more than their types can. Nothing is stored.
//
//tier:oldest
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

// TestAttributesClassesOfClaimAndVolumeMustAgree shows why the program writes the
// claim's VolumeAttributesClass on the PersistentVolume: Kubernetes binds no other.
func TestAttributesClassesOfClaimAndVolumeMustAgree(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const name = "attributes-agree"
	if err := suite.CreateNamespace(ctx, name, nil); err != nil {
		t.Fatal(err)
	}
	for i, test := range []struct{ ofVolume, ofClaim, mismatch string }{
		{"quick", "quick", ""},
		{"", "quick", "volumeAttributesClassName does not match"},
		{"large", "quick", "volumeAttributesClassName does not match"},
		{"quick", "", "volumeAttributesClassName does not match"},
	} {
		class := func(name string) *string {
			if name == "" {
				return nil
			}
			return &name
		}
		pv := fmt.Sprintf("%s-%d", name, i)
		_, err := suite.Client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: pv},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, VolumeAttributesClassName: class(test.ofVolume),
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "none.example.org", VolumeHandle: pv}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = suite.Client.CoreV1().PersistentVolumes().Delete(context.Background(), pv, metav1.DeleteOptions{})
		})
		_, err = suite.CreateClaim(ctx, harness.Claim(name, pv, "", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.VolumeName, claim.Spec.VolumeAttributesClassName = pv, class(test.ofClaim)
		}))
		if err != nil {
			t.Fatal(err)
		}
		if test.mismatch != "" {
			if _, err := suite.WaitEvent(ctx, name, pv, "VolumeMismatch", test.mismatch); err != nil {
				t.Errorf("class %q on the volume, %q on the claim: %v", test.ofVolume, test.ofClaim, err)
			}
			continue
		}
		if _, err := suite.WaitBound(ctx, name, 1); err != nil {
			t.Error(err)
		}
	}
	if err := suite.DeleteClaims(ctx, name); err != nil {
		t.Error(err)
	}
}

// TestAttributesClassNeedsACSISource shows why claims with a
// VolumeAttributesClass are denied by native rules.
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
