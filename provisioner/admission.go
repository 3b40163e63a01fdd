package provisioner

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// denial is what was said about a claim that is turned away before Cinder is
// asked for anything.
type denial struct {
	reason  string
	message string
	claim   *corev1.PersistentVolumeClaim
	said    time.Time
}

// repeatDenial is how often a denial that stands is said again, so that its
// event does not expire (the API server keeps events for an hour).
const repeatDenial = 45 * time.Minute

// historicAnnotationClone is what a claim's author wrote to ask the historic
// provisioner for a copy of another claim, of any namespace.
const historicAnnotationClone = "k8s.io/CloneRequest"

const (
	annotationStorageProvisioner     = "volume.kubernetes.io/storage-provisioner"
	annotationBetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
)

// ShouldProvision is the admission of claims. A claim that is turned away gets
// an event with a stable reason and leaves the library's queue; it is brought
// back by what could admit it (Reconsider, offerFreedRoom), not by retries.
func (p *Provisioner) ShouldProvision(ctx context.Context, claim *corev1.PersistentVolumeClaim) bool {
	if p.stopping() {
		return false
	}
	if provisionerOf(claim) != p.Name {
		return false
	}
	class, err := p.Classes.Get(className(claim))
	if err != nil {
		// The library finds that out too and retries.
		return true
	}
	turned, denied := p.judge(ctx, claim, class)
	if !denied {
		p.forgetDenial(claim.UID)
		return true
	}
	p.deny(claim, turned)
	return false
}

// judge says why a claim gets nothing, if so; else room is reserved for it.
func (p *Provisioner) judge(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (denial, bool) {
	if turned, denied := unsupported(claim); denied {
		return turned, true
	}
	decision := p.decide(claim, class)
	if decision.Denial != nil {
		return denialOf(decision.Denial), true
	}
	// A backend that cannot be counted is Provision's to report: it retries.
	_, _, denied, err := p.reserve(ctx, claim, class.Name, decision)
	if err == nil && denied != nil {
		return denialOf(denied), true
	}
	return denial{}, false
}

func denialOf(d *policy.Denial) denial {
	return denial{reason: string(d.Reason), message: d.Message}
}

// unsupported names what no volume of Cinder can honour through this program.
// Such a claim must not get an ordinary, empty volume instead.
func unsupported(claim *corev1.PersistentVolumeClaim) (denial, bool) {
	spec := claim.Spec
	switch {
	case spec.DataSourceRef != nil:
		return unsupportedDataSource(spec.DataSourceRef.Kind, spec.DataSourceRef.Name), true
	case spec.DataSource != nil:
		return unsupportedDataSource(spec.DataSource.Kind, spec.DataSource.Name), true
	case spec.Selector != nil:
		return denial{
			reason:  "UnsupportedSelector",
			message: "spec.selector cannot be honoured for a volume that is yet to be made; remove the selector, or bind an existing PersistentVolume with spec.volumeName",
		}, true
	}
	if source := claim.Annotations[historicAnnotationClone]; source != "" {
		return denial{
			reason:  "UnsupportedDataSource",
			message: fmt.Sprintf("annotation %s asks for a copy of %q, as the historic provisioner made; cloning is not supported and the claim is not given an empty volume instead; remove the annotation", historicAnnotationClone, source),
		}, true
	}
	if err := mappers.CheckAccessModes(spec.AccessModes); err != nil {
		return denial{reason: string(mappers.UnsupportedAccessMode), message: err.Error()}, true
	}
	return denial{}, false
}

func unsupportedDataSource(kind, name string) denial {
	return denial{
		reason:  "UnsupportedDataSource",
		message: fmt.Sprintf("spec.dataSource asks for the content of %s %q, which is not supported; the claim is not given an empty volume instead; remove the data source", kind, name),
	}
}

// decide asks the policy.
func (p *Provisioner) decide(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) policy.Decision {
	request := policy.Request{
		Namespace:       claim.Namespace,
		NamespaceLabels: p.namespaceLabels(claim.Namespace),
		StorageClass:    class.Name,
		Parameters:      class.Parameters,
		VolumeMode:      policy.Filesystem,
	}
	if isBlock(claim) {
		request.VolumeMode = policy.Block
	}
	if size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
		request.Bytes = policy.Bytes(size)
	}
	if limit, ok := claim.Spec.Resources.Limits[corev1.ResourceStorage]; ok {
		request.LimitBytes = policy.Bytes(limit)
	}
	return p.Policy().Decide(request)
}

// namespaceLabels reads the labels from the cache. A namespace that has not
// arrived there yet has no labels; its arrival reconsiders the claim.
func (p *Provisioner) namespaceLabels(name string) map[string]string {
	namespace, err := p.Namespaces.Get(name)
	if err != nil {
		if !apierrors.IsNotFound(err) {
			p.Logger.Error("Cannot read a namespace from the cache", "namespace", name, "error", err)
		}
		return nil
	}
	return namespace.Labels
}

// deny tells the claim's author, once for each reason and again before the
// event expires.
func (p *Provisioner) deny(claim *corev1.PersistentVolumeClaim, turned denial) {
	turned.claim, turned.said = claim, time.Now()
	p.mu.Lock()
	before, known := p.denied[claim.UID]
	// The numbers of a quota change with every other claim; that is no news.
	same := before.reason == turned.reason && (before.message == turned.message || turned.reason == string(policy.QuotaExceeded))
	repeat := known && same && turned.said.Sub(before.said) < repeatDenial
	if !repeat {
		p.denied[claim.UID] = turned
	}
	if _, begun := p.begun[claim.UID]; !begun {
		// Room that was reserved under an earlier decision.
		p.ledger.ReleaseReservation(claim.UID)
	}
	p.Metrics.deniedClaims(len(p.denied))
	p.mu.Unlock()
	if repeat {
		return
	}
	p.Recorder.Event(claim, corev1.EventTypeWarning, turned.reason, turned.message)
	p.Logger.Info("Turned a claim away", "claim", claim.Namespace+"/"+claim.Name, "reason", turned.reason, "message", turned.message)
}

func (p *Provisioner) forgetDenial(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.denied, uid)
	p.Metrics.deniedClaims(len(p.denied))
}

// Reconsider brings back the claims of a namespace that were turned away,
// because something about the namespace changed that might admit them.
func (p *Provisioner) Reconsider(namespace string) {
	p.reconsider(func(d denial) bool { return d.claim.Namespace == namespace })
}

func provisionerOf(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[annotationStorageProvisioner]; ok {
		return name
	}
	return claim.Annotations[annotationBetaStorageProvisioner]
}

// className is the claim's StorageClass; a claim may have none.
func className(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}
