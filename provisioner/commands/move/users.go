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

// annotationSeen is written on the copying pod, and then waited for: who watches pods sees it
// after everything that came before.
const annotationSeen = objects.Prefix + "copy-seen"

// seenWithin bounds the wait for that.
const seenWithin = 30 * time.Second

// users sees every pod that names one of some claims, but the copying one.
type users struct {
	client  kubernetes.Interface
	claims  []*corev1.PersistentVolumeClaim
	copying *corev1.Pod
	// unlessUsed ends when another pod may have used a claim, or when nobody can tell any more.
	unlessUsed context.Context
	used       context.CancelCauseFunc
	stop       func()
	// ended are the pods that had ended before.
	ended map[types.UID]bool

	mu sync.Mutex
	// marks are closed when the copying pod is seen with them.
	marks map[string]chan struct{}
}

// watchUsers fails if a pod uses one of the claims, and else watches for one.
func watchUsers(ctx context.Context, client kubernetes.Interface, copying *corev1.Pod, claims ...*corev1.PersistentVolumeClaim) (*users, error) {
	u := &users{client: client, claims: claims, copying: copying, ended: map[types.UID]bool{}, marks: map[string]chan struct{}{}}
	pods := client.CoreV1().Pods(copying.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot list the pods of namespace %s: %w", copying.Namespace, err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		claim := u.names(pod)
		switch {
		case claim == "" || pod.UID == copying.UID:
		case objects.IsFinished(pod):
			u.ended[pod.UID] = true
		default:
			return nil, busy("pod %s/%s uses claim %s; stop it, or wait for its end", pod.Namespace, pod.Name, claim)
		}
	}
	u.unlessUsed, u.used = context.WithCancelCause(ctx)
	watcher, err := watchtools.NewRetryWatcherWithContext(u.unlessUsed, list.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: pods.Watch})
	if err != nil {
		u.used(err)
		return nil, err
	}
	u.stop = func() {
		u.used(nil)
		<-watcher.Done()
	}
	go func() {
		for event := range watcher.ResultChan() {
			u.see(event)
		}
		u.used(busy("nobody has seen all pods of namespace %s since the copy began; run the command again", copying.Namespace))
	}()
	return u, nil
}

// names returns the name of a claim that a pod names, even if the pod has ended.
func (u *users) names(pod *corev1.Pod) string {
	if i := slices.IndexFunc(u.claims, func(claim *corev1.PersistentVolumeClaim) bool { return objects.NamesClaim(pod, claim) }); i >= 0 {
		return u.claims[i].Name
	}
	return ""
}

func (u *users) see(event watch.Event) {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok {
		u.used(fmt.Errorf("the pods cannot be watched: %w", apierrors.FromObject(event.Object)))
		return
	}
	if pod.UID == u.copying.UID {
		u.mu.Lock()
		defer u.mu.Unlock()
		if mark := pod.Annotations[annotationSeen]; u.marks[mark] != nil {
			close(u.marks[mark])
			delete(u.marks, mark)
		}
		return
	}
	if claim := u.names(pod); claim != "" && !u.ended[pod.UID] {
		u.used(busy("pod %s/%s may have used claim %s since the copy began, so the copy is worth nothing; stop the pods of the claim, and run the command again", pod.Namespace, pod.Name, claim))
	}
}

// err says which pod may have used a claim; nil if none has.
func (u *users) err() error { return context.Cause(u.unlessUsed) }

// live changes the copying pod now and then, so that other runs see that this one lives.
func (u *users) live(every time.Duration) {
	for {
		select {
		case <-u.unlessUsed.Done():
			return
		case <-time.After(every):
		}
		if err := u.mark(u.unlessUsed, rand.Text()); apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			u.used(busy("pod %s/%s was deleted; run the command again", u.copying.Namespace, u.copying.Name))
		}
	}
}

// mark changes the copying pod.
func (u *users) mark(ctx context.Context, mark string) error {
	patch := fmt.Appendf(nil, `{"metadata": {"uid": %q, "annotations": {%q: %q}}}`, u.copying.UID, annotationSeen, mark)
	_, err := u.client.CoreV1().Pods(u.copying.Namespace).Patch(ctx, u.copying.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// onlyUser fails unless no pod but the copying one can have used a claim up to this call.
func (u *users) onlyUser(ctx context.Context) error {
	mark, seen := rand.Text(), make(chan struct{})
	u.mu.Lock()
	u.marks[mark] = seen
	u.mu.Unlock()
	if err := u.mark(ctx, mark); err != nil {
		return fmt.Errorf("cannot mark pod %s/%s: %w", u.copying.Namespace, u.copying.Name, err)
	}
	select {
	case <-seen:
		return u.err()
	case <-time.After(seenWithin):
		return busy("within %s, the API server did not show which pods have used the claims; run the command again", seenWithin)
	case <-u.unlessUsed.Done():
		return u.err()
	}
}
