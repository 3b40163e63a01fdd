package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

const (
	volumeID = "86a25cac-e84c-4ef1-816f-76fcd478cebd"
	pvName   = "pvc-1"
	own      = "standalone-cinder"
	password = "secret-of-the-target"
	plain    = `{"driver_volume_type": "iscsi", "target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume-1", "target_lun": 1`
	withCHAP = plain + `, "auth_method": "CHAP", "auth_username": "u", "auth_password": "` + password + `"}`
)

// volumes fakes the volumes of one backend.
type volumes struct {
	// held is the key of a node that must keep the volume.
	held     string
	calls    []string
	found    *cinder.Volume
	document string
	err      error
	// target, to and from are the arguments of the last calls.
	target backends.Target
	to     backends.PublishRequest
	from   backends.UnpublishRequest
	// all is what it lists, and unread the error if it cannot list.
	all     []cinder.Volume
	unread  error
	project string
	// others are the nodes that have the volume at Cinder. With has, the node of the call
	// has it, too.
	others []string
	has    bool
	// created is when the volume was made.
	created time.Time
	// recorded says whether the node already has the volume for reading; nil means that
	// it does not have the volume.
	recorded *bool
	// encryption is nil unless the volume is encrypted, and keys are those of the key
	// manager, by ID, which unkeyed keeps from answering.
	encryption *cinder.Encryption
	// metadata is that of the volume.
	metadata map[string]string
	keys     map[string]string
	unkeyed  error
}

func (v *volumes) Encryption(_ context.Context, _ string, managed func(cinder.Encryption) bool) (cinder.Encryption, cinder.Key, error) {
	v.calls = append(v.calls, "encryption")
	if v.encryption == nil || v.err != nil {
		return cinder.Encryption{}, cinder.Key{}, v.err
	}
	if !managed(*v.encryption) {
		return *v.encryption, cinder.Key{}, nil
	}
	return *v.encryption, cinder.KeyOf([]byte(v.keys[v.encryption.KeyID])), v.unkeyed
}

func (v *volumes) Publish(ctx context.Context, target backends.Target, to backends.PublishRequest) (backends.Published, error) {
	v.calls = append(v.calls, "publish "+target.VolumeID+" to "+to.Node)
	v.target, v.to = target, to
	if v.err != nil {
		return backends.Published{}, v.err
	}
	if err := target.Permit(ctx, cinder.Volume{}); err != nil {
		return backends.Published{}, err
	}
	if !v.has {
		for _, other := range v.others {
			released, err := to.Release(ctx, other, wire.NodeKey(other))
			if err != nil {
				return backends.Published{}, err
			}
			if !released {
				return backends.Published{}, &cinder.Error{Backend: "gold", Kind: backends.KindOnOtherNode, Message: "attached to node " + other}
			}
			v.calls = append(v.calls, "release "+other)
		}
		if err := to.Admit(ctx); err != nil {
			return backends.Published{}, err
		}
	}
	published := backends.Published{Volume: cinder.Volume{ID: volumeID, SizeGiB: 2, CreatedAt: v.created, Encrypted: v.encryption != nil, Metadata: v.metadata}, AttachmentID: "attachment-1", Document: []byte(v.document), ReadOnly: to.ReadOnly}
	if v.recorded != nil {
		published.ReadOnly = *v.recorded
	}
	return published, to.HandOut(ctx, published)
}

func (v *volumes) Unpublish(ctx context.Context, target backends.Target, from backends.UnpublishRequest) error {
	v.calls = append(v.calls, "unpublish "+target.VolumeID+" from "+from.Key)
	v.target, v.from = target, from
	if v.held != "" && v.held == from.Key {
		return &cinder.Error{Backend: "gold", Kind: cinder.KindConflict, Message: "held"}
	}
	return v.err
}

func (v *volumes) Volumes(context.Context) ([]cinder.Volume, error) { return v.all, v.unread }

func (v *volumes) Place() cinder.Place {
	return cinder.Place{Endpoint: "http://cinder:8776/v3", Project: cmp.Or(v.project, "p1")}
}

func (v *volumes) Find(context.Context, string) (cinder.Volume, bool, error) {
	v.calls = append(v.calls, "find")
	if v.found == nil {
		return cinder.Volume{}, false, v.err
	}
	return *v.found, true, v.err
}

func (v *volumes) Relist(context.Context) ([]cinder.Volume, error) {
	v.calls = append(v.calls, "relist")
	return v.all, cmp.Or(v.unread, v.err)
}

// world is an Engine with everything around it.
type world struct {
	*Engine
	volumes *volumes
	client  *fake.Clientset
	events  *eventrecord.FakeRecorder
	nodes   cache.Indexer
	// attachments is the cache of VolumeAttachments.
	attachments cache.Store
	machines    cache.Store
	reports     cache.Store
	rules       Rules
}

// attachmentCache keeps of VolumeAttachments only what the program's cache keeps.
type attachmentCache struct{ cache.Store }

func (c attachmentCache) Add(object any) error {
	return c.Store.Add(Cached(object.(*storagev1.VolumeAttachment)))
}

func (c attachmentCache) Update(object any) error { return c.Add(object) }

func testPV() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pvName, UID: "pv-uid", Annotations: map[string]string{
			objects.AnnotationVolume: volumeID, objects.AnnotationBackend: "gold", objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: "1",
			objects.AnnotationTenant: "team-a", objects.AnnotationEndpoint: "http://cinder:8776/v3", objects.AnnotationProject: "p1",
		}},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: wire.DriverName, VolumeHandle: "gold/" + volumeID, NodeStageSecretRef: &corev1.SecretReference{Namespace: own, Name: pvName + "-node"},
		}}},
	}
}

func testSecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: own, Name: pvName + "-node", Labels: map[string]string{objects.LabelManagedBy: objects.ManagedBy}, Annotations: map[string]string{objects.AnnotationForPV: pvName},
	}}
}

func csiNode(t *testing.T, node wire.Node) *storagev1.CSINode {
	t.Helper()
	id, err := node.NodeID()
	if err != nil {
		t.Fatal(err)
	}
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: "other.example.org", NodeID: "x"}, {Name: wire.DriverName, NodeID: id},
	}}}
}

var (
	n1 = wire.Node{Name: "n1", InitiatorName: "iqn.2026-01.example:n1", PortNames: []string{"5001"}, HostNQN: "nqn.n1", Multipath: true}
	n2 = wire.Node{Name: "n2", InitiatorName: "iqn.2026-01.example:n2", PortNames: []string{"5002"}, HostNQN: "nqn.n2"}
)

func newWorld(t *testing.T, existing ...runtime.Object) *world {
	t.Helper()
	pvs := cache.NewIndexer(cache.MetaNamespaceKeyFunc, objects.Indexers())
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for _, object := range existing {
		if pv, ok := object.(*corev1.PersistentVolume); ok {
			must(t, pvs.Add(pv))
		}
	}
	for _, node := range []wire.Node{n1, n2} {
		must(t, nodes.Add(csiNode(t, node)))
	}
	w := &world{volumes: &volumes{document: withCHAP}, client: fake.NewClientset(existing...), events: eventrecord.NewFakeRecorder(10), nodes: nodes, attachments: attachmentCache{cache.NewStore(cache.MetaNamespaceKeyFunc)}, machines: cache.NewStore(cache.MetaNamespaceKeyFunc), reports: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	for _, object := range existing {
		if a, ok := object.(*storagev1.VolumeAttachment); ok {
			must(t, w.attachments.Add(a))
		}
		if node, ok := object.(*corev1.Node); ok {
			must(t, w.machines.Add(node))
		}
		if lease, ok := object.(*coordinationv1.Lease); ok {
			must(t, w.reports.Add(lease))
		}
	}
	known := func() bool { return true }
	w.Engine = New(Options{
		Cluster: "cluster-1", Namespace: own,
		Volumes: func(backend string) (Volumes, error) {
			if backend != "gold" {
				return nil, fmt.Errorf("backend %q is not in the policy", backend)
			}
			return w.volumes, nil
		},
		Backends: func() []string { return []string{"gold"} }, Nodes: Cache[corev1.Node]{w.machines, known}, Reports: Cache[coordinationv1.Lease]{w.reports, known},
		OnBehalfOf: func(ctx context.Context, _ string) context.Context { return ctx },
		Client:     w.client, PersistentVolumes: pvs, CSINodes: Cache[storagev1.CSINode]{nodes, known},
		Attachments: Cache[storagev1.VolumeAttachment]{w.attachments, known}, Rules: func(string) Rules { return w.rules }, Reach: NewReach(),
		Recorder: w.events, Metrics: NewMetrics(prometheus.NewRegistry()), Logger: slog.New(slog.DiscardHandler),
	})
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func handle() wire.Handle { return wire.Handle{Backend: "gold", ID: volumeID} }

func (w *world) publish(t *testing.T) (wire.Connection, error) {
	t.Helper()
	return w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n1})
}

