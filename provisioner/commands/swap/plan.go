package swap

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// planner collects all that prevents a swap, so that an operator need not find out one by
// one.
type planner struct {
	*Swapper
	*Plan
	problems []string
	// busy is how many of them end once no pod uses the claims.
	busy int
	// pods are those of the namespace, as they were when the first claim was checked.
	pods *corev1.PodList
}

func (p *planner) refuse(format string, arguments ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, arguments...))
}

// refused returns the error that lists the problems; nil if there are none.
func (p *planner) refused() error {
	if len(p.problems) == 0 {
		return nil
	}
	return &RefusedError{p.problems, p.busy == len(p.problems)}
}

// Movable is a claim whose volume may go to another one.
type Movable struct {
	Claim            *corev1.PersistentVolumeClaim
	PersistentVolume *corev1.PersistentVolume
	// Encrypted means that its volume is, by nodes or by Cinder's type.
	Encrypted bool
}

// Movable reads a claim. A *RefusedError lists what prevents any swap with the claim, now; with
// another error, there is no PersistentVolume.
func (r *Swapper) Movable(ctx context.Context, namespace, name string) (Movable, error) {
	p := &planner{Swapper: r, Plan: &Plan{Request: Request{Namespace: namespace}}}
	s, err := r.read(ctx, namespace, name)
	if err != nil {
		return Movable{}, err
	}
	s.intent = intent{From: recordOf(s.pv), To: recordOf(s.pv)}
	if s.pv.Annotations[AnnotationIntent] == "" {
		if err = p.checkSide(ctx, s, s); err == nil {
			err = p.refused()
		}
	}
	return Movable{s.claim, s.pv, s.isEncrypted()}, err
}

// Plan finds out what is to be done, and checks everything that can be checked without a
// change. A *RefusedError lists what prevents the swap. If an earlier run has begun one, the
// plan finishes that, or takes it back, and then plans anew; Refusal says what prevents that.
func (r *Swapper) Plan(ctx context.Context, request Request) (*Plan, error) {
	p := &planner{Swapper: r, Plan: &Plan{Request: request}}
	if request.Claims[0] == request.Claims[1] {
		return nil, refused("both are claim %s/%s", request.Namespace, request.Claims[0])
	}
	begun, err := r.begun(ctx, request)
	if err != nil {
		return nil, err
	}
	if begun != nil {
		if begun[0].intent.Back != request.Back {
			return nil, refused("the claims are being swapped %s; run that command to its end first", map[bool]string{false: "without --back", true: "with --back"}[begun[0].intent.Back])
		}
		if p.earlier, p.finishes = begun, isCommitted(begun); p.finishes {
			return p.Plan, nil // until it is finished, nobody can tell what the claims have
		}
	}
	err = p.fresh(ctx)
	if err != nil && p.earlier != nil {
		p.refusal, err = err, nil
	}
	if err != nil {
		return nil, err
	}
	return p.Plan, nil
}

// fresh plans a swap of which nothing was done.
func (p *planner) fresh(ctx context.Context) error {
	for i, name := range p.Claims {
		var err error
		if p.sides[i], err = p.read(ctx, p.Namespace, name); err != nil {
			return err
		}
	}
	if err := p.isCopied(); err != nil {
		return err
	}
	for i, s := range p.sides {
		other := p.sides[1-i]
		s.intent = intent{With: other.name, Back: p.Back, From: recordOf(s.pv), To: recordOf(other.pv)}
	}
	if p.haveEachOthers() != p.Back {
		p.Done = true
		return nil
	}
	// PersistentVolumes that were restored from before a swap record the former volumes.
	crossed := true
	for _, s := range p.sides {
		v, err := p.volume(ctx, s.intent.To)
		if err != nil {
			return err
		}
		crossed = crossed && stamps.Of(v).PV == s.name
	}
	if p.committed = crossed; crossed {
		return nil
	}
	return p.check(ctx)
}

