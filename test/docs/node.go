package docs

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Node does for the pods of one namespace what a kubelet does, with processes
// instead of containers: what the image contains is built from the same sources,
// arguments, environment and mounted files are those of the pod.
type Node struct {
	Client    kubernetes.Interface
	Namespace string
	// Program runs instead of what the image contains.
	Program string
	// Kubeconfig is that of a service account, in place of the mounted token,
	// whose path in a container is fixed.
	Kubeconfig func(ctx context.Context, namespace, account string) (string, error)
	// Dir is for the mounted files.
	Dir string

	mu     sync.Mutex
	pods   map[types.UID]*process
	images map[string]bool
}

// process is a pod.
type process struct {
	command *exec.Cmd
	exited  chan struct{}
	files   map[string]corev1.Volume // by directory

	mu  sync.Mutex
	log bytes.Buffer
}

func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(text)
}

var serving = regexp.MustCompile(`"msg":"Serving health[^\n]*"address":"([^"]+)"`)

func (p *process) ready(ctx context.Context) bool {
	p.mu.Lock()
	found := serving.FindSubmatch(p.log.Bytes())
	p.mu.Unlock()
	if found == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+string(found[1])+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
}

// Run runs the pods until the context ends.
func (n *Node) Run(ctx context.Context) error {
	n.mu.Lock()
	n.pods, n.images = map[types.UID]*process{}, map[string]bool{}
	n.mu.Unlock()
	defer n.killAll()
	for {
		if err := n.sync(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Images returns the images of the pods that were run.
func (n *Node) Images() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.images)
}

// Logs returns what the pods wrote.
func (n *Node) Logs() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all strings.Builder
	for _, p := range n.pods {
		p.mu.Lock()
		all.Write(p.log.Bytes())
		p.mu.Unlock()
	}
	return all.String()
}

func (n *Node) sync(ctx context.Context) error {
	pods, err := n.Client.CoreV1().Pods(n.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		n.mu.Lock()
		p := n.pods[pod.UID]
		n.mu.Unlock()
		switch {
		case pod.DeletionTimestamp != nil:
			err = n.end(ctx, pod, p)
		case p == nil:
			err = n.start(ctx, pod)
		default:
			if err = n.write(ctx, p.files); err == nil && pod.Status.Phase != corev1.PodRunning && p.ready(ctx) {
				err = n.report(ctx, pod)
			}
		}
		if err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

func (n *Node) start(ctx context.Context, pod *corev1.Pod) error {
	container := &pod.Spec.Containers[0]
	p := &process{exited: make(chan struct{}), files: map[string]corev1.Volume{}}
	directories := []string{}
	for _, mount := range container.VolumeMounts {
		for _, volume := range pod.Spec.Volumes {
			if volume.Name == mount.Name && (volume.ConfigMap != nil || volume.Secret != nil) {
				directory := filepath.Join(n.Dir, string(pod.UID), volume.Name)
				p.files[directory] = volume
				directories = append(directories, mount.MountPath+"/", directory+"/")
			}
		}
	}
	if err := n.write(ctx, p.files); err != nil {
		if apierrors.IsNotFound(err) {
			return nil // like a kubelet, which tries again
		}
		return err
	}
	environment, expand := os.Environ(), []string{}
	for _, variable := range container.Env {
		value := variable.Value
		if from := variable.ValueFrom; from != nil {
			switch {
			case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.namespace":
				value = pod.Namespace
			case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.name":
				value = pod.Name
			case from.ResourceFieldRef != nil && from.ResourceFieldRef.Resource == "limits.memory":
				value = strconv.FormatInt(container.Resources.Limits.Memory().Value(), 10)
			default:
				return fmt.Errorf("variable %s comes from something that this node does not know", variable.Name)
			}
		}
		environment = append(environment, variable.Name+"="+value)
		expand = append(expand, "$("+variable.Name+")", value)
	}
	kubeconfig, err := n.Kubeconfig(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	var arguments []string
	for _, argument := range container.Args {
		argument = strings.NewReplacer(expand...).Replace(argument)
		arguments = append(arguments, strings.NewReplacer(directories...).Replace(argument))
	}
	p.command = exec.Command(n.Program, append(arguments, "--kubeconfig="+kubeconfig, "--listen=127.0.0.1:0", "--health-listen=127.0.0.1:0")...)
	p.command.Env, p.command.Stdout, p.command.Stderr = environment, p, p
	if err := p.command.Start(); err != nil {
		return err
	}
	go func() {
		_ = p.command.Wait()
		close(p.exited)
	}()
	n.mu.Lock()
	n.pods[pod.UID], n.images[container.Image] = p, true
	n.mu.Unlock()
	return nil
}

// write writes the files of volumes as they are now.
func (n *Node) write(ctx context.Context, volumes map[string]corev1.Volume) error {
	for directory, volume := range volumes {
		content := map[string][]byte{}
		if source := volume.ConfigMap; source != nil {
			object, err := n.Client.CoreV1().ConfigMaps(n.Namespace).Get(ctx, source.Name, metav1.GetOptions{})
			if err != nil {
				if apierrors.IsNotFound(err) && source.Optional != nil && *source.Optional {
					continue
				}
				return err
			}
			for name, text := range object.Data {
				content[name] = []byte(text)
			}
		} else {
			object, err := n.Client.CoreV1().Secrets(n.Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			content = object.Data
		}
		if err := os.MkdirAll(directory, 0o700); err != nil {
			return err
		}
		for name, text := range content {
			path := filepath.Join(directory, name)
			if before, err := os.ReadFile(path); err == nil && bytes.Equal(before, text) {
				continue
			}
			if err := os.WriteFile(path+".new", text, 0o600); err != nil {
				return err
			}
			if err := os.Rename(path+".new", path); err != nil {
				return err
			}
		}
	}
	return nil
}

// report says that a pod is ready.
func (n *Node) report(ctx context.Context, pod *corev1.Pod) error {
	now := metav1.Now()
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}}
	_, err := n.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// end stops a pod that is being deleted, and lets its object go.
func (n *Node) end(ctx context.Context, pod *corev1.Pod, p *process) error {
	if p != nil {
		_ = p.command.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.exited:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	now := int64(0)
	err := n.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (n *Node) killAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pods {
		_ = p.command.Process.Kill()
		<-p.exited
	}
}
