package world

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/apiserver"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/cluster"
)

// replica is one process of the program.
type replica struct {
	name    string
	network *network
	stop    context.CancelFunc
	// ended is closed when Run has returned; err is what it returned.
	ended chan struct{}
	err   error
	log   *lines
	// killed means that what it does now is that of a dead process.
	killed bool
	// terminationLog is the file that the kubelet reads when it has ended.
	terminationLog string
}

// lines keeps what a replica logs.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start starts a replica.
func (w *World) start() (*replica, error) {
	w.started++
	r := &replica{name: fmt.Sprintf("replica-%d", w.started), ended: make(chan struct{}), log: &lines{}}
	r.network = w.newNetwork(r.name)
	r.terminationLog = filepath.Join(w.dir, r.name+".termination-log")
	if err := writeFile(r.terminationLog, ""); err != nil {
		return nil, err
	}
	options := app.Options{
		PolicyFile: filepath.Join(w.dir, "policy.yaml"), CloudsFile: filepath.Join(w.dir, "clouds.yaml"),
		Namespace: ownNamespace, ProvisionerName: provisionerName, Listen: "health", CSIEndpoint: "unix://" + csiSocket,
		LeaderElect: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: time.Second,
		DrainTimeout: 20 * time.Second, ReadLag: w.lag + lagMargin, TaintLostNodes: w.taints, TaintLostNodesShare: 100, Workers: 100, KubeQPS: 500, KubeBurst: 1000,
		Protocols: mappers.BuiltIn(), Config: &rest.Config{Host: "http://" + apiHost}, Network: r.network, TerminationLog: r.terminationLog,
		Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	a, err := app.New(options)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		defer close(r.ended)
		r.err = a.Run(ctx)
		r.network.cut()
	}()
	go w.attach(r)
	return r, nil
}

// csiSocket is where replicas serve the external-attacher.
const csiSocket = "/csi/csi.sock"

// attach runs the external-attacher beside a replica. It is started again whenever it
// exits.
func (w *World) attach(r *replica) {
	for r.network.ctx.Err() == nil {
		beside := w.newNetwork(r.name + besideReplica)
		end := context.AfterFunc(r.network.ctx, beside.cut)
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://" + apiHost, Dial: beside.DialContext, QPS: 1000, Burst: 1000})
		if err == nil {
			err = cluster.Attach(beside.ctx, client, func(ctx context.Context) (net.Conn, error) { return r.network.DialSocket(ctx, csiSocket) })
		}
		fmt.Fprintf(r.log, "the attacher exits: %v\n", err)
		end()
		beside.cut()
		time.Sleep(time.Second)
	}
}

// besideReplica is how the names of clients end that share the pod of a replica.
const besideReplica = "/attacher"

// podOfReplicas is the pod that replicas take for theirs.
func podOfReplicas() (*corev1.Pod, error) {
	name, err := os.Hostname()
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ownNamespace, Name: name}}, err
}

// reportEnd writes what a kubelet does when a container has ended: what its termination log
// said then.
func (w *World) reportEnd(container, said string) {
	pod, err := podOfReplicas()
	if err == nil {
		_, err = w.api.Change(pod, "status", func(o apiserver.Object) {
			pod := o.(*corev1.Pod)
			// The others' ends have been seen.
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: container,
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, ContainerID: "containerd://" + container, Message: said}}})
			if n := len(pod.Status.ContainerStatuses); n > 4 {
				pod.Status.ContainerStatuses = pod.Status.ContainerStatuses[n-4:]
			}
		})
	}
	w.note("the end of %s is reported (%q, %v)", container, said, err)
}

// kill ends a replica's connections in one instant, so nothing that it does from now on
// has an effect. Requests under way may still have theirs.
func (r *replica) kill() {
	r.killed = true
	r.network.cut()
	r.stop()
}

func (r *replica) hasEnded() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// writeFile replaces a file as the kubelet does, at once.
func writeFile(path, content string) error {
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
