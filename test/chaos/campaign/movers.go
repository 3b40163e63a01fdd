package campaign

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// mover takes one volume from claim to claim, as administrators and populators do.
type mover struct {
	*world
	step plan.MoverStep
	// claim has the volume, and pv is its PersistentVolume.
	claim *corev1.PersistentVolumeClaim
	pv    string
	// grown is how often a claim asked for more.
	grown int
}

// runMover carries out one step. Steps overlap. A move that has begun is completed even
// after the faults end, unless something keeps it from that, which the ending judges.
func (w *world) runMover(ctx, trouble context.Context, step plan.MoverStep) {
	bounded, cancel := context.WithDeadline(ctx, w.started.Add(w.plan.Duration+w.options.Settle))
	defer cancel()
	m := &mover{world: w, step: step}
	w.carryOut(ctx, trouble, step.At, step.String(), func() error { return m.run(bounded, trouble) })
}

func (m *mover) run(ctx, trouble context.Context) (err error) {
	if m.claim, err = m.create(ctx, m.step.Tenant, m.step.Claim, nil); err != nil {
		return err
	}
	if !m.awaitBound(trouble, m.claim.Namespace, m.claim.Name) {
		return nil
	}
	m.pv = "pvc-" + string(m.claim.UID)
	for _, move := range m.step.Moves {
		if !sleep(trouble, move.After) {
			return nil
		}
		if err := m.move(ctx, move); err != nil {
			return fmt.Errorf("PersistentVolume %s, to %s of tenant %s: %w", m.pv, move.Claim, move.Tenant, err)
		}
	}
	if !m.step.Ends {
		return nil
	}
	return m.deleteClaim(ctx, m.claim.Namespace, m.claim.Name, m.claim.UID)
}

// move gives the volume to another claim.
func (m *mover) move(ctx context.Context, move plan.Move) error {
	how := m.byHand
	if move.Way == plan.ByPopulator {
		how = m.byPopulator
	}
	next, err := how(ctx, move)
	if err != nil {
		return err
	}
	m.timeline.Note("%s went from claim %s/%s (%s) to %s/%s (%s) %s", m.pv, m.claim.Namespace, m.claim.Name, m.claim.UID, next.Namespace, next.Name, next.UID, move.Way)
	m.change(func(c *Counts) { c.Rebound++ })
	before := m.claim
	m.claim = next
	if move.Grows {
		m.grown++
		if err := m.grow(ctx, next.Namespace, plan.GrowStep{Claim: next.Name, SizeMi: m.step.SizeMi + 1024*m.grown}); err != nil {
			return err
		}
	}
	if move.Anew {
		_, err = m.createNamed(ctx, before.Namespace, before.Name, nil)
	}
	return err
}

// byHand keeps the volume, deletes its claim, and reserves the PersistentVolume for
// another one.
func (m *mover) byHand(ctx context.Context, move plan.Move) (next *corev1.PersistentVolumeClaim, err error) {
	if err := m.retain(ctx, m.pv); err != nil {
		return nil, err
	}
	if err := m.deleteClaim(ctx, m.claim.Namespace, m.claim.Name, m.claim.UID); err != nil {
		return nil, err
	}
	if err := m.awaitReleased(ctx); err != nil {
		return nil, err
	}
	reserve := func() error { return m.give(ctx, m.names.namespace(move.Tenant), move.Claim, "") }
	create := func() error {
		next, err = m.create(ctx, move.Tenant, move.Claim, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = m.pv })
		return err
	}
	steps := []func() error{reserve, create}
	if move.ClaimFirst {
		steps[0], steps[1] = create, reserve
	}
	for _, do := range steps {
		if err := do(); err != nil {
			return nil, err
		}
	}
	if err := m.awaitPhase(ctx, next, corev1.ClaimBound); err != nil {
		return nil, err
	}
	m.fates.Note(m.pv, func(f *checker.Fate) { f.Freed = true })
	_, err = m.reclaim(ctx, m.pv, corev1.PersistentVolumeReclaimDelete)
	return next, err
}

// byPopulator takes the PersistentVolume from its claim, for one that waits for its
// content.
func (m *mover) byPopulator(ctx context.Context, move plan.Move) (next *corev1.PersistentVolumeClaim, err error) {
	next, err = m.create(ctx, move.Tenant, move.Claim, func(c *corev1.PersistentVolumeClaim) {
		group := "populators.chaos.example"
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "Content", Name: "content"}
	})
	if err != nil {
		return nil, err
	}
	if err := m.give(ctx, next.Namespace, next.Name, next.UID); err != nil {
		return nil, err
	}
	if err := m.awaitPhase(ctx, next, corev1.ClaimBound); err != nil {
		return nil, err
	}
	if err := m.awaitPhase(ctx, m.claim, corev1.ClaimLost); err != nil {
		return nil, err
	}
	return next, m.deleteClaim(ctx, m.claim.Namespace, m.claim.Name, m.claim.UID)
}

// isPopulated reports whether a claim waits for a populator.
func isPopulated(claim *corev1.PersistentVolumeClaim) bool {
	ref := claim.Spec.DataSourceRef
	return ref != nil && ref.APIGroup != nil && strings.HasPrefix(*ref.APIGroup, "populators.")
}

