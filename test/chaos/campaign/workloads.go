package campaign

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/machine"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// workload is a claim whose pods run on machines, one at a time. It does what a
// StatefulSet, the scheduler and the attach-detach controller would.
type workload struct {
	step      plan.WorkloadStep
	namespace string
	uid       types.UID
	volume    machine.Volume
	volumeID  string

	mu sync.Mutex
	// wanted is where its pod is meant to run, and placed is where it does.
	wanted, placed placement
	// attachment is the VolumeAttachment, if there is one.
	attachment *attachment
	// since is since when wanted and placed are the same.
	since time.Time
}

// placement is a pod on a machine. The volume stays attached from one pod to the next on
// the same machine, unless the attachments have different numbers.
type placement struct {
	on, pod, attachment int
}

// nowhere is the machine of no pod.
const nowhere = -1

// want changes where the pod is meant to run.
func (p *workload) want(change func(*placement)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.wanted)
}

// runWorkload makes a claim, and moves its pod from machine to machine.
func (w *world) runWorkload(ctx, trouble context.Context, step plan.WorkloadStep) {
	w.carryOut(ctx, trouble, step.At, step.String(), func() error { return w.workload(ctx, trouble, step) })
}

func (w *world) workload(ctx, trouble context.Context, step plan.WorkloadStep) error {
	p := &workload{step: step, namespace: w.names.namespace(plan.Stager), wanted: placement{on: nowhere}, placed: placement{on: nowhere}}
	made, err := w.createClaim(ctx, harness.Claim(p.namespace, step.Claim, w.names.class(step.Class), "1Gi", nil))
	if err != nil {
		return err
	}
	p.uid = made.UID
	w.claims.NoteMade(p.uid)
	w.attachments.NotePod()
	if !w.awaitBound(trouble, p.namespace, step.Claim) {
		return nil
	}
	pv, err := w.csiVolume(ctx, "pvc-"+string(p.uid))
	if err != nil {
		return err
	}
	p.volume = machine.Volume{PV: pv.Name, Handle: pv.Spec.CSI.VolumeHandle, Attributes: pv.Spec.CSI.VolumeAttributes, Secret: pv.Spec.CSI.NodeStageSecretRef.Name}
	p.volumeID = pv.Annotations[annotationVolume]
	w.follow(p)
	for i, stay := range step.Stays {
		p.want(func(at *placement) {
			at.on, at.pod = stay.Machine, i+1
			if stay.Again {
				at.attachment++
			}
		})
		// The pods of a lost machine are evicted.
		for until := time.Now().Add(stay.For); time.Now().Before(until) && !w.machines[stay.Machine].isGivenUp(step.Patience); {
			if !sleep(trouble, lookAgain) {
				return nil
			}
		}
	}
	if !step.Ends {
		return nil
	}
	if step.ClaimFirst {
		if err := w.deleteClaim(ctx, p.namespace, step.Claim, p.uid); err != nil {
			return err
		}
		sleep(trouble, time.Second)
	}
	p.want(func(at *placement) { at.on = nowhere })
	if step.ClaimFirst {
		return nil
	}
	for sleep(trouble, lookAgain) {
		if p.isIdle() {
			return w.deleteClaim(ctx, p.namespace, step.Claim, p.uid)
		}
	}
	return nil
}

// follow keeps a workload's pod where it is meant to be, until the campaign ends.
func (w *world) follow(p *workload) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	before := w.endKeep
	w.endKeep = func() {
		cancel()
		before()
	}
	w.workloads = append(w.workloads, p)
	w.keeping.Go(func() {
		for sleep(ctx, lookAgain) {
			if err := w.move(ctx, p); err != nil && ctx.Err() == nil {
				w.timeline.Note("pod of %s: %s", p.step.Claim, err)
			}
		}
	})
}

func (w *world) allWorkloads() []*workload {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.workloads)
}

// move brings a pod one step closer to where it is meant to run. Only one call at a time
// is under way for a workload.
func (w *world) move(ctx context.Context, p *workload) error {
	p.mu.Lock()
	wanted, placed, a := p.wanted, p.placed, p.attachment
	p.mu.Unlock()
	if wanted == placed {
		return nil
	}
	if a != nil {
		node := a.node
		if wanted.on == placed.on && wanted.attachment == placed.attachment {
			// The next pod is there before anything is detached.
			w.put(p, wanted, a)
			return nil
		}
		w.pods.Remove(node, p.volume.PV)
		if !w.attachments.DeletionRequested(a.uid) {
			uses, err := w.isInUse(ctx, node, p.volume.Handle)
			if err != nil {
				return err
			}
			if uses && !w.machines[placed.on].isGivenUp(p.step.Patience) {
				return nil
			}
			if uses {
				w.timeline.Note("%s is detached from %s by force", p.volume.PV, node)
				w.change(func(c *Counts) { c.Forced++ })
			}
		}
		if err := w.detach(ctx, a); err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, try)
		now, err := w.suite.Client.StorageV1().VolumeAttachments().Get(bounded, a.name, metav1.GetOptions{})
		cancel()
		if err == nil && now.UID == a.uid {
			return nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		p.mu.Lock()
		p.attachment, p.placed = nil, placement{on: nowhere}
		p.mu.Unlock()
	}
	if wanted.on == nowhere {
		p.mu.Lock()
		p.placed = wanted
		p.mu.Unlock()
		return nil
	}
	if !w.machines[wanted.on].takesPods() {
		return nil
	}
	node := w.machines[wanted.on].Name
	made, err := w.attach(ctx, ctx, attachmentName(p.volume.Handle, node), p.volume.PV, node)
	if err != nil || made == nil {
		return err
	}
	w.put(p, wanted, made)
	return nil
}

