package tour

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// What the program writes on PersistentVolumes and volumes, as documented.
const (
	annotationVolume   = "standalone-cinder.openstack.org/volume-id"
	annotationBackend  = "standalone-cinder.openstack.org/backend"
	annotationTenant   = "standalone-cinder.openstack.org/tenant"
	annotationRule     = "standalone-cinder.openstack.org/rule"
	annotationProtocol = "standalone-cinder.openstack.org/protocol"
	annotationCluster  = "standalone-cinder.openstack.org/cluster"
	metadataClaimUID   = "standalone-cinder.openstack.org/claim-uid"
)

// expectation is a claim and its expected result.
type expectation struct {
	namespace, claim, class, asked         string
	tenant, rule, backend, protocol, given string
}

func (t *tour) expectations() []expectation {
	return []expectation{
		{t.names.shop(), "database", t.names.fast(), "5Gi", "shop", "tenants[0].classes[0]", "gold", "iscsi", "5Gi"},
		{t.names.shop(), "uploads", t.names.fast(), "2500Mi", "shop", "tenants[0].classes[0]", "gold", "iscsi", "3Gi"},
		{t.names.research(), "scratch", t.names.lab(), "1Gi", "research", "tenants[1].classes[0]", "lab", "iscsi", "1Gi"},
		{t.names.research(), "results", t.names.ceph(), "20Gi", "research", "tenants[1].classes[1]", "lab", "rbd", "20Gi"},
	}
}

// provision creates claims of two tenants and shows what became of them.
func (t *tour) provision(ctx context.Context) error {
	t.out.Step("Two tenants create claims")
	if err := t.makeTenants(ctx); err != nil {
		return err
	}
	expectations := t.expectations()
	for _, e := range expectations {
		if err := t.file(ctx, e.namespace, e.claim, e.class, e.asked); err != nil {
			return err
		}
	}
	bound, err := t.waitBound(ctx, 60)
	if err != nil {
		return err
	}
	rows := [][]string{{"CLAIM (Bound)", "TENANT", "RULE", "BACKEND", "PROTOCOL", "VOLUME AT CINDER", "REQUESTED", "PV"}}
	for _, e := range expectations {
		b := bound[e.namespace+"/"+e.claim]
		annotations := b.pv.Annotations
		got := e
		got.tenant, got.rule = annotations[annotationTenant], annotations[annotationRule]
		got.backend, got.protocol = annotations[annotationBackend], annotations[annotationProtocol]
		got.given = b.pv.Spec.Capacity.Storage().String()
		if got != e {
			return fmt.Errorf("claim %s/%s became %+v, not %+v", e.namespace, e.claim, got, e)
		}
		rows = append(rows, []string{e.namespace + "/" + e.claim, got.tenant, got.rule, got.backend, got.protocol, b.volume.ID, e.asked, got.given})
	}
	t.out.Table(rows)
	return t.showVolume(bound[t.names.shop()+"/database"])
}

// showVolume shows what a node mounts with, and where the credentials are.
func (t *tour) showVolume(b binding) error {
	iscsi := b.pv.Spec.ISCSI
	if iscsi == nil || iscsi.SecretRef == nil || iscsi.SecretRef.Namespace != harness.Namespace {
		return fmt.Errorf("PersistentVolume %s is not an iSCSI volume with a Secret in %s", b.pv.Name, harness.Namespace)
	}
	t.out.Say("A node mounts without asking OpenStack; everything it needs is in the PV. For %s/%s:", b.claim.Namespace, b.claim.Name)
	t.out.Quote(fmt.Sprintf("iscsi:\n  {targetPortal: %q, lun: %d, fsType: %s,\n   iqn: %s,\n   secretRef: {namespace: %s, name: %s}}",
		iscsi.TargetPortal, iscsi.Lun, iscsi.FSType, iscsi.IQN, iscsi.SecretRef.Namespace, iscsi.SecretRef.Name))
	t.out.Say("The Secret contains the CHAP password. It is in a namespace that no tenant can read.")
	return nil
}

// deny shows that a claim that no rule admits is denied, with a reason.
func (t *tour) deny(ctx context.Context) error {
	t.out.Step("A namespace without a rule gets nothing")
	const claim = "wish"
	creates := t.sim.CountByOperation()["volume.create"]
	namespace := t.names.guest()
	if _, err := t.suite.CreateClaim(ctx, harness.Claim(namespace, claim, t.names.fast(), "1Gi", nil)); err != nil {
		return fmt.Errorf("claim %s/%s cannot be created: %w", namespace, claim, err)
	}
	waiting, cancel := within(ctx, 30)
	defer cancel()
	event, err := t.suite.WaitEvent(waiting, namespace, claim, "NoMatchingTenant", namespace)
	if err != nil {
		return fmt.Errorf("the claim of a stranger is not denied: %w", err)
	}
	current, err := t.suite.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if asked := t.sim.CountByOperation()["volume.create"] - creates; asked != 0 {
		return fmt.Errorf("the claim of a stranger was denied, but Cinder still got %d requests for volumes", asked)
	}
	if current.Status.Phase != corev1.ClaimPending {
		return fmt.Errorf("the claim of a stranger was denied, but is %s", current.Status.Phase)
	}
	t.out.Say("%s/%s is %s, Cinder got no request for a volume, and the claim's event says why:", namespace, claim, current.Status.Phase)
	t.out.Say("%s %s: %s", event.Type, event.Reason, event.Message)
	return nil
}

