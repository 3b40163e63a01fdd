package world

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/apiserver"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/gate"
)

// passed looks at the world after each step.
func (w *World) passed(p gate.Passage, verdict gate.Verdict, sent time.Time) {
	w.steps++
	w.note("%s %s %s %s %s", p.Kind, verdict, p.Client, p.Server, p.What)
	w.sprang(p)
	if p.Kind != gate.Request || verdict != gate.Passes || strings.HasPrefix(p.What, http.MethodGet) {
		return
	}
	if p.Server == apiHost {
		w.noteLeader(p)
		return
	}
	w.sent[w.sim.Requests()] = sent
	if p.Server != "keystone" && checker.IsStale(p.Client, sent, w.leader, w.ledSince) {
		w.course.Note(checker.Finding{Kind: checker.Stale, Object: p.Client, Text: fmt.Sprintf("sent %s at %s, and %s led since %s", p.What, clock(sent), w.leader, clock(w.ledSince))})
	}
	w.look()
}

// noteLeader notes who has taken the Lease.
func (w *World) noteLeader(p gate.Passage) {
	if !strings.Contains(p.What, "/leases") {
		return
	}
	for _, lease := range apiserver.Objects[*coordinationv1.Lease](w.api) {
		if holder := lease.Spec.HolderIdentity; lease.Name == wiring.LeaseName(provisionerName) && holder != nil && *holder != w.holder {
			if w.holder = *holder; *holder != "" {
				w.leader, w.ledSince = p.Client, time.Now()
				w.note("%s leads", p.Client)
			}
		}
	}
}

// journal returns Cinder's journal, with the times at which requests were sent.
func (w *World) journal() []cindersim.Entry {
	journal := w.sim.Journal()
	for i := range journal {
		if sent, known := w.sent[journal[i].Number]; known {
			journal[i].Time = sent
		}
	}
	return journal
}

func (w *World) tooLate(fate checker.Fate) bool {
	return checker.CameTooLate(fate, w.claims.DeletionRequestedAt(types.UID(fate.PV.HeldBy())), w.journal())
}

// pvs returns the program's PersistentVolumes that are not being deleted.
func (w *World) pvs() []*corev1.PersistentVolume {
	var own []*corev1.PersistentVolume
	for _, pv := range apiserver.Objects[*corev1.PersistentVolume](w.api) {
		if pv.Annotations["pv.kubernetes.io/provisioned-by"] == provisionerName && pv.DeletionTimestamp == nil {
			own = append(own, pv)
		}
	}
	return own
}

// look finds what must not happen even for a moment.
func (w *World) look() {
	bound := map[string]bool{}
	for _, claim := range apiserver.Objects[*corev1.PersistentVolumeClaim](w.api) {
		if claim.Status.Phase == corev1.ClaimBound {
			bound[string(claim.UID)] = true
		}
	}
	var pvs []checker.PV
	for _, pv := range w.pvs() {
		pvs = append(pvs, checker.PVOf(pv))
	}
	w.fates.NoteSeen(pvs)
	volumes := w.sim.Volumes()
	for _, v := range volumes {
		w.seen[v.ID] = v
	}
	w.course.Look(checker.Sample{
		At: time.Now(), PVs: pvs, Bound: bound, Volumes: volumes, Foreign: w.foreign,
		Asked: func(uid string) bool { return w.claims.DeletionRequested(types.UID(uid)) },
		Fates: w.fates.All(), TooLate: w.tooLate,
		Attachments: slices.DeleteFunc(w.vas(), w.isFenced), AttachmentAsked: func(uid string) bool { return w.attachments.DeletionRequested(types.UID(uid)) }, Writes: w.writes(),
	})
	for _, f := range w.wrong.take() {
		w.course.Note(f)
	}
	for _, s := range w.machines {
		for _, text := range s.Harm() {
			w.course.Note(checker.Finding{Kind: checker.WrongContent, Object: "node " + s.Name, Text: text})
		}
	}
}

