package world

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/books"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/machine"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/apiserver"
)

// The arrays of machines, which are StorageClasses, volume types and backends, too. One
// shows its volumes to everybody, the other each only to the nodes that have it. Nodes
// encrypt those of sealed, a StorageClass of the latter.
const (
	shown  = "shown"
	masked = "masked"
	sealed = "sealed"
)

// keySecret is the Secret of key-encryption keys, with an entry for each variant of the
// policy.
const keySecret = "keys"

// arrayProjects are the projects of the noauth Cinder for them.
func arrayProjects() map[string]string {
	return map[string]string{shown: "abcdef0123456789abcdef012345678a", masked: "abcdef0123456789abcdef012345678b"}
}

func newArrays() map[string]*drivers.Array {
	return map[string]*drivers.Array{
		shown:  {Target: "iqn.2026-01.example:shown", Portal: "192.0.2.1:3260"},
		masked: {Target: "iqn.2026-01.example:masked", Portal: "192.0.2.2:3260", Masks: true},
	}
}

func volumeTypes(arrays map[string]*drivers.Array) []drivers.VolumeType {
	types := drivers.DefaultVolumeTypes()
	for _, name := range slices.Sorted(maps.Keys(arrays)) {
		types = append(types, arrays[name].Type(name))
	}
	return types
}

// fleet is the machines, and what the cluster runs there.
type fleet struct {
	arrays   map[string]*drivers.Array
	storage  *machine.Storage
	machines []*station
	// pods are those that are meant to run on machines, of workloads.
	pods        *books.Pods
	workloads   []*workload
	attachments *books.Attachments
	// taints means that the leader takes lost nodes out of service.
	taints bool
	// fenced are VolumeAttachments of nodes that were taken out of service, by their UIDs.
	fenced map[string]bool
	// wrong are findings of machines.
	wrong findings
}

// findings collects those of other goroutines.
type findings struct {
	mu  sync.Mutex
	all []checker.Finding
}

func (f *findings) note(found checker.Finding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, found)
}

func (f *findings) take() []checker.Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.all
	f.all = nil
	return all
}

// station is the place of a machine in the cluster, and what the cluster's controllers
// know of it.
type station struct {
	*machine.Machine
	world   *World
	network *network
	// lost is since when it is not Ready; zero if it is.
	lost time.Time
	// off means that an administrator has tainted it as out of service, or deleted its Node.
	off bool
	// forgotten is since when it has volumes staged that its kubelet has forgotten, by
	// their IDs.
	forgotten map[string]time.Time
}

// takesPods reports whether the scheduler would put a pod there.
func (s *station) takesPods() bool { return s.lost.IsZero() && !s.off && !s.isTainted() }

// isTainted reports whether its Node has the taint, perhaps by the leader.
func (s *station) isTainted() bool {
	node := s.world.node(s.Name)
	return node != nil && staged.IsOff(node)
}

// isGivenUp reports whether Kubernetes detaches volumes from it by force.
func (s *station) isGivenUp(patience time.Duration) bool {
	return s.off || s.isTainted() || !s.lost.IsZero() && time.Since(s.lost) > patience
}

// isFenced reports whether the leader takes, or has taken, a volume from a lost node before
// Kubernetes asks for that. It may attach the volume there again.
func (w *World) isFenced(a checker.Attachment) bool {
	if node := w.node(a.Node); node != nil && nodemark.Bars(node) {
		w.fenced[a.UID] = true
	}
	return w.fenced[a.UID]
}

