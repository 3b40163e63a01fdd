// Package nodeuse determines which nodes still use the volume of a PersistentVolume.
// Kubernetes releases a claim when its last pod is gone, but only then does the node
// flush, unmount and log out. Until it has, disconnecting the volume hangs the node, and
// a new volume at the same address may receive writes meant for the old one.
//
// A node lists the volumes that it still uses in status.volumesInUse, and the
// attach-detach controller lists those attached to it in status.volumesAttached; a CSI
// volume also has a VolumeAttachment.
package nodeuse

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// AnnotationReleasedBy lists nodes, separated by commas, that according to an operator
// have released a PersistentVolume's volume, regardless of their status. It is the way
// out for a lost node whose Node object still exists. Tenants cannot write it, because
// PersistentVolumes are cluster-scoped.
const AnnotationReleasedBy = "standalone-cinder.openstack.org/released-by-nodes"

// Options configure a Tracker.
type Options struct {
	Client kubernetes.Interface
	// Caches is nil if there are none.
	Caches *Caches
}

// Caches hold all nodes and attachments, with the indexes of NodeIndexers and
// AttachmentIndexers.
type Caches struct {
	Nodes       cache.Indexer
	Attachments cache.Indexer
	// Reports has the Leases in which node plugins report what they have staged (package
	// staged), all in Namespace; nil without the CSI driver.
	Reports   cache.Indexer
	Namespace string
	// Synced reports whether the caches are complete.
	Synced func() bool
}

// Tracker knows which nodes use volumes. Each leader has one for its term.
type Tracker struct {
	options Options
	listing shared[picture]
	// attachments are keyed by the name of the PersistentVolume.
	attachments shared[map[string][]Attachment]

	mu sync.Mutex
	// boots holds, by UID of a released PersistentVolume and by node, the boot in which
	// the node was first seen to use it.
	boots map[types.UID]map[string]string
}

// New returns a tracker.
func New(options Options) *Tracker {
	t := &Tracker{options: options, boots: map[types.UID]map[string]string{}}
	t.listing.read = t.read
	t.attachments.read = t.readAttachments
	return t
}

// The caches' indexes.
const (
	byVolume           = "volume"
	byPersistentVolume = "persistentVolume"
)

// NodeIndexers returns an index of Nodes by the volumes that they use.
func NodeIndexers() cache.Indexers {
	return cache.Indexers{byVolume: func(object any) ([]string, error) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return nil, fmt.Errorf("a cache of nodes holds a %T", object)
		}
		var names []string
		for _, name := range volumesOf(node) {
			names = append(names, string(name))
		}
		return names, nil
	}}
}

// AttachmentIndexers returns an index of VolumeAttachments by their PersistentVolumes.
func AttachmentIndexers() cache.Indexers {
	return cache.Indexers{byPersistentVolume: func(object any) ([]string, error) {
		attachment, ok := object.(*storagev1.VolumeAttachment)
		if !ok {
			return nil, fmt.Errorf("a cache of attachments holds a %T", object)
		}
		if source := attachment.Spec.Source.PersistentVolumeName; source != nil {
			return []string{*source}, nil
		}
		return nil, nil
	}}
}

// ReportIndexers returns an index of the node plugins' report Leases by the names of the
// staged volumes.
func ReportIndexers() cache.Indexers {
	return cache.Indexers{byVolume: func(object any) ([]string, error) {
		lease, ok := object.(*coordinationv1.Lease)
		if !ok {
			return nil, fmt.Errorf("a cache of reports holds a %T", object)
		}
		var names []string
		for _, name := range reportedBy(staged.Of(lease)) {
			names = append(names, string(name))
		}
		return names, nil
	}}
}

// reportedBy returns the volumes that a report names.
func reportedBy(report staged.Report) []corev1.UniqueVolumeName {
	var names []corev1.UniqueVolumeName
	for _, handle := range report.Volumes {
		names = append(names, corev1.UniqueVolumeName(wire.KubeletName(wire.DriverName, handle)))
	}
	for _, name := range report.Mounts {
		names = append(names, mounted(name))
	}
	return names
}