// isCopied refuses to swap with a copy what has changed since the copy was made.
func (p *planner) isCopied() error {
	if p.Copy == nil || p.Copy.Volumes == nil {
		return nil
	}
	for i, s := range p.sides {
		if has, want := recordOf(s.pv).String(), p.Copy.Volumes[i].String(); has != want {
			return refused("claim %s has volume %s by now, and %s was copied", s.claim.Name, has, want)
		}
	}
	if second := p.sides[1]; second.pv.Annotations[objects.AnnotationCopyOf] != string(p.sides[0].claim.UID) {
		return refused("claim %s is no copy by now", second.claim.Name)
	}
	return nil
}

// check collects all that prevents the swap.
func (p *planner) check(ctx context.Context) error {
	p.compare()
	if err := p.decide(ctx); err != nil {
		return err
	}
	for i, s := range p.sides {
		if err := p.checkSide(ctx, s, p.sides[1-i]); err != nil {
			return err
		}
	}
	if a, b := p.sides[0].has, p.sides[1].has; a.MultiAttach != b.MultiAttach {
		p.refuse("only one of the volumes can be attached to several nodes")
	}
	p.checkEncryption()
	return p.refused()
}

// checkEncryption refuses to take a claim's encryption away. A copy may be encrypted though
// its source is not, unless it is a raw one, for whose header the source leaves no room.
func (p *planner) checkEncryption() {
	a, b := p.sides[0], p.sides[1]
	switch {
	case a.has.ID == "" || b.has.ID == "" || a.isEncrypted() == b.isEncrypted() || p.Back:
	case p.Copy == nil:
		p.refuse("only one of the volumes is encrypted")
	case a.isEncrypted():
		p.refuse("the volume of claim %s is encrypted, and that of claim %s is not", a.claim.Name, b.claim.Name)
	case objects.IsBlockVolume(a.pv):
		p.refuse("claim %s is a raw block volume, and the encrypted one of claim %s has no room for all of it", a.claim.Name, b.claim.Name)
	}
}

// checkSide collects what prevents that a claim gives its volume to another one.
func (p *planner) checkSide(ctx context.Context, s, other *side) error {
	p.checkClaim(s)
	if err := p.checkUse(ctx, s); err != nil {
		return err
	}
	return p.checkVolume(ctx, s, other)
}

// volume reads a volume; the zero Volume means that it is gone.
func (r *Swapper) volume(ctx context.Context, of record) (cinder.Volume, error) {
	volumes, err := r.Volumes(of.Backend)
	if err != nil {
		return cinder.Volume{}, err
	}
	v, _, err := volumes.Volume(ctx, of.ID)
	return v, err
}

// read reads a claim and its PersistentVolume.
func (r *Swapper) read(ctx context.Context, namespace, name string) (*side, error) {
	claim, err := r.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("cannot read claim %s/%s: %w", namespace, name, err)
	case err != nil || claim.DeletionTimestamp != nil || claim.Status.Phase != corev1.ClaimBound:
		return nil, refused("claim %s/%s does not exist, is not Bound, or is being deleted", namespace, name)
	}
	pv, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read PersistentVolume %s of claim %s/%s: %w", claim.Spec.VolumeName, namespace, name, err)
	case pv.DeletionTimestamp != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		return nil, refused("PersistentVolume %s is not bound to claim %s/%s, or is being deleted", pv.Name, namespace, name)
	case pv.Annotations[objects.AnnotationProvisionedBy] != r.ProvisionerName:
		return nil, refused("PersistentVolume %s of claim %s was not made by %s", pv.Name, name, r.ProvisionerName)
	case !objects.IsCSI(pv) || !objects.IsOurs(pv):
		return nil, refused("PersistentVolume %s of claim %s is native, so it says for good which volume it is; only claims in mode csi can swap", pv.Name, name)
	}
	origin, err := objects.OriginOf(pv)
	switch {
	case err != nil:
		return nil, refused("%s", err)
	case origin.Cluster != r.Cluster:
		return nil, refused("PersistentVolume %s was made for cluster %q, but this is %q", pv.Name, origin.Cluster, r.Cluster)
	case objects.HolderOf(pv) != claim.UID:
		return nil, refused("PersistentVolume %s is not recorded for claim %s yet; see the event Rebound or RebindDenied of the claim", pv.Name, name)
	case objects.ClaimInName(pv.Name) == "":
		return nil, refused("PersistentVolume %s of claim %s was imported, and its name says which volume it is", pv.Name, name)
	}
	return &side{name: pv.Name, claim: claim, pv: pv}, nil
}

