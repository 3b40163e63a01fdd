package integration

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// rebindCase is a rebind that is special: it must not be made, not yet, or more than once.
type rebindCase struct {
	name string
	run  func(ctx context.Context, s *rebindSite) error
}

var commonCases = []rebindCase{
	{"denied, and granted by a reload", deniedUntilAReload},
	{"denied, and deleted", deniedAndDeleted},
	{"two claims contend", twoClaimsContend},
	{"the earlier claim stays, Lost", earlierClaimStaysLost},
}

var otherCases = []rebindCase{
	{"over the quota", overTheQuota},
	{"deleted before anybody sees it", deletedUnseen},
	{"there and back", thereAndBack},
	{"imported volume", importedVolume},
	{"restored claim first", claimRestoredFirst},
	{"while nobody leads", whileNobodyLeads},
}

// rebindCasesIn runs cases one after another on a site of its own for each mode.
func rebindCasesIn(t *testing.T, name string, modes []string, cases []rebindCase) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), worldTime)
			defer cancel()
			s, err := newRebindSite(ctx, name+"-"+mode, mode, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.close(); err != nil {
					t.Error(err)
				}
			}()
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					if err := c.run(ctx, s); err != nil {
						t.Fatalf("%v\n%s", err, s.news())
					}
					s.news()
				})
				if t.Failed() {
					return // what is left there would only fail the next one
				}
			}
		})
	}
}

// TestRebindsAreProved: nothing changes until Kubernetes and the policy agree that
// another claim has the volume, and no claim gets back what was given away.
func TestRebindsAreProved(t *testing.T) {
	t.Parallel()
	rebindCasesIn(t, "reproved", []string{"attachment"}, commonCases)
}

// TestRebindsAreProvedInEveryMode has more such cases.
//
//tier:outage
func TestRebindsAreProvedInEveryMode(t *testing.T) {
	t.Parallel()
	rebindCasesIn(t, "reproveds", rebindModes, slices.Concat(otherCases, commonCases))
}

var (
	toStranger = way{name: "to a stranger", to: "-stranger", prepare: made, handOver: byReservation("moved"), finish: policyBack}
	toOther    = way{name: "to another tenant", to: "-other", prepare: made, handOver: byVolumeName("moved"), finish: policyBack}
)

// denied gives a volume to a claim that no rule grants it.
func denied(ctx context.Context, s *rebindSite) (*rebinding, error) {
	r, err := s.begins(ctx, toStranger)
	if err != nil {
		return nil, err
	}
	if err := r.handOver(ctx, s, r); err != nil {
		return nil, err
	}
	if err := policyBack(ctx, s, r); err != nil {
		return nil, err
	}
	if err := s.toldOnce(ctx, r, "RebindDenied"); err != nil {
		return nil, err
	}
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	v, _ := s.sim.Volume(r.volume)
	if pv.Annotations[annotation("tenant")] != "tenant" || pv.Annotations[annotation("rebound-to")] != "" || v.Metadata[annotation("tenant")] != "tenant" || v.Metadata[annotation("rebound-to")] != "" {
		return nil, fmt.Errorf("although it is denied, the PersistentVolume says %v and the volume %v", pv.Annotations, v.Metadata)
	}
	// The claim of a stranger learns nothing about the tenant that had the volume.
	events, err := suite.Client.CoreV1().Events(r.to.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fmt.Sprintf("involvedObject.uid=%s,reason=RebindDenied", r.to.UID)})
	if err != nil {
		return nil, err
	}
	for _, event := range events.Items {
		if strings.Contains(event.Message, "tenant tenant") || !strings.Contains(event.Message, "NoMatchingTenant") {
			return nil, fmt.Errorf("the claim is told: %s", event.Message)
		}
	}
	return r, s.countsAt(ctx, "", counted{1, 1, 0})
}

func deniedAndDeleted(ctx context.Context, s *rebindSite) error {
	r, err := denied(ctx, s)
	if err != nil {
		return err
	}
	if err := s.drop(ctx, r.to); err != nil {
		return err
	}
	if err := s.letGo(ctx, r); err != nil {
		return err
	}
	return errors.Join(s.gone(ctx), s.countsAt(ctx, "", counted{0, 0, 0}), s.removeDecoys())
}

