package world

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/machine"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/apiserver"
)

// stager is the tenant whose claims pods use on machines.
const stager = "n"

// workload is a claim whose pods run on machines, one at a time. The world does with it
// what a StatefulSet, the scheduler and the attach-detach controller would.
type workload struct {
	claim  *corev1.PersistentVolumeClaim
	volume machine.Volume
	// wanted is where its pod is meant to run, and placed is where it does.
	wanted, placed placement
	// attachment is the VolumeAttachment, if there is one.
	attachment *storagev1.VolumeAttachment
	// patience is how long a lost node keeps the pod and the volume, which then go on to
	// another machine by force.
	patience time.Duration
	// since is since when wanted and placed are the same.
	since time.Time
}

// placement is a pod on a machine; nil is nowhere. The volume stays attached from one pod to
// the next on the same machine, unless the attachments have different numbers.
type placement struct {
	on              *station
	pod, attachment int
}

func (w *World) startPods() {
	const most = 8
	if len(w.workloads) >= most {
		return
	}
	class, _ := pick(w, []string{shown, masked, sealed})
	w.runPodsOf(class, w.random.IntN(len(w.machines)))
}

// runPodsOf creates a claim whose pods run on machines, first on the one of a number.
func (w *World) runPodsOf(class string, on int) {
	name := fmt.Sprintf("staged-%d", w.random.IntN(12))
	if w.makeClaim(stager, name, class, 1) == "" {
		return
	}
	claim, err := w.Claim(stager, name)
	if err != nil {
		panic(err) // it was just made
	}
	w.workloads = append(w.workloads, &workload{claim: claim, patience: time.Duration(w.random.Int64N(int64(20 * time.Second))), wanted: placement{on: w.machines[on], pod: 1}})
}

// movePod has the next pod of a claim run, perhaps on another machine.
func (w *World) movePod() {
	p, ok := pick(w, w.workloads)
	if !ok || p.wanted.on == nil {
		return
	}
	if w.random.IntN(3) > 0 {
		p.wanted.on, _ = pick(w, w.machines)
	}
	p.wanted.pod++
	p.wanted.attachment += w.random.IntN(2)
	w.note("the next pod of claim %s is for %s", p.claim.Name, p.wanted.on.Name)
}

// endPods ends the pod of a claim; the claim goes then, or first.
func (w *World) endPods() {
	p, ok := pick(w, w.workloads)
	if !ok {
		return
	}
	if p.wanted.on != nil && w.random.IntN(2) == 0 {
		w.note("the pod of claim %s ends", p.claim.Name)
		p.wanted = placement{}
		w.await(func() bool { return p.placed.on == nil && p.attachment == nil }, func() { w.removeIfThere(p.claim.UID) })
		return
	}
	w.removeIfThere(p.claim.UID)
}

// runPods brings all pods one step closer to where they are meant to run, and forgets
// those whose claims are gone.
func (w *World) runPods() {
	for _, p := range w.workloads {
		w.runPod(p)
	}
	w.workloads = slices.DeleteFunc(w.workloads, func(p *workload) bool {
		return w.claims.DeletionRequested(p.claim.UID) && p.wanted.on == nil && p.attachment == nil && w.phaseOf(p.claim) == ""
	})
}

func (w *World) runPod(p *workload) {
	if w.claims.DeletionRequested(p.claim.UID) {
		p.wanted = placement{} // the pods of a claim that goes first end a moment later
	}
	if p.wanted.on != nil && p.wanted.on.isGivenUp(p.patience) {
		// Pods of a lost machine are evicted.
		for _, s := range w.machines {
			if s.takesPods() {
				p.wanted = placement{s, p.wanted.pod + 1, p.wanted.attachment}
			}
		}
	}
	switch {
	case p.wanted == p.placed:
	case p.attachment != nil:
		w.leave(p)
	case p.wanted.on == nil:
		p.placed = placement{}
	default:
		w.enter(p)
	}
}

// leave takes a pod from its machine, and its volume, unless the next pod runs there.
func (w *World) leave(p *workload) {
	a := p.attachment
	if p.wanted.on == p.placed.on && p.wanted.attachment == p.placed.attachment && !w.attachments.DeletionRequested(a.UID) {
		w.put(p)
		return
	}
	w.pods.Remove(a.Spec.NodeName, p.volume.PV)
	if !w.attachments.DeletionRequested(a.UID) {
		if node := w.node(a.Spec.NodeName); node != nil && slices.Contains(node.Status.VolumesInUse, machine.InUse(p.volume.Handle)) {
			if !p.placed.on.isGivenUp(p.patience) {
				return
			}
			w.note("%s is detached from %s by force", p.volume.PV, a.Spec.NodeName)
		}
		w.note("%s is detached from %s", p.volume.PV, a.Spec.NodeName)
		w.attachments.RecordDeletionRequest(a.UID)
		_ = w.api.Delete(a)
	}
	if !slices.ContainsFunc(apiserver.Objects[*storagev1.VolumeAttachment](w.api), func(other *storagev1.VolumeAttachment) bool { return other.UID == a.UID }) {
		p.attachment, p.placed = nil, placement{}
	}
}

