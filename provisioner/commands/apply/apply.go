// Package apply reaches an installation for policy apply: the ConfigMap with its policy, and
// the replicas that read it.
package apply

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/status"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

const (
	// managedBy is the label by which tools such as Helm mark what they manage.
	managedBy = "app.kubernetes.io/managed-by"
	// askTimeout bounds what one pod that does not answer costs.
	askTimeout = 10 * time.Second
	// maxWhy is how many mistakes of a refused policy are told; a replica's status has all.
	maxWhy = 3
)

// Asker asks one replica for its status.
type Asker interface {
	Ask(ctx context.Context, pod string, port int) (*statusreport.Report, error)
}

// Options say which installation it is, and how to reach it.
type Options struct {
	Client kubernetes.Interface
	Asker  Asker
	Place  policycli.Place
}

// Installation is an installation in a cluster.
type Installation struct{ Options }

// New returns an installation.
func New(options Options) *Installation { return &Installation{options} }

// Connect returns the installation at a place.
func Connect(to policycli.Place) (policycli.Installation, error) {
	asker, err := status.NewAsker(to.Kubeconfig, to.Context, to.Namespace)
	if err != nil {
		return nil, err
	}
	return New(Options{Client: asker.Client, Asker: asker, Place: to}), nil
}

// Held reads the ConfigMap.
func (i *Installation) Held(ctx context.Context) (policycli.Held, error) {
	found, err := i.Client.CoreV1().ConfigMaps(i.Place.Namespace).Get(ctx, i.Place.ConfigMap, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		// It is not created: no pod would mount it if its name were a mistake.
		return policycli.Held{}, fmt.Errorf("there is no %s: give --namespace and --configmap or, if replicas mount it, create it with kubectl -n %s create configmap %s --from-file=%s=FILE",
			i.Place, i.Place.Namespace, i.Place.ConfigMap, i.Place.Key)
	case err != nil:
		return policycli.Held{}, fmt.Errorf("cannot read %s: %w", i.Place, plain(err))
	}
	held := policycli.Held{UID: string(found.UID), Version: found.ResourceVersion, Manager: statusreport.OneLine(managerOf(found))}
	for key, text := range found.Data {
		held.Files = append(held.Files, policy.File{Name: key, Text: []byte(text)})
	}
	for key, data := range found.BinaryData {
		held.Files = append(held.Files, policy.File{Name: key, Text: data})
	}
	slices.SortFunc(held.Files, func(a, b policy.File) int { return strings.Compare(a.Name, b.Name) })
	return held, nil
}

// managerOf returns who owns a ConfigMap, by the marks of the common tools.
func managerOf(found *corev1.ConfigMap) string {
	owner := metav1.GetControllerOf(found)
	switch {
	case owner != nil:
		return owner.Kind + " " + owner.Name
	case found.Annotations["argocd.argoproj.io/tracking-id"] != "":
		return "Argo CD"
	case found.Labels["kustomize.toolkit.fluxcd.io/name"] != "":
		return "Flux"
	}
	return found.Labels[managedBy]
}

// Write writes all texts in one request, which fails if the ConfigMap is no longer the
// one that was read.
func (i *Installation) Write(ctx context.Context, held policycli.Held, texts map[string][]byte, dryRun bool) error {
	data, binaryData := map[string]any{}, map[string]any{}
	for key, text := range texts {
		// A key may not be in both.
		data[key], binaryData[key] = nil, nil
		if text != nil {
			data[key] = string(text)
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": held.UID, "resourceVersion": held.Version},
		"data":     data, "binaryData": binaryData,
	})
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: "standalone-cinder-policy-apply"}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	_, err = i.Client.CoreV1().ConfigMaps(i.Place.Namespace).Patch(ctx, i.Place.ConfigMap, types.MergePatchType, patch, options)
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return fmt.Errorf("somebody has changed %s since it was read, so nothing is written; run the same command again to see how the policies differ now", i.Place)
	case isRefusal(err):
		return fmt.Errorf("%s is not written: %w", i.Place, plain(err))
	}
	return fmt.Errorf("it is not known whether %s is written: %w; run the same command again", i.Place, plain(err))
}