// reload replaces a part of the policy, and waits until the new one is in force.
func (s *rebindSite) reload(ctx context.Context, before, after string) error {
	s.options.tenants = strings.Replace(s.options.tenants, before, after, 1)
	const reloaded = `"Reloaded the policy"`
	said := s.said(reloaded)
	for _, n := range s.living() {
		if err := n.WritePolicy(s.policy()); err != nil {
			return err
		}
	}
	return s.eventually(ctx, func() (string, error) {
		if s.said(reloaded) < said+len(s.living()) {
			return "the policy is not reloaded", nil
		}
		return "", nil
	})
}

func deniedUntilAReload(ctx context.Context, s *rebindSite) error {
	r, err := denied(ctx, s)
	if err != nil {
		return err
	}
	if err := s.reload(ctx, "[NAME-other]", "[NAME-other, NAME-stranger]"); err != nil {
		return err
	}
	// Tenant other has the namespace now.
	if err := s.eventually(ctx, func() (string, error) {
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
		v, _ := s.sim.Volume(r.volume)
		if err == nil && (pv.Annotations[annotation("tenant")] != "other" || v.Metadata[annotation("tenant")] != "other" || v.Metadata[annotation("rebound-to")] != string(r.to.UID)) {
			return fmt.Sprintf("after a reload, the PersistentVolume says %v and the volume %v", pv.Annotations, v.Metadata), nil
		}
		return "", err
	}); err != nil {
		return err
	}
	if err := errors.Join(s.toldOnce(ctx, r, "Rebound"), s.countsAt(ctx, "-other", counted{1, 1, 0})); err != nil {
		return err
	}
	r.way.to = "-other" // as far as counting goes
	return errors.Join(s.ends(ctx, r), s.reload(ctx, "[NAME-other, NAME-stranger]", "[NAME-other]"))
}

func overTheQuota(ctx context.Context, s *rebindSite) error {
	r, err := s.begins(ctx, toOther)
	if err != nil {
		return err
	}
	const roomy, full = "quota: {volumes: 3, gigabytes: 9, snapshots: 2}", "quota: {volumes: 0, gigabytes: 9, snapshots: 2}"
	if err := s.reload(ctx, roomy, full); err != nil {
		return err
	}
	if err := r.handOver(ctx, s, r); err != nil {
		return err
	}
	if err := errors.Join(policyBack(ctx, s, r), s.rebound(ctx, r), s.toldOnce(ctx, r, "Rebound")); err != nil {
		return err
	}
	events, err := suite.Client.CoreV1().Events(r.to.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fmt.Sprintf("involvedObject.uid=%s,reason=Rebound", r.to.UID)})
	if err != nil {
		return err
	}
	if len(events.Items) != 1 || !strings.Contains(events.Items[0].Message, "1 of 0") {
		return fmt.Errorf("the events do not say that the quota is exceeded: %+v", events.Items)
	}
	return errors.Join(s.ends(ctx, r), s.reload(ctx, full, roomy))
}

// twoClaimsContend: two claims name a PersistentVolume that is reserved for a third
// one. Nothing changes until one of them is bound to it.
func twoClaimsContend(ctx context.Context, s *rebindSite) error {
	r, err := s.begins(ctx, toOther)
	if err != nil {
		return err
	}
	if err := s.keep(ctx, r); err != nil {
		return err
	}
	if err := s.patchPV(ctx, r, types.MergePatchType, fmt.Sprintf(`{"spec": {"claimRef": {"namespace": %q, "name": "nobody", "uid": null, "resourceVersion": null}}}`, s.namespace)); err != nil {
		return err
	}
	before, _ := s.sim.Volume(r.volume)
	var claims []*corev1.PersistentVolumeClaim
	for _, end := range []string{"-other", "-more"} {
		claim, err := suite.CreateClaim(ctx, s.newClaim(r, end, "moved", naming(r.pv)))
		if err != nil {
			return err
		}
		claims = append(claims, claim)
	}
	s.begin()
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	if after, _ := s.sim.Volume(r.volume); !reflect.DeepEqual(after, before) {
		return fmt.Errorf("while two claims contend, the volume was changed\nfrom %+v\nto   %+v", before, after)
	}
	for _, at := range s.steps() {
		if strings.HasPrefix(at.what, "cinder ") && !at.reads() || strings.HasPrefix(at.what, "kubernetes PATCH api/v1/persistentvolumes/") {
			return fmt.Errorf("while two claims contend, somebody did %s", at)
		}
	}
	if err := s.countsAt(ctx, "", counted{1, 1, 0}); err != nil {
		return err
	}
	if err := s.patchPV(ctx, r, types.JSONPatchType, `[{"op": "remove", "path": "/spec/claimRef"}]`); err != nil {
		return err
	}
	for _, claim := range claims {
		if err := s.show(ctx, claim); err != nil {
			return err
		}
	}
	loser := claims[0]
	if err := s.eventually(ctx, func() (string, error) {
		for n, claim := range claims {
			now, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if now.Status.Phase == corev1.ClaimBound {
				r.to, loser = now, claims[1-n]
				return "", nil
			}
		}
		return "no claim is bound", nil
	}); err != nil {
		return err
	}
	r.way.to = strings.TrimPrefix(r.to.Namespace, s.namespace)
	if err := errors.Join(s.rebound(ctx, r), s.toldOnce(ctx, r, "Rebound"), policyBack(ctx, s, r)); err != nil {
		return err
	}
	if n, err := s.eventsOf(ctx, loser.Namespace, loser.UID, "Rebound"); n > 0 || err != nil {
		return fmt.Errorf("the claim that lost has %d events (%w)", n, err)
	}
	if err := s.drop(ctx, loser); err != nil {
		return err
	}
	if err := s.rebound(ctx, r); err != nil {
		return fmt.Errorf("after the claim that lost: %w", err)
	}
	return s.ends(ctx, r)
}

