package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// An administrator, a populator or a backup tool may bind a PersistentVolume to a claim
// other than the one its volume was created for. The volume's identity never changes. Its
// holder does, both on the volume and on the PersistentVolume, and so does the tenant it
// counts for.

// The reasons of events about PersistentVolumes that were bound to another claim.
const (
	reasonRebound      = "Rebound"
	reasonRebindDenied = "RebindDenied"
	// reasonRebindFailed says that the stamp could not be written yet.
	reasonRebindFailed = "RebindFailed"
	// reasonGivenAway denies a claim whose own volume now belongs to another claim.
	reasonGivenAway = "VolumeGivenAway"
)

// rebinding is one attempt to record a volume's new claim.
type rebinding struct {
	*Followup
	pv     *corev1.PersistentVolume
	claim  *corev1.PersistentVolumeClaim
	origin objects.Origin
	// misstamped means that the record names the claim, but the stamp did not.
	misstamped bool
	// before is the volume's earlier stamp; zero if the volume is gone or already has the
	// new stamp.
	before stamps.Volume
	// sizeGiB is the size at Cinder; 0 if the volume is gone.
	sizeGiB  int64
	requests *requestids.RequestIDs
}

// rebind records the new claim of a rebound PersistentVolume, first on the volume, then
// on the PersistentVolume. The volume's identity stays, so every operation works at any
// moment in between, and an interrupted attempt is simply repeated.
func (f *Followup) rebind(ctx context.Context, name string, misstamped bool) error {
	r := &rebinding{Followup: f, misstamped: misstamped}
	cached, err := f.cachedPVs.Get(name)
	if apierrors.IsNotFound(err) || err == nil && !r.isWanted(cached) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, r.requests = requestids.WithRequestIDs(ctx)
	if bound, err := r.read(ctx, cached); err != nil || !bound {
		return err
	}
	if r.origin, err = objects.OriginOf(r.pv); err == nil {
		err = r.mayDelete(r.pv, r.origin, r.cachedPVs)
	}
	if err != nil {
		return r.refuse(err.Error() + "; or, if the volume is to stay with this claim as it is, import it under another PersistentVolume: see standalone-cinder volume import")
	}
	decision, err := r.decide(ctx)
	if err != nil {
		return err
	}
	if decision.Denial != nil {
		return r.deny(decision.Denial)
	}
	if err := r.restamp(ctx, decision); err != nil {
		r.fail(err)
		return err
	}
	if r.misstamped && r.before == (stamps.Volume{}) {
		return nil // the listing was older than the stamp
	}
	return r.save(ctx, decision)
}

func (r *rebinding) isWanted(pv *corev1.PersistentVolume) bool {
	ref := pv.Spec.ClaimRef
	return r.isRebound(pv) || r.misstamped && r.isMine(pv) && pv.Status.Phase == corev1.VolumeBound && ref != nil && ref.UID == objects.HolderOf(pv)
}

