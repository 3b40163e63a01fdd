package harness

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// ReplicaOptions configure a replica.
type ReplicaOptions struct {
	// Policy and Clouds are the contents of the files; Clouds may be empty.
	Policy string
	Clouds string
	// PolicyFiles, if set, are a policy of several files, by their names.
	PolicyFiles map[string]string
	// Provisioner is the name that StorageClasses use. Replicas of one Deployment
	// share it; tests that run in parallel must not.
	Provisioner string
	// Arguments are further flags; Environment further variables.
	Arguments   []string
	Environment []string
	// Program replaces the suite's build.
	Program string
	// APIServer, if set, is the address at which the replica reaches the API
	// server, such as a proxy's, and APIServerAuthority is the CA certificate it
	// trusts there, in PEM.
	APIServer          string
	APIServerAuthority []byte
}

// Replica is the program as a process.
type Replica struct {
	Address string
	// healthAddress is set if health has a port of its own, which needs neither TLS
	// nor a login.
	healthAddress string

	command *exec.Cmd
	exited  chan struct{}
	policy  mount
	clouds  mount

	mu  sync.Mutex
	log bytes.Buffer
}

// StartReplica starts the program and returns once it reports that it is ready.
// The caller stops or kills it.
func (s *Suite) StartReplica(ctx context.Context, options ReplicaOptions) (*Replica, error) {
	dir, err := os.MkdirTemp(s.dir, "replica-")
	if err != nil {
		return nil, err
	}
	policy, err := newMount(filepath.Join(dir, "policy"))
	if err != nil {
		return nil, err
	}
	clouds, err := newMount(filepath.Join(dir, "clouds"))
	if err != nil {
		return nil, err
	}
	kubeconfig, err := s.account(ctx, options.Provisioner)
	if err != nil {
		return nil, err
	}
	if options.APIServer != "" {
		if kubeconfig, err = kubeconfigAt(dir, kubeconfig, options.APIServer, options.APIServerAuthority); err != nil {
			return nil, err
		}
	}
	path := policy.path(policyFile)
	if options.PolicyFiles != nil {
		path = policy.dir
	} else {
		options.PolicyFiles = map[string]string{policyFile: options.Policy}
	}
	arguments := []string{"run",
		"--policy", path,
		"--kubeconfig", kubeconfig,
		"--namespace", Namespace,
		"--provisioner-name", options.Provisioner,
		"--listen", "127.0.0.1:0",
	}
	if err := policy.writeAll(options.PolicyFiles); err != nil {
		return nil, err
	}
	if options.Clouds != "" {
		if err := clouds.write(cloudsFile, options.Clouds); err != nil {
			return nil, err
		}
		arguments = append(arguments, "--clouds-file", clouds.path(cloudsFile))
	}
	program := s.Program
	if options.Program != "" {
		program = options.Program
	}
	r := &Replica{
		command: exec.Command(program, append(arguments, options.Arguments...)...),
		exited:  make(chan struct{}),
		policy:  policy,
		clouds:  clouds,
	}
	// As in a cluster, each replica has a pod of its own.
	r.command.Env = append(append(os.Environ(), "POD_NAME="+filepath.Base(dir)), options.Environment...)
	// A test that dies must not leave the program running. An interrupt typed at a
	// terminal is only for the test, which may need the program to clean up.
	r.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	output, err := r.command.StderrPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	// Pdeathsig follows the thread that forks, so that thread must stay alive: the
	// goroutine that reads the output keeps it.
	go r.follow(output, started)
	if err := <-started; err != nil {
		return nil, err
	}
	if err := r.waitReady(ctx); err != nil {
		r.Kill()
		return nil, fmt.Errorf("replica: %w; its output:\n%s", err, r.Log())
	}
	return r, nil
}

