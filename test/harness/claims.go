package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CreateNamespace creates a namespace; an existing one gets the labels.
func (s *Suite) CreateNamespace(ctx context.Context, name string, labels map[string]string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	_, err := s.Client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// CreateClass creates a StorageClass with reclaim policy Delete, immediate
// binding, and leave for its claims to grow; change may alter it first. A class
// that is given the leave later is not safe in a test: the API server reads
// classes from a cache, and refuses growth until the cache has the change.
func (s *Suite) CreateClass(ctx context.Context, name, provisioner string, change func(*storagev1.StorageClass)) error {
	grows := true
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, AllowVolumeExpansion: &grows}
	if change != nil {
		change(class)
	}
	_, err := s.Client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Conditions returns the types of a claim's conditions, except Unused, which
// kube-controller-manager gives every claim since Kubernetes 1.37.
func Conditions(claim *corev1.PersistentVolumeClaim) []string {
	var types []string
	for _, condition := range claim.Status.Conditions {
		if condition.Type != corev1.PersistentVolumeClaimUnused {
			types = append(types, string(condition.Type))
		}
	}
	return types
}

// Claim describes an ordinary claim; change may alter it.
func Claim(namespace, name, class, size string, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	if change != nil {
		change(claim)
	}
	return claim
}

// CreateClaim creates a claim.
func (s *Suite) CreateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	return s.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
}

// WaitBound waits until all claims of a namespace, count of them, are bound,
// and returns them.
func (s *Suite) WaitBound(ctx context.Context, namespace string, count int) ([]corev1.PersistentVolumeClaim, error) {
	var claims []corev1.PersistentVolumeClaim
	err := Eventually(ctx, func() (string, error) {
		list, err := s.Client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		claims = list.Items
		var pending []string
		for _, claim := range claims {
			if claim.Status.Phase != corev1.ClaimBound {
				pending = append(pending, claim.Name)
			}
		}
		if len(pending) == 0 && len(claims) == count {
			return "", nil
		}
		return fmt.Sprintf("%d of %d claims in %s are not bound: %s", len(pending), len(claims), namespace, strings.Join(first(pending, 5), ", ")), nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, s.describeEvents(namespace))
	}
	return claims, nil
}

// WaitEvent waits for an event about a claim with a reason and a piece of text.
func (s *Suite) WaitEvent(ctx context.Context, namespace, claim, reason, text string) (corev1.Event, error) {
	var found corev1.Event
	err := Eventually(ctx, func() (string, error) {
		events, err := s.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + claim})
		if err != nil {
			return "", err
		}
		for _, event := range events.Items {
			if event.Reason == reason && strings.Contains(event.Message, text) {
				found = event
				return "", nil
			}
		}
		return fmt.Sprintf("claim %s/%s has no event %s with %q", namespace, claim, reason, text), nil
	})
	if err != nil {
		return found, fmt.Errorf("%w\n%s", err, s.describeEvents(namespace))
	}
	return found, nil
}

// PersistentVolumes lists the PersistentVolumes of one provisioner.
func (s *Suite) PersistentVolumes(ctx context.Context, provisioner string) ([]corev1.PersistentVolume, error) {
	list, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var ours []corev1.PersistentVolume
	for _, pv := range list.Items {
		if pv.Annotations["pv.kubernetes.io/provisioned-by"] == provisioner {
			ours = append(ours, pv)
		}
	}
	return ours, nil
}

// DeleteClaims deletes all claims of a namespace. The API server gives up a request
// after a minute, in which it deletes some thousands; another then deletes the rest.
func (s *Suite) DeleteClaims(ctx context.Context, namespace string) error {
	claims := s.Client.CoreV1().PersistentVolumeClaims(namespace)
	for before := math.MaxInt; ; {
		err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err == nil {
			return nil
		}
		list, listErr := claims.List(ctx, metav1.ListOptions{})
		if listErr != nil {
			return errors.Join(err, listErr)
		}
		left := 0
		for _, claim := range list.Items {
			if claim.DeletionTimestamp == nil {
				left++
			}
		}
		if left >= before {
			return err
		}
		before = left
	}
}

// WaitForNoPersistentVolumes waits until no PersistentVolume of the provisioner is
// left.
func (s *Suite) WaitForNoPersistentVolumes(ctx context.Context, provisioner string) error {
	return Eventually(ctx, func() (string, error) {
		left, err := s.PersistentVolumes(ctx, provisioner)
		if err != nil || len(left) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d PersistentVolumes are left, such as %s (%s)", len(left), left[0].Name, left[0].Status.Phase), nil
	})
}

// Eventually polls until the condition reports no complaint, or the context
// ends; the last complaint becomes the error.
func Eventually(ctx context.Context, condition func() (complaint string, err error)) error {
	var last string
	for {
		complaint, err := condition()
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil && complaint == "" {
			return nil
		}
		last = cmp.Or(complaint, last)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", ctx.Err(), last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// describeEvents helps to explain a failed wait.
func (s *Suite) describeEvents(namespace string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	events, err := s.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	counts := map[string]int{}
	for _, event := range events.Items {
		counts[event.Reason+": "+event.Message]++
	}
	var lines []string
	for line, count := range counts {
		lines = append(lines, fmt.Sprintf("  %4d x %s", count, line))
	}
	sort.Strings(lines)
	return "events in " + namespace + ":\n" + strings.Join(first(lines, 20), "\n")
}

func first(all []string, n int) []string {
	if len(all) > n {
		return append(all[:n:n], "...")
	}
	return all
}
