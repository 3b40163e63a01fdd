// Package swap lets two claims of the CSI driver exchange their volumes. It runs in a
// command, beside the leader and with the rights of an operator. Claims and
// PersistentVolumes stay; what a PersistentVolume records about its volume changes.
//
// Three things keep two claims from one volume. Cinder reserves both volumes, so nobody
// attaches, extends, snapshots or deletes them meanwhile. A mark on each makes it nobody's,
// so the leader, whatever its caches show, leaves it alone. And the stamps change before
// the records, so a volume is never served to a claim that its stamp does not name.
//
// Before the first change, each PersistentVolume gets the whole intent. Once both volumes are
// reserved, the intents are committed, and from then on a swap only goes forward, whoever
// runs it. One that ended before is taken back by the next run. Of two runs, one commits or
// the other takes back, never both: the intent of the PersistentVolume whose name sorts first
// decides, and every change of a PersistentVolume requires that nobody else has changed it.
package swap

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// AnnotationIntent is on a PersistentVolume whose volume is being swapped. It holds an
// intent as JSON, and goes when all is done.
const AnnotationIntent = objects.Prefix + "swap"

// CopyPod returns the name of the pod that copies the volume of a claim, by the claim's UID. As
// long as it is there, nobody else swaps the volume.
func CopyPod(claimUID string) string { return "copy-" + claimUID }

// Volumes are the volumes of one backend; backends.Swaps implements it.
type Volumes interface {
	Volume(ctx context.Context, id string) (cinder.Volume, cinder.Place, error)
	Begin(ctx context.Context, id, with string) error
	Restamp(ctx context.Context, id string, stamp stamps.Volume, pvUID string) error
	End(ctx context.Context, id, with string) error
}

// Nodes determines which nodes use a volume; *nodeuse.Tracker implements it.
type Nodes interface {
	Users(ctx context.Context, v nodeuse.Volume) ([]string, error)
	Attachments(ctx context.Context, pv string) ([]nodeuse.Attachment, error)
	Staging(ctx context.Context, handle string) ([]string, error)
}

// Swapper swaps volumes.
type Swapper struct {
	Client kubernetes.Interface
	Policy *policy.Policy
	// Volumes returns an error if no backend of that name is configured.
	Volumes             func(backend string) (Volumes, error)
	Nodes               Nodes
	ProvisionerName     string
	Cluster, ClusterUID string
	// Copy is nil unless the second claim has a copy of the first one's volume.
	Copy *Copy
}

// Copy is what volume move knows of a copy.
type Copy struct {
	// Volumes are where the claims' volumes were when they were copied; nothing else is swapped.
	// Without them, a swap is only looked at.
	Volumes *[2]wire.Handle
	// Complete is called once both volumes are reserved, so that nobody can attach them any more.
	// An error takes the swap back.
	Complete func(ctx context.Context) error
}

// Request is what an operator asks for.
type Request struct {
	Namespace string
	// Claims are the names of two claims.
	Claims [2]string
	// Back swaps two claims back that have each other's volumes.
	Back bool
}

// Plan is a swap that nothing prevents, as far as can be known before any change.
type Plan struct {
	Request
	// Done means that nothing is left to do.
	Done  bool
	sides [2]*side
	// committed means that the swap can only be finished.
	committed bool
	// earlier is what an earlier run has begun, with at least one of the claims; nil if
	// nothing. It is finished if it was committed, and taken back otherwise.
	earlier  *[2]*side
	finishes bool
	refusal  error
}

// IsNew reports whether nothing of the swap was done, not even by an earlier run.
func (p *Plan) IsNew() bool { return !p.Done && p.earlier == nil && !p.committed }

// Refusal is what prevents a swap of which an earlier run must be taken back; nil if
// nothing does.
func (p *Plan) Refusal() error { return p.refusal }

// side is one of the two claims.
type side struct {
	// name is that of the PersistentVolume, and pv the object; nil if it has gone since the
	// swap began.
	name string
	pv   *corev1.PersistentVolume
	// claim is nil for a swap that was begun earlier.
	claim *corev1.PersistentVolumeClaim
	// intent is what the PersistentVolume gets.
	intent intent
	// has is the volume at Cinder that the PersistentVolume had at first.
	has cinder.Volume
}

// intent is one PersistentVolume's part of a swap.
type intent struct {
	// With is the name of the other PersistentVolume.
	With string `json:"with"`
	// Back means that the two had swapped their volumes before.
	Back bool `json:"back,omitempty"`
	// Committed means that both volumes are reserved, so the swap only goes forward.
	Committed bool `json:"committed,omitempty"`
	// TakenBack is set, to a value of its own, by a run that takes back what another has
	// begun. That one, if it still runs, cannot commit any more.
	TakenBack string `json:"takenBack,omitempty"`
	From      record `json:"from"`
	To        record `json:"to"`
}

// record is what a PersistentVolume records about its volume.
type record struct {
	Backend string       `json:"backend"`
	ID      string       `json:"volume"`
	Place   cinder.Place `json:"place"`
	wire.Volume
}

func (r record) String() string { return wire.Handle{Backend: r.Backend, ID: r.ID}.String() }

// is reports whether two records are of the same volume.
func (r record) is(other record) bool { return r.String() == other.String() }

