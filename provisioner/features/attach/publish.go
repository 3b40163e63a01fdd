package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// publication is one call that attaches a volume to a node, as far as it has come.
type publication struct {
	*Engine
	to      controller.PublishRequest
	of      source
	volumes Volumes
	// shared are the names that the node has in common with others.
	shared doubles
	// asked means that a VolumeAttachment asks for the volume on the node.
	asked bool

	// begun means that the node gets a new attachment.
	begun bool
	// useless means that the node has an attachment with which it may not stage.
	useless bool
	// released are the nodes that let go of the volume.
	released []string
	// taken means that the volume was taken from a node that may still write to it.
	taken bool
	// found is how the node connects.
	found mappers.NodeConnection
}

// Publish implements controller.Attacher.
func (e *Engine) Publish(ctx context.Context, to controller.PublishRequest) (wire.Connection, error) {
	p := &publication{Engine: e, to: to}
	connection, err := p.publish(ctx)
	return connection, Failure(err)
}

func (p *publication) publish(ctx context.Context) (wire.Connection, error) {
	if err := p.prepare(ctx); err != nil {
		return wire.Connection{}, err
	}
	volume, node := p.to.Volume, p.to.Node.Name
	at := place{p.of.at.Backend, node}
	placed, err := p.room.takePlace(ctx, p.volumes, volume, at)
	if err != nil {
		return wire.Connection{}, err
	}
	if !p.Gate.Close(volume) {
		return wire.Connection{}, &controller.Failure{Kind: string(cinder.KindConflict), Message: fmt.Sprintf("volume %s is being detached from a node that has let go of it, or its group is being snapshotted", volume)}
	}
	defer p.Gate.Open(volume)
	target := p.of.target
	target.Permit = p.stillThere(p.of.pv)
	started := time.Now()
	published, err := p.volumes.Publish(p.OnBehalfOf(ctx, p.of.tenant), target, backends.PublishRequest{
		Node: node, Key: p.to.Node.Key(), Connector: p.connectorOf(p.to.Node), ReadOnly: p.to.ReadOnly, Shared: p.to.Shared,
		Admit: p.admit, Release: p.release, HandOut: p.handOut,
	})
	if p.useless {
		// The volume was not staged with it, and never can be. The next call makes another.
		from := backends.UnpublishRequest{Node: node, Key: p.to.Node.Key(), Others: p.detaching.keysThatStay(p.of.pv.Name, volume, node)}
		if err := p.volumes.Unpublish(p.OnBehalfOf(ctx, p.of.tenant), p.of.target, from); err != nil {
			return wire.Connection{}, err
		}
	}
	if err != nil {
		// An attachment that was begun may exist at Cinder until the volume is
		// detached.
		if placed && !p.begun {
			p.places.leave(at, volume.String())
		}
		return wire.Connection{}, p.shared.explain(Failure(err))
	}
	for _, other := range p.released {
		p.unsettled.paid(other, volume)
	}
	if !p.begun {
		// It was never taken from the node.
		p.unsettled.over(node, volume)
		// The node may have mapped its image as an earlier answer said.
		p.taken = p.taken || keepsOut(p.Engine, node, volume)
	}
	p.unsettled.lock(node, volume, p.taken)
	if p.begun {
		p.Metrics.attached(at.backend, p.found.Protocol, time.Since(started))
	}
	p.Logger.Info("Attached a volume to a node", "volume", volume.String(), "persistentVolume", p.of.pv.Name, "node", node,
		"attachment", published.AttachmentID, "protocol", p.found.Protocol, "paths", len(p.found.Paths), "warnings", p.found.Warnings)
	warn(p.Recorder, p.of.pv, p.found.Unenforced)
	return p.connection(published), nil
}

// prepare finds the volume, and returns an error if it is known that the node cannot have
// it.
func (p *publication) prepare(ctx context.Context) (err error) {
	if p.of, err = p.volumeOf(p.to.Volume); err != nil {
		return err
	}
	if p.to.Node, p.shared, err = p.admits(p.to.Node); err != nil {
		return err
	}
	if p.asked, err = p.isAskedFor(ctx, p.of.pv.Name, p.to); err != nil {
		return err
	}
	if by, known := p.routes.of(p.of.at); known {
		if err := p.fits(p.to.Node, p.shared, by); err != nil {
			return err
		}
	}
	p.volumes, err = p.Volumes(p.of.at.Backend)
	return err
}

// admit returns why the node may get no new attachment. A node that already has the volume
// gets the same answer again, even if it gets no other.
func (p *publication) admit(ctx context.Context) error {
	err := p.lost.barred(ctx, p.to.Volume, p.to.Node.Name)
	p.begun = p.begun || err == nil
	return err
}

// release reports whether another node has let go of the volume.
func (p *publication) release(ctx context.Context, node, key string) (bool, error) {
	// Nothing but Kubernetes shows that the other node has let go.
	if node = p.nameOfNode(node, key); node == "" || !p.asked {
		return false, nil
	}
	lets, err := p.lost.release(ctx, p.of.pv.Name, p.to.Volume, node, p.to.Node)
	if err == nil && lets {
		p.released = append(p.released, node)
		err = p.drop(ctx, p.of.pv.Name, node)
	}
	return lets, err
}