// boot starts the machines.
func (w *World) boot(ctx context.Context) error {
	w.storage = machine.NewStorage(w.arrays[shown], w.arrays[masked])
	for n := range 3 {
		name := fmt.Sprintf("node-%d", n+1)
		network := w.newNetwork(name)
		s := &station{world: w, network: network, forgotten: map[string]time.Time{}, Machine: machine.New(machine.Options{
			Name: name, Storage: w.storage, Namespace: ownNamespace,
			Config: &rest.Config{Host: "http://" + apiHost, Dial: network.DialContext, QPS: 100, Burst: 100},
			Wanted: func() []machine.Volume { return w.pods.On(name) },
			Wrong: func(volume, text string) {
				w.wrong.note(checker.Finding{Kind: checker.WrongContent, Object: "volume " + volume, Text: text, VolumeID: volume})
			},
		})}
		if err := s.On(); err != nil {
			return err
		}
		w.machines = append(w.machines, s)
		go s.Run(ctx)
	}
	return nil
}

func (w *World) killPlugin() {
	s, _ := pick(w, w.machines)
	nth, after, again := 1+w.random.IntN(12), w.random.IntN(2) == 0, time.Duration(w.random.Int64N(int64(10*time.Second)))
	w.note("the plugin of %s dies at its change %d from now (%t), and starts again after %s", s.Name, nth, after, again)
	s.KillPlugin(nth, after, again)
}

func (w *World) restartKubelet() {
	s, _ := pick(w, w.machines)
	w.note("the kubelet of %s is restarted", s.Name)
	if err := s.RestartKubelet(); err != nil {
		w.note("%s: %s", s.Name, err)
	}
}

// loseMachine loses a machine, which comes back some time.
func (w *World) loseMachine() {
	s, _ := pick(w, w.machines)
	if !s.takesPods() || !slices.ContainsFunc(w.machines, func(other *station) bool { return other != s && other.takesPods() }) {
		return
	}
	if w.random.IntN(3) == 0 {
		s.KillPlugin(1+w.random.IntN(8), w.random.IntN(2) == 0, 5*time.Second)
	}
	kind, _ := pick(w, []loss{cutOff, powerless, tainted, deleted, replaced})
	w.lose(s, kind)
}

// loss is how a machine is lost, and what the administrator does about it.
type loss string

const (
	cutOff    loss = "cut off"
	powerless loss = "without power"
	tainted   loss = "cut off, and tainted"
	deleted   loss = "cut off, and its Node deleted"
	replaced  loss = "cut off, its Node deleted, and replaced"
)

func (w *World) lose(s *station, kind loss) {
	w.note("%s is %s", s.Name, kind)
	if kind == powerless {
		s.Off()
	}
	s.Cut()
	s.lost = time.Now()
	if node := w.node(s.Name); node != nil {
		w.setStatus(node, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown"})
	}
	if kind == cutOff || kind == powerless {
		restarts := kind == cutOff && w.random.IntN(3) == 0
		w.later(w.soon(90*time.Second).Add(30*time.Second), func() {
			if restarts {
				_ = s.RestartKubelet()
			}
			w.bringBack(s)
		})
		return
	}
	// The administrator comes later, and makes sure that it is off.
	w.later(w.soon(30*time.Second), func() {
		s.Off()
		s.off = true
		w.note("%s is off, and its Node given up", s.Name)
		if node := w.node(s.Name); node != nil && kind == tainted {
			_, _ = change(w, node, func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
			})
		} else if node != nil {
			_ = w.api.Delete(node)
			for _, c := range apiserver.Objects[*storagev1.CSINode](w.api) {
				if c.Name == s.Name {
					_ = w.api.Delete(c)
				}
			}
		}
		w.later(w.soon(60*time.Second), func() {
			if kind == replaced {
				s.Replace()
			}
			w.bringBack(s)
		})
	})
}