// begun finds what an earlier run has begun with the two claims, by the intents on their
// PersistentVolumes; nil if nothing. The claims may be gone or made anew since, and so may
// one of the PersistentVolumes be gone.
func (r *Swapper) begun(ctx context.Context, request Request) (*[2]*side, error) {
	intending, err := paging.List(ctx, "PersistentVolumes", r.Client.CoreV1().PersistentVolumes().List, func(page *corev1.PersistentVolumeList) (found []*corev1.PersistentVolume) {
		for i := range page.Items {
			if pv := &page.Items[i]; pv.Annotations[AnnotationIntent] != "" && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Namespace == request.Namespace && objects.IsCSI(pv) {
				found = append(found, pv)
			}
		}
		return found
	})
	if err != nil {
		return nil, err
	}
	byName := map[string]*side{}
	for _, pv := range intending {
		i, err := intentOf(pv)
		if err != nil {
			return nil, refused("%s", err)
		}
		byName[pv.Name] = &side{name: pv.Name, pv: pv, intent: *i}
	}
	other := ""
	for n, claim := range request.Claims {
		for _, s := range byName {
			if s.pv.Spec.ClaimRef.Name != claim {
				continue
			}
			partner := byName[s.intent.With]
			if partner == nil || partner.intent.With != s.name {
				if partner, err = r.partner(ctx, s); err != nil {
					return nil, err
				}
			}
			if ref := partner.claimRef(); ref != nil && ref.Name != request.Claims[1-n] {
				other = fmt.Sprintf("the volume of claim %s is being swapped with that of claim %s; finish that first", claim, ref.Name)
				continue
			}
			pair := [2]*side{s, partner}
			if n == 1 {
				pair = [2]*side{partner, s}
			}
			return &pair, nil
		}
	}
	if other != "" {
		return nil, refused("%s", other)
	}
	return nil, nil
}

// isCommitted reports whether the intent that decides is committed. If its PersistentVolume
// is gone, the other one's decides.
func isCommitted(sides *[2]*side) bool {
	for _, s := range inOrder(*sides) {
		if s.pv != nil && s.pv.Annotations[AnnotationIntent] != "" {
			return s.intent.Committed
		}
	}
	return false
}

// partner is the other side of one that has an intent. It may have none, as the first change
// writes one intent, and the last removes one. If it has another volume by then, it has had
// its part of this swap, and only the end is left.
func (r *Swapper) partner(ctx context.Context, s *side) (*side, error) {
	partner := &side{name: s.intent.With, intent: intent{With: s.name, Back: s.intent.Back, From: s.intent.To, To: s.intent.From}}
	pv, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, s.intent.With, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("cannot read PersistentVolume %s: %w", s.intent.With, err)
	case objects.IsCSI(pv) && (recordOf(pv).is(partner.intent.From) || recordOf(pv).is(partner.intent.To)):
		partner.pv = pv
	}
	return partner, nil
}

// haveEachOthers reports whether the last swap of either was with the other. So a command
// that is run again after its end does not swap them back.
func (p *planner) haveEachOthers() bool {
	for i, s := range p.sides {
		swapped, err := objects.SwappedOf(s.pv)
		if err != nil || swapped == nil || swapped.Last() != p.sides[1-i].name {
			return false
		}
	}
	return true
}

