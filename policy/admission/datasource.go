package admission

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// CloneAnnotation is the annotation by which a claim's author asks for a copy of
// another claim, if the StorageClass has the historic provisioner's parameter
// smartclone.
const CloneAnnotation = "k8s.io/CloneRequest"

// DataSource is the object in the claim's namespace whose content a claim
// wants.
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

// DataSourceOf returns the object whose content a claim wants; nil if it wants
// an empty volume. It refuses what the program cannot copy: such a claim must
// not get an empty volume instead.
func DataSourceOf(claim *corev1.PersistentVolumeClaim, parameters map[string]string) (*DataSource, *policy.Denial) {
	given, refused := givenSource(claim)
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
	if given != nil && (given.Kind != ClaimKind || given.Name != name) {
		return nil, unsupported("annotation %s asks for a copy of claim %q, and spec.dataSource for the content of %s %q; keep one of them", CloneAnnotation, name, given.Kind, given.Name)
	}
	return &DataSource{Kind: ClaimKind, Name: name}, nil
}

// givenSource reads the claim's spec. The API server keeps dataSource and
// dataSourceRef equal, unless the latter names another namespace.
func givenSource(claim *corev1.PersistentVolumeClaim) (*DataSource, *policy.Denial) {
	spec := claim.Spec
	var group, kind, name string
	switch {
	case spec.DataSourceRef != nil:
		ref := spec.DataSourceRef
		if ref.Namespace != nil && *ref.Namespace != "" && *ref.Namespace != claim.Namespace {
			return nil, unsupported("spec.dataSourceRef asks for the content of %s %q in namespace %s, but content is copied only within one namespace", ref.Kind, ref.Name, *ref.Namespace)
		}
		group, kind, name = textOf(ref.APIGroup), ref.Kind, ref.Name
	case spec.DataSource != nil:
		group, kind, name = textOf(spec.DataSource.APIGroup), spec.DataSource.Kind, spec.DataSource.Name
	default:
		return nil, nil
	}
	if group == "" && kind == ClaimKind || group == snapshots && kind == SnapshotKind {
		return &DataSource{Kind: kind, Name: name}, nil
	}
	return nil, unsupported("spec.dataSource asks for the content of %s %q, which is not supported; the claim is not given an empty volume instead; remove the data source", kind, name)
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