// earlierClaimStaysLost: a populator leaves its claim there. The claim never gets the
// volume again, and a claim made anew under its name gets one of its own.
func earlierClaimStaysLost(ctx context.Context, s *rebindSite) error {
	r, err := s.begins(ctx, way{name: "CDI retains its claim", prepare: prepareByCDI, handOver: handOverByCDI})
	if err != nil {
		return err
	}
	if err := r.handOver(ctx, s, r); err != nil {
		return err
	}
	if err := errors.Join(s.claimIs(ctx, r.made, corev1.ClaimLost), s.rebound(ctx, r), s.toldOnce(ctx, r, "Rebound")); err != nil {
		return err
	}
	if err := s.uses(ctx, r, false); err != nil {
		return err
	}
	if err := s.drop(ctx, r.to); err != nil {
		return err
	}
	if err := errors.Join(s.letGo(ctx, r), s.countsAt(ctx, "", counted{0, 0, 0})); err != nil {
		return err
	}
	if err := s.claimIs(ctx, r.made, corev1.ClaimLost); err != nil {
		return err
	}
	return errors.Join(s.anotherOfThatName(ctx, r), s.gone(ctx), s.countsAt(ctx, "", counted{0, 0, 0}), s.removeDecoys())
}

// anotherOfThatName deletes the claim that the volume was made for, makes another one
// under its name, which gets a volume of its own, and removes both.
func (s *rebindSite) anotherOfThatName(ctx context.Context, r *rebinding) error {
	if err := s.drop(ctx, r.made); err != nil {
		return err
	}
	next := &rebinding{way: r.way}
	if err := s.makeFor(ctx, next, r.made.Name, nil); err != nil {
		return err
	}
	if next.volume == r.volume || next.pv == r.pv {
		return fmt.Errorf("the next claim has volume %s by PersistentVolume %s", next.volume, next.pv)
	}
	if err := s.drop(ctx, next.made); err != nil {
		return err
	}
	return s.letGo(ctx, next)
}

// deletedUnseen: the leader sleeps while the volume is given away and deleted.
func deletedUnseen(ctx context.Context, s *rebindSite) error {
	r, err := s.begins(ctx, toOther)
	if err != nil {
		return err
	}
	if err := s.keep(ctx, r); err != nil {
		return err
	}
	for _, n := range s.living() {
		if err := n.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
	}
	err = s.free(ctx, r)
	if err == nil {
		err = s.take(ctx, r, "moved", naming(r.pv))
	}
	if err == nil {
		err = policyBack(ctx, s, r)
	}
	if err == nil {
		err = s.drop(ctx, r.to)
	}
	for _, n := range s.living() {
		err = errors.Join(err, n.Signal(syscall.SIGCONT))
	}
	if err != nil {
		return err
	}
	// A replica that slept for longer than its lease ends.
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	if err := s.revive(ctx); err != nil {
		return err
	}
	return errors.Join(s.letGo(ctx, r), s.gone(ctx), s.countsAt(ctx, "", counted{0, 0, 0}), s.removeDecoys())
}

