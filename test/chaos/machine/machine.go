// Package machine imitates nodes of a cluster: each is an imitated machine (package
// csinode) on which the real node plugin runs, beside a kubelet that calls it. Machines
// and processes come and go, and a machine that has lost the network goes on writing.
package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/node"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// Options describe a machine.
type Options struct {
	// Name is that of its Node.
	Name    string
	Storage *Storage
	// Config leads to the API server; reports are in Namespace.
	Config    *rest.Config
	Namespace string
	// Wanted returns the volumes of the pods that are meant to run on the node now.
	Wanted func() []Volume
	// Wrong is called when a pod finds the content of another volume.
	Wrong func(volume, text string)
}

// Volume is a volume that a pod needs.
type Volume struct {
	PV, Handle string
	Attributes map[string]string
	// Secret is in the namespace of the machine's options.
	Secret string
	// Pod is the name of the pod, and Attachment that of the VolumeAttachment.
	Pod, Attachment string
}

// Machine is one node.
type Machine struct {
	Options
	network link
	log     logBuffer
	// connect returns a client over the network and further links.
	connect func(links ...*link) (kubernetes.Interface, error)

	mu   sync.Mutex
	host *csinode.Node
	// ids are those of the present boot.
	ids staged.Machine
	// serial tells machines of one name apart, and boots their boots.
	serial, boots int
	on            bool
	plugin        *plugin
	// startAt is when a plugin that is not there is started again, and killAt when one that
	// was to die at a change dies anyway.
	startAt, killAt time.Time
	// harm is what earlier machines of the name have done.
	harm    []string
	kubelet *kubelet
	stages  int
}

// stateDir is where the plugin's state files are.
const stateDir = "/var/lib/standalone-cinder"

// step is the pause between two looks at what is to be done.
const step = 100 * time.Millisecond

// plugin is a process of the node plugin.
type plugin struct {
	*node.Service
	process *process
	link    link
	end     context.CancelFunc
}

// New makes a machine that is off.
func New(options Options) *Machine {
	m := &Machine{Options: options}
	m.connect = m.client
	m.install()
	return m
}

// install makes the machine a new one. The caller has the mutex, or the only reference.
func (m *Machine) install() {
	if m.host != nil {
		m.harm = append(m.harm, m.host.Harm()...)
	}
	m.serial++
	m.host = m.Storage.any.Beside(fmt.Sprintf("iqn.2026-01.example:%s-%d", m.Name, m.serial))
	m.host.Reuse = true
	m.ids = staged.Machine{SystemUUID: fmt.Sprintf("uuid-%d-of-%s", m.serial, m.Name), MachineID: fmt.Sprintf("id-%d-of-%s", m.serial, m.Name)}
	m.host.PutFile("/sys/class/dmi/id/product_uuid", m.ids.SystemUUID+"\n")
	m.host.PutFile("/etc/machine-id", m.ids.MachineID+"\n")
	m.reboot()
}

// reboot begins another boot. The caller has the mutex, or the only reference.
func (m *Machine) reboot() {
	m.boots++
	m.ids.Boot = fmt.Sprintf("boot-%d-of-%s", m.boots, m.Name)
	m.host.Reboot(m.ids.Boot)
}

// IDs returns what the machine says of itself.
func (m *Machine) IDs() staged.Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ids
}

func (m *Machine) kernel() *csinode.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.host
}

// Run runs what runs on the machine until the context ends.
func (m *Machine) Run(ctx context.Context) {
	defer m.Off()
	var running sync.WaitGroup
	running.Go(func() {
		every(ctx, func() {
			m.supervise(ctx)
			m.write()
		})
	})
	running.Go(func() {
		every(ctx, func() {
			if k := m.theKubelet(); k != nil {
				k.look(ctx)
			}
		})
	})
	running.Wait()
}

// every does something again and again until the context ends.
func every(ctx context.Context, do func()) {
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-time.After(step):
		}
	}
}

// supervise starts the plugin if it is not there, and notices that it has died.
func (m *Machine) supervise(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.plugin != nil && (m.host.Reached() || !m.killAt.IsZero() && time.Now().After(m.killAt)) {
		m.endPlugin()
	}
	if !m.on || m.plugin != nil || time.Now().Before(m.startAt) {
		return
	}
	p, err := m.startPlugin(ctx)
	if err != nil {
		m.logger().Error("the plugin does not start", "error", err)
		m.startAt = time.Now().Add(time.Second)
		return
	}
	m.plugin = p
}