// secret returns the content of the volume's Secret.
func (w *world) secret(t *testing.T) map[string]string {
	t.Helper()
	secret, err := w.client.CoreV1().Secrets(own).Get(t.Context(), pvName+"-node", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(t, err)
	data := map[string]string{}
	for key, value := range secret.Data {
		data[key] = string(value)
	}
	return data
}

func wantFailure(t *testing.T, err error, kind, message string) {
	t.Helper()
	var failed *controller.Failure
	if !errors.As(err, &failed) || failed.Kind != kind || failed.Message != message {
		t.Errorf("got  %#v\nwant %s: %s", err, kind, message)
	}
}

// TestPublishHandsOutConnectionAndCredentials: the connection has no credentials, which
// are in the Secret alone.
func TestPublishHandsOutConnectionAndCredentials(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	got, err := w.publish(t)
	must(t, err)
	want := wire.Connection{Protocol: "iscsi", Credentials: true, Bytes: 2 << 30, Attachment: "attachment-1", Paths: []wire.Path{{Portal: "192.0.2.1:3260", Target: "iqn.2010-10.org.openstack:volume-1", LUN: 1}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("connection %+v, want %+v", got, want)
	}
	credentials, err := wire.CredentialsFor("n1", w.secret(t))
	if err != nil || credentials.User != "u" || credentials.Password != password {
		t.Errorf("the node finds %v of user %q (%v)", credentials, credentials.User, err)
	}
	if !strings.HasPrefix(w.volumes.to.Connector.Host, "n1.") {
		t.Errorf("the host is %q", w.volumes.to.Connector.Host)
	}
	if c, want := w.volumes.to.Connector, (cinder.Connector{Host: w.volumes.to.Connector.Host, Initiator: n1.InitiatorName, WWPNs: n1.PortNames, NQN: n1.HostNQN, Multipath: true}); !reflect.DeepEqual(c, want) {
		t.Errorf("the connector is %+v", c)
	}
	if want := (stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName}); w.volumes.target.Stamp != want || w.volumes.target.Place.Project != "p1" {
		t.Errorf("the target is %+v", w.volumes.target)
	}
	// A repetition changes nothing.
	w.client.ClearActions()
	_, err = w.publish(t)
	must(t, err)
	for _, action := range w.client.Actions() {
		if action.GetVerb() != "get" && action.GetVerb() != "list" {
			t.Errorf("a second publish did %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
}

// TestPublishHandsOutLimits: what nodes hold travels, and the claim's owner is told of the
// rest.
func TestPublishHandsOutLimits(t *testing.T) {
	pv := testPV()
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "1"}
	w := newWorld(t, pv, testSecret())
	w.volumes.document = plain + `, "qos_specs": {"total_bytes_sec": "2097152", "read_iops_sec": 50, "read_iops_sec_max": 90}}`
	got, err := w.publish(t)
	must(t, err)
	if want := (&wire.Limits{ReadBytes: 2097152, WriteBytes: 2097152, ReadOperations: 50}); !reflect.DeepEqual(got.Limits, want) {
		t.Errorf("limits %+v, want %+v", got.Limits, want)
	}
	const want = `Warning ConnectionWarning a part of the volume type's front-end QoS ("read_iops_sec_max") is not enforced: nodes hold total_, read_ and write_ of bytes_sec and iops_sec, and no bursts`
	if len(w.events.Events) != 1 {
		t.Fatalf("%d events", len(w.events.Events))
	}
	if event := <-w.events.Events; !strings.HasPrefix(event, want) {
		t.Errorf("got  %s\nwant %s", event, want)
	}
}

func TestPublishRefuses(t *testing.T) {
	changed := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		pv := testPV()
		change(pv)
		return pv
	}
	copied := changed(func(pv *corev1.PersistentVolume) { pv.Name = "copy" })
	foreign := testSecret()
	foreign.Labels = nil
	for name, test := range map[string]struct {
		existing []runtime.Object
		node     wire.Node
		prepare  func(*world)
		kind     string
		message  string
	}{
		"no PersistentVolume": {kind: "NotFound", message: "no PersistentVolume has the handle gold/" + volumeID},
		"one of another driver": {existing: []runtime.Object{changed(func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other.example.org" })},
			kind: "NotFound", message: "no PersistentVolume has the handle gold/" + volumeID},
		"two PersistentVolumes": {existing: []runtime.Object{testPV(), copied}, kind: controller.Damaged,
			message: "PersistentVolumes copy and pvc-1 have one volume handle, gold/" + volumeID + "; remove the one that was made by hand"},
		"another cluster's": {existing: []runtime.Object{changed(func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationCluster] = "cluster-2" })}, kind: controller.Damaged,
			message: `PersistentVolume pvc-1: annotation standalone-cinder.openstack.org/cluster is "cluster-2", expected "cluster-1"; its volume is neither attached nor detached until it is fixed`},
		"a node that is not registered": {existing: []runtime.Object{testPV(), testSecret()}, node: wire.Node{Name: "n3"}, kind: controller.NodeUnknown,
			message: "node n3 is not registered with the driver under this ID; its CSINode says what it is registered with"},
		"a node under another ID": {existing: []runtime.Object{testPV(), testSecret()}, node: wire.Node{Name: "n1"}, kind: controller.NodeUnknown,
			message: "node n1 is not registered with the driver under this ID; its CSINode says what it is registered with"},
		"Secret of somebody else": {existing: []runtime.Object{testPV(), foreign}, kind: controller.Damaged,
			message: "secret standalone-cinder/pvc-1-node exists but was not made by standalone-cinder; rename or remove it"},
		"no reference to the Secret": {existing: []runtime.Object{changed(func(pv *corev1.PersistentVolume) { pv.Spec.CSI.NodeStageSecretRef = nil })}, kind: controller.Damaged,
			message: "PersistentVolume pvc-1 does not name Secret standalone-cinder/pvc-1-node in spec.csi.nodeStageSecretRef, from which its nodes get their credentials"},
		"a protocol that nodes do not have": {existing: []runtime.Object{testPV(), testSecret()}, prepare: func(w *world) { w.volumes.document = `{"driver_volume_type": "storpool", "name": "a/b"}` },
			kind: controller.Unmappable, message: "the nodes of the CSI driver do not support protocol storpool (only fibre_channel, iscsi, iser, nvmeof, rbd); use mode native for this backend"},
		"on another node": {existing: []runtime.Object{testPV(), testSecret()}, prepare: func(w *world) {
			w.volumes.err = &cinder.Error{Backend: "gold", Kind: backends.KindOnOtherNode, Message: "it is on node n2"}
		}, kind: "OnOtherNode", message: "backend gold: it is on node n2"},
		"being deleted": {existing: []runtime.Object{changed(func(pv *corev1.PersistentVolume) { pv.DeletionTimestamp = &metav1.Time{} }), testSecret()}, kind: "Conflict",
			message: "PersistentVolume pvc-1 was deleted in the meantime"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.existing...)
			if test.prepare != nil {
				test.prepare(w)
			}
			if test.node.Name == "" {
				test.node = n1
			}
			_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: test.node})
			wantFailure(t, err, test.kind, test.message)
			if len(w.events.Events) > 0 {
				t.Errorf("event %s", <-w.events.Events)
			}
		})
	}
}

