package campaign

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// end lets everything settle, twice: with half of the claims deleted and half
// kept, and with all deleted. Findings go to the course. It returns how long
// settling took the first time.
func (w *world) end(ctx context.Context) (settled time.Duration, err error) {
	w.timeline.Say("seed %d: the faults ended after %.0f s; deleting half of the claims", w.plan.Seed, time.Since(w.started).Seconds())
	// All three replicas are needed again, and the initial policy, whose reload
	// brings back at once what waits for a retry.
	for _, s := range w.slots {
		s.upgrade(ctx)
	}
	if err := w.startReplicas(ctx); err != nil {
		return 0, err
	}
	if err := w.reload(0); err != nil {
		return 0, err
	}
	operating, cancel := context.WithCancel(ctx)
	defer cancel()
	go w.operate(operating)
	began := time.Now()
	keep := w.plan.KeptAtTheEnd
	if err := w.settleWithout(ctx, func(claim *corev1.PersistentVolumeClaim) bool { return !keep(claim.Namespace, claim.Name) }); err != nil {
		return 0, err
	}
	settled = time.Since(began)
	w.timeline.Say("seed %d: settled after %.1f s; deleting the rest", w.plan.Seed, settled.Seconds())
	if err := w.settleWithout(ctx, func(*corev1.PersistentVolumeClaim) bool { return true }); err != nil {
		return 0, err
	}
	w.stopSampling()
	w.noteDisconnected()
	w.noteHarm()
	w.noteKeys()
	return settled, w.countUnbound(ctx)
}

// settleWithout deletes claims with all that uses them, and lets everything settle where
// backends led for a while, and then at home.
func (w *world) settleWithout(ctx context.Context, which func(*corev1.PersistentVolumeClaim) bool) error {
	if err := w.deleteClaims(ctx, which); err != nil {
		return err
	}
	if err := w.deleteSnapshots(ctx); err != nil {
		return err
	}
	if err := w.endPods(ctx); err != nil {
		return err
	}
	w.endWorkloads()
	if err := w.visit(ctx); err != nil {
		return err
	}
	return w.settle(ctx, nil)
}

// noteDisconnected finds volumes that were taken from nodes.
func (w *world) noteDisconnected() {
	w.mu.Lock()
	uses := w.uses
	w.mu.Unlock()
	asked := func(uid string) time.Time { return w.claims.DeletionRequestedAt(types.UID(uid)) }
	for _, f := range checker.Disconnected(uses, asked, w.sim.Journal()) {
		w.found(f)
	}
}

// countUnbound counts the program's events about PersistentVolumes that were
// deleted before they were bound.
func (w *world) countUnbound(ctx context.Context) error {
	told, err := w.listWarnings(ctx)
	for _, reasons := range told {
		if reasons["DeletedBeforeBound"] {
			w.change(func(c *Counts) { c.Unbound++ })
		}
	}
	return err
}

