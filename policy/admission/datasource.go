package admission

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// CloneAnnotation is the annotation by which a claim's author requests a copy of another
// claim, if the StorageClass has the historic provisioner's parameter smartclone.
const CloneAnnotation = "k8s.io/CloneRequest"

// DataSource is the object in the claim's namespace whose content a claim requests.
type DataSource struct {
	// Kind is ClaimKind or SnapshotKind.
	Kind string
	Name string
}

// The kinds of data sources: a claim, of the core API group, and a snapshot.
const (
	ClaimKind    = "PersistentVolumeClaim"
	SnapshotKind = "VolumeSnapshot"
	snapshots    = "snapshot.storage.k8s.io"
)

// DataSourceOf returns the object whose content a claim requests; nil if it requests an
// empty volume. It refuses what the program cannot copy: such a claim must not get an
// empty volume instead. Content from a populator is refused as policy.AwaitsPopulator.
func DataSourceOf(claim *corev1.PersistentVolumeClaim, parameters map[string]string) (*DataSource, *policy.Denial) {
	if populator := PopulatorOf(claim); populator != "" {
		return nil, &policy.Denial{Reason: policy.AwaitsPopulator, Message: fmt.Sprintf("the claim waits for a volume populator of %s, which has its volume made for a claim of its own", populator)}
	}
	given, refused := givenSource(claim)
	if refused == nil && given != nil {
		refused = misnamed("spec.dataSource", given.Name)
	}
	if refused != nil {
		return nil, refused
	}
	annotated := claim.Annotations[CloneAnnotation]
	if annotated == "" {
		return given, nil
	}
	if !policy.AllowsCloneAnnotation(parameters) {
		return nil, unsupported("annotation %s asks for a copy of %q, but the StorageClass does not have the parameter smartclone: \"true\"; name the claim in spec.dataSource instead", CloneAnnotation, annotated)
	}
	name := annotated
	if namespace, rest, qualified := strings.Cut(annotated, "/"); qualified {
		if namespace != claim.Namespace {
			return nil, unsupported("annotation %s asks for a copy of claim %q, but content is copied only within one namespace", CloneAnnotation, annotated)
		}
		name = rest
	}
	if refused := misnamed("annotation "+CloneAnnotation, name); refused != nil {
		return nil, refused
	}
	if given != nil && (given.Kind != ClaimKind || given.Name != name) {
		return nil, unsupported("annotation %s asks for a copy of claim %q, and spec.dataSource for the content of %s %q; keep one of them", CloneAnnotation, name, given.Kind, given.Name)
	}
	return &DataSource{Kind: ClaimKind, Name: name}, nil
}

// reference is the content reference in a claim's spec.
type reference struct{ group, kind, namespace, name string }

// referenceOf reads the claim's spec. The API server keeps dataSource and
// dataSourceRef equal, unless the latter names another namespace.
func referenceOf(claim *corev1.PersistentVolumeClaim) (reference, bool) {
	if ref := claim.Spec.DataSourceRef; ref != nil {
		return reference{textOf(ref.APIGroup), ref.Kind, textOf(ref.Namespace), ref.Name}, true
	}
	if source := claim.Spec.DataSource; source != nil {
		return reference{group: textOf(source.APIGroup), kind: source.Kind, name: source.Name}, true
	}
	return reference{}, false
}

// maxKind is the length of the longest kind that a CustomResourceDefinition can have.
// The API server accepts any in a claim.
const maxKind = 63

// PopulatorOf returns which volume populator serves a claim, as group/kind; empty if none
// does. Every API group except Kubernetes' core and that of snapshots may have
// populators.
func PopulatorOf(claim *corev1.PersistentVolumeClaim) string {
	wanted, ok := referenceOf(claim)
	if !ok || wanted.group == "" || wanted.group == snapshots {
		return ""
	}
	if len(wanted.kind) > maxKind {
		wanted.kind = strings.ToValidUTF8(wanted.kind[:maxKind], "") + "..."
	}
	return wanted.group + "/" + wanted.kind
}

func givenSource(claim *corev1.PersistentVolumeClaim) (*DataSource, *policy.Denial) {
	wanted, ok := referenceOf(claim)
	switch {
	case !ok:
		return nil, nil
	case wanted.namespace != "" && wanted.namespace != claim.Namespace:
		return nil, unsupported("spec.dataSourceRef asks for the content of %s %q in namespace %s, but content is copied only within one namespace", wanted.kind, wanted.name, wanted.namespace)
	case wanted.group == "" && wanted.kind == ClaimKind, wanted.group == snapshots && wanted.kind == SnapshotKind:
		return &DataSource{Kind: wanted.kind, Name: wanted.name}, nil
	}
	return nil, unsupported("spec.dataSource asks for the content of %s %q, which is not supported; the claim is not given an empty volume instead; remove the data source", wanted.kind, wanted.name)
}

// misnamed refuses a name that no object can have. The API server accepts names of any
// length here.
func misnamed(where, name string) *policy.Denial {
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return nil
	}
	return &policy.Denial{Reason: policy.InvalidClaim, Message: fmt.Sprintf("%s names %.60q, which cannot be the name of an object; replace the claim", where, name)}
}

func textOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func unsupported(format string, arguments ...any) *policy.Denial {
	return &policy.Denial{Reason: UnsupportedDataSource, Message: fmt.Sprintf(format, arguments...)}
}
