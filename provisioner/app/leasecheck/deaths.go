package leasecheck

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// End is what is known of the end of a process.
type End struct {
	// Proven means that it has certainly ended.
	Proven bool
	// Settled means that Cinder's reads show everything that it, or a leader before it, has
	// changed.
	Settled bool
}

// endOf reads the end of a process from the status of its pod. Only the kubelet writes a
// message into it, when the container runtime says that the container has ended. A pod's
// phase, its deletion and its absence prove nothing: for a node that does not answer,
// controllers write them without knowing whether the process still runs.
func endOf(pod *corev1.Pod, identity string, readLag time.Duration) End {
	for _, container := range pod.Status.ContainerStatuses {
		for _, state := range []corev1.ContainerState{container.State, container.LastTerminationState} {
			if state.Terminated == nil || state.Terminated.ContainerID == "" {
				continue
			}
			switch state.Terminated.Message {
			case identity:
				return End{Proven: true}
			case identity + settledMark(readLag):
				return End{Proven: true, Settled: true}
			}
		}
	}
	return End{}
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
	// ReadLag is how old the state may be that Cinder's reads show.
	ReadLag time.Duration

	mu     sync.Mutex
	holder string
	// ended is the holder whose end is known.
	ended string
	end   End
	stop  context.CancelFunc
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

// EndOf returns what is known of the end of a process that held the Lease.
func (d *Deaths) EndOf(identity string) End {
	d.mu.Lock()
	defer d.mu.Unlock()
	if identity == "" || identity != d.ended {
		return End{}
	}
	return d.end
}

func (d *Deaths) watch(ctx context.Context, pod, holder string) {
	seen := func(object any) {
		pod, ok := object.(*corev1.Pod)
		if !ok || ctx.Err() != nil {
			return
		}
		if end := endOf(pod, holder, d.ReadLag); end.Proven {
			d.mu.Lock()
			d.ended, d.end = holder, end
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
