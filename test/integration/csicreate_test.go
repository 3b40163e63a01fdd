package integration

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// sidecarOf calls a replica's socket as a sidecar does, once it is ready.
func (w *world) sidecarOf(endpoint string) csi.ControllerClient {
	w.Helper()
	connection, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.must(err)
	w.Cleanup(func() { _ = connection.Close() })
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		probe, err := csi.NewIdentityClient(connection).Probe(w.ctx, &csi.ProbeRequest{})
		if err == nil && !probe.GetReady().GetValue() {
			return "the driver is not ready", nil
		}
		return "", err
	}))
	return csi.NewControllerClient(connection)
}

// TestExternalProvisionerIsToldWhatTheProgramMade stands in for external-provisioner:
// it asks for claims that the program provisions by itself, gets the volumes of just
// these, finds their PersistentVolumes saved, and cannot delete what they name.
func TestExternalProvisionerIsToldWhatTheProgramMade(t *testing.T) {
	w := csiWorld(t, "csicreate")
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	endpoint := "unix://" + w.socket()
	w.start("--csi-endpoint", endpoint)
	driver := w.sidecarOf(endpoint)
	asking := func(claim *corev1.PersistentVolumeClaim, gib int64) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{
			Name: "pvc-" + string(claim.UID), CapacityRange: &csi.CapacityRange{RequiredBytes: gib << 30},
			Parameters: map[string]string{"csi.storage.k8s.io/pvc/namespace": claim.Namespace, "csi.storage.k8s.io/pvc/name": claim.Name, "csi.storage.k8s.io/pv/name": "pvc-" + string(claim.UID)},
			VolumeCapabilities: []*csi.VolumeCapability{{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}, AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			}},
		}
	}
	want := func(err error, code codes.Code, message string) {
		t.Helper()
		if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), message) {
			t.Errorf("got %v, want %s: %s", err, code, message)
		}
	}
	claim, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-b", "data", w.name+"-driver", "2Gi", nil))
	w.must(err)
	response, err := driver.CreateVolume(w.ctx, asking(claim, 2))
	w.must(err)
	pv, volume := w.madeFor("data")
	if got := response.GetVolume(); got.GetVolumeId() != "lab/"+volume.ID || got.GetCapacityBytes() != 2<<30 {
		t.Errorf("the volume is %v", got)
	}
	theirs := pv.DeepCopy()
	theirs.ObjectMeta = metav1.ObjectMeta{Name: pv.Name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "standalone-cinder.openstack.org"}}
	if _, err := suite.Client.CoreV1().PersistentVolumes().Create(w.ctx, theirs, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("another PersistentVolume could be saved (%v)", err)
	}
	again, err := driver.CreateVolume(w.ctx, asking(claim, 2))
	if w.must(err); again.GetVolume().GetVolumeId() != response.GetVolume().GetVolumeId() {
		t.Errorf("the volume is %v now", again)
	}
	_, err = driver.CreateVolume(w.ctx, asking(claim, 3))
	want(err, codes.AlreadyExists, "has a volume of 2147483648 bytes")
	_, err = driver.DeleteVolume(w.ctx, &csi.DeleteVolumeRequest{VolumeId: "lab/" + volume.ID})
	want(err, codes.FailedPrecondition, "PersistentVolume "+pv.Name+" names the volume")

	// A name proves nothing about another claim, and nothing is made without one.
	other := asking(claim, 2)
	other.Parameters["csi.storage.k8s.io/pvc/name"] = "other"
	_, err = driver.CreateVolume(w.ctx, other)
	want(err, codes.PermissionDenied, "has the UID at the end of the volume's name")
	bare := asking(claim, 2)
	bare.Parameters = map[string]string{"namespace": w.name + "-b", "storageClass": w.name + "-driver"}
	_, err = driver.CreateVolume(w.ctx, bare)
	want(err, codes.InvalidArgument, "so the program cannot tell which claim asks for the volume")
	for name, denied := range map[string]struct {
		class, size string
		code        codes.Code
		message     string
	}{
		"large":    {w.name + "-driver", "20Gi", codes.OutOfRange, "20 GiB"},
		"mistaken": {w.name + "-mistaken", "1Gi", codes.PermissionDenied, "makes native volumes"},
	} {
		claim, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-b", name, denied.class, denied.size, nil))
		w.must(err)
		_, err = driver.CreateVolume(w.ctx, asking(claim, 1))
		want(err, denied.code, denied.message)
	}
	if volumes := w.sim.Volumes(); len(volumes) != 1 {
		t.Errorf("there are %d volumes", len(volumes))
	}
	w.must(suite.DeleteClaims(w.ctx, w.name+"-b"))
	w.noResidue()
	// The driver may not have seen yet that the PersistentVolume is gone. A sidecar asks again.
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := driver.DeleteVolume(w.ctx, &csi.DeleteVolumeRequest{VolumeId: "lab/" + volume.ID})
		if status.Code(err) == codes.FailedPrecondition {
			return err.Error(), nil
		}
		return "", err
	}))
}
