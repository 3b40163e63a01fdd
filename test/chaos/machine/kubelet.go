package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// kubelet does what a kubelet does with the volumes of pods (pkg/kubelet/volumemanager of
// Kubernetes): it says in its Node which volumes it uses, waits until they are attached,
// and calls the plugin. It shows a volume of another pod without staging it again.
type kubelet struct {
	machine *Machine
	client  kubernetes.Interface
	logger  *slog.Logger

	mu    sync.Mutex
	ended bool
	// volumes are those that it remembers, by their PersistentVolumes.
	volumes map[string]*volume
	// registered means that Node and CSINode are there, and told what the Node's status
	// says; empty if that is not known.
	registered bool
	told       string
	// learns is when it learns again which pods are meant to run.
	learns time.Time
}

// volume is a volume that a kubelet has to do with.
type volume struct {
	Volume
	wanted bool
	// listed volumes are in the Node's status, if the kubelet knows that it uses them.
	listed, forgotten bool
	// begun means that staging was begun, and staged that it has succeeded.
	begun, staged bool
	// published is the path at which a pod has it.
	published string
	busy      bool
	again     time.Time
}

// startKubelet starts a kubelet, which finds those of some volumes that pods have mounted
// on the machine. The caller has the machine's mutex.
func (m *Machine) startKubelet(before []Volume) error {
	client, err := m.connect()
	if err != nil {
		return err
	}
	k := &kubelet{machine: m, client: client, logger: m.logger(), volumes: map[string]*volume{}}
	for _, v := range before {
		target := targetOf(v.PV, v.Pod)
		if _, _, _, mounted := m.host.MountedAt(target); mounted {
			k.volumes[v.PV] = &volume{Volume: v, begun: true, published: target, forgotten: true}
		}
	}
	m.kubelet = k
	return nil
}

// endKubelet ends the kubelet, and returns the volumes that it has begun to show to pods.
// The caller has the machine's mutex.
func (m *Machine) endKubelet() []Volume {
	k := m.kubelet
	if k == nil {
		return nil
	}
	m.kubelet = nil
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	var begun []Volume
	for _, v := range k.volumes {
		begun = append(begun, v.Volume)
	}
	return begun
}

// Remembers reports whether the kubelet still has to do with a volume.
func (m *Machine) Remembers(pv string) bool {
	k := m.theKubelet()
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.volumes[pv] != nil
}

// Serves reports whether a pod has a volume.
func (m *Machine) Serves(pv, pod string) bool {
	k := m.theKubelet()
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.volumes[pv]
	return v != nil && v.published != "" && v.published == targetOf(pv, pod)
}

// comeBack makes the kubelet write its Node's status again, and learn later which pods are
// meant to run.
func (k *kubelet) comeBack(learns time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told, k.learns = "", learns
}

// look does one round.
func (k *kubelet) look(ctx context.Context) {
	if k.machine.network.isCut() {
		k.begin(ctx)
		return
	}
	k.learn()
	if err := k.register(ctx); err != nil {
		k.logger.Info("kubelet cannot register", "error", err)
		return
	}
	if err := k.tell(ctx); err != nil {
		k.logger.Info("kubelet cannot write the status of its Node", "error", err)
		return
	}
	k.begin(ctx)
}

// learn notes which pods are meant to run here.
func (k *kubelet) learn() {
	wanted := map[string]Volume{}
	for _, v := range k.machine.Wanted() {
		wanted[v.PV] = v
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended || time.Now().Before(k.learns) {
		return
	}
	for _, v := range k.volumes {
		_, v.wanted = wanted[v.PV]
	}
	for pv, w := range wanted {
		v := k.volumes[pv]
		if v == nil {
			v = &volume{wanted: true}
			k.volumes[pv] = v
		}
		if !v.busy {
			v.Volume = w
		}
	}
}

// register makes Node and CSINode.
func (k *kubelet) register(ctx context.Context) error {
	k.mu.Lock()
	registered := k.registered
	k.mu.Unlock()
	if registered {
		return nil
	}
	p, err := k.machine.thePlugin()
	if err != nil {
		return err
	}
	info, err := p.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return err
	}
	name := k.machine.Name
	_, err = k.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	csiNodes := k.client.StorageV1().CSINodes()
	present, err := csiNodes.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		if len(present.Spec.Drivers) == 1 && present.Spec.Drivers[0].NodeID == info.GetNodeId() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.registered = true
			return nil
		}
		err = csiNodes.Delete(ctx, name, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err = csiNodes.Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: wire.DriverName, NodeID: info.GetNodeId()}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.registered = true
	return nil
}

// InUse returns a kubelet's name for a volume.
func InUse(handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(fmt.Sprintf("kubernetes.io/csi/%s^%s", wire.DriverName, handle))
}

// tell writes the Node's status, unless it is up to date.
func (k *kubelet) tell(ctx context.Context) error {
	uses := map[string]bool{}
	names := []corev1.UniqueVolumeName{}
	k.mu.Lock()
	for _, pv := range slices.Sorted(maps.Keys(k.volumes)) {
		if v := k.volumes[pv]; v.wanted || !v.forgotten {
			uses[pv] = true
			names = append(names, InUse(v.Handle))
		}
	}
	told := k.told
	k.mu.Unlock()
	ids := k.machine.IDs()
	now := fmt.Sprint(ids, names)
	if now == told {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"volumesInUse": names, "nodeInfo": map[string]string{"bootID": ids.Boot, "systemUUID": ids.SystemUUID, "machineID": ids.MachineID},
		"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now()}},
	}})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Nodes().Patch(ctx, k.machine.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.told = ""
		return err
	}
	k.told = now
	for pv, v := range k.volumes {
		v.listed = uses[pv]
	}
	return nil
}

