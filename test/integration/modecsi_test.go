package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// unlikeCSI compares a PersistentVolume of the driver with the volume that it names.
func unlikeCSI(pv corev1.PersistentVolume, v cindersim.Volume, secrets []corev1.Secret) (complaint string) {
	source := pv.Spec.CSI
	if source == nil || source.Driver != wire.DriverName || source.VolumeHandle != "gold/"+v.ID && !objects.IsSwapped(&pv) || source.NodeStageSecretRef == nil {
		return fmt.Sprintf("PersistentVolume %s has the source %+v", pv.Name, source)
	}
	wanted := ""
	if v.SourceID != "" {
		wanted = v.SourceID
	}
	if strings.HasPrefix(pv.Name, "imported-") {
		wanted = v.Metadata[annotation("filesystem-uuids")]
		if source.VolumeAttributes["neverFormat"] != "true" && !objects.IsBlockVolume(&pv) {
			return fmt.Sprintf("PersistentVolume %s has the attributes %v, so its imported volume may be formatted", pv.Name, source.VolumeAttributes)
		}
	}
	if source.VolumeAttributes["filesystemUUIDs"] != wanted {
		return fmt.Sprintf("PersistentVolume %s has the attributes %v, and its volume is a copy of %q", pv.Name, source.VolumeAttributes, v.SourceID)
	}
	if pv.Annotations["pv.kubernetes.io/provisioned-by"] == wire.DriverName {
		return fmt.Sprintf("PersistentVolume %s was provisioned by the driver", pv.Name)
	}
	i := slices.IndexFunc(secrets, func(secret corev1.Secret) bool {
		return secret.Name == source.NodeStageSecretRef.Name && secret.Namespace == source.NodeStageSecretRef.Namespace
	})
	if i < 0 || len(secrets[i].Data) > 0 || source.NodeStageSecretRef.Name != pv.Name+"-node" {
		return fmt.Sprintf("the Secret of %s does not exist, or is not empty", pv.Name)
	}
	return ""
}

// leaveAttachment attaches a volume to a node, as an interrupted call of the driver would
// leave it.
func leaveAttachment(ctx context.Context, sim *cindersim.Simulator, volume string) error {
	body := fmt.Sprintf(`{"attachment": {"volume_uuid": %q, "connector": {"host": "node-1.x", "ip": "192.0.2.9", "initiator": "iqn.2026-01.example:node-1", "platform": "x86_64", "os_type": "linux", "multipath": false}}}`, volume)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, sim.NoauthEndpoint()+"/"+cindersim.DefaultNoauthProject+"/attachments", strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("X-Auth-Token", "admin:"+cindersim.DefaultNoauthProject)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("OpenStack-API-Version", "volume 3.44")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if content, err := io.ReadAll(response.Body); err != nil || response.StatusCode >= 300 {
		return fmt.Errorf("attachment of volume %s: %s: %s (%w)", volume, response.Status, content, err)
	}
	return nil
}

// csiWorld returns a world with the rule for StorageClass NAME-lab in mode csi, and
// two StorageClasses that name the driver: NAME-driver, with a rule in mode csi, and
// NAME-mistaken, with one in mode native.
func csiWorld(t *testing.T, name string) *world {
	return csiWorldAt(t, name, cindersim.Options{CreateDelay: 100 * time.Millisecond})
}

func csiWorldAt(t *testing.T, name string, options cindersim.Options) *world {
	w := newWorld(t, name, options)
	w.policy = w.change("    workflow: reserve\n", "")
	w.policy = w.change(`      - storageClasses: ["`+name+`-lab"]
        backends: [lab]
`, `      - storageClasses: ["`+name+`-lab", "`+name+`-driver"]
        backends: [lab]
        mode: csi
      - storageClasses: ["`+name+`-mistaken"]
        backends: [lab]
`)
	for _, class := range []string{"driver", "mistaken"} {
		w.must(suite.CreateClass(w.ctx, name+"-"+class, wire.DriverName, nil))
	}
	return w
}

