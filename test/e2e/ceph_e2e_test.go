//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const (
	cephCSIDriver = "rbd.csi.ceph.com"
	cephCluster   = "rig"
	// operatorsMapping names a Secret that the operator keeps, and all that
	// images of the rig's cluster have. The kernel's client can map it since 5.3.
	operatorsMapping = `{as: csi, clusterID: rig, imageFeatures: "layering,exclusive-lock,object-map,fast-diff,deep-flatten", nodeStageSecretRef: {name: cinder, namespace: ceph-csi}}`
)

// installCephCSI does what an operator does for ceph-csi: a Secret for its
// nodes, and the monitors of each cluster in a ConfigMap.
func (w *world) installCephCSI(ctx context.Context) error {
	keyring, err := os.ReadFile(w.env.CephKeyring)
	if err != nil {
		return err
	}
	_, key, found := strings.Cut(string(keyring), "key = ")
	if !found {
		return fmt.Errorf("%s holds no key", w.env.CephKeyring)
	}
	if err := w.CreateNamespace(ctx, "ceph-csi", nil); err != nil {
		return err
	}
	_, err = w.Client.CoreV1().Secrets("ceph-csi").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cinder"},
		StringData: map[string]string{"userID": "cinder", "userKey": strings.TrimSpace(key)}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	clusters, err := json.Marshal([]cephCSICluster{{ClusterID: cephCluster, Monitors: []string{w.env.CephMonitor}}})
	if err != nil {
		return err
	}
	_, err = w.Client.CoreV1().ConfigMaps("ceph-csi").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ceph-csi-config"},
		Data: map[string]string{"config.json": string(clusters)}}, metav1.CreateOptions{})
	return err
}

type cephCSICluster struct {
	ClusterID string   `json:"clusterID"`
	Monitors  []string `json:"monitors"`
}

// cephCSIImage finds the image of a static volume as ceph-csi does: the name
// from the handle, the pool from the attributes, the monitors from its own
// configuration by the cluster's id, the user from the node-stage Secret.
func cephCSIImage(t *testing.T, w *world, pv *corev1.PersistentVolume) rig.Image {
	t.Helper()
	csi := pv.Spec.CSI
	if csi == nil || csi.Driver != cephCSIDriver || csi.VolumeAttributes["staticVolume"] != "true" || csi.VolumeAttributes["imageFeatures"] == "" {
		t.Fatalf("%s: ceph-csi would not stage the source %+v", pv.Name, csi)
	}
	config, err := w.Client.CoreV1().ConfigMaps("ceph-csi").Get(t.Context(), "ceph-csi-config", metav1.GetOptions{})
	must(t, err)
	var clusters []cephCSICluster
	must(t, json.Unmarshal([]byte(config.Data["config.json"]), &clusters))
	at := slices.IndexFunc(clusters, func(c cephCSICluster) bool { return c.ClusterID == csi.VolumeAttributes["clusterID"] })
	if at < 0 {
		t.Fatalf("%s: ceph-csi knows no cluster %q", pv.Name, csi.VolumeAttributes["clusterID"])
	}
	secret := w.secret(t, csi.NodeStageSecretRef)
	return rig.Image{Monitors: clusters[at].Monitors, Pool: csi.VolumeAttributes["pool"], Name: csi.VolumeHandle, User: secret["userID"], Key: secret["userKey"]}
}

func checkCephCSI(t *testing.T, w *world, pv *corev1.PersistentVolume, pattern []byte) {
	image := cephCSIImage(t, w, pv)
	state := checkImage(t, pv, image, pattern)
	// ceph-csi goes by what the image has and only checks what the
	// PersistentVolume says; it must not promise more.
	said := strings.Split(pv.Spec.CSI.VolumeAttributes["imageFeatures"], ",")
	for _, feature := range said {
		if !slices.Contains(state.Features, feature) {
			t.Errorf("%s: imageFeatures names %s, the image has %v", pv.Name, feature, state.Features)
		}
	}
	namedByOperator := pv.Spec.CSI.NodeStageSecretRef.Namespace == "ceph-csi"
	if namedByOperator && len(said) != len(state.Features) {
		t.Errorf("%s: imageFeatures is %v, the image has %v", pv.Name, said, state.Features)
	}
	if made := pv.Annotations[annotationSecret]; namedByOperator != (made == "") {
		t.Errorf("%s: the program made Secret %q, the operator's is %s/%s", pv.Name, made, pv.Spec.CSI.NodeStageSecretRef.Namespace, pv.Spec.CSI.NodeStageSecretRef.Name)
	}
}