// TestPublishByRBD: the key goes into the volume's Secret alone, and a node needs no name.
func TestPublishByRBD(t *testing.T) {
	const key = "c3dvcmRmaXNoLTE="
	const document = `{"driver_volume_type": "rbd", "data": {"name": "volumes/volume-1", "hosts": ["192.0.2.1"], "ports": ["6789"], "auth_enabled": true, "auth_username": "cinder"}}`
	operators := func(data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "ceph"}, Data: data}
	}
	for name, test := range map[string]struct {
		secret  *corev1.Secret
		rules   Rules
		refused string
	}{
		"with the operator's key": {secret: operators(map[string][]byte{"userID": []byte("kubernetes"), "userKey": []byte(key + "\n")}), rules: Rules{CephSecret: "ceph"}},
		"without one":             {refused: "Cinder sends no key for the Ceph cluster, and the policy names none; make a Secret with userID and userKey in the program's own namespace, and name it in csi.cephSecret of the backend"},
		"with a missing Secret":   {rules: Rules{CephSecret: "ceph"}, refused: "Secret standalone-cinder/ceph does not exist, which csi.cephSecret of the backend names; make it with userID and userKey"},
		"with a key that is none": {secret: operators(map[string][]byte{"userID": []byte("kubernetes"), "userKey": []byte("swordfish!")}), rules: Rules{CephSecret: "ceph"},
			refused: "Secret standalone-cinder/ceph, which csi.cephSecret of the backend names, cannot be used: userKey is not a key in base64"},
	} {
		t.Run(name, func(t *testing.T) {
			existing := []runtime.Object{testPV(), testSecret()}
			if test.secret != nil {
				existing = append(existing, test.secret)
			}
			w := newWorld(t, existing...)
			w.volumes.document, w.rules = document, test.rules
			nameless := wire.Node{Name: "n1"}
			must(t, w.nodes.Update(csiNode(t, nameless)))
			got, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: nameless})
			if test.refused != "" {
				var failed *controller.Failure
				if !errors.As(err, &failed) || failed.Message != test.refused {
					t.Errorf("got  %v\nwant %s", err, test.refused)
				}
				return
			}
			must(t, err)
			want := wire.Connection{Protocol: "rbd", Credentials: true, Bytes: 2 << 30, Attachment: "attachment-1", Paths: []wire.Path{{Portal: "192.0.2.1:6789", Target: "volumes/volume-1"}}}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("connection %+v, want %+v", got, want)
			}
			credentials, err := wire.CredentialsFor("n1", w.secret(t))
			if err != nil || credentials.User != "kubernetes" || credentials.Password != key {
				t.Errorf("the node finds %v of user %q (%v)", credentials, credentials.User, err)
			}
		})
	}
}

// imageDocument is a connection to an image of Ceph.
const imageDocument = `{"driver_volume_type": "rbd", "data": {"name": "volumes/volume-1", "hosts": ["192.0.2.1"], "ports": ["6789"], "auth_enabled": false}}`

// TestAnImageThatWasTakenIsMarked: a node whose client is dead is kept out for good, but
// one that lives gets the lock back from the next node.
func TestAnImageThatWasTakenIsMarked(t *testing.T) {
	const kept = "volume gold/" + volumeID + " is still staged on node n2, from which Kubernetes has detached it, and Ceph keeps that node out only as long as another one has the image mapped; node n1 gets it once "
	for name, test := range map[string]struct {
		prepare func(*world)
		off     bool
		shared  bool
		taken   bool
		refused bool
	}{
		"no node has it":               {prepare: func(*world) {}},
		"this node has it":             {prepare: func(w *world) { w.reportsStaged(t, "n1", "boot-1", handle()) }},
		"a node that is off has it":    {prepare: func(w *world) { w.reportsStaged(t, "n2", "boot-1", handle()) }, off: true, taken: true},
		"a node that may live has it":  {prepare: func(w *world) { w.reportsStaged(t, "n2", "boot-1", handle()) }, refused: true},
		"another node has others":      {prepare: func(w *world) { w.reportsStaged(t, "n2", "boot-1", wire.Handle{Backend: "gold", ID: "another"}) }},
		"the term took it":             {prepare: func(w *world) { w.unsettled.take("n2", handle()) }, off: true, taken: true},
		"from a node without a report": {prepare: func(w *world) { w.unsettled.take("n2", handle()) }, refused: true},
		"from a node that let go": {prepare: func(w *world) {
			w.unsettled.take("n2", handle())
			w.reportsStaged(t, "n2", "boot-1")
		}, taken: true},
		"from a node that is deleted": {prepare: func(w *world) {
			w.unsettled.take("n2", handle())
			must(t, w.machines.Delete(machine("n2", "boot-1")))
		}, taken: true},
		"another boot of it had": {prepare: func(w *world) { w.reportsStaged(t, "n2", "boot-0", handle()) }},
		"all nodes may have it":  {prepare: func(w *world) { w.reportsStaged(t, "n2", "boot-1", handle()) }, shared: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret())
			w.volumes.document, w.rules = imageDocument, Rules{FencedByInitiator: true}
			for _, name := range []string{"n1", "n2"} {
				node := machine(name, "boot-1")
				if test.off && name == "n2" {
					node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}
				}
				must(t, w.machines.Add(node))
			}
			test.prepare(w)
			w.volumes.has = true // another test is about who gets a volume
			got, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n1, Shared: test.shared})
			if test.refused {
				if err == nil || !strings.HasPrefix(err.Error(), kept) {
					t.Errorf("got  %v\nwant %s...", err, kept)
				}
				return
			}
			if err != nil || got.Taken != test.taken {
				t.Errorf("taken %t, %v", got.Taken, err)
			}
		})
	}
}