// enter has a volume attached for its pod, once it is there.
func (w *World) enter(p *workload) {
	if p.volume.PV == "" {
		pv, err := w.PersistentVolume("pvc-" + string(p.claim.UID))
		if err != nil || pv.Spec.CSI == nil || w.phaseOf(p.claim) != corev1.ClaimBound {
			return
		}
		p.volume = machine.Volume{PV: pv.Name, Handle: pv.Spec.CSI.VolumeHandle, Attributes: pv.Spec.CSI.VolumeAttributes, Secret: pv.Spec.CSI.NodeStageSecretRef.Name}
	}
	if !p.wanted.on.takesPods() {
		return
	}
	node := p.wanted.on.Name
	// Kubernetes' name for it (getAttachmentName in pkg/volume/csi).
	name := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(p.volume.Handle+wire.DriverName+node)))
	made, err := w.api.Create(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: wire.DriverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &p.volume.PV}},
	})
	if err != nil {
		return
	}
	p.attachment = made.(*storagev1.VolumeAttachment)
	w.put(p)
}

// put puts a pod on a machine to which its volume is being attached.
func (w *World) put(p *workload) {
	v := p.volume
	v.Pod, v.Attachment = p.podName(), p.attachment.Name
	w.note("pod %s is on %s", v.Pod, p.attachment.Spec.NodeName)
	w.pods.Put(p.attachment.Spec.NodeName, v)
	p.placed, p.since = p.wanted, time.Now()
}

// podName returns the name of the pod that is meant to run.
func (p *workload) podName() string { return fmt.Sprintf("%s-%d", p.claim.UID, p.wanted.pod) }

// restartTheWaiting does what the guide to lost nodes says: if a pod waits on a node that
// array and program had taken for lost, it is scaled down until the node has unstaged the
// volume.
func (w *World) restartTheWaiting() {
	const patience = 3 * time.Minute
	for _, p := range w.workloads {
		if p.wanted.on != nil && p.wanted == p.placed && time.Since(p.since) > patience && !p.placed.on.Serves(p.volume.PV, p.podName()) && *p.claim.Spec.StorageClassName != shown {
			w.note("claim %s is scaled down for a while", p.claim.Name)
			p.wanted.attachment++
		}
	}
}

// pvOf returns the PersistentVolume of a workload's volume.
func (w *World) pvOf(volumeID string) string {
	for _, p := range w.workloads {
		if handle, err := wire.ParseHandle(p.volume.Handle); err == nil && handle.ID == volumeID {
			return p.volume.PV
		}
	}
	return ""
}

// vas returns the VolumeAttachments as the checker sees them.
func (w *World) vas() []checker.Attachment {
	volumes := map[string]string{}
	for _, pv := range apiserver.Objects[*corev1.PersistentVolume](w.api) {
		volumes[pv.Name] = checker.PVOf(pv).VolumeID
	}
	var all []checker.Attachment
	for _, a := range apiserver.Objects[*storagev1.VolumeAttachment](w.api) {
		out := checker.Attachment{
			UID: string(a.UID), Name: a.Name, PV: *a.Spec.Source.PersistentVolumeName, Node: a.Spec.NodeName, VolumeID: volumes[*a.Spec.Source.PersistentVolumeName],
			Attached: a.Status.Attached && a.DeletionTimestamp == nil, Asked: w.attachments.DeletionRequested(a.UID) || a.DeletionTimestamp != nil,
		}
		for _, failed := range []*storagev1.VolumeError{a.Status.AttachError, a.Status.DetachError} {
			if failed != nil {
				out.Error = failed.Message
			}
		}
		all = append(all, out)
	}
	return all
}

// addMachines adds to a state what is on machines, and what they say.
func (w *World) addMachines(s *checker.State) {
	s.Attachments, s.Writes, s.Reports = w.vas(), w.writes(), w.reports()
	for _, m := range w.machines {
		s.Machines = append(s.Machines, m.Name)
	}
	for _, p := range w.workloads {
		if p.wanted.on == nil {
			continue
		}
		pod := checker.Pod{Claim: p.claim.Name, ClaimUID: string(p.claim.UID), Node: p.wanted.on.Name}
		if handle, err := wire.ParseHandle(p.volume.Handle); err == nil {
			pod.VolumeID = handle.ID
		}
		pod.Runs = p.wanted == p.placed && p.placed.on.Serves(p.volume.PV, p.podName())
		s.Pods = append(s.Pods, pod)
	}
}