// mounted is this program's name for a volume that a node plugin reports as mounted by
// kubelet. No kubelet plugin has this name.
func mounted(name string) corev1.UniqueVolumeName { return corev1.UniqueVolumeName("mounted/" + name) }

// stagedBy returns the volumes that a node still has according to a report.
func stagedBy(lease *coordinationv1.Lease, node *corev1.Node) []corev1.UniqueVolumeName {
	if report := staged.Of(lease); report.Holds(node) {
		return reportedBy(report)
	}
	return nil
}

// Volume is a volume as nodes know it.
type Volume struct {
	// PV is the name of the PersistentVolume, and UID the object's; empty if there is no
	// object.
	PV  string
	UID types.UID
	// Names are the names that kubelet and node plugins may use for the volume.
	Names []corev1.UniqueVolumeName
	// ID is Cinder's ID of a volume whose PersistentVolume, and therefore its names, are
	// unknown. A name that contains the ID or the PersistentVolume's name counts as the
	// volume's, because many drivers build their targets and handles from them.
	ID string
	// MayAttach means that a CSI driver that attaches volumes may serve the volume.
	MayAttach bool
	// ReleasedBy are the nodes that, according to an operator, have released the volume.
	ReleasedBy []string
}

// VolumeOf returns the volume of a PersistentVolume.
func VolumeOf(pv *corev1.PersistentVolume) Volume {
	v := Volume{PV: pv.Name, UID: pv.UID, Names: Names(pv), MayAttach: pv.Spec.CSI != nil}
	for node := range strings.SplitSeq(pv.Annotations[AnnotationReleasedBy], ",") {
		if node = strings.TrimSpace(node); node != "" {
			v.ReleasedBy = append(v.ReleasedBy, node)
		}
	}
	return v
}

// Names returns kubelet's name for the volume of a PersistentVolume: the plugin's name
// followed by the plugin's name for the volume (GetUniqueVolumeName in pkg/volume/util
// and GetVolumeName in pkg/volume/iscsi, fc, csi and flexvolume of Kubernetes). It is
// followed by the name under which a node plugin reports kubelet's mount. Sources that
// are never attached have none.
func Names(pv *corev1.PersistentVolume) []corev1.UniqueVolumeName {
	source := pv.Spec.PersistentVolumeSource
	name := func(format string, arguments ...any) corev1.UniqueVolumeName {
		return corev1.UniqueVolumeName(fmt.Sprintf(format, arguments...))
	}
	switch {
	case source.ISCSI != nil:
		at := source.ISCSI
		return []corev1.UniqueVolumeName{
			name("kubernetes.io/iscsi/%s:%s:%d", at.TargetPortal, at.IQN, at.Lun), mounted(staged.ISCSIMount(at.TargetPortal, at.IQN, fmt.Sprint(at.Lun))),
		}
	case source.FC != nil && len(source.FC.TargetWWNs) > 0 && source.FC.Lun != nil:
		at := source.FC
		return []corev1.UniqueVolumeName{name("kubernetes.io/fc/%v:%d", at.TargetWWNs, *at.Lun), mounted(staged.FCMount(at.TargetWWNs, fmt.Sprint(*at.Lun), nil))}
	case source.FC != nil:
		return []corev1.UniqueVolumeName{name("kubernetes.io/fc/%v", source.FC.WWIDs), mounted(staged.FCMount(nil, "", source.FC.WWIDs))}
	case source.CSI != nil:
		return []corev1.UniqueVolumeName{name("%s", wire.KubeletName(source.CSI.Driver, source.CSI.VolumeHandle))}
	case source.FlexVolume != nil:
		// Kubelet ignores the driver's own name for the volume.
		return []corev1.UniqueVolumeName{name("%s/%s", source.FlexVolume.Driver, pv.Name)}
	}
	return nil
}

// volumesOf lists the volumes that a node uses or has attached.
func volumesOf(node *corev1.Node) []corev1.UniqueVolumeName {
	names := slices.Clone(node.Status.VolumesInUse)
	for _, attached := range node.Status.VolumesAttached {
		if !slices.Contains(names, attached.Name) {
			names = append(names, attached.Name)
		}
	}
	return names
}