// TestATypeThatNodesCannotUseIsRemembered: what a first attachment shows is known when
// later claims are decided.
func TestATypeThatNodesCannotUseIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const unknown = "the nodes of the CSI driver do not support protocol storpool (only fibre_channel, iscsi, iser, nvmeof, rbd); use mode native for this backend"
		pv := testPV()
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "1"}
		w := newWorld(t, pv, testSecret())
		if err := w.Reach.Refusal("gold", "", ""); err != nil {
			t.Errorf("before an attachment: %v", err)
		}
		w.volumes.document = `{"driver_volume_type": "storpool", "name": "volumes/x"}`
		w.volumes.created = time.Now()
		_, err := w.publish(t)
		wantFailure(t, err, controller.Unmappable, unknown)
		if event := <-w.events.Events; event != "Warning UnsupportedProtocol "+unknown {
			t.Errorf("event %s", event)
		}
		if err := w.Reach.Refusal("gold", "", ""); err == nil || err.Error() != unknown {
			t.Errorf("after one that failed: %v", err)
		}
		for _, other := range []error{w.Reach.Refusal("gold", "ssd", ""), w.Reach.Refusal("silver", "", ""), w.Reach.Refusal("gold", "", "ceph")} {
			if other != nil {
				t.Errorf("another type, backend or policy: %v", other)
			}
		}
		time.Sleep(refusalKept + time.Second)
		if err := w.Reach.Refusal("gold", "", ""); err != nil {
			t.Errorf("an hour later: %v", err)
		}
		// Cinder places the volumes of one type on different storage.
		w.volumes.document = withCHAP
		_, err = w.publish(t)
		must(t, err)
		w.volumes.document = `{"driver_volume_type": "storpool", "name": "volumes/x"}`
		_, err = w.publish(t)
		wantFailure(t, err, controller.Unmappable, unknown)
		if err := w.Reach.Refusal("gold", "", ""); err != nil {
			t.Errorf("after one that succeeded: %v", err)
		}
	})
}

// TestAVolumeThatStaysRefusedStopsNoType: as long as its pod exists, Kubernetes asks for it
// again and again, and for new volumes Cinder may have other storage.
func TestAVolumeThatStaysRefusedStopsNoType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testPV(), testSecret())
		w.volumes.document = `{"driver_volume_type": "storpool", "name": "volumes/x"}`
		w.volumes.created = time.Now().Add(-time.Minute)
		refused := func() {
			t.Helper()
			if _, err := w.publish(t); err == nil {
				t.Fatal("the volume is attached")
			}
		}
		for range 5 {
			refused()
			time.Sleep(routesKept + time.Second)
		}
		time.Sleep(refusalKept - 5*routesKept)
		for range 2 {
			if err := w.Reach.Refusal("gold", "", ""); err != nil {
				t.Errorf("more than an hour after the first refusal: %v", err)
			}
			refused()
			time.Sleep(routesKept + time.Second)
		}
		w.volumes.created = time.Now()
		refused()
		if w.Reach.Refusal("gold", "", "") == nil {
			t.Error("a volume made since shows nothing")
		}
	})
}

// TestPublishForReading: a volume that a node has for reading stays so, whether or not
// Cinder is new enough to record that.
// TestAVolumeThatANodeCannotUseIsNotAttachedAgainAndAgain: what refuses it shows only
// when it is attached.
func TestAVolumeThatANodeCannotUseIsNotAttachedAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testPV(), testSecret())
		w.volumes.document = `{"driver_volume_type": "storpool", "name": "volumes/x"}`
		for range 3 {
			_, err := w.publish(t)
			wantFailure(t, err, controller.Unmappable, "the nodes of the CSI driver do not support protocol storpool (only fibre_channel, iscsi, iser, nvmeof, rbd); use mode native for this backend")
		}
		if len(w.volumes.calls) != 1 {
			t.Errorf("calls %q", w.volumes.calls)
		}
		// An administrator has moved the volume.
		w.volumes.document = withCHAP
		time.Sleep(routesKept + time.Second)
		_, err := w.publish(t)
		must(t, err)
	})
}

func TestPublishForReading(t *testing.T) {
	const granted = plain + `, "access_mode": "ro"}`
	const forWriting, forReading = "node n1 has volume gold/" + volumeID + " for writing, and can get it for reading only after it is detached there",
		"node n1 has volume gold/" + volumeID + " for reading, and can get it for writing only after it is detached there"
	for name, test := range map[string]struct {
		asked    bool
		recorded *bool
		document string
		readOnly bool
		refused  string
	}{
		"for reading":                                               {asked: true, document: granted, readOnly: true},
		"for reading, and Cinder is too old":                        {asked: true, document: plain + "}", readOnly: true},
		"for reading, again":                                        {asked: true, recorded: new(true), document: granted, readOnly: true},
		"again, and Cinder is too old":                              {asked: true, recorded: new(true), document: plain + "}", readOnly: true},
		"for reading, but it has it to write":                       {asked: true, recorded: new(false), document: plain + "}", refused: forWriting},
		"for writing, but it has it to read":                        {recorded: new(true), document: granted, refused: forReading},
		"for writing, but it has it to read, and Cinder is too old": {recorded: new(true), document: plain + "}", refused: forReading},
		"for writing, of what Cinder grants for reading alone":      {recorded: new(false), document: granted, readOnly: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret())
			w.volumes.document, w.volumes.recorded = test.document, test.recorded
			got, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n1, ReadOnly: test.asked})
			if test.refused != "" {
				wantFailure(t, err, controller.AlreadyExists, test.refused)
				return
			}
			if err != nil || got.ReadOnly != test.readOnly || w.volumes.to.ReadOnly != test.asked {
				t.Errorf("connection %+v (%v), asked %+v", got, err, w.volumes.to)
			}
		})
	}
}

