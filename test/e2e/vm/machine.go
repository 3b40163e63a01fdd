package vm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"
)

// Options describe a machine.
type Options struct {
	Image Image
	// Name is its host name.
	Name string
	// Initiator is its iSCSI name.
	Initiator string
	// Memory is in MiB; 0 is enough for the node plugin.
	Memory int
	// Disk is the file of a second disk, if any, /dev/vdb. The machine does not write to it.
	Disk string
}

// smallMemory is enough for a machine without a kubelet, in MiB.
const smallMemory = 768

// Machine is a running node.
type Machine struct {
	name    string
	dir     string
	process *exec.Cmd
	exited  chan struct{}
	client  *ssh.Client
}

// Start boots a machine, which takes from 20 seconds to a minute.
func Start(ctx context.Context, options Options) (_ *Machine, err error) {
	dir, err := os.MkdirTemp("", "standalone-cinder-vm-")
	if err != nil {
		return nil, err
	}
	m := &Machine{name: options.Name, dir: dir, exited: make(chan struct{})}
	defer func() {
		if err != nil {
			m.Kill()
		}
	}()
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	arguments := []string{
		"-accel", "tcg", "-machine", "q35", "-m", strconv.Itoa(cmp.Or(options.Memory, smallMemory)), "-smp", "1", "-display", "none", "-no-reboot",
		"-serial", "file:" + m.consolePath(),
		"-kernel", options.Image.path("kernel"), "-initrd", options.Image.path("initrd"),
		// Without no_timer_check, the kernel of an emulated machine panics if the host is so
		// busy that the timer's first ticks come late.
		"-append", fmt.Sprintf("console=ttyS0 root=/dev/vda rw init=/node-init panic=1 no_timer_check node.name=%s node.initiator=%s", options.Name, options.Initiator),
		"-drive", "file=" + options.Image.path("disk") + ",format=raw,if=virtio,snapshot=on",
		"-netdev", "user,id=network,restrict=on,hostfwd=tcp:" + address + "-:22", "-device", "virtio-net-pci,netdev=network",
		"-device", "virtio-rng-pci",
		// The same machine at every boot.
		"-uuid", uuid.NewSHA1(uuid.NameSpaceDNS, []byte(options.Name)).String(),
	}
	if options.Disk != "" {
		arguments = append(arguments, "-drive", "file="+options.Disk+",format=raw,if=virtio,readonly=on")
	}
	m.process = exec.Command("qemu-system-x86_64", arguments...)
	m.process.Env = append(os.Environ(), "TMPDIR="+dir)
	var complaint bytes.Buffer
	m.process.Stderr = &complaint
	if err := m.process.Start(); err != nil {
		return nil, fmt.Errorf("start machine %s: %w", m.name, err)
	}
	go func() {
		_ = m.process.Wait()
		close(m.exited)
	}()
	config := &ssh.ClientConfig{
		// AES takes twice the time where the processor is emulated.
		Config: ssh.Config{Ciphers: []string{ssh.CipherChaCha20Poly1305}},
		User:   "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(options.Image.key)},
		HostKeyCallback: ssh.FixedHostKey(options.Image.server), HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
		Timeout: 20 * time.Second,
	}
	for {
		if m.isReady() {
			if m.client, err = ssh.Dial("tcp", address, config); err == nil {
				return m, nil
			}
		}
		select {
		case <-m.exited:
			return nil, fmt.Errorf("machine %s ended: %s\n%s", m.name, complaint.String(), m.Console())
		case <-ctx.Done():
			return nil, fmt.Errorf("machine %s does not boot: %w\n%s", m.name, ctx.Err(), m.Console())
		case <-time.After(time.Second):
		}
	}
}

func (m *Machine) consolePath() string { return filepath.Join(m.dir, "console") }

func (m *Machine) isReady() bool { return strings.Contains(m.Console(), "the node is ready") }

// Console returns what the kernel and the first process wrote.
func (m *Machine) Console() string {
	text, err := os.ReadFile(m.consolePath())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Run runs a line of shell as root, and returns what it wrote.
func (m *Machine) Run(ctx context.Context, line string) (string, error) {
	return m.RunWith(ctx, nil, line)
}

// RunWith does the same as Run, with a standard input.
func (m *Machine) RunWith(ctx context.Context, input io.Reader, line string) (string, error) {
	session, err := m.client.NewSession()
	if err != nil {
		return "", fmt.Errorf("machine %s: %w", m.name, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = session.Close() })
	defer stop()
	defer func() { _ = session.Close() }()
	session.Stdin = input
	output, err := session.CombinedOutput(line)
	if err != nil {
		return string(output), fmt.Errorf("machine %s: %s: %w: %s", m.name, line, errors.Join(err, ctx.Err()), bytes.TrimSpace(output))
	}
	return string(output), nil
}

// Install writes a file of this machine to an executable file of the node.
func (m *Machine) Install(ctx context.Context, from, to string) error {
	content, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	_, err = m.RunWith(ctx, content, fmt.Sprintf("mkdir -p %s && cat > %s && chmod 755 %s", filepath.Dir(to), to, to))
	return err
}

// Dial connects to a UNIX socket of the node.
func (m *Machine) Dial(_ context.Context, socket string) (net.Conn, error) {
	return m.client.Dial("unix", socket)
}

// Connect connects to an address of the node's loopback interface.
func (m *Machine) Connect(address string) (net.Conn, error) {
	return m.client.Dial("tcp", address)
}

// Reach lets the node connect to an address of this machine's loopback interface,
// under that address. The function that it returns cuts that and all connections.
func (m *Machine) Reach(address string) (cut func(), err error) { return m.ReachAt(address, address) }

// ReachAt does the same as Reach, under another address, which the node must have.
func (m *Machine) ReachAt(inside, address string) (cut func(), err error) {
	listener, err := m.client.Listen("tcp", inside)
	if err != nil {
		return nil, fmt.Errorf("machine %s: listen at %s: %w", m.name, inside, err)
	}
	var mu sync.Mutex
	isCut := false
	open := map[net.Conn]bool{}
	keep := func(connections ...net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range connections {
			open[c] = true
		}
		return !isCut
	}
	closeAll := func(connections ...net.Conn) {
		for _, c := range connections {
			_ = c.Close()
		}
		mu.Lock()
		defer mu.Unlock()
		for _, c := range connections {
			delete(open, c)
		}
	}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", address)
			if err != nil {
				_ = near.Close()
				continue
			}
			if !keep(near, far) {
				closeAll(near, far)
				continue
			}
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					closeAll(pair[0], pair[1])
				}()
			}
		}
	}()
	return func() {
		_ = listener.Close()
		mu.Lock()
		isCut = true
		var all []net.Conn
		for c := range open {
			all = append(all, c)
		}
		mu.Unlock()
		closeAll(all...)
	}, nil
}

// Pause stops the node in the middle of what it does, and Resume lets it go on.
func (m *Machine) Pause() error { return m.process.Process.Signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (m *Machine) Resume() error { return m.process.Process.Signal(syscall.SIGCONT) }

// Kill ends the machine like a power failure: nothing is written back. It may
// be called again.
func (m *Machine) Kill() {
	if m.process != nil && m.process.Process != nil {
		_ = m.process.Process.Kill()
		<-m.exited
	}
	if m.client != nil {
		_ = m.client.Close()
	}
	_ = os.RemoveAll(m.dir)
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String(), nil
}
