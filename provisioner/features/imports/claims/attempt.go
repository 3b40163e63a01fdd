package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/bound"
)

// attempt is one try to give a claim what it asks for.
type attempt struct {
	c *Controller
	*turn
	cached *corev1.PersistentVolumeClaim
	class  string
	// driver is the CSI driver if the StorageClass names it as its provisioner.
	driver string

	inForce  *policy.Policy
	decision policy.Decision
	claim    *corev1.PersistentVolumeClaim
	// wanted is the ID or the name of the volume that the claim asks for.
	wanted string
	// backend and place are where the volume was found.
	backend string
	volume  cinder.Volume
	place   cinder.Place
	// applied means that Cinder may have been asked for a change.
	applied bool
	saved   *corev1.PersistentVolume
	took    time.Duration
	// requests are the request IDs of an attempt that ran.
	requests *requestids.RequestIDs
}

// deniedError ends an attempt that waits for a trigger.
type deniedError struct{ placement.Denial }

func (e *deniedError) Error() string { return e.Reason + ": " + e.Message }

// errChanged ends an attempt during which something that it depends on has changed.
var errChanged = errors.New("the claim, its volume or the policy has changed during the import")

// errProvisioned ends an attempt for a claim that gets, or may get, a new volume.
var errProvisioned = errors.New("a new volume may be made for the claim")

// The reasons of the events about imports, in addition to those of the policy.
const (
	reasonImported  = "VolumeImported"
	reasonRefused   = "ImportRefused"
	reasonFailed    = "ImportFailed"
	reasonAmbiguous = "AmbiguousVolume"
	reasonNewVolume = "NewVolumeBegun"
)

// decide finds the rule, using the labels in the cache. The plan reads them again.
func (a *attempt) decide() *policy.Denial {
	var labels map[string]string
	if namespace, ok := objects.Cached[*corev1.Namespace](a.c.Caches.Namespaces, a.cached.Namespace); ok {
		labels = namespace.Labels
	}
	a.inForce = a.c.Policy()
	a.decision = a.inForce.DecideImport(policy.Request{Namespace: a.cached.Namespace, NamespaceLabels: labels, StorageClass: a.class, Driver: a.driver})
	return a.decision.Denial
}

// run does everything that the claim needs. First, what is known may refuse it: the
// caches, and a listing that other claims share. Then everything is read again, because
// what is known may be late.
func (a *attempt) run(ctx context.Context) error {
	a.claim = a.cached
	isBegun, err := a.find(ctx)
	if err != nil {
		return err
	}
	importer, err := a.importer()
	if err != nil {
		return err
	}
	if _, err := importer.FromCaches().PlanForTenant(ctx, a.claim, a.volume, a.wanted, false); err != nil {
		return err
	}
	claim, err := a.c.Client.CoreV1().PersistentVolumeClaims(a.cached.Namespace).Get(ctx, a.cached.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("cannot read claim %s: %w", a.Key, err)
	case claim.UID != a.cached.UID || claim.DeletionTimestamp != nil || claim.Spec.VolumeName != "":
		return nil
	case relevantFields(claim) != relevantFields(a.cached):
		return errChanged
	}
	a.claim = claim
	if _, taken := a.c.busy.LoadOrStore(a.volume.ID, true); taken {
		return errChanged
	}
	defer a.c.busy.Delete(a.volume.ID)
	if !isBegun {
		if err := a.read(ctx); err != nil {
			return err
		}
	}
	a.c.places.Store(a.claim.UID, a.place)
	plan, err := importer.PlanForTenant(ctx, a.claim, a.volume, a.wanted, a.c.isContested(a.volume))
	if err != nil {
		return err
	}
	if plan.Done {
		a.saved = plan.PersistentVolume
		return nil
	}
	if plan.Decision.Tenant != a.decision.Tenant || plan.Decision.Rule != a.decision.Rule {
		return errChanged
	}
	if err := a.reserve(ctx, plan); err != nil {
		return err
	}
	a.applied = true
	a.saved, err = importer.Apply(ctx, plan)
	return err
}

// maxNameLength is the largest number of characters in the name of a volume. An ID has
// fewer.
const maxNameLength = 255

