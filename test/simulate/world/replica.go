package world

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app"
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
	options := app.Options{
		PolicyFile: filepath.Join(w.dir, "policy.yaml"), CloudsFile: filepath.Join(w.dir, "clouds.yaml"),
		Namespace: ownNamespace, ProvisionerName: provisionerName, Listen: "health",
		LeaderElect: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: time.Second,
		DrainTimeout: 20 * time.Second, ReadLag: readLag, Workers: 100, KubeQPS: 500, KubeBurst: 1000,
		Protocols: mappers.BuiltIn(), Config: &rest.Config{Host: "http://" + apiHost}, Network: r.network,
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
	return r, nil
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