// kubeconfigAt writes a kubeconfig again, with another address of the API server.
func kubeconfigAt(dir, original, address string, authority []byte) (string, error) {
	config, err := clientcmd.LoadFromFile(original)
	if err != nil {
		return "", err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = address
		cluster.CertificateAuthority, cluster.CertificateAuthorityData = "", authority
	}
	path := filepath.Join(dir, "kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}

func (r *Replica) follow(output interface{ Read([]byte) (int, error) }, started chan<- error) {
	if err := r.command.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		r.mu.Lock()
		r.log.Write(lines.Bytes())
		r.log.WriteByte('\n')
		if r.Address == "" {
			r.Address = addressIn(lines.Bytes(), "Serving health and metrics")
		}
		if r.healthAddress == "" {
			r.healthAddress = addressIn(lines.Bytes(), "Serving health alone")
		}
		r.mu.Unlock()
	}
	_ = r.command.Wait()
	close(r.exited)
}

// addressIn reads the log line that names a port.
func addressIn(line []byte, message string) string {
	var entry struct {
		Message string `json:"msg"`
		Address string `json:"address"`
	}
	if json.Unmarshal(line, &entry) == nil && strings.HasPrefix(entry.Message, message) {
		return entry.Address
	}
	return ""
}

func (r *Replica) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		if status, _, err := r.get(ctx, r.healthPort(), "/readyz"); err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-r.exited:
			return fmt.Errorf("ended: %s", r.command.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("is not ready: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// healthPort returns where the replica answers the kubelet.
func (r *Replica) healthPort() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return cmp.Or(r.healthAddress, r.Address)
}

// Get asks the replica's HTTP server.
func (r *Replica) Get(ctx context.Context, path string) (status int, body string, err error) {
	r.mu.Lock()
	address := r.Address
	r.mu.Unlock()
	return r.get(ctx, address, path)
}

func (r *Replica) get(ctx context.Context, address, path string) (status int, body string, err error) {
	if address == "" {
		return 0, "", fmt.Errorf("the replica has not logged its address yet")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	var content bytes.Buffer
	_, err = content.ReadFrom(response.Body)
	return response.StatusCode, content.String(), err
}

// Leads reads the replica's own gauge.
func (r *Replica) Leads(ctx context.Context) bool {
	_, body, err := r.Get(ctx, "/metrics")
	return err == nil && strings.Contains(body, "\nstandalone_cinder_leader 1\n")
}

// PID returns the process's id.
func (r *Replica) PID() int { return r.command.Process.Pid }

// Log returns everything the replica has printed.
func (r *Replica) Log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// Signal sends a signal, such as SIGTERM, SIGSTOP or SIGCONT.
func (r *Replica) Signal(signal syscall.Signal) error { return r.command.Process.Signal(signal) }

// Kill ends the replica at once and waits until it is gone.
func (r *Replica) Kill() {
	_ = r.command.Process.Kill()
	<-r.exited
}

// Stop sends the replica the signal to hand over, and returns how it exited.
func (r *Replica) Stop(ctx context.Context) error {
	if err := r.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-r.exited:
	case <-ctx.Done():
		r.Kill()
		return fmt.Errorf("the replica did not exit: %w; its output:\n%s", ctx.Err(), r.Log())
	}
	if code := r.command.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the replica exited with %s; its output:\n%s", r.command.ProcessState, r.Log())
	}
	return nil
}

// Exited returns a channel that is closed when the process is gone.
func (r *Replica) Exited() <-chan struct{} { return r.exited }

// The names of the mounted files.
const (
	policyFile = "policy.yaml"
	cloudsFile = "clouds.yaml"
)

// WritePolicy replaces the policy file as kubelet does after an edit of the
// ConfigMap.
func (r *Replica) WritePolicy(content string) error { return r.policy.write(policyFile, content) }

// WritePolicyFiles does the same with a policy of several files.
func (r *Replica) WritePolicyFiles(files map[string]string) error { return r.policy.writeAll(files) }

// WriteClouds replaces clouds.yaml as kubelet does after an edit of the Secret.
func (r *Replica) WriteClouds(content string) error { return r.clouds.write(cloudsFile, content) }