// find finds the volume for which an earlier attempt reserved room, or else the one
// that the claim asks for.
func (a *attempt) find(ctx context.Context) (isBegun bool, err error) {
	wanted, asks := a.claim.Annotations[objects.AnnotationImport]
	a.wanted = wanted
	position, counts := a.c.Room.Ledger.PositionOf(a.claim.UID)
	if counts && !position.Imported {
		return false, errProvisioned
	}
	if counts {
		a.volume, err = a.begun(ctx, position, asks)
		if err != nil || a.volume.ID != "" {
			return true, err
		}
	}
	switch {
	case !asks:
		return false, errProvisioned
	case a.wanted == "":
		return false, &deniedError{placement.Denial{Reason: string(policy.InvalidClaim), Message: fmt.Sprintf("annotation %s is empty; give the ID or the name of a volume", objects.AnnotationImport)}}
	case bound.IsCut(a.wanted):
		return false, &deniedError{placement.Denial{Reason: string(policy.InvalidClaim), Message: fmt.Sprintf("annotation %s has more than 512 bytes; give the ID of the volume", objects.AnnotationImport)}}
	case utf8.RuneCountInString(a.wanted) > maxNameLength:
		// A longer text would be repeated in events, logs and reports.
		return false, &deniedError{placement.Denial{Reason: string(policy.InvalidClaim), Message: fmt.Sprintf("annotation %s has %d characters, more than the ID or the name of any volume", objects.AnnotationImport, utf8.RuneCountInString(a.wanted))}}
	}
	return false, a.search(ctx)
}

// begun reads the volume for which room is reserved. If it was stamped for the claim,
// the import goes on, whatever the annotation says now. Otherwise nothing was done, and
// the room is given back if the claim asks for another volume.
func (a *attempt) begun(ctx context.Context, position ledger.Position, asks bool) (cinder.Volume, error) {
	volumes, err := a.c.Volumes(position.Backend)
	if err != nil {
		return cinder.Volume{}, err
	}
	a.backend = position.Backend
	v, at, err := volumes.Look(ctx, backends.Target{VolumeID: position.VolumeID, Place: a.c.placeOf(a.claim.UID), Stamp: stamps.Volume{ClaimUID: string(a.claim.UID)}})
	a.place = at
	switch {
	case err != nil:
		return cinder.Volume{}, err
	case a.isStamped(v) && stamps.Of(v).Tenant != a.decision.Tenant:
		// The namespace has since come to belong to another tenant.
		return cinder.Volume{}, &deniedError{placement.DenialOf(policy.NoSuchVolume(a.decision.Rule, a.wanted))}
	case a.isStamped(v):
		if !asks || a.wanted == "" {
			a.wanted = v.ID
		}
		return v, nil
	case v.ID != "" && asks && a.isWanted(v):
		return v, nil
	}
	a.c.Room.Ledger.ReleaseReservation(a.claim.UID)
	a.c.Room.Ledger.ReleaseUnrecorded(a.claim.UID)
	a.backend = ""
	return cinder.Volume{}, nil
}

// isStamped reports whether a volume carries the stamp of an import for the claim.
func (a *attempt) isStamped(v cinder.Volume) bool {
	return stamps.Volume{Cluster: a.c.Cluster, ClaimUID: string(a.cached.UID), PV: objects.ImportedPVName(v.ID)}.Holds(v)
}

// search searches the rule's backends. For the claim, volumes that the rule does not
// grant, or that were made for another tenant or cluster, do not exist.
func (a *attempt) search(ctx context.Context) error {
	type match struct {
		backend string
		volume  cinder.Volume
	}
	var named []match
	for _, backend := range a.decision.Backends {
		a.backend = backend
		if unhealthy := a.c.Room.Health(backend); unhealthy != nil {
			return &deniedError{*a.c.Room.Unavailable([]ledger.PassedOver{{Backend: backend, Why: unhealthy.Error()}}, nil)}
		}
		volumes, err := a.c.Volumes(backend)
		if err != nil {
			return err
		}
		all, err := a.c.list(ctx, backend, volumes)
		if err != nil {
			return err
		}
		for _, v := range all {
			switch {
			case !a.isWanted(v):
			case v.ID == a.wanted:
				a.volume = v
				return nil
			case !slices.ContainsFunc(named, func(m match) bool { return m.volume.ID == v.ID }):
				// Two backends may lead to the same project.
				named = append(named, match{backend, v})
			}
		}
	}
	switch len(named) {
	case 0:
		return &deniedError{placement.DenialOf(policy.NoSuchVolume(a.decision.Rule, a.wanted))}
	case 1:
		a.backend, a.volume = named[0].backend, named[0].volume
		return nil
	}
	var ids []string
	for _, m := range named {
		ids = append(ids, m.volume.ID)
	}
	slices.Sort(ids)
	return &deniedError{placement.Denial{Reason: reasonAmbiguous, Message: fmt.Sprintf("%d volumes that %s.import grants have the name %q: %s; give the ID of one in the annotation %s",
		len(ids), a.decision.Rule, a.wanted, strings.Join(ids, ", "), objects.AnnotationImport)}}
}

