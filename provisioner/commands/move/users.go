package move

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// annotationRun is on the copying pod. Its value, of this run alone, tells the pod from others.
const annotationRun = objects.Prefix + "copy-run"

// annotationSeen is written on the copying pod, and then waited for: who watches pods sees it
// after everything that came before.
const annotationSeen = objects.Prefix + "copy-seen"

// seenWithin bounds the wait for that.
const seenWithin = 30 * time.Second

// users sees every pod that names one of some claims, from its beginning on.
type users struct {
	client kubernetes.Interface
	claims []*corev1.PersistentVolumeClaim
	run    string
	stop   func()
	// ended are the pods that had ended before.
	ended map[types.UID]bool

	mu sync.Mutex
	// problem is a pod that may have used a claim, or that nobody can tell any more.
	problem error
	// marks are closed when the copying pod is seen with them.
	marks map[string]chan struct{}
}

// watchUsers fails if a pod uses one of the claims, and else watches for one.
func watchUsers(ctx context.Context, client kubernetes.Interface, claims ...*corev1.PersistentVolumeClaim) (*users, error) {
	u := &users{client: client, claims: claims, run: rand.Text(), ended: map[types.UID]bool{}, marks: map[string]chan struct{}{}}
	pods := client.CoreV1().Pods(claims[0].Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot list the pods of namespace %s: %w", claims[0].Namespace, err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		claim := u.names(pod)
		switch {
		case claim == "":
		case objects.IsFinished(pod):
			u.ended[pod.UID] = true
		default:
			return nil, refused(true, "pod %s/%s uses claim %s; stop it, or wait for its end", pod.Namespace, pod.Name, claim)
		}
	}
	ctx, end := context.WithCancel(ctx)
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: pods.Watch})
	if err != nil {
		end()
		return nil, err
	}
	u.stop = func() {
		end()
		<-watcher.Done()
	}
	go func() {
		for event := range watcher.ResultChan() {
			u.see(event)
		}
		u.note(refused(true, "nobody has seen all pods of namespace %s since the copy began", claims[0].Namespace))
	}()
	return u, nil
}

// names returns the name of a claim that a pod names, even if the pod has ended.
func (u *users) names(pod *corev1.Pod) string {
	alive := &corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
	if i := slices.IndexFunc(u.claims, func(claim *corev1.PersistentVolumeClaim) bool { return objects.Uses(alive, claim) }); i >= 0 {
		return u.claims[i].Name
	}
	return ""
}

func (u *users) see(event watch.Event) {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok {
		u.note(fmt.Errorf("the pods cannot be watched: %w", apierrors.FromObject(event.Object)))
		return
	}
	if pod.Annotations[annotationRun] == u.run {
		u.mu.Lock()
		defer u.mu.Unlock()
		if mark := pod.Annotations[annotationSeen]; u.marks[mark] != nil {
			close(u.marks[mark])
			delete(u.marks, mark)
		}
		return
	}
	if claim := u.names(pod); claim != "" && !u.ended[pod.UID] {
		u.note(refused(true, "pod %s/%s may have used claim %s since the copy began, so the copy is worth nothing; stop the pods of the claim, and run the command again", pod.Namespace, pod.Name, claim))
	}
}

// note remembers the first problem.
func (u *users) note(problem error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.problem == nil {
		u.problem = problem
	}
}

func (u *users) err() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.problem
}

// onlyUser fails unless no pod but the copying one can have used a claim up to this call.
func (u *users) onlyUser(ctx context.Context, copying *corev1.Pod) error {
	mark, seen := rand.Text(), make(chan struct{})
	u.mu.Lock()
	u.marks[mark] = seen
	u.mu.Unlock()
	patch := fmt.Appendf(nil, `{"metadata": {"uid": %q, "annotations": {%q: %q}}}`, copying.UID, annotationSeen, mark)
	if _, err := u.client.CoreV1().Pods(copying.Namespace).Patch(ctx, copying.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cannot mark pod %s/%s: %w", copying.Namespace, copying.Name, err)
	}
	select {
	case <-seen:
		return u.err()
	case <-time.After(seenWithin):
		return refused(true, "within %s, the API server did not show which pods have used the claims; run the command again", seenWithin)
	case <-ctx.Done():
		return ctx.Err()
	}
}
