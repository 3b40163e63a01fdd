package copies

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// protect adds the finalizer to a claim, and fails if the claim has changed since it
// was read.
func protect(ctx context.Context, client kubernetes.Interface, source *corev1.PersistentVolumeClaim) error {
	if slices.Contains(source.Finalizers, objects.CopyFinalizer) {
		return nil
	}
	if err := setFinalizers(ctx, client, source, append(slices.Clone(source.Finalizers), objects.CopyFinalizer)); err != nil {
		return fmt.Errorf("cannot protect claim %s/%s while it is copied: %w", source.Namespace, source.Name, err)
	}
	return nil
}

// setFinalizers fails if the claim has changed since it was read.
func setFinalizers(ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim, finalizers []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion, "finalizers": finalizers,
	}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// ProtectorOptions configure a Protector.
type ProtectorOptions struct {
	// Resolver is the Resolver of the term.
	Resolver *Resolver
	Client   kubernetes.Interface
	Claims   corelisters.PersistentVolumeClaimLister
	Classes  storagelisters.StorageClassLister
	Logger   *slog.Logger
	// Board is the term's.
	Board *parking.Board

	// Monitor watches the work. MaxWorkTime exceeds anything that the work may wait for.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound
}

// Protector ends the protection of claims that no pending claim copies any longer. All
// the state that it needs is in the API server, so that the next leader continues where
// this one stops.
type Protector struct {
	ProtectorOptions
	loop *worker.Loop[types.NamespacedName]
}

// NewProtector makes the Protector of one term.
func NewProtector(options ProtectorOptions) *Protector {
	p := &Protector{ProtectorOptions: options}
	p.loop = worker.New(worker.Options[types.NamespacedName]{
		Name: "protection", Workers: 1, Do: p.do,
		Describe: func(key types.NamespacedName) string {
			return "the worker that ends the protection of claim " + key.String()
		},
		Board: options.Board, Monitor: options.Monitor, MaxWorkTime: options.MaxWorkTime,
	})
	return p
}

// ClaimChanged looks at a claim that may be protected, or may be a reason to protect
// another: it was seen first (before is nil), changed, or is gone (after is nil).
func (p *Protector) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	claim := cmp.Or(after, before)
	if slices.Contains(claim.Finalizers, objects.CopyFinalizer) {
		p.loop.Queue.Add(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
	}
	if source := p.sourceOf(claim); source != "" {
		p.loop.Queue.Add(types.NamespacedName{Namespace: claim.Namespace, Name: source})
	}
}

// sourceOf returns the name of the claim that a claim copies; empty if it copies none.
func (p *Protector) sourceOf(claim *corev1.PersistentVolumeClaim) string {
	// The StorageClass may be gone, and may have allowed the annotation.
	parameters := map[string]string{"smartclone": "true"}
	if class, err := p.Classes.Get(objects.ClassName(claim)); err == nil {
		parameters = class.Parameters
	}
	if source, _ := admission.DataSourceOf(claim, parameters); source != nil && source.Kind == admission.ClaimKind {
		return source.Name
	}
	return ""
}

// Run works until the context ends.
func (p *Protector) Run(ctx context.Context) { p.loop.Run(ctx) }

func (p *Protector) do(ctx context.Context, a *worker.Attempt[types.NamespacedName]) worker.Outcome {
	err := p.release(ctx, a.Key)
	if err == nil {
		return worker.Outcome{Done: true}
	}
	// Kubernetes' controllers write to claims, too.
	if !apierrors.IsConflict(err) && ctx.Err() == nil {
		p.Logger.Warn("Cannot end the protection of a claim that was copied", "claim", a.Key.String(), "error", err)
	}
	return worker.Outcome{Retry: &backoff.Delay{Outcome: "kubernetes", First: time.Second, Most: time.Minute}}
}

// release removes the finalizer from a claim that no pending claim copies.
func (p *Protector) release(ctx context.Context, key types.NamespacedName) error {
	cached, err := p.Claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && !slices.Contains(cached.Finalizers, objects.CopyFinalizer) {
		return nil
	}
	if err != nil {
		return err
	}
	done, err := p.Resolver.copying.Acquire(ctx, parking.SourceClaim(key.Namespace, key.Name).Name)
	if err != nil {
		return err
	}
	defer done()
	others, err := p.Claims.PersistentVolumeClaims(key.Namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.Spec.VolumeName == "" && other.DeletionTimestamp == nil && p.sourceOf(other) == key.Name {
			return nil
		}
	}
	source, err := p.Client.CoreV1().PersistentVolumeClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	rest := slices.DeleteFunc(slices.Clone(source.Finalizers), func(name string) bool { return name == objects.CopyFinalizer })
	if len(rest) == len(source.Finalizers) {
		return nil
	}
	err = setFinalizers(ctx, p.Client, source, rest)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