// madeFor waits until a claim is bound, and its volume available and marked.
func (w *world) madeFor(name string) (corev1.PersistentVolume, cindersim.Volume) {
	w.Helper()
	var pv *corev1.PersistentVolume
	var volume cindersim.Volume
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claim, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-b").Get(w.ctx, name, metav1.GetOptions{})
		if err != nil || claim.Status.Phase != corev1.ClaimBound {
			return "claim " + name + " is not bound", err
		}
		if pv, err = suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claim.Spec.VolumeName, metav1.GetOptions{}); err != nil {
			return "", err
		}
		volumes := w.sim.VolumesNamed(pv.Name)
		if len(volumes) != 1 || volumes[0].Status != "available" || volumes[0].Metadata[annotation("attached")] != "true" {
			return fmt.Sprintf("the volumes are %s", describe(volumes)), nil
		}
		volume = volumes[0]
		return "", nil
	}))
	return *pv, volume
}

func (w *world) secretsOf(t *testing.T) []corev1.Secret {
	t.Helper()
	list, err := suite.Client.CoreV1().Secrets(harness.Namespace).List(w.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=standalone-cinder"})
	w.must(err)
	return slices.DeleteFunc(list.Items, func(secret corev1.Secret) bool { return secret.Annotations[annotation("cluster")] != "cluster-"+w.name })
}

// TestClaimsInModeCSI: claims are bound to PersistentVolumes of the driver, whichever
// name their StorageClasses give the provisioner, and a copy names the filesystems
// that it may have. A released volume waits for its VolumeAttachments, over a change
// of the leader, and an attachment that is left is ended.
func TestClaimsInModeCSI(t *testing.T) {
	t.Parallel()
	w := csiWorld(t, "modecsi")
	replica := w.start(shortLease...)
	w.claim("b", "ours", "lab", "1Gi")
	w.claim("b", "driver", "driver", "1Gi")
	w.claim("b", "mistaken", "mistaken", "1Gi")
	for _, name := range []string{"ours", "driver"} {
		pv, volume := w.madeFor(name)
		volume.ID = strings.TrimPrefix(pv.Spec.CSI.VolumeHandle, "lab/")
		pv.Spec.CSI.VolumeHandle = "gold/" + volume.ID
		if complaint := unlikeCSI(pv, volume, w.secretsOf(t)); complaint != "" {
			t.Error(complaint)
		}
		if by := pv.Annotations["pv.kubernetes.io/provisioned-by"]; by != w.provisioner {
			t.Errorf("claim %s was served by %s", name, by)
		}
	}
	_, err := suite.WaitEvent(w.ctx, "modecsi-b", "mistaken", "UnsupportedMode", "StorageClass modecsi-mistaken names the CSI driver standalone-cinder.openstack.org as its provisioner, but tenants[1].classes[1] makes native volumes on backend lab")
	w.must(err)
	original, source := w.madeFor("ours")
	_, err = suite.CreateClaim(w.ctx, harness.Claim("modecsi-b", "copy", "modecsi-driver", "1Gi", contentOf("ours")))
	w.must(err)
	copied, copiedVolume := w.madeFor("copy")
	if uuids := copied.Spec.CSI.VolumeAttributes["filesystemUUIDs"]; uuids != source.ID {
		t.Errorf("the copy may have the filesystems %q, want %q", uuids, source.ID)
	}
	if recorded := copiedVolume.Metadata[annotation("filesystem-uuids")]; recorded != source.ID {
		t.Errorf("the copy is recorded to have the filesystems %q, want %q", recorded, source.ID)
	}
	if code, answer := w.audit(); code != 0 {
		t.Errorf("the audit ended with %d: %+v", code, answer)
	}

	// The node does not exist: a VolumeAttachment counts whatever becomes of its node.
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "modecsi-attachment"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: wire.DriverName, NodeName: "modecsi-node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &original.Name}}}
	_, err = suite.Client.StorageV1().VolumeAttachments().Create(w.ctx, attachment, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		_ = suite.Client.StorageV1().VolumeAttachments().Delete(context.Background(), attachment.Name, metav1.DeleteOptions{})
	})
	w.must(leaveAttachment(w.ctx, w.sim, source.ID))
	w.unclaim("b", "ours")
	_, err = suite.WaitEvent(w.ctx, metav1.NamespaceDefault, original.Name, "VolumeStillAttached", "VolumeAttachment modecsi-attachment (node modecsi-node) still attaches the volume")
	w.must(err)
	w.must(replica.Stop(w.ctx))
	w.start(shortLease...)
	time.Sleep(3 * time.Second)
	if v, exists := w.sim.Volume(source.ID); !exists || v.Status != "attaching" {
		t.Errorf("the volume was touched while a VolumeAttachment named it: %+v", v)
	}
	w.must(suite.Client.StorageV1().VolumeAttachments().Delete(w.ctx, attachment.Name, metav1.DeleteOptions{}))
	w.gone(original.Name, source)
	for _, secret := range w.secretsOf(t) {
		if strings.HasPrefix(secret.Name, original.Name) {
			t.Errorf("Secret %s is left", secret.Name)
		}
	}
	w.must(suite.DeleteClaims(w.ctx, "modecsi-b"))
	w.noResidue()
	if left := w.secretsOf(t); len(left) > 0 {
		t.Errorf("%d Secrets are left, such as %s", len(left), left[0].Name)
	}
}