// host holds what matters about a node besides its volumes.
type host struct {
	name string
	boot string
	// lost means that an operator has declared the node lost.
	lost bool
}

func hostOf(node *corev1.Node) host {
	return host{
		name: node.Name,
		boot: node.Status.NodeInfo.BootID,
		lost: staged.IsOff(node),
	}
}

// picture is the API server's state at one time.
type picture struct {
	hosts map[string]host
	users map[corev1.UniqueVolumeName][]host
	// attached lists the attachments by PersistentVolume, unless they are cached.
	attached map[string][]Attachment
	// unreported is why the node plugins' reports could not be read.
	unreported error
}

// Known lists the nodes that use a volume according to the caches. An empty
// list does not prove that no node does.
func (t *Tracker) Known(v Volume) ([]string, error) {
	if !t.Watches() {
		return nil, nil
	}
	nodes := t.options.Caches.Nodes
	var using []host
	for _, name := range v.Names {
		found, err := nodes.ByIndex(byVolume, string(name))
		if err != nil {
			return nil, err
		}
		for _, object := range found {
			using = append(using, hostOf(object.(*corev1.Node)))
		}
		if t.options.Caches.Reports == nil {
			continue
		}
		reports, err := t.options.Caches.Reports.ByIndex(byVolume, string(name))
		if err != nil {
			return nil, err
		}
		for _, object := range reports {
			lease := object.(*coordinationv1.Lease)
			if of, exists, err := nodes.GetByKey(staged.NodeOf(lease.Name)); err == nil && exists && slices.Contains(stagedBy(lease, of.(*corev1.Node)), name) {
				using = append(using, hostOf(of.(*corev1.Node)))
			}
		}
	}
	attached, err := t.cached(v.PV)
	if err != nil {
		return nil, err
	}
	return t.users(v, using, attached, func(name string) (host, bool) {
		object, exists, err := nodes.GetByKey(name)
		if err != nil || !exists {
			return host{}, false
		}
		return hostOf(object.(*corev1.Node)), true
	}), nil
}

// Watches reports whether the caches show when a node releases a volume.
func (t *Tracker) Watches() bool { return t.options.Caches != nil && t.options.Caches.Synced() }

// Users lists the nodes that use a volume, read after the call. Concurrent calls share
// one read.
func (t *Tracker) Users(ctx context.Context, v Volume) ([]string, error) {
	seen, err := t.listing.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot tell whether a node still uses the volume of PersistentVolume %s: %w", v.PV, err)
	}
	attached := seen.attached[v.PV]
	if seen.unreported != nil && (len(v.Names) > 0 || v.ID != "") {
		return nil, fmt.Errorf("cannot tell whether a node still uses the volume of PersistentVolume %s: %w", v.PV, seen.unreported)
	}
	switch {
	case t.options.Caches == nil || !v.MayAttach:
	case !t.Watches():
		return nil, fmt.Errorf("cannot tell whether a node still uses the volume of PersistentVolume %s: the VolumeAttachments are not read yet", v.PV)
	default:
		if attached, err = t.cached(v.PV); err != nil {
			return nil, err
		}
	}
	var using []host
	for _, name := range v.Names {
		using = append(using, seen.users[name]...)
	}
	if v.ID != "" {
		for name, hosts := range seen.users {
			if strings.Contains(string(name), v.ID) || strings.Contains(string(name), v.PV) {
				using = append(using, hosts...)
			}
		}
	}
	return t.users(v, using, attached, func(name string) (host, bool) {
		found, exists := seen.hosts[name]
		return found, exists
	}), nil
}

