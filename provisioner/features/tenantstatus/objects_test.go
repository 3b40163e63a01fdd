package tenantstatus

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestOnlyOwnObjectsAreTouched: the fields are those that a real API server keeps.
func TestOnlyOwnObjectsAreTouched(t *testing.T) {
	const provisioner = "example.org/Cinder_2"
	by := func(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: operation, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	ours := by(provisioner, metav1.ManagedFieldsOperationApply, `{"f:metadata":{"f:annotations":{}},"f:status":{"f:tenant":{}}}`)
	for name, c := range map[string]struct {
		fields []metav1.ManagedFieldsEntry
		ours   bool
		digest string
	}{
		"as written":                {[]metav1.ManagedFieldsEntry{ours}, true, "digest"},
		"somebody annotated it":     {[]metav1.ManagedFieldsEntry{ours, by("kubectl-annotate", metav1.ManagedFieldsOperationUpdate, `{"f:metadata":{"f:annotations":{"f:a":{}}}}`)}, true, "digest"},
		"somebody edited it":        {[]metav1.ManagedFieldsEntry{ours, by("kubectl-edit", metav1.ManagedFieldsOperationUpdate, `{"f:status":{"f:tenant":{}}}`)}, true, ""},
		"its status was removed":    {[]metav1.ManagedFieldsEntry{by(provisioner, metav1.ManagedFieldsOperationApply, `{"f:metadata":{"f:annotations":{}}}`)}, true, ""},
		"another installation's":    {[]metav1.ManagedFieldsEntry{by("example.org/cinder", metav1.ManagedFieldsOperationApply, `{"f:status":{}}`)}, false, ""},
		"made under the name of it": {[]metav1.ManagedFieldsEntry{by(provisioner, metav1.ManagedFieldsOperationUpdate, `{"f:status":{}}`)}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				UID: "uid", Annotations: map[string]string{objects.AnnotationContentDigest: "digest"}, ManagedFields: c.fields,
			}}
			found, isOurs := NewStored(nil, provisioner).read(object)
			if isOurs != c.ours || found != (Found{"uid", c.digest}) {
				t.Errorf("got %+v, ours %t", found, isOurs)
			}
		})
	}
	if got := NewStored(nil, provisioner).name; got != "cinder-2" {
		t.Errorf("the objects are named %q", got)
	}
}