// TestQuotaOfModeCSIHoldsWhileTheLeaderChanges: volumes that no node has attached are
// counted as others are.
//
//tier:outage
func TestQuotaOfModeCSIHoldsWhileTheLeaderChanges(t *testing.T) {
	t.Parallel()
	w := csiWorld(t, "quotacsi")
	w.policy = w.change("    volumeSize: {max: 10Gi}\n", "    quota: {volumes: 2}\n    volumeSize: {max: 10Gi}\n")
	replica := w.start(shortLease...)
	w.claim("b", "data-0", "lab", "1Gi")
	w.claim("b", "data-1", "driver", "1Gi")
	w.madeFor("data-0")
	w.madeFor("data-1")
	w.claim("b", "data-2", "lab", "1Gi")
	_, err := suite.WaitEvent(w.ctx, "quotacsi-b", "data-2", "QuotaExceeded", "tenant tenant-b would use 3 of 2 volumes")
	w.must(err)
	replica.Kill()
	next := w.start(shortLease...)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if !next.Leads(w.ctx) {
			return "the next replica does not lead", nil
		}
		return "", nil
	}))
	w.metric(next, `standalone_cinder_quota{name="tenant-b",resource="volumes",scope="tenant",type="used"} 2`)
	if n := len(w.sim.Volumes()); n != 2 {
		t.Errorf("Cinder has %d volumes", n)
	}
	w.unclaim("b", "data-0")
	w.madeFor("data-2")
	w.must(suite.DeleteClaims(w.ctx, "quotacsi-b"))
	w.noResidue()
}