// state returns everything, and the reasons of warnings by their objects.
func (w *World) state() (s checker.State, told map[types.UID]map[string]bool) {
	s = checker.State{
		Cluster: clusterID, Host: policy.DefaultConnectorHost, Volumes: w.sim.Volumes(), Foreign: w.foreign, Fates: w.fates.All(), TooLate: w.tooLate,
		DeletionRequestedAt: func(uid string) time.Time { return w.claims.DeletionRequestedAt(types.UID(uid)) }, LedSince: w.ledSince,
	}
	for _, pv := range apiserver.Objects[*corev1.PersistentVolume](w.api) {
		s.PVs = append(s.PVs, checker.PVOf(pv))
	}
	pending := map[string]bool{}
	for _, claim := range apiserver.Objects[*corev1.PersistentVolumeClaim](w.api) {
		pending["pvc-"+string(claim.UID)] = claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil
	}
	for _, secret := range apiserver.Objects[*corev1.Secret](w.api) {
		// A leader that dies while it undoes an attempt leaves the Secret for the claim's next.
		if pv := secret.Annotations[policy.StampPrefix+"persistent-volume"]; secret.Annotations[checker.StampCluster] == clusterID && !pending[pv] {
			s.Secrets = append(s.Secrets, checker.Secret{Name: secret.Name, PV: pv})
		}
	}
	told = map[types.UID]map[string]bool{}
	for _, event := range apiserver.Objects[*corev1.Event](w.api) {
		if event.Type == corev1.EventTypeWarning {
			if told[event.InvolvedObject.UID] == nil {
				told[event.InvolvedObject.UID] = map[string]bool{}
			}
			told[event.InvolvedObject.UID][event.Reason] = true
		}
	}
	// A PersistentVolume counts although its volume is gone: it was set to Retain too late.
	counted := slices.Clone(s.Volumes)
	for _, pv := range s.PVs {
		if v, seen := w.seen[pv.VolumeID]; seen {
			counted = append(counted, v)
		}
	}
	used := checker.Usage(w.policy, clusterID, w.backendOf(), counted, checker.Everything)
	claims := apiserver.Objects[*corev1.PersistentVolumeClaim](w.api)
	for _, claim := range claims {
		c := checker.Claim{UID: string(claim.UID), Namespace: claim.Namespace, Name: claim.Name, Bound: claim.Status.Phase == corev1.ClaimBound, Asked: w.claims.DeletionRequested(claim.UID)}
		request := requestOf(claim)
		c.Tenant = w.policy.Decide(request).Tenant
		if ref := claim.Spec.DataSource; ref != nil {
			c.IsCopy = true
			if at := slices.IndexFunc(claims, func(other *corev1.PersistentVolumeClaim) bool {
				return other.Namespace == claim.Namespace && other.Name == ref.Name
			}); at >= 0 {
				c.Copies = string(claims[at].UID)
			}
		}
		switch {
		case c.Bound:
			w.addGrowth(&c, request, s.Volumes, used, told[claim.UID])
		case claim.Spec.DataSourceRef != nil:
			c.Denial, c.Explained = "it waits for its populator", true
		default:
			reason, message := w.denial(claim, request, s.Volumes, used)
			c.Denial, c.Explained = message, told[claim.UID][string(reason)]
		}
		s.Claims = append(s.Claims, c)
	}
	w.addSnapshots(&s, told)
	w.addMachines(&s)
	return s, told
}

// requestOf returns what a claim asks the policy for, without its source.
func requestOf(claim *corev1.PersistentVolumeClaim) policy.Request {
	return policy.Request{
		Namespace: claim.Namespace, StorageClass: *claim.Spec.StorageClassName, Parameters: parametersOf(*claim.Spec.StorageClassName), VolumeMode: policy.Filesystem,
		Bytes: policy.Bytes(claim.Spec.Resources.Requests[corev1.ResourceStorage]),
	}
}

