package provisioner

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
)

// beginning is what it takes to undo a claim's provisioning.
type beginning struct {
	backend   string
	stamp     backends.Stamp
	connector backends.Connector
	// handedOver says that the library was given the PersistentVolume to save.
	handedOver bool
}

// ClaimGone undoes what was begun for a claim that was deleted before its
// PersistentVolume was recorded. The error says that it must be tried again.
func (p *Provisioner) ClaimGone(ctx context.Context, uid types.UID) error {
	p.forgetDenial(uid)
	p.forgetSaid(uid)
	p.limiter.Gone(string(uid))
	p.failingClaims.take(uid)
	p.waitingClaims.take(uid)
	p.claimTurns.End(string(uid))
	p.mu.Lock()
	delete(p.outlived, uid)
	p.mu.Unlock()
	begun, ok := p.beginningOf(uid)
	if !ok {
		p.giveBack(uid)
		return nil
	}
	return p.undo(p.onBehalfOf(ctx, begun.stamp.Tenant), uid, begun)
}

func (p *Provisioner) beginningOf(uid types.UID) (beginning, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	begun, ok := p.begun[uid]
	return begun, ok
}

// isRecorded tells whether a PersistentVolume exists. One that was saved a
// moment ago may not be in the cache yet.
func (p *Provisioner) isRecorded(ctx context.Context, name string) (bool, error) {
	if _, err := p.PersistentVolumes.Get(name); err == nil {
		return true, nil
	}
	return isRecorded(ctx, p.Client, name)
}

// isRecorded asks the API server itself whether a PersistentVolume exists.
func isRecorded(ctx context.Context, client kubernetes.Interface, name string) (bool, error) {
	_, err := client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot tell whether PersistentVolume %s exists: %w", name, err)
	}
	return true, nil
}

// undo removes the volume and Secret of an attempt, on a context that the
// end of the attempt does not cut short. It does nothing once a
// PersistentVolume is recorded: its reclaim policy decides then, and Delete
// does the rest.
func (p *Provisioner) undo(ctx context.Context, uid types.UID, begun beginning) error {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(p.Hold, cancel)()
	recorded, err := p.isRecorded(lasting, begun.stamp.PV)
	if err != nil {
		return err
	}
	if recorded {
		p.finish(uid)
		return nil
	}
	volumes, err := p.Backends.Volumes(begun.backend)
	if err != nil {
		return err
	}
	// The Secret first: as long as the volume exists, it tells the next leader
	// that there is something left to undo.
	if err := deleteOwnSecret(lasting, p.Client, p.Namespace, begun.stamp.PV); err != nil {
		return err
	}
	if err := volumes.Abandon(lasting, begun.stamp, begun.connector); err != nil {
		return err
	}
	p.noteUndone(uid, begun)
	// A shared one last: others may need it, and who leads next looks for it.
	shared := p.shared.heldBy(uid)
	p.finish(uid)
	p.release(uid)
	p.leaveSharedSecrets(lasting, begun.backend, shared)
	p.Logger.Info("Undid what was begun for a claim", "claimUID", uid, "backend", begun.backend)
	return nil
}

// begin remembers an attempt, and reports whether it is the term's first.
func (p *Provisioner) begin(uid types.UID, b beginning) (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	earlier, before := p.begun[uid]
	b.handedOver = b.handedOver || earlier.handedOver
	p.begun[uid] = b
	return !before
}

// handOver remembers that the library saves the claim's PersistentVolume.
func (p *Provisioner) handOver(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if begun, ok := p.begun[uid]; ok {
		begun.handedOver = true
		p.begun[uid] = begun
	}
}

func (p *Provisioner) finish(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.begun, uid)
	p.shared.attemptOver(uid)
}