// TestPublishByNVMe: the node gets what Cinder knows of the namespace. A node without
// an NVMe name gets nothing.
func TestPublishByNVMe(t *testing.T) {
	const document = `{"driver_volume_type": "nvmeof", "target_nqn": "nqn.2014-08.org.example:s1", "vol_uuid": "` + volumeID + `", "ns_id": 11, "portals": [["192.0.2.1", 4420, "tcp"], ["192.0.2.2", "4420", "tcp"]]}`
	w := newWorld(t, testPV(), testSecret())
	w.volumes.document = document
	got, err := w.publish(t)
	must(t, err)
	want := wire.Connection{Protocol: "nvmeof", Identities: []string{"uuid." + volumeID}, Bytes: 2 << 30, Attachment: "attachment-1", Paths: []wire.Path{
		{Portal: "192.0.2.1:4420", Target: "nqn.2014-08.org.example:s1", LUN: 11}, {Portal: "192.0.2.2:4420", Target: "nqn.2014-08.org.example:s1", LUN: 11},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("connection %+v, want %+v", got, want)
	}
	for kind, test := range map[string]struct {
		node     wire.Node
		document string
		lacks    string
	}{
		"nvmeof": {wire.Node{Name: "n1", InitiatorName: "iqn.2026-01.example:n1"}, document, "NVMe name; install nvme-cli there"},
		"iscsi":  {wire.Node{Name: "n1", HostNQN: "nqn.n1"}, withCHAP, "iSCSI name; install open-iscsi there"},
	} {
		w := newWorld(t, testPV(), testSecret())
		w.volumes.document = test.document
		must(t, w.nodes.Update(csiNode(t, test.node)))
		_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: test.node})
		wantFailure(t, err, controller.Unmappable, "the volume is attached by "+kind+", but node n1 has registered no "+test.lacks+", and restart its node plugin")
	}
}

// TestPublishByFibreChannel: the array gets the node's ports, and the node learns which
// of them reach which of the array's.
func TestPublishByFibreChannel(t *testing.T) {
	const document = `{"driver_volume_type": "fibre_channel", "target_wwn": ["500a098280feeb01", "500a098290feeb01"], "target_lun": 3` // its end follows
	node := wire.Node{Name: "n1", PortNames: []string{"10000000c9a1b2c1", "10000000c9a1b2c2"}, NodeNames: []string{"20000000c9a1b2c1", "20000000c9a1b2c2"}}
	for name, test := range map[string]struct {
		more  string
		paths []wire.Path
	}{
		"no masking": {"}", []wire.Path{
			{Portal: "10000000c9a1b2c1,10000000c9a1b2c2", Target: "500a098280feeb01", LUN: 3}, {Portal: "10000000c9a1b2c1,10000000c9a1b2c2", Target: "500a098290feeb01", LUN: 3},
		}},
		"masking": {`, "initiator_target_map": {"10000000c9a1b2c1": ["500a098280feeb01"], "10000000c9a1b2c2": ["500a098290feeb01"]}}`, []wire.Path{
			{Portal: "10000000c9a1b2c1", Target: "500a098280feeb01", LUN: 3}, {Portal: "10000000c9a1b2c2", Target: "500a098290feeb01", LUN: 3},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret())
			w.volumes.document = document + test.more
			must(t, w.nodes.Update(csiNode(t, node)))
			got, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: node})
			must(t, err)
			if want := (wire.Connection{Protocol: "fibre_channel", Bytes: 2 << 30, Attachment: "attachment-1", Paths: test.paths}); !reflect.DeepEqual(got, want) {
				t.Errorf("connection %+v, want %+v", got, want)
			}
			if c := w.volumes.to.Connector; !reflect.DeepEqual(c.WWPNs, node.PortNames) || !reflect.DeepEqual(c.WWNNs, node.NodeNames) {
				t.Errorf("connector %+v", c)
			}
			if _, err := got.PublishContext(); err != nil {
				t.Error(err)
			}
		})
	}
	w := newWorld(t, testPV(), testSecret())
	w.volumes.document = document + "}"
	must(t, w.nodes.Update(csiNode(t, wire.Node{Name: "n1", InitiatorName: "iqn.2026-01.example:n1"})))
	_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: wire.Node{Name: "n1", InitiatorName: "iqn.2026-01.example:n1"}})
	wantFailure(t, err, controller.Unmappable, "the volume is attached by fibre_channel, but node n1 has registered no online Fibre Channel port; check its HBAs, and restart its node plugin")
}

// TestOneAttachmentShowsThatANodeLacksAName: csi-attacher repeats the call for as long
// as the pod waits, and must not cause an attachment each time.
func TestOneAttachmentShowsThatANodeLacksAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testPV(), testSecret())
		nameless := wire.Node{Name: "n1", HostNQN: "nqn.n1"}
		must(t, w.nodes.Update(csiNode(t, nameless)))
		attachments := func(want int) {
			t.Helper()
			for range 3 {
				_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: nameless})
				wantFailure(t, err, controller.Unmappable, "the volume is attached by iscsi, but node n1 has registered no iSCSI name; install open-iscsi there, and restart its node plugin")
			}
			if len(w.volumes.calls) != want {
				t.Errorf("calls %q, want %d", w.volumes.calls, want)
			}
		}
		attachments(1)
		// An administrator may have moved the volume to other storage.
		time.Sleep(11 * time.Minute)
		attachments(2)
		// The node gets the volume as soon as it has the name.
		must(t, w.nodes.Update(csiNode(t, n1)))
		_, err := w.publish(t)
		must(t, err)
	})
}