// isRefusal reports whether the API server, or a webhook, has refused a request.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= http.StatusBadRequest && status.Status().Code < http.StatusInternalServerError && status.Status().Code != http.StatusRequestTimeout
}

// Replicas asks all replicas at once, so that one that does not answer delays no other.
func (i *Installation) Replicas(ctx context.Context) ([]policycli.Replica, error) {
	pods, err := i.Client.CoreV1().Pods(i.Place.Namespace).List(ctx, metav1.ListOptions{LabelSelector: i.Place.Selector})
	if err != nil {
		return nil, fmt.Errorf("cannot list the pods of namespace %s: %w", i.Place.Namespace, plain(err))
	}
	replicas := make([]*policycli.Replica, len(pods.Items))
	var asked sync.WaitGroup
	for n := range pods.Items {
		asked.Go(func() { replicas[n] = i.replica(ctx, &pods.Items[n]) })
	}
	asked.Wait()
	found := []policycli.Replica{}
	for _, r := range replicas {
		if r != nil {
			found = append(found, *r)
		}
	}
	slices.SortFunc(found, func(a, b policycli.Replica) int { return strings.Compare(a.Pod, b.Pod) })
	return found, nil
}

// replica asks the replica in a pod; it returns nil if the pod has ended, is about to, or
// runs another provisioner.
func (i *Installation) replica(ctx context.Context, pod *corev1.Pod) *policycli.Replica {
	if pod.DeletionTimestamp != nil || objects.IsFinished(pod) {
		return nil
	}
	r := &policycli.Replica{Pod: pod.Name}
	if pod.Status.Phase != corev1.PodRunning {
		r.Silent = fmt.Sprintf("its pod is %s", pod.Status.Phase)
		return r
	}
	ctx, end := context.WithTimeout(ctx, askTimeout)
	defer end()
	report, err := i.Asker.Ask(ctx, pod.Name, cmp.Or(i.Place.Port, portOf(pod)))
	switch {
	case err != nil:
		r.Silent = statusreport.OneLine(err.Error())
		return r
	case report.Replica.ProvisionerName != i.Place.Provisioner:
		return nil
	}
	r.File, r.Revision, r.Refused = statusreport.OneLine(report.Policy.File), statusreport.OneLine(report.Policy.Revision), report.Policy.RefusedRevision
	for _, mistake := range report.Policy.Refused {
		if len(r.Why) == maxWhy {
			r.Why = append(r.Why, fmt.Sprintf("and %d more", len(report.Policy.Refused)-maxWhy))
			break
		}
		r.Why = append(r.Why, statusreport.OneLine(mistake))
	}
	return r
}

// defaultPort is the one at which deploy/ lets replicas serve their status.
const defaultPort = 8080

// portOf returns the port that a pod calls http.
func portOf(pod *corev1.Pod) int {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == "http" {
				return int(port.ContainerPort)
			}
		}
	}
	return defaultPort
}

// Existing reads the claims and PersistentVolumes.
func (i *Installation) Existing(ctx context.Context) (review.Existing, error) {
	return objects.ReadExisting(ctx, i.Client, i.Place.Provisioner)
}

// CSI reads whether the cluster is set up for mode csi.
func (i *Installation) CSI(ctx context.Context) (*review.CSI, error) {
	return objects.ReadCSI(ctx, i.Client)
}

// plainError is an error whose text fits into one line of a terminal.
type plainError struct{ error }

func (e plainError) Error() string { return statusreport.OneLine(e.error.Error()) }
func (e plainError) Unwrap() error { return e.error }

// plain marks an error that may quote text that others wrote.
func plain(err error) error { return plainError{err} }
