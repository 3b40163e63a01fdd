package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// tidyInterval is the time between two looks at what nodes have let go of.
const tidyInterval = 5 * time.Second

// owedPause is the time between two attempts to end a detachment that is owed.
const owedPause = 30 * time.Second

// owedAtOnce is how many of them are tried in one look: a node can report any volumes.
const owedAtOnce = 20

// Run ends owed detachments, until the context ends.
func (e *Engine) Run(ctx context.Context) {
	defer e.Metrics.forget()
	for {
		e.rounds.tidy(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(tidyInterval):
		}
	}
}

// rounds looks at what nodes report, and at what backends record about them.
type rounds struct{ *Engine }

// tidy detaches volumes from nodes that have let go of them. Nobody may ask for these
// volumes any more, and then nothing else would detach them. It consults caches first, so
// it costs no request as long as nothing has changed.
func (e rounds) tidy(ctx context.Context) {
	if e.Attachments.Known() {
		for _, backend := range e.Backends() {
			if volumes, err := e.Volumes(backend); err == nil {
				// A failure is reported when it matters.
				_ = e.know(ctx, volumes, backend)
			}
		}
	}
	if e.Nodes.Known() && e.Reports.Known() && e.Attachments.Known() {
		unattached := e.unattached()
		for _, at := range unattached {
			if !slices.Contains(e.unsettled.takenFrom(at.node), at.volume) {
				e.unsettled.owe(at.node, at.volume)
			}
		}
		e.settle(ctx)
		e.forgetReports(ctx)
		e.Metrics.show(e.count(unattached))
	}
	e.room.tidyPlaces()
}

// unattached returns the volumes that nodes have staged and that Kubernetes has not
// attached to them, according to the caches.
func (e rounds) unattached() []onNode {
	attachments := e.attachmentsOn("")
	var found []onNode
	for lease := range e.Reports.All() {
		name, report := staged.NodeOf(lease.Name), staged.Of(lease)
		node := e.Nodes.Get(name)
		if node == nil || len(report.Volumes) == 0 {
			continue
		}
		for _, text := range report.Volumes {
			if volume, err := wire.ParseHandle(text); err == nil && report.Has(text, node) && attachments[onNode{name, volume}] == nil {
				found = append(found, onNode{name, volume})
			}
		}
	}
	return found
}

// settle ends the detachments that are owed by nodes that have let go, and forgets the
// volumes taken from them.
func (e rounds) settle(ctx context.Context) {
	owed, taken := e.unsettled.due(time.Now())
	// First, since a silent backend may delay the others.
	for _, at := range taken {
		if node := e.Nodes.Get(at.node); node != nil && e.has(at, node) {
			continue
		}
		if _, _, may, err := e.lost.mayWrite(ctx, at.volume, at.node); err == nil && !may {
			e.unsettled.over(at.node, at.volume)
			e.Logger.Info("A node has let go of a volume that was taken from it", "volume", at.volume.String(), "node", at.node)
		}
	}
	tried := 0
	for _, at := range owed {
		node := e.Nodes.Get(at.node)
		if node != nil && e.has(at, node) && !e.lost.mayBeTaken(at.volume, node) {
			continue
		}
		if tried++; tried > owedAtOnce {
			break
		}
		if err := e.pay(ctx, at); err != nil {
			e.unsettled.postpone(at, time.Now().Add(owedPause))
			if ctx.Err() == nil && !cinder.IsKind(err, cinder.KindFenced) {
				e.Logger.Info("A detachment waits", "volume", at.volume.String(), "node", at.node, "reason", err)
			}
		}
	}
}

// has reports whether, according to the cache, a node may still write to a volume.
func (e rounds) has(at onNode, node *corev1.Node) bool {
	report, reported := e.report(at.node)
	return !reported || report.Has(at.volume.String(), node)
}

// pay does a detachment that is owed, unless the volume is wanted on the node again.
func (e rounds) pay(ctx context.Context, at onNode) error {
	// Otherwise the node could get the volume again after the VolumeAttachment was not found.
	if !e.Gate.Close(at.volume) {
		return nil
	}
	defer e.Gate.Open(at.volume)
	if a, err := e.lost.liveAttachment(ctx, at.volume, at.node); err != nil {
		return err
	} else if a != nil {
		e.unsettled.paid(at.node, at.volume)
		return nil
	}
	volumes, of, err := e.attached(ctx, at.volume)
	if err != nil {
		return err
	}
	return e.detach(ctx, volumes, at.volume, of, at.node, true)
}