// begin begins what is to be done, for each volume by itself.
func (k *kubelet) begin(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return
	}
	for pv, v := range k.volumes {
		if v.busy || time.Now().Before(v.again) {
			continue
		}
		switch {
		case !v.wanted && !v.begun && v.published == "":
			delete(k.volumes, pv)
		case !v.wanted:
			v.busy = true
			go k.attempt(ctx, v, k.unmount)
		case v.listed && (!v.staged || v.published != targetOf(pv, v.Pod)):
			v.busy = true
			go k.attempt(ctx, v, k.mount)
		}
	}
}

// errWaits means that a volume is not attached yet.
var errWaits = errors.New("it is not attached")

// attempt does something with a volume, and repeats it later if it fails.
func (k *kubelet) attempt(ctx context.Context, v *volume, do func(context.Context, *volume) error) {
	const pause = 300 * time.Millisecond
	err := do(ctx, v)
	k.mu.Lock()
	defer k.mu.Unlock()
	v.busy = false
	if err != nil {
		v.again = time.Now().Add(pause)
		if !errors.Is(err, errWaits) && !errors.Is(err, errCut) {
			k.logger.Info("kubelet failed", "volume", v.Handle, "pod", v.Pod, "error", err)
		}
	}
}

// change changes what is remembered of a volume, unless the kubelet has ended.
func (k *kubelet) change(do func()) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return errors.New("the kubelet has ended")
	}
	do()
	return nil
}

func directory(pv string) string {
	return "/var/lib/kubelet/plugins/kubernetes.io/csi/" + wire.DriverName + "/" + pv + "/globalmount"
}

func targetOf(pv, pod string) string {
	return "/var/lib/kubelet/pods/" + pod + "/volumes/kubernetes.io~csi/" + pv + "/mount"
}

// mount shows a volume to its pod.
func (k *kubelet) mount(ctx context.Context, v *volume) error {
	p, err := k.machine.thePlugin()
	if err != nil {
		return err
	}
	target := targetOf(v.PV, v.Pod)
	if v.published != "" && v.published != target {
		if err := k.unpublish(ctx, p, v); err != nil {
			return err
		}
	}
	attachment, err := k.client.StorageV1().VolumeAttachments().Get(ctx, v.Attachment, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (!attachment.Status.Attached || attachment.DeletionTimestamp != nil) {
		return errWaits
	}
	if err != nil {
		return err
	}
	about := attachment.Status.AttachmentMetadata
	capability := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
	if !v.staged {
		if err := k.change(func() { v.begun = true }); err != nil {
			return err
		}
		secret, err := k.client.CoreV1().Secrets(k.machine.Namespace).Get(ctx, v.Secret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		secrets := map[string]string{}
		for key, value := range secret.Data {
			secrets[key] = string(value)
		}
		_, err = p.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: v.Handle, Secrets: secrets, PublishContext: about, StagingTargetPath: directory(v.PV), VolumeCapability: capability, VolumeContext: v.Attributes,
		})
		if err != nil {
			return err
		}
		k.machine.noteStaged()
	}
	if err := k.change(func() { v.staged, v.forgotten = true, false }); err != nil {
		return err
	}
	_, err = p.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: v.Handle, PublishContext: about, StagingTargetPath: directory(v.PV), TargetPath: target, VolumeCapability: capability, VolumeContext: v.Attributes,
	})
	if err != nil {
		return err
	}
	k.machine.read(v.Volume, target)
	return k.change(func() { v.published = target })
}

func (k *kubelet) unpublish(ctx context.Context, p *plugin, v *volume) error {
	if _, err := p.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.Handle, TargetPath: v.published}); err != nil {
		return err
	}
	return k.change(func() { v.published = "" })
}

// unmount takes a volume away, whose pods are gone.
func (k *kubelet) unmount(ctx context.Context, v *volume) error {
	p, err := k.machine.thePlugin()
	if err != nil {
		return err
	}
	if v.published != "" {
		if err := k.unpublish(ctx, p, v); err != nil {
			return err
		}
	}
	// A pod that was started in vain may have it, too.
	if _, err := p.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.Handle, TargetPath: targetOf(v.PV, v.Pod)}); err != nil {
		return err
	}
	if err := k.change(func() { v.staged = false }); err != nil {
		return err
	}
	if _, err := p.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.Handle, StagingTargetPath: directory(v.PV)}); err != nil {
		return err
	}
	return k.change(func() { v.begun, v.forgotten = false, false })
}

// read has a pod look at what its volume contains.
func (m *Machine) read(v Volume, at string) {
	handle, err := wire.ParseHandle(v.Handle)
	if err != nil {
		return
	}
	data, err := m.kernel().Read(at)
	if writer, _, _ := strings.Cut(data, " "); err == nil && data != "" && writer != handle.ID {
		m.Wrong(handle.ID, fmt.Sprintf("pod %s on node %s reads %q", v.Pod, m.Name, data))
	}
}

func (m *Machine) noteStaged() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stages++
}