// recordOf reads the record of a PersistentVolume.
func recordOf(pv *corev1.PersistentVolume) record {
	return record{
		Backend: pv.Annotations[objects.AnnotationBackend], ID: pv.Annotations[objects.AnnotationVolume], Place: objects.PlaceOf(pv), Volume: objects.VolumeContextOf(pv),
	}
}

// intentOf reads the intent of a PersistentVolume; nil if it has none.
func intentOf(pv *corev1.PersistentVolume) (*intent, error) {
	text := pv.Annotations[AnnotationIntent]
	if text == "" {
		return nil, nil
	}
	var i intent
	if err := json.Unmarshal([]byte(text), &i); err != nil || i.With == "" || i.From.ID == "" || i.To.ID == "" {
		return nil, objects.Damaged(pv, AnnotationIntent, "cannot be read")
	}
	return &i, nil
}

// isSwitched reports whether the PersistentVolume, if there is one, records the volume that
// it gets.
func (s *side) isSwitched() bool { return s.pv == nil || recordOf(s.pv).is(s.intent.To) }

// hasKey reports whether nodes encrypt a volume.
func hasKey(v cinder.Volume) bool {
	_, has := v.Metadata[stamps.KeyEncryption]
	return has
}

// isEncrypted reports whether nodes encrypt the volume, or Cinder says that it is encrypted.
func (s *side) isEncrypted() bool { return s.has.Encrypted || hasKey(s.has) }

// claimRef returns the claim that the PersistentVolume names; nil if it is gone.
func (s *side) claimRef() *corev1.ObjectReference {
	if s.pv == nil {
		return nil
	}
	return s.pv.Spec.ClaimRef
}

// stamp returns the stamp of the volume that the side's PersistentVolume gets.
func (r *Swapper) stamp(s *side) stamps.Volume {
	return stamps.Volume{
		Cluster: r.Cluster, ClusterUID: r.ClusterUID, Namespace: s.pv.Spec.ClaimRef.Namespace, Claim: s.pv.Spec.ClaimRef.Name, ClaimUID: string(objects.MadeFor(s.pv)), PV: s.pv.Name,
		ReboundTo: s.pv.Annotations[objects.AnnotationReboundTo], Tenant: s.pv.Annotations[objects.AnnotationTenant], StorageClass: s.pv.Spec.StorageClassName,
	}
}

// annotate changes annotations of a PersistentVolume in one request, if the object is as it
// was read. What is no text becomes JSON, and nil removes an annotation.
func (r *Swapper) annotate(ctx context.Context, s *side, changes map[string]any) error {
	for key, value := range changes {
		if _, isText := value.(string); isText || value == nil {
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		changes[key] = string(text)
	}
	metadata := map[string]any{"uid": s.pv.UID, "resourceVersion": s.pv.ResourceVersion, "annotations": changes}
	if backend, changed := changes[objects.AnnotationBackend]; changed {
		metadata["labels"] = map[string]any{objects.AnnotationBackend: backend}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	saved, err := r.Client.CoreV1().PersistentVolumes().Patch(ctx, s.pv.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("cannot change the annotations of PersistentVolume %s: %w", s.pv.Name, err)
	}
	s.pv = saved
	return nil
}

// inOrder returns the sides by the names of their PersistentVolumes. The intent of the first
// decides whether a swap is committed; it is written first and removed last.
func inOrder(sides [2]*side) []*side {
	return slices.SortedFunc(slices.Values(sides[:]), func(a, b *side) int { return strings.Compare(a.name, b.name) })
}

// outcome says what becomes of a swap that an earlier run has begun.
func (p *Plan) outcome() string {
	if p.finishes {
		return "finished"
	}
	return "taken back"
}

// Describe says what each claim has, or will have.
func (p *Plan) Describe() []string {
	var lines []string
	if p.earlier != nil {
		lines = append(lines, fmt.Sprintf("what an earlier run has begun with PersistentVolumes %s and %s is %s first", p.earlier[0].name, p.earlier[1].name, p.outcome()))
	}
	switch {
	case p.sides[0] == nil: // known when that is finished
	case p.Done && p.Back:
		lines = append(lines, fmt.Sprintf("claims %s and %s do not have each other's volumes; nothing to do", p.Claims[0], p.Claims[1]))
	case p.Done:
		lines = append(lines, fmt.Sprintf("claims %s and %s have each other's volumes; nothing to do (--back swaps them back)", p.Claims[0], p.Claims[1]))
	default:
		for i, s := range p.sides {
			lines = append(lines, fmt.Sprintf("claim %s/%s (PersistentVolume %s): volume %s instead of %s", p.Namespace, p.Claims[i], s.name, s.intent.To, s.intent.From))
		}
	}
	return lines
}

// RefusedError lists all that prevents a swap.
type RefusedError struct {
	Problems []string
	// Busy means that these pass, when pods stop or a node completes a key.
	Busy bool
}

func (e *RefusedError) Error() string { return strings.Join(e.Problems, "; ") }

// FailureKind tells a refusal that passes from one that does not.
func (e *RefusedError) FailureKind() string {
	if e.Busy {
		return string(cinder.KindConflict)
	}
	return ""
}

func refused(format string, arguments ...any) error {
	return &RefusedError{Problems: []string{fmt.Sprintf(format, arguments...)}}
}