// revive starts a replica if none is left.
func (s *rebindSite) revive(ctx context.Context) error {
	for _, n := range s.living() {
		select {
		case <-n.Exited():
			s.kill(n)
		default:
		}
	}
	if len(s.living()) > 0 {
		return nil
	}
	_, err := s.start(ctx)
	return err
}

// thereAndBack gives a volume to another tenant, and back to a claim of the old name.
func thereAndBack(ctx context.Context, s *rebindSite) error {
	r, err := s.begins(ctx, toOther)
	if err != nil {
		return err
	}
	if err := r.handOver(ctx, s, r); err != nil {
		return err
	}
	if err := errors.Join(s.rebound(ctx, r), s.toldOnce(ctx, r, "Rebound"), policyBack(ctx, s, r)); err != nil {
		return err
	}
	// unlikeRebound compares with the claim that the volume was made for, for ever.
	original := r.made
	back := &rebinding{way: way{to: "", from: "-other"}, made: r.to, pv: r.pv, volume: r.volume, policy: r.policy, before: 1}
	if err := byReservation("data")(ctx, s, back); err != nil {
		return err
	}
	back.made = original
	if err := errors.Join(s.rebound(ctx, back), s.toldOnce(ctx, back, "Rebound"), policyBack(ctx, s, back)); err != nil {
		return err
	}
	s.rebinds += 2
	return errors.Join(s.uses(ctx, back, false), s.ends(ctx, back))
}

