package scale

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const (
	provisioner = "openstack.org/standalone-cinder"
	class       = "cinder-gold"
	namespaces  = 5000
	tenants     = 1000
	servers     = 200                                    // backends
	clusterUID  = "6f0b8a1c-7a40-4d6e-9a0e-0c1d2e3f4a5b" // of the namespace kube-system
)

// policyFor gives every tenant a few namespaces, in one of three ways. Half of the
// tenants share the first backend, the others two or three each of the rest. Each is
// a project of the same Cinder.
func policyFor(sim *cindersim.Simulator, audit time.Duration) string {
	var text strings.Builder
	fmt.Fprintf(&text, `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: scale
audit: {interval: %s}
defaults: {workflow: reserve, limits: {concurrency: 64}}
backends:
`, audit)
	for i := range servers {
		fmt.Fprintf(&text, "  - {name: backend-%d, auth: {noauth: {endpoint: %q, user: admin, project: \"%032x\"}}}\n", i, sim.NoauthEndpoint(), 1+i)
	}
	text.WriteString("tenants:\n")
	for t := range tenants {
		var own string
		switch t % 3 {
		case 0:
			var names []string
			for n := t; n < namespaces; n += tenants {
				names = append(names, namespaceOf(n))
			}
			own = "namespaces: [" + strings.Join(names, ", ") + "]"
		case 1:
			own = fmt.Sprintf(`namespaces: ["team-%d-*"]`, t)
		default:
			own = fmt.Sprintf(`namespaceSelector: {matchLabels: {team: "%d"}}`, t)
		}
		fmt.Fprintf(&text, "  - {name: %s, %s, quota: {volumes: 1000000}, classes: [{storageClasses: [%s], backends: [%s]}]}\n", tenantOf(t), own, class, backendOf(t))
	}
	return text.String()
}

// The numbers below are those of claims. Neighbors are in different namespaces.
func namespaceOf(i int) string {
	if n := i % namespaces; n%tenants%3 == 1 {
		return fmt.Sprintf("team-%d-%d", n%tenants, n)
	}
	return fmt.Sprintf("project-%d", i%namespaces)
}
func tenantOf(i int) string  { return fmt.Sprintf("tenant-%d", i%tenants) }
func backendOf(i int) string { return fmt.Sprintf("backend-%d", serverOf(i)) }
func projectOf(i int) string { return fmt.Sprintf("%032x", 1+serverOf(i)) }
func serverOf(i int) int {
	if tenant := i % tenants; tenant >= tenants/2 {
		return 1 + tenant%(servers-1)
	}
	return 0
}

// prepare creates the objects that claims need.
func prepare(s *apiServer) {
	for i := range namespaces {
		s.put("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: namespaceOf(i), UID: types.UID(uuid.NewString()), Labels: map[string]string{"team": fmt.Sprint(i % tenants), "kubernetes.io/metadata.name": namespaceOf(i)},
		}})
	}
	s.put("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: clusterUID}})
	s.put("storageclasses", &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class, UID: "class"}, Provisioner: provisioner})
}

// serve adds a claim that was served long ago: claim, PersistentVolume and
// Secret in Kubernetes, the volume at Cinder, all as large as in a real
// cluster.
func serve(s *apiServer, sim *cindersim.Simulator, i int) error {
	uid := uuid.NewString()
	claim := claimOf(i, uid)
	pvName := "pvc-" + uid
	id, err := sim.AddVolume(cindersim.Volume{
		Name: pvName, Project: projectOf(i), SizeGiB: 1, Status: "in-use", Created: time.Now().Add(-time.Hour),
		Metadata: map[string]string{
			policy.StampPrefix + "cluster": "scale", policy.StampPrefix + "kube-system-uid": clusterUID,
			policy.StampPrefix + "requested": `1 GiB, type "", zone ""`, policy.StampPrefix + "claim-uid": uid, policy.StampPrefix + "tenant": tenantOf(i),
			policy.StampPrefix + "storage-class": class, policy.StampPrefix + "workflow": "reserve",
			policy.StampPrefix + "requested-at": time.Now().Add(-time.Hour).UTC().Format(time.RFC3339),
			"csi.storage.k8s.io/pvc/name":       claim.Name, "csi.storage.k8s.io/pvc/namespace": claim.Namespace, "csi.storage.k8s.io/pv/name": pvName,
		},
		AdminMetadata: map[string]string{"readonly": "False", "attached_mode": "rw"},
		Attachments:   []cindersim.Attachment{{Host: "standalone-cinder", Mountpoint: "/dev/kubernetes"}},
	})
	if err != nil {
		return err
	}
	claim.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
	claim.Annotations["pv.kubernetes.io/bound-by-controller"] = "yes"
	claim.Spec.VolumeName = pvName
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests}
	s.put("persistentvolumeclaims", claim)
	s.put("persistentvolumes", volumeOf(i, claim, id, cinder.NewPlace(sim.NoauthEndpoint(), projectOf(i))))
	s.put("secrets", &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: harness.Namespace, Name: pvName + "-credentials", UID: types.UID(uuid.NewString()), CreationTimestamp: old(),
			Labels:      map[string]string{"app.kubernetes.io/managed-by": "standalone-cinder"},
			Annotations: map[string]string{policy.StampPrefix + "persistent-volume": pvName, policy.StampPrefix + "cluster": "scale"},
		},
		Type: "kubernetes.io/iscsi-chap",
		Data: map[string][]byte{"node.session.auth.username": []byte("nEt4RzVCwhNkBVFqPpbb"), "node.session.auth.password": []byte("PpbbnEt4RzVCwhNkBVFq")},
	})
	return nil
}