// read reads a volume that a listing showed, because it may have changed since.
func (a *attempt) read(ctx context.Context) error {
	volumes, err := a.c.Volumes(a.backend)
	if err != nil {
		return err
	}
	v, at, err := volumes.Look(ctx, backends.Target{VolumeID: a.volume.ID})
	a.place = at
	switch {
	case err != nil && !cinder.IsKind(err, backends.KindElsewhere):
		return err
	case err != nil || v.ID == "" || !a.isWanted(v):
		return &deniedError{placement.DenialOf(policy.NoSuchVolume(a.decision.Rule, a.wanted))}
	}
	a.volume = v
	return nil
}

// isWanted reports whether the claim asks for a volume, and may have it.
func (a *attempt) isWanted(v cinder.Volume) bool {
	return (v.ID == a.wanted || v.Name == a.wanted) && a.mayHave(v)
}

// mayHave reports whether the claim may have a volume, as far as its owner and the
// grants of the rule are concerned.
func (a *attempt) mayHave(v cinder.Volume) bool {
	stamp := stamps.Of(v)
	isOthers := imports.IsForeign(v, a.c.Cluster, a.c.ClusterUID, a.decision.Tenant)
	isGranted := a.decision.Import.Grants(policy.Existing{Name: v.Name, Type: v.Type, Metadata: v.Metadata})
	if isOthers && isGranted {
		a.c.Logger.Info("A claim asks for a volume that carries the stamp of another tenant or cluster", "claim", a.Key, "tenant", a.decision.Tenant,
			"volume", v.ID, "backend", a.backend, "stampCluster", stamp.Cluster, "stampTenant", stamp.Tenant)
	}
	return isGranted && !isOthers
}

// importer returns an Importer for the backend that has the claim's volume.
func (a *attempt) importer() (*imports.Importer, error) {
	backend, ok := a.inForce.Backend(a.backend)
	if !ok {
		return nil, errChanged
	}
	connector, err := a.c.Connector(a.backend)
	if err != nil {
		return nil, err
	}
	volumes, err := a.c.Volumes(a.backend)
	if err != nil {
		return nil, err
	}
	return &imports.Importer{Site: a.c.Site, Policy: a.inForce, Backend: backend, Connector: connector, Volumes: volumes}, nil
}

// reserve reserves room in the quotas for the volume. A volume that another claim of
// the tenant left behind needs no additional room.
func (a *attempt) reserve(ctx context.Context, plan *imports.Plan) error {
	d := ledger.Decided{Decision: plan.Decision, Revision: a.inForce.Revision(), Import: a.volume.ID}
	if left := types.UID(stamps.Of(a.volume).ClaimUID); left != a.claim.UID {
		d.LeftBy = left
	}
	choice, err := a.c.Room.Choose(ctx, a.claim, plan.Class.Name, d.Only([]string{a.backend}, nil))
	switch position, _ := a.c.Room.Ledger.PositionOf(a.claim.UID); {
	case errors.Is(err, ledger.ErrPolicyChanged):
		return errChanged
	case err != nil:
		return err
	case choice.Denial != nil:
		return &deniedError{*choice.Denial}
	case !position.Imported:
		return errProvisioned
	case position.VolumeID != a.volume.ID || position.Backend != a.backend:
		// A listing has shown what an earlier leader began.
		return errChanged
	}
	return nil
}