// importedVolume gives an imported volume to another tenant. Its PersistentVolume is not
// named after a claim.
func importedVolume(ctx context.Context, s *rebindSite) error {
	s.sim.ResetJournal()
	s.begin()
	id, err := s.sim.AddVolume(cindersim.Volume{Name: "old data", Project: s.project(), SizeGiB: 1, Metadata: map[string]string{"owner": "somebody"}})
	if err != nil {
		return err
	}
	r := &rebinding{way: toOther}
	if _, err := s.operator(ctx, "import", "--backend", "gold", "--volume", id, "--namespace", s.namespace, "--claim", "data", "--storage-class", s.class,
		"--secret-namespace", harness.Namespace, "--reclaim-policy", "Delete", "--volume-mode", "Block", "--apply"); err != nil {
		return err
	}
	claim, err := suite.Client.CoreV1().PersistentVolumeClaims(s.namespace).Get(ctx, "data", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := s.has(ctx, r, claim); err != nil {
		return err
	}
	if err := r.handOver(ctx, s, r); err != nil {
		return err
	}
	if err := errors.Join(s.rebound(ctx, r), s.toldOnce(ctx, r, "Rebound"), policyBack(ctx, s, r)); err != nil {
		return err
	}
	if v, _ := s.sim.Volume(id); v.Metadata["owner"] != "somebody" {
		return fmt.Errorf("the volume's metadata is %v", v.Metadata)
	}
	return errors.Join(s.uses(ctx, r, true), s.ends(ctx, r))
}

// claimRestoredFirst applies exported objects in the other order.
func claimRestoredFirst(ctx context.Context, s *rebindSite) error {
	r, err := s.begins(ctx, way{name: "claim first", prepare: made})
	if err != nil {
		return err
	}
	e, err := s.export(ctx, r)
	if err != nil {
		return err
	}
	if err := s.forget(ctx, r); err != nil {
		return err
	}
	anew(&e.claim.ObjectMeta)
	delete(e.claim.Annotations, bindCompleted)
	e.claim.Status = corev1.PersistentVolumeClaimStatus{}
	if r.to, err = suite.CreateClaim(ctx, e.claim); err != nil {
		return err
	}
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	anew(&e.pv.ObjectMeta)
	e.pv.Spec.ClaimRef.UID, e.pv.Spec.ClaimRef.ResourceVersion = "", ""
	e.pv.Status = corev1.PersistentVolumeStatus{}
	if _, err := suite.Client.CoreV1().PersistentVolumes().Create(ctx, e.pv, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := s.claimIs(ctx, r.to, corev1.ClaimBound); err != nil {
		return err
	}
	return errors.Join(s.rebound(ctx, r), s.toldOnce(ctx, r, "Rebound"), s.ends(ctx, r))
}

// whileNobodyLeads gives a volume away between two leaders.
func whileNobodyLeads(ctx context.Context, s *rebindSite) error {
	r, err := s.begins(ctx, toOther)
	if err != nil {
		return err
	}
	for _, n := range s.living() {
		s.kill(n)
	}
	if err := errors.Join(r.handOver(ctx, s, r), policyBack(ctx, s, r), s.revive(ctx)); err != nil {
		return err
	}
	if err := errors.Join(s.rebound(ctx, r), s.toldOnce(ctx, r, "Rebound")); err != nil {
		return err
	}
	return errors.Join(s.uses(ctx, r, false), s.ends(ctx, r))
}

// TestClaimThatWasNeverBoundGetsNoVolumeBack: somebody gives a PersistentVolume away
// before Kubernetes has bound it to the claim that it was made for. That claim waits,
// and is told why; a claim made anew under its name gets a volume of its own.
//
//tier:outage
func TestClaimThatWasNeverBoundGetsNoVolumeBack(t *testing.T) {
	// Not beside other tests, which need the controllers.
	ctx, cancel := context.WithTimeout(context.Background(), worldTime)
	defer cancel()
	s, err := newRebindSite(ctx, "neverbound", "attachment", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := neverBound(ctx, s); err != nil {
		t.Fatalf("%v\n%s", err, s.news())
	}
}

func neverBound(ctx context.Context, s *rebindSite) (err error) {
	r := &rebinding{way: way{to: "-other"}}
	if r.to, err = suite.CreateClaim(ctx, s.newClaim(r, "-other", "taker", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"taken": "yes"}} // so that nobody makes a volume for it
	})); err != nil {
		return err
	}
	if err := s.whilePaused(ctx, func() error {
		if r.made, err = suite.CreateClaim(ctx, s.newClaim(r, "", "data", func(claim *corev1.PersistentVolumeClaim) {
			claim.Annotations = map[string]string{objects.AnnotationStorageProvisioner: s.provisioner} // which the controllers would write
		})); err != nil {
			return err
		}
		r.pv = pvName(r.made)
		if err := s.eventually(ctx, func() (string, error) {
			pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return "there is no PersistentVolume", nil
			}
			if err != nil {
				return "", err
			}
			r.volume, r.policy = pv.Annotations[annotation("volume-id")], pv.Spec.PersistentVolumeReclaimPolicy
			v, _ := s.sim.Volume(r.volume)
			return s.unlikeInUse(v), nil
		}); err != nil {
			return err
		}
		return s.patchPV(ctx, r, types.MergePatchType, fmt.Sprintf(`{"metadata": {"labels": {"taken": "yes"}}, "spec": {"claimRef": {"namespace": %q, "name": %q, "uid": %q, "resourceVersion": null}}}`, r.to.Namespace, r.to.Name, r.to.UID))
	}); err != nil {
		return err
	}
	if err := errors.Join(s.claimIs(ctx, r.to, corev1.ClaimBound), s.rebound(ctx, r), s.toldOnce(ctx, r, "Rebound")); err != nil {
		return err
	}
	if err := s.staysPending(ctx, r.made); err != nil {
		return err
	}
	// Nor does it get the volume once it is nobody's, nor by another leader.
	if err := s.uses(ctx, r, false); err != nil {
		return err
	}
	for _, n := range s.living() {
		s.kill(n)
	}
	if err := s.revive(ctx); err != nil {
		return err
	}
	if err := s.eventually(ctx, func() (string, error) { return s.unlikeRebound(ctx, r) }); err != nil {
		return err
	}
	if err := s.staysPending(ctx, r.made); err != nil {
		return err
	}
	if err := s.drop(ctx, r.to); err != nil {
		return err
	}
	if err := s.letGo(ctx, r); err != nil {
		return err
	}
	return errors.Join(s.anotherOfThatName(ctx, r), s.gone(ctx), s.countsAt(ctx, "", counted{0, 0, 0}))
}

// whilePaused does something while Kubernetes binds nothing.
func (s *rebindSite) whilePaused(ctx context.Context, do func() error) error {
	plane := suite.ControlPlane()
	if err := plane.PauseControllerManager(ctx); err != nil {
		return err
	}
	return errors.Join(do(), plane.ResumeControllerManager())
}

// staysPending looks at a claim for two seconds.
func (s *rebindSite) staysPending(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	before := s.creates()
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	now, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	if err == nil && (now.Status.Phase != corev1.ClaimPending || s.creates() != before) {
		return fmt.Errorf("claim %s is %s to %q, and %d volumes were made", claim.Name, now.Status.Phase, now.Spec.VolumeName, s.creates()-before)
	}
	return err
}