// checkNativeRBD uses the source as kubelets up to 1.30 do.
func checkNativeRBD(t *testing.T, w *world, pv *corev1.PersistentVolume, pattern []byte) {
	rbd := pv.Spec.RBD
	if rbd == nil {
		t.Fatalf("%s: the source is %+v", pv.Name, pv.Spec.PersistentVolumeSource)
	}
	secret, err := w.Client.CoreV1().Secrets(rbd.SecretRef.Namespace).Get(t.Context(), rbd.SecretRef.Name, metav1.GetOptions{})
	must(t, err)
	if secret.Type != "kubernetes.io/rbd" {
		t.Errorf("%s: its Secret is of type %q, which kubelet does not take", pv.Name, secret.Type)
	}
	image := rig.Image{Monitors: rbd.CephMonitors, Pool: rbd.RBDPool, Name: rbd.RBDImage, User: rbd.RadosUser, Key: w.secret(t, rbd.SecretRef)["key"]}
	checkImage(t, pv, image, pattern)
}

// checkImage writes to an image and reads it back, and returns what Ceph says
// about it.
func checkImage(t *testing.T, pv *corev1.PersistentVolume, image rig.Image, pattern []byte) rig.ImageState {
	t.Helper()
	ctx := t.Context()
	if want := "volume-" + pv.Annotations[annotationVolume]; image.Name != want {
		t.Errorf("%s: the image is %s, want %s", pv.Name, image.Name, want)
	}
	must(t, image.Write(ctx, 4096, pattern))
	read, err := image.Read(ctx, 4096, len(pattern))
	must(t, err)
	if !bytes.Equal(read, pattern) {
		t.Errorf("%s: what was written is not read back", pv.Name)
	}
	size, err := image.Size(ctx)
	must(t, err)
	if capacity := pv.Spec.Capacity.Storage().Value(); size != capacity {
		t.Errorf("%s: the image has %d bytes, the PersistentVolume says %d", pv.Name, size, capacity)
	}
	state, err := image.State(ctx)
	must(t, err)
	if len(state.Watchers) > 0 {
		t.Errorf("%s: nobody uses the image, and %v watch it", pv.Name, state.Watchers)
	}
	image.Key = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQQ=="
	if _, err := image.Read(ctx, 0, 512); err == nil {
		t.Errorf("%s: Ceph lets a wrong key in", pv.Name)
	}
	return state
}

// sharedSecretOutlives deletes the claims of a class one by one: the one Secret
// of its volumes opens those that are left, and stays with its backend.
func sharedSecretOutlives(ctx context.Context, t *testing.T, w *world, class string) {
	s := w.stations[slices.IndexFunc(w.stations, func(s station) bool { return s.name == class })]
	secrets, err := w.sharedSecrets(ctx)
	must(t, err)
	name := w.volumeOf(ctx, t, s, 0).Annotations[annotationSecret]
	// One for each of the backends whose connections hold the key.
	if len(secrets) != 2 || !slices.Contains(secrets, name) {
		t.Fatalf("the shared Secrets are %v, the volume's is %q", secrets, name)
	}
	var images []rig.Image
	for i := range each {
		pv := w.volumeOf(ctx, t, s, i)
		if got := pv.Annotations[annotationSecret]; got != name {
			t.Errorf("%s: its Secret is %s, another volume's %s", pv.Name, got, name)
		}
		images = append(images, cephCSIImage(t, w, pv))
	}
	for i := range each {
		pv := w.volumeOf(ctx, t, s, i)
		must(t, w.Client.CoreV1().PersistentVolumeClaims(s.namespace).Delete(ctx, fmt.Sprintf("%s-%d", s.name, i), metav1.DeleteOptions{}))
		must(t, harness.Eventually(ctx, func() (string, error) {
			_, err := w.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return "", nil
			}
			return "PersistentVolume " + pv.Name + " is still there", err
		}))
		left, err := w.sharedSecrets(ctx)
		must(t, err)
		if !slices.Contains(left, name) {
			t.Errorf("%d of %d volumes are gone; the shared Secrets are %v", i+1, each, left)
		}
		for _, image := range images[i+1:] {
			if _, err := image.State(ctx); err != nil {
				t.Error(err)
			}
		}
		all, err := w.env.Images(ctx)
		must(t, err)
		if slices.Contains(all, images[i].Name) {
			t.Errorf("image %s is still there", images[i].Name)
		}
	}
}