// deleteClaims deletes some of the claims, and those whose delete request got
// no answer.
func (w *world) deleteClaims(ctx context.Context, which func(*corev1.PersistentVolumeClaim) bool) error {
	claims, err := w.listClaims(ctx)
	if err != nil {
		return err
	}
	for i := range claims {
		claim := &claims[i]
		if w.claims.DeletionRequested(claim.UID) || which(claim) {
			if err := w.deleteClaim(ctx, claim.Namespace, claim.Name, claim.UID); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle waits for a while until nothing is wrong. What is still wrong then is
// a finding. While backends lead elsewhere, only objects there matter.
func (w *world) settle(ctx context.Context, lead places) error {
	const calm = time.Second
	clean := 0
	for deadline := time.Now().Add(w.options.Settle); ; {
		state, err := w.state(ctx)
		if err != nil {
			return err
		}
		findings := checker.Ending(state)
		if lead != nil {
			findings = checker.EndingAt(state, w.placesOf(lead))
		}
		if clean++; len(findings) > 0 {
			clean = 0
			if err := errors.Join(w.deleteUnbound(ctx), w.freeSources(ctx)); err != nil {
				return err
			}
		}
		// Twice, so that work still under way shows.
		if clean == 2 {
			return nil
		}
		if time.Now().After(deadline) {
			for _, f := range findings {
				w.found(f)
			}
			return nil
		}
		if !sleep(ctx, calm) {
			return ctx.Err()
		}
	}
}

func (w *world) listClaims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	var all []corev1.PersistentVolumeClaim
	err := w.inEach(ctx, plan.AllTenants(), func(ctx context.Context, namespace string) error {
		list, err := w.suite.Client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
		if err == nil {
			all = append(all, list.Items...)
		}
		return err
	})
	return all, err
}

// state reads everything from the servers themselves.
func (w *world) state(ctx context.Context) (checker.State, error) {
	s := checker.State{Cluster: w.names.cluster(), Host: connectorHost}
	claims, err := w.listClaims(ctx)
	if err != nil {
		return s, err
	}
	if s.PVs, err = w.listPVs(ctx); err != nil {
		return s, err
	}
	if s.Secrets, err = w.listSecrets(ctx); err != nil {
		return s, err
	}
	told, err := w.listWarnings(ctx)
	if err != nil {
		return s, err
	}
	w.mu.Lock()
	s.Foreign = maps.Clone(w.foreign)
	given := maps.Clone(w.given)
	w.mu.Unlock()
	s.Volumes = w.sim.Volumes()
	s.Fates, s.TooLate = w.fates.All(), w.tooLate
	s.DeletionRequestedAt = func(uid string) time.Time { return w.claims.DeletionRequestedAt(types.UID(uid)) }
	_, s.LedSince = w.watch.term()
	inForce, err := policy.Parse([]byte(w.configuration().policy), "policy.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		return s, err
	}
	s.Counted = w.counted(ctx)
	// A PersistentVolume counts, wherever its volume is.
	counted := slices.Clone(s.Volumes)
	for i, v := range counted {
		if before, ours := given[v.ID]; ours {
			counted[i] = before
		}
	}
	used := checker.Usage(inForce, s.Cluster, w.backendOf(), counted, checker.Everything)
	for i := range claims {
		claim := &claims[i]
		c := checker.Claim{
			UID: string(claim.UID), Namespace: claim.Namespace, Name: claim.Name,
			Bound: claim.Status.Phase == corev1.ClaimBound,
			Asked: w.claims.DeletionRequested(claim.UID),
		}
		c.Tenant = inForce.Decide(w.request(claim)).Tenant
		c.Metadata = chargedBy(inForce, c.Tenant)
		source, sourceDenial := w.source(ctx, claim)
		if ref := claim.Spec.DataSource; ref != nil && !isPopulated(claim) {
			c.IsCopy = true
			if at := slices.IndexFunc(claims, func(other corev1.PersistentVolumeClaim) bool {
				return other.Namespace == claim.Namespace && other.Name == ref.Name
			}); at >= 0 {
				c.Copies = string(claims[at].UID)
			}
		}
		if !c.Bound {
			reason, message := w.denial(inForce, claim, source, used)
			switch {
			case isPopulated(claim):
				message, c.Explained = "it waits for its populator", true
			case sourceDenial != nil:
				reason, message = sourceDenial.Reason, sourceDenial.Message
			case source != nil && message == "" && !w.isCopyable(s, *source.Content.Volume, claim):
				reason, message = "ProvisioningFailed", "the volume of its source is broken, gone, another's, larger or elsewhere"
			}
			if c.Denial = message; message != "" && !c.Explained {
				c.Explained = told[claim.UID][string(reason)]
			}
			c.ToldQuota = told[claim.UID][string(policy.QuotaExceeded)]
		} else {
			w.addGrowth(&c, claim, inForce, s.Volumes, used, told[claim.UID])
		}
		s.Claims = append(s.Claims, c)
	}
	if err := w.addAttachments(ctx, &s); err != nil {
		return s, err
	}
	if err := w.addMachines(ctx, &s); err != nil {
		return s, err
	}
	return s, w.addSnapshots(ctx, &s, told)
}

// source returns the content that a claim wants, or why the claim cannot have
// it.
func (w *world) source(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*objects.Source, *policy.Denial) {
	named, _ := admission.DataSourceOf(claim, nil)
	if named == nil {
		return nil, nil
	}
	source, denial, err := objects.SourceOf(claim, named, w.names.cluster(), sources{ctx, w.suite.Client})
	if err != nil {
		return nil, &policy.Denial{Reason: policy.SourceNotReady, Message: err.Error()}
	}
	return source, denial
}

// sources reads sources at the API server.
type sources struct {
	ctx    context.Context
	client kubernetes.Interface
}

func (s sources) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return s.client.CoreV1().PersistentVolumeClaims(namespace).Get(s.ctx, name, metav1.GetOptions{})
}

func (s sources) PersistentVolume(name string) (*corev1.PersistentVolume, error) {
	return s.client.CoreV1().PersistentVolumes().Get(s.ctx, name, metav1.GetOptions{})
}

// isCopyable reports whether Cinder can copy the volume of a source to that of a claim:
// faults may have broken it, an administrator may have given it away, its backend may lead
// elsewhere, and its growth may have ended at Cinder when its own claim was deleted.
func (w *world) isCopyable(s checker.State, source backends.Target, to *corev1.PersistentVolumeClaim) bool {
	size := to.Spec.Resources.Requests[corev1.ResourceStorage]
	return slices.ContainsFunc(s.Volumes, func(v cindersim.Volume) bool {
		return v.ID == source.VolumeID && (v.Status == "available" || v.Status == "in-use") &&
			v.Metadata[checker.StampClaimUID] == source.Stamp.ClaimUID && w.isReachable(v.Project) && (int64(v.SizeGiB)-1)<<30 < size.Value()
	})
}

// denial returns why the policy denies a pending claim.
func (w *world) denial(inForce *policy.Policy, claim *corev1.PersistentVolumeClaim, source *objects.Source, used map[string]policy.Usage) (policy.Reason, string) {
	request := w.request(claim)
	if source != nil {
		request.Source = &source.Decided
	}
	return checker.Room(inForce.Decide(request), used)
}

// request returns what a claim asks the policy for, without its source.
func (w *world) request(claim *corev1.PersistentVolumeClaim) policy.Request {
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	request := policy.Request{
		Namespace:       claim.Namespace,
		NamespaceLabels: w.names.labels(claim.Namespace[strings.LastIndex(claim.Namespace, "-")+1:]),
		StorageClass:    *claim.Spec.StorageClassName,
		Parameters:      classParameters(),
		VolumeMode:      policy.Filesystem,
		Bytes:           policy.Bytes(size),
	}
	if claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		request.VolumeMode = policy.Block
	}
	return request
}