// endPlugin kills the plugin's process. The caller has the mutex.
func (m *Machine) endPlugin() {
	if m.plugin == nil {
		return
	}
	m.plugin.link.set(true)
	m.plugin.process.kill()
	m.plugin.end()
	m.host.Restart()
	m.plugin, m.killAt = nil, time.Time{}
}

// requestTimeout ends the requests of kubelet and plugin. It is short, like all times of a
// campaign.
const requestTimeout = 5 * time.Second

func (m *Machine) client(links ...*link) (kubernetes.Interface, error) {
	config := rest.CopyConfig(m.Config)
	config.Timeout = requestTimeout
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		for _, l := range append(links, &m.network) {
			next = l.over(next)
		}
		return next
	})
	return kubernetes.NewForConfig(config)
}

// startPlugin starts the plugin, as package plugin does. The caller has the mutex.
func (m *Machine) startPlugin(ctx context.Context) (*plugin, error) {
	p := &plugin{process: &process{node: m.host}}
	client, err := m.connect(&p.link)
	if err != nil {
		return nil, err
	}
	logger := m.logger().With("process", m.startAt.UnixMilli())
	h := host.New(p.process.root(), logger)
	machine := staged.Machine{}
	if machine.Boot, err = h.BootID(); err != nil {
		return nil, err
	}
	machine.SystemUUID, machine.MachineID = h.MachineIDs()
	reporter := staged.NewReporter(staged.ReporterOptions{
		Leases: client.CoordinationV1().Leases(m.Namespace), Namespace: m.Namespace, Node: m.Name, Machine: machine,
		Volumes: func() ([]string, error) { return node.StagedVolumes(p.process, stateDir, machine.Boot) },
		Logger:  logger, Pause: time.Second, Recheck: 15 * time.Second,
	})
	p.Service, err = node.New(node.Options{Root: p.process.root(), Files: p.process, RBD: p.process, StateDir: stateDir, NodeName: m.Name, Reporter: reporter, Logger: logger})
	if err != nil {
		return nil, err
	}
	ctx, p.end = context.WithCancel(ctx)
	go reporter.Run(ctx)
	go func() {
		p.Tidy(ctx)
		node.NewPaths(p.Service).Keep(ctx)
	}()
	return p, nil
}

func (m *Machine) thePlugin() (*plugin, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.plugin == nil {
		return nil, errors.New("no plugin serves the socket")
	}
	return m.plugin, nil
}

func (m *Machine) theKubelet() *kubelet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kubelet
}

// On boots the machine, if it is off.
func (m *Machine) On() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.on {
		return nil
	}
	m.on = true
	return m.startKubelet(nil)
}

// Off takes the power from the machine: what it had in memory is lost.
func (m *Machine) Off() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endKubelet()
	m.endPlugin()
	if m.on {
		m.reboot()
	}
	m.on = false
}

// Replace puts another machine into the place of one that is off.
func (m *Machine) Replace() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.install()
}

// Cut cuts the machine off from the API server.
func (m *Machine) Cut() { m.network.set(true) }

// Reconnect ends Cut. The kubelet says at once that it is there, and learns later which of
// its pods are gone.
func (m *Machine) Reconnect(late time.Duration) {
	m.network.set(false)
	if k := m.theKubelet(); k != nil {
		k.comeBack(time.Now().Add(late))
	}
}

// KillPlugin makes the plugin die at its nth change from now, before or after that has its
// effect, or soon, if it changes little. It is started again after a while.
func (m *Machine) KillPlugin(nth int, after bool, again time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.plugin == nil {
		return
	}
	m.host.CrashAt(nth, after)
	m.killAt = time.Now().Add(again)
	m.startAt = time.Now().Add(again)
}

// RestartKubelet restarts the kubelet, which remembers only what pods have mounted.
func (m *Machine) RestartKubelet() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.on {
		return nil
	}
	return m.startKubelet(m.endKubelet())
}

// write has the kernel write all that is mounted.
func (m *Machine) write() {
	m.kernel().Flush(func(of *csinode.Volume) string { return m.Storage.id(of) + " of " + m.Name })
}

// Harm returns what was done on the machine that loses somebody's data.
func (m *Machine) Harm() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(append([]string(nil), m.harm...), m.host.Harm()...)
}

// Stages counts the volumes that were staged.
func (m *Machine) Stages() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stages
}

// Log returns what plugin and kubelet have said.
func (m *Machine) Log() string { return m.log.String() }

func (m *Machine) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(&m.log, nil)).With("node", m.Name)
}

// logBuffer keeps a log.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *logBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

// String returns the log.
func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