// denial returns why a pending claim gets nothing; empty if it should be bound.
func (w *World) denial(claim *corev1.PersistentVolumeClaim, request policy.Request, volumes []cindersim.Volume, used map[string]policy.Usage) (policy.Reason, string) {
	named, _ := admission.DataSourceOf(claim, nil)
	if named == nil {
		return checker.Room(w.policy.Decide(request), used)
	}
	source, denial, err := w.sourceOf(claim, named)
	switch {
	case err != nil:
		return policy.SourceNotReady, err.Error()
	case denial != nil:
		return denial.Reason, denial.Message
	}
	request.Source = &source.Decided
	if reason, message := checker.Room(w.policy.Decide(request), used); message != "" {
		return reason, message
	}
	const failed = "ProvisioningFailed"
	if source.Content.Volume == nil {
		return "", ""
	}
	at := slices.IndexFunc(volumes, func(v cindersim.Volume) bool {
		return v.ID == source.Content.Volume.VolumeID && (v.Status == "available" || v.Status == "in-use")
	})
	switch {
	case at < 0:
		return failed, "the volume of its source is broken or gone"
	case volumes[at].SizeGiB > int(request.Bytes>>30):
		return failed, "the volume of its source was grown, and its claim deleted before that was recorded"
	}
	return "", ""
}

func (w *World) sourceOf(claim *corev1.PersistentVolumeClaim, named *admission.DataSource) (*objects.Source, *policy.Denial, error) {
	if named.Kind == admission.SnapshotKind {
		return objects.SnapshotSourceOf(claim, named, provisionerName, clusterID, w)
	}
	return objects.SourceOf(claim, named, clusterID, w)
}

// Claim implements objects.SourceReader.
func (w *World) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	for _, claim := range apiserver.Objects[*corev1.PersistentVolumeClaim](w.api) {
		if claim.Namespace == namespace && claim.Name == name {
			return claim, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), name)
}

// PersistentVolume implements objects.SourceReader.
func (w *World) PersistentVolume(name string) (*corev1.PersistentVolume, error) {
	for _, pv := range apiserver.Objects[*corev1.PersistentVolume](w.api) {
		if pv.Name == name {
			return pv, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumes"), name)
}

// addGrowth adds to a bound claim what is known of its size.
func (w *World) addGrowth(c *checker.Claim, request policy.Request, volumes []cindersim.Volume, used map[string]policy.Usage, told map[string]bool) {
	for _, v := range volumes {
		if checker.HolderOf(v) != c.UID || v.Metadata[checker.StampCluster] != clusterID || v.Status != "in-use" {
			continue
		}
		decision := w.policy.DecideExpansion(request, policy.Holding{Tenant: v.Metadata[checker.StampTenant], Backend: w.backendOf()[v.Project]})
		reason, message := checker.RoomToGrow(decision, used, v.SizeGiB)
		c.WantsGiB, c.GrowthDenial, c.GrowthExplained = int((request.Bytes+1<<30-1)>>30), message, told[string(reason)]
	}
}

func (w *World) backendOf() map[string]string {
	of := map[string]string{w.sim.ProjectID("team-a"): "gold", w.sim.ProjectID("team-b"): "silver", cindersim.DefaultNoauthProject: "lab"}
	for backend, project := range arrayProjects() {
		of[project] = backend
	}
	return of
}

// ended finds replicas that have exited by themselves.
func (w *World) ended() {
	for _, s := range w.slots {
		if s.replica != nil && s.replica.hasEnded() {
			w.course.Note(checker.Finding{Kind: checker.Crashed, Object: s.replica.name, Text: fmt.Sprintf("exited: %v", s.replica.err)})
		}
	}
}

// settle waits until nothing is wrong. What is still wrong after a while is a finding.
func (w *World) settle(longest time.Duration) error {
	began, clean := time.Now(), 0
	for {
		if err := w.run(time.Second); err != nil {
			return err
		}
		state, told := w.state()
		w.tidySnapshots(told)
		w.rebootTheForgetful()
		w.restartTheWaiting()
		findings := checker.Ending(state)
		if clean++; len(findings) > 0 || len(w.planned) > 0 {
			clean = 0
		}
		if clean == 2 {
			w.note("settled after %s", time.Since(began))
			break
		}
		if time.Since(began) > longest {
			for _, f := range findings {
				w.course.Note(f)
			}
			if len(findings) == 0 {
				w.course.Note(checker.Finding{Kind: checker.Stuck, Object: "the world", Text: "what somebody waits for does not come"})
			}
			break
		}
	}
	w.noteKeys()
	for _, f := range w.quotas.Exceeded(w.sim.Volumes(), checker.Everything) {
		w.course.Note(f)
	}
	return nil
}

func clock(at time.Time) string { return fmt.Sprintf("%.3f", at.Sub(epoch).Seconds()) }