func (w *world) listPVs(ctx context.Context) ([]checker.PV, error) {
	var pvs []checker.PV
	err := insist(ctx, func(ctx context.Context) error {
		all, err := w.suite.PersistentVolumes(ctx, w.names.provisioner())
		pvs = nil
		for i := range all {
			pvs = append(pvs, pvOf(&all[i]))
		}
		return err
	})
	return pvs, err
}

func (w *world) listSecrets(ctx context.Context) ([]checker.Secret, error) {
	var secrets []checker.Secret
	err := insist(ctx, func(ctx context.Context) error {
		list, err := w.suite.Client.CoreV1().Secrets(harness.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		secrets = nil
		for _, secret := range list.Items {
			if secret.Annotations[annotationCluster] == w.names.cluster() {
				secrets = append(secrets, checker.Secret{Name: secret.Name, PV: secret.Annotations[annotationForPV]})
			}
		}
		return nil
	})
	return secrets, err
}

// listWarnings lists the reasons of all warnings, by the claim's UID.
func (w *world) listWarnings(ctx context.Context) (map[types.UID]map[string]bool, error) {
	told := map[types.UID]map[string]bool{}
	for _, tenant := range plan.AllTenants() {
		err := insist(ctx, func(ctx context.Context) error {
			events, err := w.suite.Client.CoreV1().Events(w.names.namespace(tenant)).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning"})
			if err != nil {
				return err
			}
			for _, event := range events.Items {
				uid := event.InvolvedObject.UID
				if told[uid] == nil {
					told[uid] = map[string]bool{}
				}
				told[uid][event.Reason] = true
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return told, nil
}

// sweep removes what the seed left in the cluster, whatever its state: the next
// seed shares the control plane. Cinder is already gone.
func (w *world) sweep() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := w.sweepObjects(ctx); err != nil {
		w.timeline.Say("seed %d: remaining objects in the cluster cannot be removed: %s", w.plan.Seed, err)
	}
}

func (w *world) sweepObjects(ctx context.Context) error {
	if err := w.sweepSnapshots(ctx); err != nil {
		return err
	}
	if err := errors.Join(w.sweepPods(ctx), w.sweepMachines(ctx), w.sweepKeys(ctx)); err != nil {
		return err
	}
	claims, err := w.listClaims(ctx)
	if err != nil {
		return err
	}
	for _, claim := range claims {
		if err := w.deleteClaim(ctx, claim.Namespace, claim.Name, claim.UID); err != nil {
			return err
		}
	}
	pvs, err := w.listPVs(ctx)
	if err != nil {
		return err
	}
	for _, pv := range pvs {
		if err := sweep(ctx, w.suite.Client.CoreV1().PersistentVolumes(), pv.Name); err != nil {
			return fmt.Errorf("PersistentVolume %s: %w", pv.Name, err)
		}
	}
	return nil
}