// file creates a claim for a tenant.
func (t *tour) file(ctx context.Context, namespace, name, class, size string) error {
	if _, err := t.suite.CreateClaim(ctx, harness.Claim(namespace, name, class, size, nil)); err != nil {
		return fmt.Errorf("claim %s/%s cannot be created: %w", namespace, name, err)
	}
	t.filed.Add(1)
	return nil
}

// binding is a claim with its PersistentVolume and its volume at Cinder.
type binding struct {
	claim  corev1.PersistentVolumeClaim
	pv     corev1.PersistentVolume
	volume cindersim.Volume
}

// waitBound waits until all claims of the tenants are bound and their volumes
// in use, and checks that claims, PersistentVolumes and volumes match one to
// one. The result is by namespace/name.
func (t *tour) waitBound(ctx context.Context, seconds int) (map[string]binding, error) {
	ctx, cancel := within(ctx, seconds)
	defer cancel()
	var claims []corev1.PersistentVolumeClaim
	for _, namespace := range t.names.tenantNamespaces() {
		all, err := t.suite.Client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		bound, err := t.suite.WaitBound(ctx, namespace, len(all.Items))
		if err != nil {
			return nil, fmt.Errorf("not all claims are bound after %d s: %w", seconds, err)
		}
		claims = append(claims, bound...)
	}
	if filed := int(t.filed.Load()); len(claims) != filed {
		return nil, fmt.Errorf("%d claims exist, %d were created", len(claims), filed)
	}
	err := harness.Eventually(ctx, func() (string, error) {
		for _, v := range t.sim.Volumes() {
			if v.Status != "in-use" {
				return fmt.Sprintf("volume %s (%s) is %s", v.ID, v.Name, v.Status), nil
			}
		}
		return "", nil
	})
	if err != nil {
		return nil, fmt.Errorf("not all volumes are in use after %d s: %w", seconds, err)
	}
	return t.match(ctx, claims)
}

// match finds the one volume of each claim; an orphan or a duplicate is an
// error.
func (t *tour) match(ctx context.Context, claims []corev1.PersistentVolumeClaim) (map[string]binding, error) {
	pvs, err := t.suite.PersistentVolumes(ctx, t.names.provisioner)
	if err != nil {
		return nil, err
	}
	byName := map[string]corev1.PersistentVolume{}
	for _, pv := range pvs {
		byName[pv.Name] = pv
	}
	bindings := map[string]binding{}
	users := map[string]string{} // of volumes, by ID
	for _, claim := range claims {
		name := claim.Namespace + "/" + claim.Name
		pv, ok := byName[claim.Spec.VolumeName]
		if !ok {
			return nil, fmt.Errorf("claim %s is bound to %s, which does not exist", name, claim.Spec.VolumeName)
		}
		volume, ok := t.sim.Volume(pv.Annotations[annotationVolume])
		if !ok {
			return nil, fmt.Errorf("claim %s is bound to %s, whose volume %s is not at Cinder", name, pv.Name, pv.Annotations[annotationVolume])
		}
		if volume.Metadata[metadataClaimUID] != string(claim.UID) {
			return nil, fmt.Errorf("claim %s is bound to volume %s, which is stamped for another claim", name, volume.ID)
		}
		if other, ok := users[volume.ID]; ok {
			return nil, fmt.Errorf("claims %s and %s share volume %s", name, other, volume.ID)
		}
		users[volume.ID] = name
		bindings[name] = binding{claim: claim, pv: pv, volume: volume}
	}
	var nobodys []string
	for _, v := range t.sim.Volumes() {
		if users[v.ID] == "" {
			nobodys = append(nobodys, v.Name)
		}
	}
	if len(nobodys) > 0 {
		return nil, fmt.Errorf("%d claims have %d volumes at Cinder; too many: %s", len(claims), len(t.sim.Volumes()), strings.Join(nobodys, ", "))
	}
	if len(pvs) != len(claims) {
		return nil, fmt.Errorf("%d claims have %d PersistentVolumes", len(claims), len(pvs))
	}
	return bindings, nil
}