// TestANameThatTwoNodesShareIsNoName: an array would show a volume to both of them. A
// volume whose protocol uses another name is not concerned, and the array never learns
// the shared one.
func TestANameThatTwoNodesShareIsNoName(t *testing.T) {
	for name, c := range map[string]struct {
		twin wire.Node
		of   string
		// gets means that n1 gets a volume by iSCSI, and left is what the array learns of
		// its names.
		gets bool
		left cinder.Connector
	}{
		"iqn.2026-01.example:n1": {wire.Node{Name: "n2", InitiatorName: n1.InitiatorName}, "iSCSI", false, cinder.Connector{NQN: n1.HostNQN, WWPNs: n1.PortNames}},
		"nqn.n1":                 {wire.Node{Name: "n2", HostNQN: n1.HostNQN}, "NVMe", true, cinder.Connector{Initiator: n1.InitiatorName, WWPNs: n1.PortNames}},
		"5001":                   {wire.Node{Name: "n2", PortNames: []string{"5009", "5001"}}, "Fibre Channel", true, cinder.Connector{Initiator: n1.InitiatorName, NQN: n1.HostNQN}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret())
			must(t, w.nodes.Update(csiNode(t, c.twin)))
			message := "Nodes n1 and n2 identify themselves to the storage by the same " + c.of + " name, " + name + ", so neither gets a volume by " + c.of + "; give one of them a unique name, and restart its node plugin"
			told := func() {
				t.Helper()
				for range 2 {
					if got := <-w.events.Events; got != "Warning DuplicateInitiator "+message {
						t.Errorf("event %s", got)
					}
				}
			}
			for range 3 {
				_, err := w.publish(t)
				if told(); c.gets {
					must(t, err)
				} else {
					wantFailure(t, err, controller.DuplicateInitiator, message)
				}
			}
			if calls := len(w.volumes.calls); !c.gets && calls != 1 {
				t.Errorf("%d calls, want the one that shows the protocol", calls)
			}
			sent := w.volumes.to.Connector
			sent.Host, sent.WWNNs, sent.Multipath = "", nil, false
			if !reflect.DeepEqual(sent, c.left) {
				t.Errorf("the array learns %+v, want %+v", sent, c.left)
			}
			// A driver that refuses a node without the name does not know why it has none.
			w.volumes.err = &cinder.Error{Backend: "gold", Kind: cinder.KindInvalid, Message: "no name"}
			if _, err := w.publish(t); err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("the driver's refusal is %v", err)
			}
			told()
			w.volumes.err = nil
			// A node that has no other name gets nothing, without any call.
			before := len(w.volumes.calls)
			_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: c.twin})
			told()
			wantFailure(t, err, controller.DuplicateInitiator, message)
			if len(w.volumes.calls) != before {
				t.Errorf("calls %q", w.volumes.calls)
			}
			// A volume that is attached can still be detached.
			must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
		})
	}
}

// TestANodeWithNativeVolumesOfATargetGetsNoneInModeCSI: the kubelet would take the
// driver's session for its own.
func TestANodeWithNativeVolumesOfATargetGetsNoneInModeCSI(t *testing.T) {
	const native = "kubernetes.io/iscsi/192.0.2.9:3260:IQN.2010-10.org.openstack:volume-1:7"
	for name, c := range map[string]struct {
		status corev1.NodeStatus
		gets   bool
	}{
		"in use":           {corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{native}}, false},
		"attached":         {corev1.NodeStatus{VolumesAttached: []corev1.AttachedVolume{{Name: native}}}, false},
		"another target":   {corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{"kubernetes.io/iscsi/192.0.2.9:3260:iqn.2010-10.org.openstack:volume-12:1"}}, true},
		"the driver's own": {corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{"kubernetes.io/csi/" + wire.DriverName + "^gold/" + volumeID}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: c.status})
			w.reportsStaged(t, "n1", "boot-1")
			for range 3 {
				if _, err := w.publish(t); c.gets {
					must(t, err)
				} else {
					wantFailure(t, err, controller.NativeInUse, "node n1 uses native volumes of target iqn.2010-10.org.openstack:volume-1, and the kubelet would take the driver's session to it for its own, so the node gets no volume of that target in mode csi; keep the nodes of the two modes apart (docs/how-to/choose-mode.md#keep-the-modes-on-separate-nodes)")
				}
			}
			if !c.gets && len(w.volumes.calls) != 1 {
				t.Errorf("calls %q, want the one that shows the target", w.volumes.calls)
			}
			// It gets the volume once the native ones are gone.
			must(t, w.machines.Update(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
			_, err := w.publish(t)
			must(t, err)
		})
	}
}

// TestANodeOfALaterReleaseGetsVolumes: its ID has a field that this release does not
// know.
func TestANodeOfALaterReleaseGetsVolumes(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	registered := csiNode(t, n1)
	driver := &registered.Spec.Drivers[len(registered.Spec.Drivers)-1]
	driver.NodeID += " z=1"
	must(t, w.nodes.Update(registered))
	later, err := wire.ParseNodeID(driver.NodeID)
	must(t, err)
	_, err = w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: later})
	must(t, err)
}

// TestNothingIsAttachedBeforeAllNodesAreKnown: another one may have the same name.
func TestNothingIsAttachedBeforeAllNodesAreKnown(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	w.CSINodes.Known = func() bool { return false }
	_, err := w.publish(t)
	if err == nil || err.Error() != "the CSINodes are not read yet, so it is not known whether another node has the names of node n1" || len(w.volumes.calls) > 0 {
		t.Errorf("error %v, calls %q", err, w.volumes.calls)
	}
}

// TestAMissingSecretIsMadeAgain: without it, kubelet cannot stage the volume. It is not
// made again for a PersistentVolume that is gone.
func TestAMissingSecretIsMadeAgain(t *testing.T) {
	w := newWorld(t, testPV())
	_, err := w.publish(t)
	must(t, err)
	if _, err := wire.CredentialsFor("n1", w.secret(t)); err != nil {
		t.Error(err)
	}
	w = newWorld(t, testPV())
	must(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), pvName, metav1.DeleteOptions{}))
	if _, err = w.publish(t); !apierrors.IsNotFound(err) || w.secret(t) != nil {
		t.Errorf("error %v, Secret %v", err, w.secret(t))
	}
}

// TestCredentialsThatAreNotNeededGo: an array may no longer require them.
func TestCredentialsThatAreNotNeededGo(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	_, err := w.publish(t)
	must(t, err)
	w.volumes.document = plain + "}"
	got, err := w.publish(t)
	if err != nil || got.Credentials || len(w.secret(t)) > 0 {
		t.Errorf("connection %+v, error %v", got, err)
	}
}