// handOut leaves what the node needs in its Secret, unless the node cannot use the
// attachment or may not.
func (p *publication) handOut(ctx context.Context, published backends.Published) (err error) {
	volume, node := p.to.Volume, p.to.Node.Name
	if p.begun && len(p.unsettled.takenFrom(node)) > 0 {
		return justTaken(node)
	}
	if !p.begun {
		if p.useless, err = p.lost.mayNotStage(ctx, node, published.AttachmentID); err != nil || p.useless {
			return cmp.Or(err, endedBefore(volume, node))
		}
	}
	rules := p.Rules(p.of.at.Backend)
	opened, err := p.read(ctx, published, rules)
	p.Reach.note(p.of.at.Backend, published.Volume, rules.CephSecret, err)
	if refused := new(mappers.Refusal); errors.As(err, &refused) {
		p.routes.remember(p.of.at, route{refused: err, node: node, seen: time.Now()})
		tell(p.Recorder, p.of.pv, refused)
	}
	if err != nil {
		return err
	}
	by := routeOf(p.found)
	if err := p.fits(p.to.Node, p.shared, by); err != nil {
		p.routes.remember(p.of.at, by)
		return err
	}
	if err := asBefore(p.to, published.ReadOnly, p.found.ReadOnly); err != nil {
		return err
	}
	if p.found.Protocol == mappers.ProtocolRBD && !p.to.Shared {
		if p.taken, err = takenByLock(p.Engine, volume, node); err != nil {
			return err
		}
	}
	if opened.Unusable != nil {
		p.Logger.Warn("A volume that gets a new key is opened with only one of its keys", "volume", volume.String(), "persistentVolume", p.of.pv.Name, "error", opened.Unusable)
	}
	p.found.Credentials = withPassphrases(p.found.Credentials, opened)
	return p.keep(ctx, p.of.pv, node, p.found.Credentials)
}

// read reads how the node connects, and what opens the volume.
func (p *publication) read(ctx context.Context, published backends.Published, rules Rules) (passphrases, error) {
	connection, err := mappers.ParseConnection(published.Document)
	if err != nil {
		return passphrases{}, err
	}
	fixed := operatorsSecret{p.Client, p.Namespace, rules.FixedKeySecret}
	encryption, opened, err := encryptionOf(ctx, p.volumes, connection, published.Volume, objects.EncryptedOf(p.of.pv), fixed)
	if err != nil {
		return passphrases{}, err
	}
	p.found, err = operatorsSecret{p.Client, p.Namespace, rules.CephSecret}.forNode(ctx, connection, mappers.NodeRequest{
		Encrypted: published.Volume.Encrypted, Ports: p.to.Node.PortNames, Encryption: encryption,
	})
	return opened, err
}

// connection is what the node plugin gets to know.
func (p *publication) connection(published backends.Published) wire.Connection {
	connection := wire.Connection{
		Protocol: p.found.Protocol, Identities: p.found.Identities, Credentials: p.found.Credentials != nil, ReadOnly: p.found.ReadOnly || p.to.ReadOnly, Bytes: published.Volume.SizeGiB << 30,
		Attachment: published.AttachmentID, Shared: p.to.Shared, Taken: p.taken,
	}
	if found := p.found.Encryption; found != nil {
		connection.Encryption = &wire.Encryption{LUKS: found.LUKS, Cipher: found.Cipher, KeyBits: found.KeyBits}
	}
	if p.found.Limits != (mappers.Limits{}) {
		connection.Limits = new(wire.Limits(p.found.Limits))
	}
	if objects.IsSwapped(p.of.pv) {
		connection.Volume = &wire.SwappedVolume{ID: p.of.at.ID, Volume: objects.VolumeContextOf(p.of.pv)}
	}
	for _, path := range p.found.Paths {
		connection.Paths = append(connection.Paths, wire.Path{Portal: path.Portal, Target: path.Target, LUN: path.LUN})
	}
	return connection
}

// tell tells the owner of a claim why its pods do not start.
func tell(recorder eventrecord.EventRecorder, pv *corev1.PersistentVolume, refused *mappers.Refusal) {
	tellOwner(recorder, pv, string(refused.Reason), refused.Message)
}

// warn tells the owner of a claim which limits of its volume do not hold.
func warn(recorder eventrecord.EventRecorder, pv *corev1.PersistentVolume, warnings []string) {
	for _, warning := range warnings {
		tellOwner(recorder, pv, "ConnectionWarning", warning)
	}
}

func tellOwner(recorder eventrecord.EventRecorder, pv *corev1.PersistentVolume, reason, message string) {
	if claim := pv.Spec.ClaimRef; claim != nil {
		recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			corev1.EventTypeWarning, reason, message)
	}
}

func routeOf(found mappers.NodeConnection) route {
	by := route{protocol: found.Protocol, seen: time.Now()}
	for _, path := range found.Paths {
		by.targets = append(by.targets, path.Target)
	}
	return by
}

// asBefore returns an error if a node has the volume for writing and is to have it for
// reading, or the reverse. Cinder before microversion 3.54 has no attachments for
// reading, so what is recorded counts, too. If Cinder itself grants a volume only for
// reading, a call may still ask for it as if for writing.
func asBefore(to controller.PublishRequest, recorded, granted bool) error {
	has, asked := "writing", "reading"
	switch {
	case recorded && !to.ReadOnly:
		has, asked = asked, has
	case !to.ReadOnly || recorded || granted:
		return nil
	}
	return &controller.Failure{Kind: controller.AlreadyExists, Message: fmt.Sprintf("node %s has volume %s for %s, and can get it for %s only after it is detached there", to.Node.Name, to.Volume, has, asked)}
}