// TestAccountMayChangeOnlyAttachmentsOfItsDriver attacks with the account of the
// program under the component's role and policy.
func TestAccountMayChangeOnlyAttachmentsOfItsDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "guardedcsi", cindersim.Options{})
	w.start()
	account := w.withComponent("deploy/components/csi/csi.yaml")
	attachments := func(name, attacher string) string {
		pv := "guardedcsi-" + name
		_, err := suite.Client.StorageV1().VolumeAttachments().Create(w.ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: pv}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: attacher, NodeName: "guardedcsi-node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}}, metav1.CreateOptions{})
		w.must(err)
		w.Cleanup(func() {
			_ = suite.Client.StorageV1().VolumeAttachments().Delete(context.Background(), pv, metav1.DeleteOptions{})
		})
		return pv
	}
	own, foreign := attachments("own", wire.DriverName), attachments("foreign", "ebs.csi.example")
	annotate := []byte(`{"metadata": {"annotations": {"csi.alpha.kubernetes.io/node-id": "v1 node"}}}`)
	report := []byte(`{"status": {"attached": true}}`)
	patch := func(name string, change []byte, subresources ...string) error {
		_, err := account.StorageV1().VolumeAttachments().Patch(w.ctx, name, "application/merge-patch+json", change, metav1.PatchOptions{}, subresources...)
		return err
	}
	// The policies take effect some moments after they were made.
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if patch(foreign, annotate) == nil {
			return "the policy is not in force", nil
		}
		return "", nil
	}))
	w.must(patch(own, annotate))
	w.must(patch(own, report, "status"))
	for name, err := range map[string]error{
		"annotates another driver's":  patch(foreign, annotate),
		"reports on another driver's": patch(foreign, report, "status"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want it forbidden", name, err)
		}
	}
	if _, err := account.StorageV1().CSINodes().List(w.ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

// withComponent gives the account of a world's replicas the roles of a component, under
// its admission policies, and returns a client of that account.
func (w *world) withComponent(path string) kubernetes.Interface {
	w.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", path))
	w.must(err)
	account := harness.Account(w.provisioner)
	renamed := strings.NewReplacer("standalone-cinder-csi", account+"-csi", "standalone-cinder-attachments", account+"-attachments",
		"name: standalone-cinder\n", "name: "+account+"\n", ":standalone-cinder'", ":"+account+"'").Replace(string(content))
	var wanted [][]byte
	for document := range strings.SplitSeq(renamed, "\n---\n") {
		if strings.Contains(document, "standalone-cinder-node") {
			continue // the account of the nodes
		}
		for _, kind := range []string{"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
			if strings.Contains(document, "\nkind: "+kind+"\n") {
				wanted = append(wanted, []byte(document))
			}
		}
	}
	if len(wanted) != 4 {
		w.Fatalf("the component has %d roles and policies", len(wanted))
	}
	w.must(suite.Apply(w.ctx, wanted...))
	w.Cleanup(func() {
		admission := suite.Client.AdmissionregistrationV1()
		_ = admission.ValidatingAdmissionPolicyBindings().Delete(context.Background(), account+"-attachments", metav1.DeleteOptions{})
		_ = admission.ValidatingAdmissionPolicies().Delete(context.Background(), account+"-attachments", metav1.DeleteOptions{})
	})
	config := rest.CopyConfig(suite.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: fmt.Sprintf("system:serviceaccount:%s:%s", harness.Namespace, account),
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + harness.Namespace, "system:authenticated"},
	}
	client, err := kubernetes.NewForConfig(config)
	w.must(err)
	return client
}