// attachmentName returns the name that Kubernetes gives the VolumeAttachment of a volume and
// a node (getAttachmentName in pkg/volume/csi), by which the program finds it.
func attachmentName(handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+wire.DriverName+node)))
}

// put puts a pod on a machine to which its volume is being attached.
func (w *world) put(p *workload, at placement, a *attachment) {
	v := p.volume
	v.Pod, v.Attachment = fmt.Sprintf("%s-%d", p.step.Claim, at.pod), a.name
	w.timeline.Note("pod %s is on %s", v.Pod, a.node)
	w.pods.Put(a.node, v)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.placed, p.attachment, p.since = at, a, time.Now()
}

// isInUse reports whether the status of a Node says that it uses a volume.
func (w *world) isInUse(ctx context.Context, node, handle string) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, try)
	defer cancel()
	now, err := w.suite.Client.CoreV1().Nodes().Get(bounded, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.Contains(now.Status.VolumesInUse, machine.InUse(handle)), nil
}

// isIdle reports whether a workload has no pod, and its volume no VolumeAttachment.
func (p *workload) isIdle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted.on == nowhere && p.wanted == p.placed
}

// pod returns the pod that is meant to run; the node is empty if there is none.
func (p *workload) pod(w *world) (pod checker.Pod, runs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod = checker.Pod{Claim: p.step.Claim, ClaimUID: string(p.uid), VolumeID: p.volumeID}
	if p.wanted.on == nowhere {
		return pod, false
	}
	s := w.machines[p.wanted.on]
	pod.Node = s.Name
	return pod, p.wanted == p.placed && s.Serves(p.volume.PV, fmt.Sprintf("%s-%d", p.step.Claim, p.placed.pod))
}

// endWorkloads ends the pods of all claims whose deletion was requested, and lets the
// others run.
func (w *world) endWorkloads() {
	for _, p := range w.allWorkloads() {
		deleted := w.claims.DeletionRequested(p.uid)
		p.want(func(at *placement) {
			if deleted {
				at.on = nowhere
			}
		})
	}
}

// Times of the operator in the ending.
const (
	// forgotten is how long a kubelet may have to do with a volume after its pods are gone.
	forgotten = 8 * time.Second
	// waiting is how long a pod may wait for its volume.
	waiting = 12 * time.Second
)

// operate does what docs/how-to/lost-node.md tells an operator to do, once everything
// is back: it reboots a node that has a volume staged that its kubelet has forgotten; and
// if a pod waits on a node that array and program had taken for lost, it scales the pod
// down until the node has unstaged the volume.
func (w *world) operate(ctx context.Context) {
	since := map[string]time.Time{}
	for sleep(ctx, time.Second) {
		for n, s := range w.machines {
			report, err := w.reportOf(ctx, s.Name)
			if err != nil {
				continue
			}
			for _, volume := range report.Volumes {
				pv := w.pvOf(volume)
				key := fmt.Sprint(n, pv)
				switch {
				case pv == "" || s.Remembers(pv):
					delete(since, key)
				case since[key].IsZero():
					since[key] = time.Now()
				case time.Since(since[key]) > forgotten:
					delete(since, key)
					w.timeline.Say("%s has forgotten %s and is rebooted", s.Name, pv)
					s.note(time.Now(), false)
					s.Off()
					if err := s.On(); err != nil {
						w.timeline.Say("%s: %s", s.Name, err)
					}
					if err := w.welcome(ctx, s, false); err != nil {
						return
					}
				}
			}
		}
		for _, p := range w.allWorkloads() {
			if pod, runs := p.pod(w); pod.Node == "" || runs || plan.ArrayOf(p.step.Class) != plan.Masked {
				continue
			}
			p.mu.Lock()
			if p.wanted == p.placed && time.Since(p.since) > waiting {
				w.timeline.Note("%s is scaled down for a while", p.step.Claim)
				p.wanted.attachment++
			}
			p.mu.Unlock()
		}
	}
}

// pvOf returns the PersistentVolume of a workload's volume.
func (w *world) pvOf(volumeID string) string {
	for _, p := range w.allWorkloads() {
		if p.volumeID == volumeID {
			return p.volume.PV
		}
	}
	return ""
}