// compare refuses what a PersistentVolume cannot change.
func (p *planner) compare() {
	a, b := p.sides[0], p.sides[1]
	for what, differ := range map[string]bool{
		"volumeMode":   objects.IsBlockVolume(a.pv) != objects.IsBlockVolume(b.pv),
		"accessModes":  !sameModes(a.pv.Spec.AccessModes, b.pv.Spec.AccessModes),
		"csi.fsType":   a.pv.Spec.CSI.FSType != b.pv.Spec.CSI.FSType,
		"nodeAffinity": !reflect.DeepEqual(a.pv.Spec.NodeAffinity, b.pv.Spec.NodeAffinity),
		"the tenant":   a.pv.Annotations[objects.AnnotationTenant] != b.pv.Annotations[objects.AnnotationTenant],
		"csi.readOnly": a.pv.Spec.CSI.ReadOnly != b.pv.Spec.CSI.ReadOnly,
	} {
		if differ {
			p.refuse("%s of PersistentVolumes %s and %s differ", what, a.pv.Name, b.pv.Name)
		}
	}
	slices.Sort(p.problems)
}

// checkClaim refuses a claim that changes.
func (p *planner) checkClaim(s *side) {
	for _, finalizer := range s.claim.Finalizers {
		if finalizer == objects.CopyFinalizer || finalizer == beingSnapshotted {
			p.refuse("the volume of claim %s is being copied or snapshotted (finalizer %s)", s.claim.Name, finalizer)
		}
	}
	for _, class := range []*string{s.pv.Spec.VolumeAttributesClassName, s.claim.Spec.VolumeAttributesClassName} {
		if class != nil && *class != "" {
			p.refuse("claim %s has VolumeAttributesClass %s, which stands for the type of its present volume", s.claim.Name, *class)
			break
		}
	}
	if requested, has := s.claim.Spec.Resources.Requests[corev1.ResourceStorage], s.claim.Status.Capacity[corev1.ResourceStorage]; requested.Cmp(has) > 0 {
		p.refuse("claim %s is growing to %s", s.claim.Name, requested.String())
	}
	if s.pv.Annotations[objects.AnnotationCopyOf] != "" && p.Copy == nil {
		p.refuse("claim %s is a copy that volume move is making; run that command again", s.claim.Name)
	}
}

// beingSnapshotted is the finalizer of the snapshot-controller on the claim of a snapshot
// that is being taken.
const beingSnapshotted = "snapshot.storage.kubernetes.io/pvc-as-source-protection"

func sameModes(a, b []corev1.PersistentVolumeAccessMode) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// decide asks the policy whether each claim may have a volume of the other's backend.
func (p *planner) decide(ctx context.Context) error {
	namespace, err := p.Client.CoreV1().Namespaces().Get(ctx, p.Namespace, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot read namespace %s, whose labels may determine its tenant: %w", p.Namespace, err)
	}
	for _, s := range p.sides {
		decision := p.Policy.DecideHolder(objects.RequestToHold(p.Namespace, s.claim.Name, namespace.Labels, s.pv), s.intent.To.Backend)
		switch {
		case decision.Denial != nil:
			p.refuse("claim %s may not have volume %s: %s: %s", s.claim.Name, s.intent.To, decision.Denial.Reason, decision.Denial.Message)
		case decision.Tenant != s.pv.Annotations[objects.AnnotationTenant]:
			p.refuse("namespace %s is tenant %s's by now, and the volume of claim %s counts for tenant %s", p.Namespace, decision.Tenant, s.claim.Name, s.pv.Annotations[objects.AnnotationTenant])
		}
	}
	return nil
}

