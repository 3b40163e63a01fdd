package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"
)

const (
	fieldManager = "controlplane-test"

	// establishTimeout bounds the wait for a kind that a
	// CustomResourceDefinition of the same call defines.
	establishTimeout = 30 * time.Second
)

// Apply does what kubectl apply --server-side --force-conflicts does with
// files: each manifest is YAML or JSON of any number of documents, lists
// included, applied in the given order by the administrator. A namespaced
// object that names no namespace goes to default. Unknown and duplicate fields
// are errors. A kind may be defined by a CustomResourceDefinition earlier in
// the same call.
//
// The first error ends it; it names the manifest (from 1), the document in it
// and the object.
func (c *ControlPlane) Apply(ctx context.Context, manifests ...[]byte) error {
	config := c.RESTConfig()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	discoverer, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	a := &applier{
		client:  client,
		mapper:  restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discoverer)),
		defined: map[schema.GroupKind]bool{},
	}
	for i, manifest := range manifests {
		if err := a.applyManifest(ctx, manifest); err != nil {
			return fmt.Errorf("apply: manifest %d: %w", i+1, err)
		}
	}
	return nil
}

// applier is the state of one call of Apply.
type applier struct {
	client  dynamic.Interface
	mapper  apimeta.ResettableRESTMapper
	defined map[schema.GroupKind]bool // by the CustomResourceDefinitions applied so far
}

func (a *applier) applyManifest(ctx context.Context, manifest []byte) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
		objects, err := decode(document)
		if err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
		for _, object := range objects {
			if err := a.apply(ctx, object); err != nil {
				return fmt.Errorf("document %d: %s %s: %w", number, object.GetKind(), qualifiedName(object), err)
			}
		}
	}
}

// decode returns the objects of one document: none if it contains only
// comments, several if it is a list.
func decode(document []byte) ([]*unstructured.Unstructured, error) {
	content, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, err
	}
	if string(content) == "null" {
		return nil, nil
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(content); err != nil {
		return nil, err
	}
	if !object.IsList() {
		return []*unstructured.Unstructured{object}, nil
	}
	list, err := object.ToList()
	if err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, len(list.Items))
	for i := range list.Items {
		objects[i] = &list.Items[i]
	}
	return objects, nil
}

func (a *applier) apply(ctx context.Context, object *unstructured.Unstructured) error {
	if object.GetName() == "" {
		return errors.New("metadata.name is missing")
	}
	mapping, err := a.mapping(ctx, object.GroupVersionKind())
	if err != nil {
		return err
	}
	var resource dynamic.ResourceInterface = a.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == apimeta.RESTScopeNameNamespace {
		if object.GetNamespace() == "" {
			object.SetNamespace(meta.NamespaceDefault)
		}
		resource = a.client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	force := true
	_, err = resource.Patch(ctx, object.GetName(), types.ApplyPatchType, body, meta.PatchOptions{
		FieldManager:    fieldManager,
		FieldValidation: meta.FieldValidationStrict,
		Force:           &force,
	})
	if err != nil {
		return err
	}
	if object.GetKind() == "CustomResourceDefinition" {
		group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(object.Object, "spec", "names", "kind")
		a.defined[schema.GroupKind{Group: group, Kind: kind}] = true
	}
	return nil
}

// mapping finds the resource of a kind. It waits for a kind that was just
// defined, since the API server does not serve it at once.
func (a *applier) mapping(ctx context.Context, kind schema.GroupVersionKind) (*apimeta.RESTMapping, error) {
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if !apimeta.IsNoMatchError(err) || !a.defined[kind.GroupKind()] {
		return mapping, err
	}
	waitErr := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, establishTimeout, false, func(context.Context) (bool, error) {
		a.mapper.Reset()
		mapping, err = a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		return err == nil, nil
	})
	if waitErr != nil {
		return nil, fmt.Errorf("its CustomResourceDefinition is applied but not served: %w (%w)", err, waitErr)
	}
	return mapping, nil
}

func qualifiedName(object *unstructured.Unstructured) string {
	if namespace := object.GetNamespace(); namespace != "" {
		return namespace + "/" + object.GetName()
	}
	return object.GetName()
}