// TestWritesOfOthersStay: the Secret also has entries of other nodes, which other calls
// write at the same time.
func TestWritesOfOthersStay(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	conflicts := 3
	w.client.PrependReactor("update", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts--; conflicts < 0 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewConflict(corev1.Resource("secrets"), pvName, errors.New("changed"))
	})
	_, err := w.publish(t)
	must(t, err)
	_, err = w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n2})
	must(t, err)
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	if data := w.secret(t); len(data) != 1 || data[wire.SecretKey("n2")] == "" {
		t.Errorf("%d entries", len(data))
	}
	must(t, w.Unpublish(t.Context(), handle(), ""))
	if data := w.secret(t); len(data) != 0 {
		t.Errorf("%d entries", len(data))
	}
}

func TestUnpublish(t *testing.T) {
	stamped := cinder.Volume{ID: volumeID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName, Tenant: "team-a"}.Metadata(nil)}
	foreign := cinder.Volume{ID: volumeID, Metadata: stamps.Volume{Cluster: "cluster-2", ClaimUID: "1", PV: pvName}.Metadata(nil)}
	key := wire.NodeKey("n1")
	for name, test := range map[string]struct {
		existing []runtime.Object
		found    *cinder.Volume
		err      error
		calls    []string
		kept     bool // the credentials
		kind     string
		message  string
	}{
		"attached":                      {existing: []runtime.Object{testPV()}, calls: []string{"unpublish " + volumeID + " from " + key}},
		"without its PersistentVolume":  {found: &stamped, calls: []string{"find", "unpublish " + volumeID + " from " + key}},
		"without anything":              {calls: []string{"find", "unpublish " + volumeID + " from " + key}, kept: true},
		"of another cluster":            {found: &foreign, calls: []string{"find"}, kept: true, kind: "NotOurs", message: "volume " + volumeID + " does not carry the stamp of this cluster, so it is not detached"},
		"while the backend is down":     {existing: []runtime.Object{testPV()}, err: &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Status: 503, RequestID: "req-1", Message: "no answer", EffectUnknown: true}, calls: []string{"unpublish " + volumeID + " from " + key}, kind: "Unavailable", message: "backend gold: no answer (HTTP 503)"},
		"while the backend is not read": {err: &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "no answer"}, calls: []string{"find"}, kept: true, kind: "Unavailable", message: "backend gold: no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			secret := testSecret()
			secret.Data = map[string][]byte{wire.SecretKey("n1"): []byte("x")}
			w := newWorld(t, append(test.existing, secret)...)
			w.volumes.found, w.volumes.err = test.found, test.err
			err := w.Unpublish(t.Context(), handle(), idOf(t, n1))
			if test.kind == "" {
				must(t, err)
			} else {
				wantFailure(t, err, test.kind, test.message)
			}
			if !slices.Equal(w.volumes.calls, test.calls) {
				t.Errorf("calls %q, want %q", w.volumes.calls, test.calls)
			}
			if kept := len(w.secret(t)) > 0; kept != test.kept {
				t.Errorf("the credentials are kept: %t", kept)
			}
		})
	}
}

func TestVolume(t *testing.T) {
	stamped := cinder.Volume{ID: volumeID, MultiAttach: true, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName}.Metadata(nil)}
	pv := testPV()
	pv.Spec.CSI.VolumeAttributes = map[string]string{"a": "b"}
	w := newWorld(t, pv)
	_, err := w.Volume(t.Context(), handle())
	wantFailure(t, err, "NotFound", "backend gold has no volume "+volumeID)
	w.volumes.found = &stamped
	got, err := w.Volume(t.Context(), handle())
	if want := (controller.Volume{MultiAttach: true, Context: map[string]string{"a": "b"}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("volume %+v, error %v", got, err)
	}
	w.volumes.found = &cinder.Volume{ID: volumeID}
	_, err = w.Volume(t.Context(), handle())
	wantFailure(t, err, "NotOurs", "volume "+volumeID+" does not carry the stamp of PersistentVolume "+pvName)
	_, err = newWorld(t).Volume(t.Context(), handle())
	wantFailure(t, err, "NotFound", "no PersistentVolume has the handle gold/"+volumeID)
}

// TestEveryKindHasACode: the table must have every kind that any part of the program
// returns.
func TestEveryKindHasACode(t *testing.T) {
	for _, kind := range []cinder.Kind{
		cinder.KindNotFound, cinder.KindInvalid, cinder.KindConflict, cinder.KindOverQuota, cinder.KindRateLimited, cinder.KindUnauthorized, cinder.KindForbidden,
		cinder.KindUnavailable, cinder.KindConfig, cinder.KindFenced, cinder.KindInternal, backends.KindVolumeFailed, backends.KindTimeout, backends.KindNotOurs,
		backends.KindInUse, backends.KindHasSnapshots, backends.KindContested, backends.KindRecorded, backends.KindElsewhere, backends.KindOnOtherNode,
	} {
		if !controller.Knows(string(kind)) {
			t.Errorf("%s has no code", kind)
		}
	}
}

// TestNoFailureShowsACredential: this holds for any document.
func TestNoFailureShowsACredential(t *testing.T) {
	for _, document := range []string{
		strings.Replace(withCHAP, `"CHAP"`, `"SRP"`, 1), strings.Replace(withCHAP, `"target_lun": 1`, `"target_lun": "`+password+`"`, 1), strings.Replace(withCHAP, `"u"`, `""`, 1), withCHAP + `x`,
	} {
		w := newWorld(t, testPV(), testSecret())
		w.volumes.document = document
		_, err := w.publish(t)
		if err == nil || strings.Contains(err.Error(), password) {
			t.Errorf("error %v", err)
		}
		var refusal *mappers.Refusal
		if errors.As(err, &refusal) {
			t.Errorf("%v is not translated", err)
		}
	}
}