// checkUse refuses a volume that a node has, or is about to get.
func (p *planner) checkUse(ctx context.Context, s *side) error {
	if p.pods == nil { // both claims are of one namespace
		var err error
		if p.pods, err = p.Client.CoreV1().Pods(s.claim.Namespace).List(ctx, metav1.ListOptions{}); err != nil {
			return fmt.Errorf("cannot list the pods of namespace %s: %w", s.claim.Namespace, err)
		}
	}
	for i := range p.pods.Items {
		pod := &p.pods.Items[i]
		switch isCopying := slices.Contains([]string{CopyPod(string(s.claim.UID)), CopyPod(s.claim.Annotations[objects.AnnotationCopyOf]), CopyPod(s.pv.Annotations[objects.AnnotationCopyOf])}, pod.Name); {
		case !objects.NamesClaim(pod, s.claim), isCopying && p.Copy != nil:
		case isCopying:
			p.refuse("pod %s copies the volume of claim %s, for volume move; run that to its end, or delete the pod", pod.Name, s.claim.Name)
			p.busy++
		case !objects.IsFinished(pod):
			p.refuse("pod %s uses claim %s; stop it first", pod.Name, s.claim.Name)
			p.busy++
		}
	}
	attachments, err := p.Nodes.Attachments(ctx, s.pv.Name)
	if err != nil {
		return err
	}
	users, err := p.Nodes.Users(ctx, nodeuse.VolumeOf(s.pv))
	if err != nil {
		return err
	}
	for _, a := range attachments {
		users = append(users, a.Node)
	}
	staging, err := p.Nodes.Staging(ctx, s.pv.Spec.CSI.VolumeHandle)
	if err != nil {
		return err
	}
	users = append(users, staging...)
	slices.Sort(users)
	if users = slices.Compact(users); len(users) > 0 {
		p.refuse("claim %s is in use on node %s; stop its pods first", s.claim.Name, strings.Join(users, ", "))
		p.busy++
	}
	return nil
}

// mostUUIDs is how many UUIDs of filesystems a publish context can hold beside the paths. They
// take 2.5 KiB of its 4; each restore or clone of a volume adds one.
const mostUUIDs = 64

// checkVolume refuses a volume that is not the claim's, or not fit for the other one.
func (p *planner) checkVolume(ctx context.Context, s, other *side) error {
	from := s.intent.From
	volumes, err := p.Volumes(from.Backend)
	if err != nil {
		p.refuse("%s", err)
		return nil
	}
	v, place, err := volumes.Volume(ctx, from.ID)
	if err != nil {
		return err
	}
	s.has = v
	if v.Metadata[stamps.KeySwap] == s.intent.With {
		// This run, or an earlier one, got as far as this.
		v.Metadata = maps.Clone(v.Metadata)
		delete(v.Metadata, stamps.KeySwap)
		if v.Status == cinder.StatusAttaching {
			v.Status = cinder.StatusAvailable
		}
	}
	origin, err := objects.OriginOf(s.pv)
	if err != nil {
		return err
	}
	capacity := other.pv.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case from.Place.IsKnown() && from.Place != place:
		p.refuse("volume %s is recorded at %s, but the backend points to %s", from, from.Place, place)
	case v.ID == "":
		p.refuse("volume %s no longer exists", from)
	case !origin.Target().Stamp.Owns(v):
		p.refuse("volume %s is stamped %s, not for PersistentVolume %s", from, stamps.Of(v).Describe(), s.pv.Name)
	case !stamps.IsCSI(v) || !stamps.EverAttached(v):
		p.refuse("volume %s is not marked as recorded yet; try again in a minute", from)
		p.busy++
	case v.Status != cinder.StatusAvailable || len(v.Attachments) > 0 || len(stamps.NodeRecordsOf(v)) > 0:
		p.refuse("volume %s is %s, has %d attachments and records those of %d nodes; stop the pods that use claim %s", from, v.Status, len(v.Attachments), len(stamps.NodeRecordsOf(v)), s.claim.Name)
		p.busy++
	case hasKey(v) != (from.Encrypted != ""):
		p.refuse("volume %s and PersistentVolume %s disagree whether nodes encrypt it", from, s.pv.Name)
	case stamps.KeyRecordsOf(v.Metadata).IsChanging():
		p.refuse("volume %s gets a new key, which its node completes: start its pods, run volume rewrap until it waits for nothing, and stop them", from)
		p.busy++
	case len(from.FilesystemUUIDs) > mostUUIDs:
		p.refuse("volume %s descends from %d filesystems, and nodes can be told of %d; copy its files to a new volume, and swap that", from, len(from.FilesystemUUIDs), mostUUIDs)
	case v.SizeGiB<<30 < capacity.Value():
		p.refuse("volume %s has %d GiB, but PersistentVolume %s of claim %s has %s", from, v.SizeGiB, other.pv.Name, other.claim.Name, capacity.String())
	}
	return nil
}