// bringBack lets a machine run again, and have pods once it is known to be Ready.
func (w *World) bringBack(s *station) {
	s.Reconnect(time.Duration(w.random.Int64N(int64(10 * time.Second))))
	if err := s.On(); err != nil {
		w.note("%s: %s", s.Name, err)
	}
	w.note("%s is back", s.Name)
	ready := func() bool {
		node := w.node(s.Name)
		return node != nil && node.Status.NodeInfo.BootID == s.IDs().Boot && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	w.await(ready, func() {
		if node := w.node(s.Name); s.off && len(node.Spec.Taints) > 0 {
			_, _ = change(w, node, func(n *corev1.Node) { n.Spec.Taints = nil })
		}
		s.lost, s.off = time.Time{}, false
	})
}

func (w *World) node(name string) *corev1.Node {
	for _, node := range apiserver.Objects[*corev1.Node](w.api) {
		if node.Name == name {
			return node
		}
	}
	return nil
}

func (w *World) setStatus(node *corev1.Node, condition corev1.NodeCondition) {
	_, err := w.api.Change(node, "status", func(o apiserver.Object) { o.(*corev1.Node).Status.Conditions = []corev1.NodeCondition{condition} })
	if err != nil {
		w.note("the status of %s cannot be changed: %s", node.Name, err)
	}
}

// writes returns where the kernels of all machines write.
func (w *World) writes() []checker.Write {
	var machines []*machine.Machine
	for _, s := range w.machines {
		machines = append(machines, s.Machine)
	}
	var all []checker.Write
	for _, write := range w.storage.Writes(machines) {
		all = append(all, checker.Write(write))
	}
	return all
}

// reports returns what nodes say.
func (w *World) reports() []checker.Report {
	var all []checker.Report
	for _, s := range w.machines {
		r := checker.Report{Node: s.Name, There: w.node(s.Name) != nil}
		for _, lease := range apiserver.Objects[*coordinationv1.Lease](w.api) {
			if lease.Name != staged.LeaseName(s.Name) {
				continue
			}
			for _, text := range staged.Of(lease).Volumes {
				if handle, err := wire.ParseHandle(text); err == nil {
					r.Volumes = append(r.Volumes, handle.ID)
				}
			}
		}
		all = append(all, r)
	}
	return all
}

// noteKeys finds sealed volumes whose content is not encrypted, and logs with a key.
func (w *World) noteKeys() {
	logs := w.Logs()
	for _, v := range w.sim.Volumes() {
		if v.Metadata[checker.StampStorageClass] != sealed {
			continue
		}
		note := func(kind checker.Kind, text string) {
			w.course.Note(checker.Finding{Kind: kind, Object: "volume " + v.ID, Text: text, VolumeID: v.ID, ClaimUID: v.Metadata[checker.StampClaimUID]})
		}
		pv, err := w.PersistentVolume(v.Metadata[checker.StampPV])
		if record := v.Metadata[policy.StampPrefix+"encryption"]; err == nil && pv.Spec.CSI != nil {
			if of := wire.ParseVolumeContext(pv.Spec.CSI.VolumeAttributes).Encrypted; of == "" || !strings.Contains(record, " "+of+" ") {
				note(checker.InTheClear, fmt.Sprintf("its PersistentVolume says that its key was made for claim %q, and it records another", of))
			}
		}
		passphrases, plain := w.storage.Encryption(v.ID)
		if plain {
			note(checker.InTheClear, "its rule encrypts, and its content has no LUKS header")
		}
		for name, log := range logs {
			for _, passphrase := range passphrases {
				if strings.Contains(log, passphrase) {
					note(checker.KeyShown, "its passphrase is in the log of "+name)
				}
			}
		}
	}
}

// rebootTheForgetful does what the guide to lost nodes says: it reboots a node that has a
// volume staged that its kubelet has forgotten.
func (w *World) rebootTheForgetful() {
	const patience = 2 * time.Minute
	for i, report := range w.reports() {
		s := w.machines[i]
		for _, volume := range report.Volumes {
			pv := w.pvOf(volume)
			switch since := s.forgotten[volume]; {
			case pv == "" || s.Remembers(pv):
				delete(s.forgotten, volume)
			case since.IsZero():
				s.forgotten[volume] = time.Now()
			case time.Since(since) > patience:
				clear(s.forgotten)
				w.note("%s has forgotten %s and is rebooted", s.Name, pv)
				s.lost = time.Now()
				s.Off()
				w.bringBack(s)
			}
		}
	}
}