func old() metav1.Time { return metav1.NewTime(time.Now().Add(-time.Hour)) }

// claimOf returns a new claim as kubectl apply makes it.
func claimOf(i int, uid string) *corev1.PersistentVolumeClaim {
	name := fmt.Sprintf("data-%d", i)
	mode, storageClass := corev1.PersistentVolumeFilesystem, class
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespaceOf(i), Name: name, UID: types.UID(uid), CreationTimestamp: old(),
			Labels: map[string]string{"app.kubernetes.io/name": "database", "app.kubernetes.io/instance": name},
			Annotations: map[string]string{
				"kubectl.kubernetes.io/last-applied-configuration": `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"annotations":{},"labels":{"app.kubernetes.io/instance":"` + name +
					`","app.kubernetes.io/name":"database"},"name":"` + name + `","namespace":"` + namespaceOf(i) + `"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},"storageClassName":"cinder-gold"}}` + "\n",
				"volume.kubernetes.io/storage-provisioner":      provisioner,
				"volume.beta.kubernetes.io/storage-provisioner": provisioner,
			},
			Finalizers:    []string{"kubernetes.io/pvc-protection"},
			ManagedFields: managed(6),
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: &storageClass,
			VolumeMode:       &mode,
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
}

// volumeOf returns the PersistentVolume that the program writes for a claim.
func volumeOf(i int, claim *corev1.PersistentVolumeClaim, id string, at cinder.Place) *corev1.PersistentVolume {
	name := "pvc-" + string(claim.UID)
	initiator := "iqn.2018-01.io.k8s.standalone-cinder:scale"
	filesystem := corev1.PersistentVolumeFilesystem
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(uuid.NewString()), CreationTimestamp: old(),
			Annotations: map[string]string{
				policy.StampPrefix + "volume-id": id, policy.StampPrefix + "backend": backendOf(i), policy.StampPrefix + "tenant": tenantOf(i),
				policy.StampPrefix + "endpoint": at.Endpoint, policy.StampPrefix + "project-id": at.Project,
				policy.StampPrefix + "rule": fmt.Sprintf("tenants[%d].classes[0]", i%tenants), policy.StampPrefix + "protocol": "iscsi",
				policy.StampPrefix + "connector": `{"host":"standalone-cinder","ip":"127.0.0.1","initiator":"` + initiator + `","os_type":"linux2","platform":"x86_64","multipath":false}`,
				policy.StampPrefix + "cluster":   "scale", policy.StampPrefix + "claim-uid": string(claim.UID), policy.StampPrefix + "policy-revision": "0123456789ab",
				policy.StampPrefix + "secret": name + "-credentials", policy.StampPrefix + "secret-namespace": harness.Namespace,
				policy.StampPrefix + "secret-uid": uuid.NewString(),
				"pv.kubernetes.io/provisioned-by": provisioner,
			},
			Finalizers:    []string{"external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"},
			ManagedFields: managed(16),
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              class,
			VolumeMode:                    &filesystem,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: "1234567",
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
				TargetPortal: "192.0.2.10:3260", IQN: "iqn.2010-10.org.openstack:volume-" + id, Lun: 1, FSType: "ext4",
				DiscoveryCHAPAuth: false, SessionCHAPAuth: true, InitiatorName: &initiator,
				SecretRef: &corev1.SecretReference{Name: name + "-credentials", Namespace: harness.Namespace},
			}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound, LastPhaseTransitionTime: &metav1.Time{Time: time.Now().Add(-time.Hour)}},
	}
}

// managed returns the API server's record of the fields' owners.
func managed(annotations int) []metav1.ManagedFieldsEntry {
	now := old()
	fields := `{"f:metadata":{"f:annotations":{".":{},` + strings.TrimSuffix(strings.Repeat(`"f:standalone-cinder.openstack.org/policy-revision":{},`, annotations), ",") +
		`}},"f:spec":{"f:accessModes":{},"f:capacity":{".":{},"f:storage":{}},"f:claimRef":{},"f:persistentVolumeReclaimPolicy":{},"f:storageClassName":{},"f:volumeMode":{}}}`
	return []metav1.ManagedFieldsEntry{
		{Manager: "standalone-cinder", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)},
		{Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:phase":{}}}`), Subresource: "status"},
	}
}
