package attach

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// others fakes the packages to which the engine passes requests of sidecars.
type others struct {
	asked []string
	err   error
}

func (o *others) ask(format string, arguments ...any) error {
	o.asked = append(o.asked, fmt.Sprintf(format, arguments...))
	return o.err
}

func (o *others) ExpandVolume(_ context.Context, pv *corev1.PersistentVolume, bytes int64) (int64, error) {
	return 3, o.ask("expand %s to %d", pv.Name, bytes)
}

func (o *others) RetypeVolume(_ context.Context, pv *corev1.PersistentVolume, volumeType string) error {
	return o.ask("retype %s to %s", pv.Name, volumeType)
}

// refused is an error of those packages whose kind and text the engine must pass on.
type refused string

func (r refused) Error() string       { return "because" }
func (r refused) FailureKind() string { return string(r) }

// TestSidecarsRequestsArePassedOn: they get the PersistentVolume that they are about,
// and failures come back with their kinds.
func TestSidecarsRequestsArePassedOn(t *testing.T) {
	unknown := wire.Handle{Backend: "gold", ID: "other"}
	for name, test := range map[string]struct {
		call func(ctx context.Context, e *Engine, volume wire.Handle) error
		want string
	}{
		"growth": {func(ctx context.Context, e *Engine, volume wire.Handle) error {
			size, err := e.Expand(ctx, volume, 5)
			if err == nil && size != 3<<30 {
				t.Errorf("expanded to %d bytes", size)
			}
			return err
		}, "expand pvc-1 to 5"},
		"another type": {func(ctx context.Context, e *Engine, volume wire.Handle) error { return e.Retype(ctx, volume, "ssd") }, "retype pvc-1 to ssd"},
		"a snapshot": {func(_ context.Context, e *Engine, volume wire.Handle) error {
			pv, err := Changeable(e, volume)
			if err != nil {
				return Failure(err)
			}
			return Failure(e.Expansions.(*others).ask("snapshot %s", pv.Name))
		}, "snapshot pvc-1"},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := newWorld(t, testPV()), &others{}
			w.Expansions, w.Types = o, func() Types { return o }
			must(t, test.call(t.Context(), w.Engine, handle()))
			if len(o.asked) != 1 || o.asked[0] != test.want {
				t.Errorf("asked %q, want %q", o.asked, test.want)
			}
			for _, kind := range []string{controller.NoRoom, controller.Denied, controller.OutOfRange, controller.Damaged, controller.AlreadyExists} {
				o.err = fmt.Errorf("wrapped: %w", refused(kind))
				wantFailure(t, test.call(t.Context(), w.Engine, handle()), kind, "wrapped: because")
			}
			o.err = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "lost", EffectUnknown: true}
			var failed *controller.Failure
			if err := test.call(t.Context(), w.Engine, handle()); !errors.As(err, &failed) || !failed.EffectUnknown {
				t.Errorf("an effect that is not known: %v", err)
			}
			wantFailure(t, test.call(t.Context(), w.Engine, unknown), "NotFound", "no PersistentVolume has the handle gold/other")
		})
	}
}

// TestTakenImageIsNotChangedAtCinder: where a node has mapped an image so that no other
// client can write to it, Cinder's extension of the image fails and leaves the volume in
// error_extending. That the VolumeAttachment does not say so yet changes nothing.
func TestTakenImageIsNotChangedAtCinder(t *testing.T) {
	metadataOfTaken, err := wire.Connection{Protocol: "rbd", Paths: []wire.Path{{Portal: "192.0.2.1:6789", Target: "pool/image"}}, Taken: true}.PublishContext()
	must(t, err)
	for name, call := range map[string]func(ctx context.Context, e *Engine) error{
		"growth": func(ctx context.Context, e *Engine) error {
			_, err := e.Expand(ctx, handle(), 5)
			return err
		},
		"a snapshot": func(ctx context.Context, e *Engine) error {
			_, err := Changeable(e, handle())
			return Failure(err)
		},
	} {
		for state, metadata := range map[string]map[string]string{"attached": metadataOfTaken, "just handed out": nil} {
			t.Run(name+", "+state, func(t *testing.T) {
				w, o := newWorld(t, testPV(), testSecret()), &others{}
				w.Expansions = o
				attachment := testAttachment(pvName, "n1", func(a *storagev1.VolumeAttachment) {
					a.Status.Attached, a.Status.AttachmentMetadata = metadata != nil, metadata
				})
				must(t, w.attachments.Add(attachment))
				if metadata == nil {
					w.volumes.document, w.volumes.has = imageDocument, true
					lost := machine("n2", "boot-1")
					outOfService(lost)
					must(t, w.machines.Add(lost))
					w.reportsStaged(t, "n2", "boot-1", handle())
					got, err := w.publish(t)
					if must(t, err); !got.Taken {
						t.Fatal("the volume was not taken")
					}
					// The answer stays the same, since the node may have mapped the image.
					w.reportsStaged(t, "n2", "boot-1")
					if got, err = w.publish(t); err != nil || !got.Taken {
						t.Errorf("after the lost node has let go, taken is %t (%v)", got.Taken, err)
					}
				}
				wantFailure(t, call(t.Context(), w.Engine), controller.Unclean, "volume gold/"+volumeID+" was taken from a lost node, so node n1 has its image mapped in a way that keeps out Cinder, too; "+
					"the volume can grow and be snapshotted once the lost node has let go of it and the pods on node n1 have ended and started again")
				if metadata != nil { // by an earlier leader
					w.volumes.document, w.volumes.has = imageDocument, true
					if got, err := w.publish(t); err != nil || !got.Taken {
						t.Errorf("asked again, taken is %t (%v)", got.Taken, err)
					}
				}
				// The node lets go of it, and gets it again without a lock.
				w.unsettled.unlock("n1", handle())
				must(t, w.attachments.Update(testAttachment(pvName, "n1", nil)))
				w.Attachments.Known = func() bool { return false }
				if err := call(t.Context(), w.Engine); err == nil || errors.As(err, new(*controller.Failure)) {
					t.Errorf("before the VolumeAttachments are known: %v", err)
				}
				w.Attachments.Known = func() bool { return true }
				must(t, call(t.Context(), w.Engine))
			})
		}
	}
}
