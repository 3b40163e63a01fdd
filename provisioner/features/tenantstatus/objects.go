package tenantstatus

import (
	"context"
	"encoding/json"
	"path"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Kind is the kind of the objects, and resource what the API server calls them.
const Kind = "TenantStatus"

func resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "standalone-cinder.openstack.org", Version: "v1alpha1", Resource: "tenantstatuses"}
}

// Stored reads and writes the objects of one installation at the API server. It reads only
// their metadata.
type Stored struct {
	client metadata.Interface
	// name is the name of all objects. Two installations in one cluster have different
	// ones, as their policies may give a namespace to a tenant each.
	name string
	// manager marks what this installation has written.
	manager string
}

// NewStored returns the objects of the installation with the name of a provisioner.
func NewStored(client metadata.Interface, provisioner string) *Stored {
	return &Stored{client: client, name: strings.ReplaceAll(strings.ToLower(path.Base(provisioner)), "_", "-"), manager: provisioner}
}

// pageSize bounds how many objects are in memory at once.
const pageSize = 500

// List implements Objects.
func (s *Stored) List(ctx context.Context) (map[string]Found, error) {
	found := map[string]Found{}
	// The name leaves out what others may have labeled.
	options := metav1.ListOptions{LabelSelector: objects.LabelManagedBy + "=" + objects.ManagedBy, FieldSelector: "metadata.name=" + s.name, Limit: pageSize}
	for {
		page, err := s.client.Resource(resource()).List(ctx, options)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			if object := &page.Items[i]; object.Name == s.name {
				if one, ours := s.read(object); ours {
					found[object.Namespace] = one
				}
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

// read returns what the metadata tells, and whether this installation wrote the object.
func (s *Stored) read(object *metav1.PartialObjectMetadata) (found Found, ours bool) {
	found = Found{UID: object.UID, Digest: object.Annotations[objects.AnnotationContentDigest]}
	edited, hasStatus := false, false
	for _, by := range object.ManagedFields {
		isOurs := by.Manager == s.manager && by.Operation == metav1.ManagedFieldsOperationApply
		ofStatus := by.FieldsV1 != nil && strings.Contains(by.FieldsV1.GetRawString(), `"f:status"`)
		ours, hasStatus, edited = ours || isOurs, hasStatus || isOurs && ofStatus, edited || !isOurs && ofStatus
	}
	if edited || !hasStatus {
		// Somebody has written to it, or has taken the status away.
		found.Digest = ""
	}
	return found, ours
}

// Apply implements Objects.
func (s *Stored) Apply(ctx context.Context, namespace, digest string, content *Content) (types.UID, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": resource().GroupVersion().String(), "kind": Kind,
		"metadata": map[string]any{
			"name": s.name, "namespace": namespace,
			"labels":      map[string]string{objects.LabelManagedBy: objects.ManagedBy},
			"annotations": map[string]string{objects.AnnotationContentDigest: digest},
		},
		"status": content,
	})
	if err != nil {
		return "", err
	}
	force := true
	saved, err := s.client.Resource(resource()).Namespace(namespace).Patch(ctx, s.name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: s.manager, Force: &force})
	if err != nil {
		return "", err
	}
	return saved.UID, nil
}

// Delete implements Objects.
func (s *Stored) Delete(ctx context.Context, namespace string, uid types.UID) error {
	return s.client.Resource(resource()).Namespace(namespace).Delete(ctx, s.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}