// users lists the nodes that use a volume, sorted: those whose status says so, unless
// they are known to have released it, and those to which it is attached.
func (t *Tracker) users(v Volume, saying []host, attached []Attachment, find func(name string) (host, bool)) []string {
	using := map[string]bool{}
	rebooted := map[string]bool{}
	for _, node := range saying {
		rebooted[node.name] = t.rebooted(v, node)
		using[node.name] = !node.lost && !rebooted[node.name]
	}
	for _, to := range attached {
		if node, exists := find(to.Node); exists && !node.lost && !rebooted[to.Node] {
			using[to.Node] = true
		}
	}
	var names []string
	for name, uses := range using {
		if uses && !slices.Contains(v.ReleasedBy, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// rebooted records the boot during which a node was first seen to use a volume whose
// claim is gone, and reports whether the node has rebooted since. If so, it no longer
// uses the volume, and no pod can have started to since.
func (t *Tracker) rebooted(v Volume, node host) bool {
	if v.UID == "" || node.boot == "" {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.boots[v.UID] == nil {
		t.boots[v.UID] = map[string]string{}
	}
	first, seen := t.boots[v.UID][node.name]
	if !seen {
		t.boots[v.UID][node.name] = node.boot
	}
	return seen && first != node.boot
}

// Forget drops what is remembered about a PersistentVolume that is gone or no longer to
// be removed.
func (t *Tracker) Forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.boots, uid)
}

// read reads all nodes, and the attachments if they are not cached, and keeps what
// matters.
func (t *Tracker) read(ctx context.Context) (picture, error) {
	seen := picture{hosts: map[string]host{}, users: map[corev1.UniqueVolumeName][]host{}}
	all, err := paging.List(ctx, "the nodes", t.options.Client.CoreV1().Nodes().List, func(page *corev1.NodeList) []corev1.Node { return page.Items })
	if err != nil {
		return picture{}, err
	}
	nodes := map[string]*corev1.Node{}
	for i := range all {
		nodes[all[i].Name] = &all[i]
		node := hostOf(&all[i])
		seen.hosts[node.name] = node
		for _, name := range volumesOf(&all[i]) {
			seen.users[name] = append(seen.users[name], node)
		}
	}
	if t.options.Caches == nil {
		seen.attached, err = t.readAttachments(ctx)
		return seen, err
	}
	if t.options.Caches.Reports != nil {
		seen.unreported = t.readReports(ctx, nodes, seen)
	}
	return seen, nil
}

// readReports adds what node plugins report.
func (t *Tracker) readReports(ctx context.Context, nodes map[string]*corev1.Node, seen picture) error {
	reports, err := paging.List(ctx, "the reports of the node plugins", func(ctx context.Context, options metav1.ListOptions) (*coordinationv1.LeaseList, error) {
		options.LabelSelector = labels.SelectorFromSet(staged.Labels()).String()
		return t.options.Client.CoordinationV1().Leases(t.options.Caches.Namespace).List(ctx, options)
	}, func(page *coordinationv1.LeaseList) []coordinationv1.Lease { return page.Items })
	for i := range reports {
		node := nodes[staged.NodeOf(reports[i].Name)]
		for _, name := range stagedBy(&reports[i], node) {
			seen.users[name] = append(seen.users[name], hostOf(node))
		}
	}
	return err
}

// Staging lists the nodes that may have a volume of the driver staged, according to the
// reports of their plugins in any namespace. A lost node may go on writing after Kubernetes
// has detached the volume.
func (t *Tracker) Staging(ctx context.Context, handle string) ([]string, error) {
	reports, err := paging.List(ctx, "the reports of the node plugins", func(ctx context.Context, options metav1.ListOptions) (*coordinationv1.LeaseList, error) {
		options.LabelSelector = labels.SelectorFromSet(staged.Labels()).String()
		return t.options.Client.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, options)
	}, func(page *coordinationv1.LeaseList) []coordinationv1.Lease { return page.Items })
	if err != nil {
		return nil, err
	}
	var nodes []string
	for i := range reports {
		name, report := staged.NodeOf(reports[i].Name), staged.Of(&reports[i])
		if name == "" || !slices.Contains(report.Volumes, handle) {
			continue
		}
		node, err := t.options.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("cannot read node %s: %w", name, err)
		}
		if err == nil && report.Has(handle, node) {
			nodes = append(nodes, name)
		}
	}
	return nodes, nil
}