// read reads both objects from the API server and reports whether they are bound to each
// other. If not, nothing happens until one of them changes.
func (r *rebinding) read(ctx context.Context, cached *corev1.PersistentVolume) (bound bool, err error) {
	r.pv, err = r.client.CoreV1().PersistentVolumes().Get(ctx, cached.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (r.pv.UID != cached.UID || !r.isWanted(r.pv)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read PersistentVolume %s: %w", cached.Name, err)
	}
	ref := r.pv.Spec.ClaimRef
	r.claim, err = r.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (r.claim.UID != ref.UID || r.claim.Spec.VolumeName != r.pv.Name) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return true, nil
}

// decide asks the policy which tenant the volume counts for from now on. The namespace's
// labels may determine that, so they are read from the API server.
func (r *rebinding) decide(ctx context.Context) (policy.Decision, error) {
	namespace, err := r.client.CoreV1().Namespaces().Get(ctx, r.claim.Namespace, metav1.GetOptions{})
	if err != nil {
		return policy.Decision{}, fmt.Errorf("cannot read the labels of namespace %s, which determine its tenant: %w", r.claim.Namespace, err)
	}
	request := objects.RequestToHold(r.claim.Namespace, r.claim.Name, namespace.Labels, r.pv)
	return r.policy().DecideHolder(request, r.origin.Backend), nil
}

// deny reports that the policy does not grant the volume to the claim. The volume still
// counts for its earlier tenant and can still be removed.
func (r *rebinding) deny(denial *policy.Denial) error {
	denied := placement.DenialOf(denial)
	r.report(corev1.EventTypeWarning, reasonRebindDenied, fmt.Sprintf(
		"%s: %s; until a rule grants it, volume %s counts for tenant %s, and can only be used and deleted", denied.Reason, denied.Message, r.origin.VolumeID, r.origin.Tenant), fmt.Sprintf(
		"%s: %s; until a rule grants it, the volume of PersistentVolume %s can only be used and deleted", denied.Reason, denied.Message, r.pv.Name))
	return &waitError{
		message:  fmt.Sprintf("claim %s/%s may not have the volume of PersistentVolume %s: %s", r.claim.Namespace, r.claim.Name, r.pv.Name, denied.Message),
		triggers: append(denied.Triggers, parking.Trigger{Kind: parking.Policy}, parking.Trigger{Kind: parking.Namespace, Name: r.claim.Namespace}),
	}
}

// refuse reports that nothing proves that the volume belongs to the PersistentVolume.
func (r *rebinding) refuse(message string) error {
	r.report(corev1.EventTypeWarning, reasonRebindDenied, message, fmt.Sprintf("nothing proves that the volume of PersistentVolume %s is this claim's; ask an operator, who sees the reason on the PersistentVolume", r.pv.Name))
	return &waitError{message: message, triggers: []parking.Trigger{{Kind: parking.Policy}, {Kind: parking.Credentials, Name: r.origin.Backend}}}
}

// fail reports that the volume cannot be stamped yet. Kubernetes needs no help with its
// part.
func (r *rebinding) fail(err error) {
	var failed *cinder.Error
	if !errors.As(err, &failed) || r.stopping() {
		return
	}
	r.report(corev1.EventTypeWarning, reasonRebindFailed,
		fmt.Sprintf("volume %s, which still counts for tenant %s, cannot be stamped for claim %s/%s yet; the program tries again: %v", r.origin.VolumeID, r.origin.Tenant, r.claim.Namespace, r.claim.Name, err),
		fmt.Sprintf("the volume of PersistentVolume %s cannot be stamped for this claim yet; the program tries again, and the events of the PersistentVolume say why", r.pv.Name))
}

// report writes events on the PersistentVolume and on the claim, if they are news. The
// claim's author must not learn who had the volume before.
func (r *rebinding) report(eventType, reason, onPV, onClaim string) {
	if r.parkedVolumes.lot.IsNews(r.pv.UID, reason, onPV, isVolatile(reason)) {
		r.recorder.Event(r.pv, eventType, reason, onPV)
		r.recorder.Event(r.claim, eventType, reason, onClaim)
	}
}

// restamp stamps the volume for the claim.
func (r *rebinding) restamp(ctx context.Context, decision policy.Decision) error {
	volumes, err := r.backends.Recorded(r.origin.Backend)
	if err != nil {
		return err
	}
	target := r.targetOf(r.pv, r.origin)
	released := false
	target.Permit = func(ctx context.Context, v cinder.Volume) error {
		if released {
			return nil
		}
		r.before = stamps.Of(v)
		err := r.isReleased(ctx)
		released = err == nil
		return err
	}
	rebound, err := volumes.Rebind(r.rates.OnBehalfOf(ctx, decision.Tenant), target, stamps.Volume{
		Cluster: r.cluster, ClusterUID: r.clusterUID, Namespace: r.claim.Namespace, Claim: r.claim.Name,
		ClaimUID: r.origin.ClaimUID, PV: r.pv.Name, ReboundTo: string(r.claim.UID), Tenant: decision.Tenant, StorageClass: r.pv.Spec.StorageClassName,
	}, func(before stamps.Volume) map[string]string {
		return r.metadata(cmp.Or(before.Tenant, r.origin.Tenant), decision.Tenant)
	})
	r.sizeGiB = rebound.SizeGiB
	switch cinder.KindOf(err) {
	case cinder.KindNotFound:
		// The volume is gone, which its completion or deletion reports. The record still
		// counts and follows the claim.
		return nil
	case backends.KindNotOurs:
		return r.refuse(fmt.Sprintf("%v; if the PersistentVolume was restored or copied under another name, set its reclaim policy to Retain, delete it, and import the volume: see standalone-cinder volume import", err))
	}
	return objects.WithRemedy(err, r.origin)
}

// metadata returns the policy's metadata for volumes of the claim's tenant. Keys that
// only the earlier tenant has are emptied. The stamp names the earlier tenant: an
// interrupted rebind may have stamped the volume for a tenant that the record never
// named.
func (r *rebinding) metadata(earlier, tenant string) map[string]string {
	own := map[string]string{}
	if before, ok := r.policy().Tenant(earlier); ok && tenant != before.Name {
		for key := range before.Metadata {
			own[key] = ""
		}
	}
	if now, ok := r.policy().Tenant(tenant); ok {
		maps.Copy(own, now.Metadata)
	}
	return own
}

// isReleased proves that the claim that the stamp names has lost the volume: the claim is
// gone, or Lost, or uses another PersistentVolume.
func (r *rebinding) isReleased(ctx context.Context) error {
	if r.before.Claim == "" || r.before.Namespace == "" {
		return nil // an older stamp, which does not name it
	}
	earlier, err := objects.ClaimOf(ctx, r.client, r.before)
	if err != nil || earlier == nil || earlier.UID == r.claim.UID || earlier.Spec.VolumeName != r.pv.Name || earlier.Status.Phase == corev1.ClaimLost {
		return err
	}
	return fmt.Errorf("claim %s/%s does not show yet that it has lost PersistentVolume %s", earlier.Namespace, earlier.Name, r.pv.Name)
}

// save records the claim on the PersistentVolume, which now counts for its tenant. It
// also records the size, since only this step does so if the earlier claim lost the
// PersistentVolume while its volume grew.
func (r *rebinding) save(ctx context.Context, decision policy.Decision) error {
	saved, err := objects.Rebind(ctx, r.client, r.pv, r.sizeGiB, map[string]string{
		objects.AnnotationReboundTo: string(r.claim.UID), objects.AnnotationTenant: decision.Tenant, objects.AnnotationRule: decision.Rule, objects.AnnotationRevision: r.policy().Revision(),
	})
	if err != nil {
		return err
	}
	r.countRecorded(saved)
	over := r.overQuota(decision)
	now := fmt.Sprintf("tenant %s, rule %s: claim %s/%s has volume %s of backend %s now%s", decision.Tenant, decision.Rule, r.claim.Namespace, r.claim.Name, r.origin.VolumeID, r.origin.Backend, over)
	r.report(corev1.EventTypeNormal, reasonRebound, now+r.earlier(), now)
	r.logger.Info("Rebound a volume", "tenant", decision.Tenant, "claim", requestids.ClaimOf(saved), "claimUID", r.claim.UID, "persistentVolume", saved.Name,
		"backend", r.origin.Backend, "volume", r.origin.VolumeID, "sizeGiB", requestids.SizeOf(saved), "requestID", r.requests.OfStamp(), "tenantBefore", r.origin.Tenant, "claimBefore", strings.Trim(r.before.Namespace+"/"+r.before.Claim, "/"))
	return nil
}

func (r *rebinding) earlier() string {
	if r.before.Claim == "" {
		return fmt.Sprintf("; before, tenant %s had it", r.origin.Tenant)
	}
	return fmt.Sprintf("; before, claim %s/%s of tenant %s had it", r.before.Namespace, r.before.Claim, r.origin.Tenant)
}

// overQuota names the quotas that the volume exceeds: a quota cannot keep a volume from a
// claim that is already bound to it.
func (r *rebinding) overQuota(decision policy.Decision) string {
	var text strings.Builder
	for _, scope := range decision.Quotas {
		for _, limit := range scope.Exceeded(r.ledger.Usage(scope.Kind, scope.Name)) {
			fmt.Fprintf(&text, "; %s uses %d of %d %s (%s)", scope.Subject(), limit.Used, limit.Limit, limit.Unit, limit.Path)
		}
	}
	return text.String()
}

// waitError ends a follow-up that only a trigger can resume.
type waitError struct {
	message  string
	triggers []parking.Trigger
}

func (e *waitError) Error() string { return e.message }

// rebindOf returns the follow-up for a PersistentVolume bound to another claim.
func rebindOf(pvName string) task { return unique.Make(followup{kind: rebind, pv: pvName}) }

// misstampedOf returns the follow-up for a PersistentVolume whose volume's stamp names a
// claim other than the one it records and is bound to.
func misstampedOf(pvName, volume string) task {
	return unique.Make(followup{kind: rebind, pv: pvName, volume: volume})
}

// holderChanged queues the PersistentVolume that a claim names, if its record names
// another claim: the claim was bound to it, or has lost it.
func (f *Followup) holderChanged(claim *corev1.PersistentVolumeClaim) {
	if pv, err := f.cachedPVs.Get(claim.Spec.VolumeName); err == nil && f.isRebound(pv) {
		f.loop.Queue.Add(rebindOf(pv.Name))
	}
}