// forgetReports deletes the reports of nodes that are gone, and of machines whose Node
// was deleted before another machine took its name.
func (e rounds) forgetReports(ctx context.Context) {
	for lease := range e.Reports.All() {
		name, report := staged.NodeOf(lease.Name), staged.Of(lease)
		if name == "" {
			continue
		}
		if node := e.Nodes.Get(name); node != nil && !report.IsOver(node) {
			continue
		}
		live, err := e.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) || err == nil && !report.IsOver(live) {
			continue
		}
		err = e.Client.CoordinationV1().Leases(e.Namespace).Delete(ctx, lease.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}})
		if err == nil {
			e.Logger.Info("Removed the report of a node that is gone", "node", name, "volumes", len(report.Volumes))
		}
	}
}

// know reads the records on a backend's volumes, unless that was done for the place to
// which it leads now: which places on nodes are taken, and which attachments Kubernetes
// no longer knows. What this term attached is known anyway.
func (e rounds) know(ctx context.Context, volumes Volumes, backend string) error {
	if e.isKnown(backend, volumes.Place()) {
		return nil
	}
	if !e.Nodes.Known() {
		return errors.New("the Nodes are not read yet, so it is not known which volumes they have")
	}
	all, err := volumes.Volumes(ctx)
	if err != nil {
		return fmt.Errorf("it is not known yet which volumes the nodes have: %w", err)
	}
	waiting := e.room.waiting()
	for _, v := range all {
		if !stamps.IsCSI(v) {
			continue
		}
		handle, known := e.handleFor(v, backend)
		if !known {
			e.Logger.Warn("A volume whose PersistentVolume is gone is left as it is: its handle is another volume's by now", "volume", v.ID, "backend", backend)
			continue
		}
		pv := stamps.Of(v).PV
		e.room.keepPlaces(v, handle, e.backendOf(handle), waiting[pv])
		for key, attached := range stamps.NodeRecordsOf(v) {
			node := e.nameOfNode(attached.Node, key)
			// The nodes of other orchestrators have neither Nodes nor VolumeAttachments.
			if e.Nodes.Get(node) != nil && !e.isAttached(pv, node) {
				e.unsettled.owe(node, handle)
			}
		}
	}
	e.known.Lock()
	defer e.known.Unlock()
	e.known.places[backend] = volumes.Place()
	return nil
}

func (e rounds) isKnown(backend string, at cinder.Place) bool {
	e.known.Lock()
	defer e.known.Unlock()
	where, known := e.known.places[backend]
	return known && where == at
}

// nameOfNode returns the name of a node that a record names, perhaps only by its
// beginning; empty if the cluster has no such node.
func (e *Engine) nameOfNode(name, key string) string {
	if wire.NodeKey(name) == key {
		return name
	}
	return e.nodeOf(key)
}

// isAttached reports whether the cache has a VolumeAttachment of a PersistentVolume and a
// node.
func (e *Engine) isAttached(pv, node string) bool {
	return slices.ContainsFunc(e.attachmentsOf(pv), func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName == node })
}

// count counts what the metrics show.
func (e rounds) count(unattached []onNode) map[string]counts {
	found := map[string]counts{}
	add := func(backend string, more counts) {
		c := found[backend]
		found[backend] = counts{c.attachments + more.attachments, c.unclean + more.unclean, c.quarantined + more.quarantined}
	}
	for _, backend := range e.Backends() {
		add(backend, counts{})
	}
	for a := range e.Attachments.All() {
		if a.Status.Attached {
			if handle, ours := e.handleOf(a); ours {
				add(e.backendOf(handle), counts{attachments: 1})
			}
		}
	}
	barred := map[place]bool{}
	for _, at := range unattached {
		// A node could report any backend, so only those that are known become labels.
		backend := e.backendOf(at.volume)
		if _, known := found[backend]; !known {
			continue
		}
		add(backend, counts{unclean: 1})
		if in := (place{backend, at.node}); !barred[in] {
			barred[in] = true
			add(backend, counts{quarantined: 1})
		}
	}
	return found
}

// byName orders volumes by their handles.
func byName(a, b wire.Handle) int {
	return cmp.Or(strings.Compare(a.Backend, b.Backend), strings.Compare(a.ID, b.ID))
}