func (m *mover) create(ctx context.Context, tenant, name string, change func(*corev1.PersistentVolumeClaim)) (*corev1.PersistentVolumeClaim, error) {
	return m.createNamed(ctx, m.names.namespace(tenant), name, change)
}

// createNamed creates a claim. An earlier one of its name may have to go first.
func (m *mover) createNamed(ctx context.Context, namespace, name string, change func(*corev1.PersistentVolumeClaim)) (*corev1.PersistentVolumeClaim, error) {
	class := plan.Moved
	if m.step.OnNodes {
		class = plan.MovedOnNodes
	}
	claim := harness.Claim(namespace, name, m.names.class(class), fmt.Sprintf("%dMi", m.step.SizeMi), change)
	if m.step.Block {
		mode := corev1.PersistentVolumeBlock
		claim.Spec.VolumeMode = &mode
	}
	for {
		made, err := m.createClaim(ctx, claim)
		switch {
		case err == nil && made.DeletionTimestamp == nil && !m.claims.DeletionRequested(made.UID):
			m.claims.NoteMade(made.UID)
			return made, nil
		case err != nil && !apierrors.IsNotFound(err):
			return nil, err
		case !sleep(ctx, lookAgain):
			return nil, fmt.Errorf("the earlier claim %s/%s is still there: %w", namespace, name, ctx.Err())
		}
	}
}

// give makes the PersistentVolume name another claim, with or without its UID.
func (m *mover) give(ctx context.Context, namespace, name string, uid types.UID) error {
	volumes := m.suite.Client.CoreV1().PersistentVolumes()
	for {
		err := insist(ctx, func(ctx context.Context) error {
			pv, err := volumes.Get(ctx, m.pv, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != m.claim.UID {
				return nil // as an earlier request left it
			}
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: name, UID: uid}
			_, err = volumes.Update(ctx, pv, metav1.UpdateOptions{})
			return err
		})
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

// awaitReleased waits until the PersistentVolume has lost its claim.
func (m *mover) awaitReleased(ctx context.Context) error {
	for {
		pv, err := read(ctx, m.suite.Client.CoreV1().PersistentVolumes(), m.pv)
		switch {
		case err != nil:
			return err
		case pv.Status.Phase == corev1.VolumeReleased:
			return nil
		case !sleep(ctx, lookAgain):
			return fmt.Errorf("it is %s: %w", pv.Status.Phase, ctx.Err())
		}
	}
}

// awaitPhase waits until a claim of the PersistentVolume has a phase. It finds claims
// that get another volume.
func (m *mover) awaitPhase(ctx context.Context, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase) error {
	object := fmt.Sprintf("claim %s/%s", claim.Namespace, claim.Name)
	for {
		now, err := read(ctx, m.suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace), claim.Name)
		switch {
		case err != nil:
			return err
		case now.UID != claim.UID:
			return fmt.Errorf("%s is another one", object)
		case now.Spec.VolumeName != "" && now.Spec.VolumeName != m.pv:
			m.found(checker.Finding{Kind: checker.Duplicate, Object: object, ClaimUID: string(claim.UID),
				Text: fmt.Sprintf("got PersistentVolume %s, and %s was given to it", now.Spec.VolumeName, m.pv)})
			return fmt.Errorf("%s has PersistentVolume %s", object, now.Spec.VolumeName)
		case now.Status.Phase == phase:
			return nil
		case !sleep(ctx, lookAgain):
			return fmt.Errorf("%s is %s: %w", object, now.Status.Phase, ctx.Err())
		}
	}
}

// chargedBy returns the metadata that volumes of a tenant carry. Keys that only those of
// other tenants carry are empty.
func chargedBy(p *policy.Policy, tenant string) map[string]string {
	metadata := map[string]string{}
	for _, other := range p.Tenants {
		for key := range other.Metadata {
			metadata[key] = ""
		}
	}
	if own, ok := p.Tenant(tenant); ok {
		maps.Copy(metadata, own.Metadata)
	}
	return metadata
}

// counted returns what the leader counts for the tenants of movers. What it counts for
// others cannot be compared with their volumes: it may not know of what an earlier leader
// left where a backend led for a while.
func (w *world) counted(ctx context.Context) map[string]*policy.Usage {
	metrics := ""
	if r := w.leader(ctx, 0).running(); r != nil {
		asking, cancel := context.WithTimeout(ctx, try)
		_, metrics, _ = r.Get(asking, "/metrics") // no answer says nothing
		cancel()
	}
	counted := map[string]*policy.Usage{}
	for _, tenant := range plan.MoverNames() {
		counted[tenant] = countedIn(metrics, tenant)
	}
	return counted
}

// countedIn reads what a leader counts for a tenant; nil if it does not say.
func countedIn(metrics, tenant string) *policy.Usage {
	read := func(resource string) (n int64, found bool) {
		_, after, found := strings.Cut("\n"+metrics, fmt.Sprintf("\nstandalone_cinder_quota{name=%q,resource=%q,scope=\"tenant\",type=\"used\"} ", tenant, resource))
		value, err := strconv.ParseFloat(firstLine(after), 64)
		return int64(value), found && err == nil
	}
	volumes, saysVolumes := read("volumes")
	gigabytes, saysGigabytes := read("gigabytes")
	if !saysVolumes || !saysGigabytes {
		return nil
	}
	return &policy.Usage{Volumes: volumes, Gigabytes: gigabytes}
}