// TestNodePluginsWriteOnlyTheirOwnReports attacks with the account of a node plugin under
// the component's role and policy: a Lease of another node, the leader's, and others.
func TestNodePluginsWriteOnlyTheirOwnReports(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "guardednode", cindersim.Options{})
	content, err := os.ReadFile(filepath.Join("..", "..", "deploy", "components", "csi", "csi.yaml"))
	w.must(err)
	account := harness.Account(w.provisioner) + "-node"
	var wanted [][]byte
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		for _, kind := range []string{"Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
			if strings.Contains(document, "\nkind: "+kind+"\n") && strings.Contains(document, "name: standalone-cinder-node\n") {
				wanted = append(wanted, []byte(strings.ReplaceAll(document, "standalone-cinder-node", account)))
			}
		}
	}
	if len(wanted) != 4 {
		t.Fatalf("the component has %d objects for the nodes", len(wanted))
	}
	w.must(suite.Apply(w.ctx, wanted...))
	w.Cleanup(func() {
		admission := suite.Client.AdmissionregistrationV1()
		_ = admission.ValidatingAdmissionPolicyBindings().Delete(context.Background(), account, metav1.DeleteOptions{})
		_ = admission.ValidatingAdmissionPolicies().Delete(context.Background(), account, metav1.DeleteOptions{})
		for _, lease := range []string{"staged-volumes.guardednode-0", "staged-volumes.guardednode-1", "staged-volumes.guardednode-2", "frozen-volumes.guardednode-1", "frozen-volumes.guardednode-2"} {
			_ = suite.Client.CoordinationV1().Leases(harness.Namespace).Delete(context.Background(), lease, metav1.DeleteOptions{})
		}
	})
	on := func(node string) coordinationclient.LeaseInterface {
		config := rest.CopyConfig(suite.Config)
		config.Impersonate = rest.ImpersonationConfig{
			// Their namespace is not the program's, where the reports are.
			UserName: fmt.Sprintf("system:serviceaccount:%s:%s", account, account),
			Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + account, "system:authenticated"},
		}
		if node != "" {
			config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
		}
		client, err := coordinationclient.NewForConfig(config)
		w.must(err)
		return client.Leases(harness.Namespace)
	}
	// The leaders of other tests delete the reports of nodes that are gone.
	nodes := suite.Client.CoreV1().Nodes()
	for _, node := range []string{"guardednode-1", "guardednode-2"} {
		_, err := nodes.Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
		w.must(err)
		w.Cleanup(func() { _ = nodes.Delete(context.Background(), node, metav1.DeleteOptions{}) })
	}
	machine := harness.Machine("guardednode-1", "boot-1")
	w.must(suite.ReportStaged(w.ctx, "guardednode-2", harness.Machine("guardednode-2", "boot-1"), "gold/v2"))
	write := func(by coordinationclient.LeaseInterface, name string) error {
		lease := staged.Report{Machine: machine, Written: time.Now()}.Lease(harness.Namespace, "x")
		lease.Name = name
		if present, err := suite.Client.CoordinationV1().Leases(harness.Namespace).Get(w.ctx, name, metav1.GetOptions{}); err == nil {
			lease.ResourceVersion = present.ResourceVersion
			_, err = by.Update(w.ctx, lease, metav1.UpdateOptions{})
			return err
		}
		_, err := by.Create(w.ctx, lease, metav1.CreateOptions{})
		return err
	}
	// The policy takes effect some moments after it was made.
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if !apierrors.IsForbidden(write(on("guardednode-1"), "staged-volumes.guardednode-0")) {
			return "the policy is not in force", nil
		}
		return "", nil
	}))
	one := on("guardednode-1")
	w.must(write(one, "staged-volumes.guardednode-1"))
	w.must(write(one, "staged-volumes.guardednode-1"))
	// The leader makes the Leases with its orders.
	for _, node := range []string{"guardednode-1", "guardednode-2"} {
		_, err := suite.Client.CoordinationV1().Leases(harness.Namespace).Create(w.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "frozen-volumes." + node}}, metav1.CreateOptions{})
		w.must(err)
	}
	w.must(write(one, "frozen-volumes.guardednode-1"))
	watched, err := one.Watch(w.ctx, metav1.ListOptions{FieldSelector: "metadata.name=frozen-volumes.guardednode-1"})
	w.must(err)
	watched.Stop()
	for name, err := range map[string]error{
		"another node's answer": write(one, "frozen-volumes.guardednode-2"),
		"an order of its own":   write(one, "frozen-volumes.guardednode-3"),
		"deletes an order":      one.Delete(w.ctx, "frozen-volumes.guardednode-1", metav1.DeleteOptions{}),
		"another node's":        write(one, "staged-volumes.guardednode-2"),
		"a new one of another":  write(one, "staged-volumes.guardednode-3"),
		"the leader's":          write(one, "openstack.org-standalone-cinder"),
		"without a node":        write(on(""), "staged-volumes.guardednode-4"),
		"deletes its own":       one.Delete(w.ctx, "staged-volumes.guardednode-1", metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want it forbidden", name, err)
		}
	}
	report, err := suite.Client.CoordinationV1().Leases(harness.Namespace).Get(w.ctx, "staged-volumes.guardednode-2", metav1.GetOptions{})
	w.must(err)
	if got := staged.Of(report).Volumes; len(got) != 1 {
		t.Errorf("the other node's report names %q", got)
	}
}
