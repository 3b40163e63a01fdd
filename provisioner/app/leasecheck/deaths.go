package leasecheck

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// TerminationLog is the file whose content the kubelet puts into the status of a
// container that has ended, as its message.
const TerminationLog = "/dev/termination-log"

// SignTerminationLog writes the name of a process into its container's termination log,
// so that the end of the container shows that this very process has ended. It writes
// nothing unless the process is the first of its PID namespace, which ends with it. Others,
// as with hostPID, shareProcessNamespace or a shell that started them, may outlive their
// container. Without the file, nothing is written either.
func SignTerminationLog(path string, pid int, identity string) error {
	if pid != 1 {
		return nil
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = file.WriteString(identity)
	return errors.Join(err, file.Close())
}

// provesEnd reports whether a pod's status shows that a process has ended. Only the
// kubelet writes a message into it, when the container runtime says that the container has
// ended. A pod's phase, its deletion and its absence prove nothing: for a node that does
// not answer, controllers write them without knowing whether the process still runs.
func provesEnd(pod *corev1.Pod, identity string) bool {
	for _, container := range pod.Status.ContainerStatuses {
		for _, state := range []corev1.ContainerState{container.State, container.LastTerminationState} {
			if state.Terminated != nil && state.Terminated.ContainerID != "" && state.Terminated.Message == identity {
				return true
			}
		}
	}
	return false
}

// Deaths learns whether the process that holds the Lease has ended, from its pod.
type Deaths struct {
	// Client reads the pods of Namespace.
	Client    rest.Interface
	Namespace string
	// PodOf returns the pod of a process; empty if there is none.
	PodOf func(identity string) string
	// Watched wraps the handler of what the API server shows.
	Watched func(cache.ResourceEventHandler) cache.ResourceEventHandler
	// Learned is called when a process that held the Lease has ended.
	Learned func()

	mu     sync.Mutex
	holder string
	ended  string
	stop   context.CancelFunc
}

// Follow watches the pod of the process that holds the Lease, until another one does or
// the context ends.
func (d *Deaths) Follow(ctx context.Context, holder string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if holder == d.holder {
		return
	}
	if d.stop != nil {
		d.stop()
	}
	d.holder, d.stop = holder, nil
	if pod := d.PodOf(holder); pod != "" {
		ctx, d.stop = context.WithCancel(ctx)
		go d.watch(ctx, pod, holder)
	}
}

// HasEnded reports whether a process that held the Lease has certainly ended.
func (d *Deaths) HasEnded(identity string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return identity != "" && identity == d.ended
}

func (d *Deaths) watch(ctx context.Context, pod, holder string) {
	seen := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok && provesEnd(pod, holder) && ctx.Err() == nil {
			d.mu.Lock()
			d.ended = holder
			d.mu.Unlock()
			d.Learned()
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(d.Client, "pods", d.Namespace, fields.OneTermEqualSelector("metadata.name", pod)),
		ObjectType:    &corev1.Pod{},
		Handler:       d.Watched(cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, after any) { seen(after) }}),
	})
	informer.RunWithContext(ctx)
}
