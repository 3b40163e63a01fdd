// Package apiserver is an API server that keeps everything in memory: revisions, a log of
// changes for watches and for lists of the past, preconditions, finalizers, patches and
// subresources, in JSON and protobuf. It neither validates nor authorizes.
package apiserver

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// Object is what the server keeps. It is never changed, only replaced.
type Object interface {
	runtime.Object
	metav1.Object
}

// Options configure a server.
type Options struct {
	// Deliver returns when a watch may show its next event; an error ends the watch.
	Deliver func(w Watch) error
	// Behind says by how many revisions a read is late that allows that.
	Behind func() int
	// WatchLists lets a watch begin with a list. Without them, clients list what may be old.
	WatchLists bool
	// NewUID makes UIDs.
	NewUID func() types.UID
}

// Watch is one client's watch.
type Watch struct{ Client, Path string }

// Server is an API server; it is an http.Handler.
type Server struct {
	options Options

	mu          sync.Mutex
	revision    int
	collections map[schema.GroupVersionResource]*collection
	// changed is closed at the next change, restarted when all watches shall end.
	changed, restarted chan struct{}
}

type collection struct {
	resource schema.GroupVersionResource
	kind     schema.GroupVersionKind
	objects  map[string]Object
	log      []change
}

// change is one entry of the log; before or after is nil for what did not exist.
type change struct {
	revision      int
	key           string
	before, after Object
}

// New makes a server without objects.
func New(options Options) *Server {
	utilruntime.Must(snapshotv1.AddToScheme(scheme.Scheme))
	utilruntime.Must(groupv1.AddToScheme(scheme.Scheme))
	s := &Server{options: options, collections: map[schema.GroupVersionResource]*collection{}, changed: make(chan struct{}), restarted: make(chan struct{})}
	for resource, kind := range map[string]schema.GroupVersionKind{
		"persistentvolumeclaims": corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), "persistentvolumes": corev1.SchemeGroupVersion.WithKind("PersistentVolume"),
		"namespaces": corev1.SchemeGroupVersion.WithKind("Namespace"), "secrets": corev1.SchemeGroupVersion.WithKind("Secret"),
		"nodes": corev1.SchemeGroupVersion.WithKind("Node"), "pods": corev1.SchemeGroupVersion.WithKind("Pod"), "events": corev1.SchemeGroupVersion.WithKind("Event"),
		"storageclasses": {Group: "storage.k8s.io", Version: "v1", Kind: "StorageClass"}, "volumeattachments": {Group: "storage.k8s.io", Version: "v1", Kind: "VolumeAttachment"},
		"volumeattributesclasses":   {Group: "storage.k8s.io", Version: "v1", Kind: "VolumeAttributesClass"},
		"csinodes":                  {Group: "storage.k8s.io", Version: "v1", Kind: "CSINode"},
		"customresourcedefinitions": {Group: "apiextensions.k8s.io", Version: "v1", Kind: customResourceDefinition},
		"leases":                    {Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"},
		"volumesnapshots":           snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshot"), "volumesnapshotcontents": snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshotContent"),
		"volumesnapshotclasses": snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshotClass"),
		"volumegroupsnapshots":  groupv1.SchemeGroupVersion.WithKind("VolumeGroupSnapshot"), "volumegroupsnapshotcontents": groupv1.SchemeGroupVersion.WithKind("VolumeGroupSnapshotContent"),
		"volumegroupsnapshotclasses": groupv1.SchemeGroupVersion.WithKind("VolumeGroupSnapshotClass"),
	} {
		at := kind.GroupVersion().WithResource(resource)
		s.collections[at] = &collection{resource: at, kind: kind, objects: map[string]Object{}}
	}
	return s
}

// Restart ends all watches.
func (s *Server) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.restarted)
	s.restarted = make(chan struct{})
}

// Objects returns all objects of a type, in order.
func Objects[T Object](s *Server) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.collections {
		if _, ok := c.empty().(T); !ok {
			continue
		}
		var all []T
		for _, key := range slices.Sorted(maps.Keys(c.objects)) {
			all = append(all, c.objects[key].(T))
		}
		return all
	}
	return nil
}

// customResourceDefinition is only known by its metadata.
const customResourceDefinition = "CustomResourceDefinition"

func (c *collection) empty() Object {
	if c.kind.Kind == customResourceDefinition {
		return &metav1.PartialObjectMetadata{}
	}
	object, err := scheme.Scheme.New(c.kind)
	if err != nil {
		panic(err)
	}
	return object.(Object)
}

func keyOf(namespace, name string) string { return namespace + "/" + name }

// at returns the objects as they were at a revision.
func (c *collection) at(revision int) map[string]Object {
	objects := maps.Clone(c.objects)
	for _, past := range slices.Backward(c.log) {
		if past.revision <= revision {
			break
		}
		if past.before == nil {
			delete(objects, past.key)
		} else {
			objects[past.key] = past.before
		}
	}
	return objects
}

// record makes a change; after is nil for a deletion. The caller has the lock.
func (s *Server) record(c *collection, key string, after Object) {
	s.revision++
	c.log = append(c.log, change{s.revision, key, c.objects[key], after})
	if after == nil {
		delete(c.objects, key)
	} else {
		after.SetResourceVersion(strconv.Itoa(s.revision))
		c.objects[key] = after
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// event returns what a watch with a filter sees of a change; nil for nothing.
func (c change) event(matches func(Object) bool) *watch.Event {
	was, is := c.before != nil && matches(c.before), c.after != nil && matches(c.after)
	switch {
	case was && is:
		return &watch.Event{Type: watch.Modified, Object: c.after}
	case is:
		return &watch.Event{Type: watch.Added, Object: c.after}
	case was:
		gone := c.before.DeepCopyObject().(Object)
		gone.SetResourceVersion(strconv.Itoa(c.revision))
		return &watch.Event{Type: watch.Deleted, Object: gone}
	}
	return nil
}

// finalizers are those that an admission plug-in adds.
var finalizers = map[string]string{"PersistentVolumeClaim": "kubernetes.io/pvc-protection", "PersistentVolume": "kubernetes.io/pv-protection"}

func (s *Server) create(c *collection, namespace string, object Object) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object.GetName() == "" && object.GetGenerateName() != "" {
		object.SetName(object.GetGenerateName() + string(s.options.NewUID())[:5])
	}
	object.SetNamespace(namespace)
	key := keyOf(namespace, object.GetName())
	if event, is := object.(*corev1.Event); is && c.objects[key] != nil && c.objects[key].(*corev1.Event).Reason != event.Reason {
		// Names have the time. Where it stands still, two events have the same.
		event.Name += "-" + strings.ToLower(event.Reason)
		key = keyOf(namespace, event.Name)
	}
	if _, exists := c.objects[key]; exists {
		return nil, apierrors.NewAlreadyExists(c.resource.GroupResource(), object.GetName())
	}
	object.SetUID(s.options.NewUID())
	object.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	object.SetDeletionTimestamp(nil)
	if finalizer := finalizers[c.kind.Kind]; finalizer != "" && !slices.Contains(object.GetFinalizers(), finalizer) {
		object.SetFinalizers(append(object.GetFinalizers(), finalizer))
	}
	switch object := object.(type) {
	case *corev1.PersistentVolumeClaim:
		object.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
		if object.Spec.VolumeMode == nil {
			object.Spec.VolumeMode = new(corev1.PersistentVolumeFilesystem)
		}
	case *corev1.PersistentVolume:
		object.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending}
	}
	s.record(c, key, object)
	return object, nil
}

// update replaces an object by what change makes of it.
func (s *Server) update(c *collection, namespace, name, subresource string, change func(Object) (Object, error)) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(namespace, name)
	before, exists := c.objects[key]
	if !exists {
		return nil, apierrors.NewNotFound(c.resource.GroupResource(), name)
	}
	after, err := change(before.DeepCopyObject().(Object))
	if err != nil {
		return nil, err
	}
	if uid := after.GetUID(); uid != "" && uid != before.GetUID() {
		return nil, s.conflict(c, name, fmt.Sprintf("the UID in the precondition is %s, that of the object %s", uid, before.GetUID()))
	}
	if version := after.GetResourceVersion(); version != "" && version != before.GetResourceVersion() {
		return nil, s.conflict(c, name, "the object has been modified; please apply your changes to the latest version and try again")
	}
	after.SetNamespace(namespace)
	after.SetName(name)
	after.SetUID(before.GetUID())
	after.SetCreationTimestamp(before.GetCreationTimestamp())
	after.SetDeletionTimestamp(before.GetDeletionTimestamp())
	after.SetDeletionGracePeriodSeconds(before.GetDeletionGracePeriodSeconds())
	after.SetResourceVersion(before.GetResourceVersion())
	// Each of spec and status is changed by requests of its own.
	is, was := reflect.ValueOf(after).Elem(), reflect.ValueOf(before.DeepCopyObject()).Elem()
	if status := is.FieldByName("Status"); status.IsValid() && subresource == "" {
		status.Set(was.FieldByName("Status"))
	}
	if spec := is.FieldByName("Spec"); spec.IsValid() && subresource == "status" {
		spec.Set(was.FieldByName("Spec"))
	}
	if before.GetDeletionTimestamp() != nil {
		for _, finalizer := range after.GetFinalizers() {
			if !slices.Contains(before.GetFinalizers(), finalizer) {
				return nil, apierrors.NewInvalid(c.kind.GroupKind(), name, field.ErrorList{
					field.Forbidden(field.NewPath("metadata", "finalizers"), "no new finalizers can be added if the object is being deleted, found new finalizer "+finalizer)})
			}
		}
	}
	if after.GetDeletionTimestamp() != nil && len(after.GetFinalizers()) == 0 {
		s.record(c, key, nil)
		return after, nil
	}
	if !equality.Semantic.DeepEqual(before, after) {
		s.record(c, key, after)
	}
	return after, nil
}

func (s *Server) delete(c *collection, namespace, name string, only *metav1.Preconditions) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(namespace, name)
	object, exists := c.objects[key]
	switch {
	case !exists:
		return nil, apierrors.NewNotFound(c.resource.GroupResource(), name)
	case only != nil && only.UID != nil && *only.UID != object.GetUID():
		return nil, s.conflict(c, name, fmt.Sprintf("the UID in the precondition is %s, that of the object %s", *only.UID, object.GetUID()))
	case only != nil && only.ResourceVersion != nil && *only.ResourceVersion != object.GetResourceVersion():
		return nil, s.conflict(c, name, "the ResourceVersion in the precondition is another one")
	case len(object.GetFinalizers()) == 0:
		s.record(c, key, nil)
	case object.GetDeletionTimestamp() == nil:
		object = object.DeepCopyObject().(Object)
		object.SetDeletionTimestamp(new(metav1.NewTime(time.Now().Truncate(time.Second))))
		object.SetDeletionGracePeriodSeconds(new(int64))
		s.record(c, key, object)
	}
	return object, nil
}

func (s *Server) conflict(c *collection, name, why string) error {
	return apierrors.NewConflict(c.resource.GroupResource(), name, fmt.Errorf("%s", why))
}

// get returns an object as it is, or as it was.
func (s *Server) get(c *collection, namespace, name string, mayBeOld bool) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object, exists := c.at(s.readAt(mayBeOld))[keyOf(namespace, name)]
	if !exists {
		return nil, apierrors.NewNotFound(c.resource.GroupResource(), name)
	}
	return object, nil
}

func (s *Server) readAt(mayBeOld bool) int {
	if mayBeOld {
		return max(1, s.revision-s.options.Behind())
	}
	return s.revision
}

// list returns the objects that match, and their revision.
func (s *Server) list(c *collection, matches func(Object) bool, mayBeOld bool) ([]Object, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	revision := s.readAt(mayBeOld)
	objects := c.at(revision)
	var all []Object
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		if matches(objects[key]) {
			all = append(all, objects[key])
		}
	}
	return all, revision
}

// since returns what changed after a revision, and what closes when more does.
func (s *Server) since(c *collection, revision int) (changes []change, more, restarted <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, _ := slices.BinarySearchFunc(c.log, revision+1, func(entry change, at int) int { return entry.revision - at })
	return c.log[first:], s.changed, s.restarted
}

// partial returns the metadata of an object.
func partial(object Object) Object {
	only := meta.AsPartialObjectMetadata(object)
	only.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}
	return only
}

// target is what a path names.
type target struct {
	*collection
	namespace, name, subresource string
}

func (s *Server) find(path string) (target, error) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var at schema.GroupVersion
	switch {
	case len(parts) > 2 && parts[0] == "api":
		at, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		at, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return target{}, apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{}, path, "", 0, true)
	}
	var found target
	if parts[0] == "namespaces" && len(parts) > 2 {
		found.namespace, parts = parts[1], parts[2:]
	}
	found.collection = s.collections[at.WithResource(parts[0])]
	if found.collection == nil {
		return found, apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{}, path, "", 0, true)
	}
	parts = append(parts, "", "")
	found.name, found.subresource = parts[1], parts[2]
	return found, nil
}

// Create creates an object, Change changes one, and Delete requests the end of one: at once,
// past all delays.
func (s *Server) Create(object Object) (Object, error) {
	c, err := s.of(object)
	if err != nil {
		return nil, err
	}
	return s.create(c, object.GetNamespace(), object.DeepCopyObject().(Object))
}

// Change does what Create does, with an object that exists.
func (s *Server) Change(object Object, subresource string, change func(Object)) (Object, error) {
	c, err := s.of(object)
	if err != nil {
		return nil, err
	}
	return s.update(c, object.GetNamespace(), object.GetName(), subresource, func(now Object) (Object, error) {
		change(now)
		return now, nil
	})
}

// Delete requests the end of an object.
func (s *Server) Delete(object Object) error {
	c, err := s.of(object)
	if err != nil {
		return err
	}
	_, err = s.delete(c, object.GetNamespace(), object.GetName(), &metav1.Preconditions{UID: new(object.GetUID())})
	return err
}

func (s *Server) of(object Object) (*collection, error) {
	for _, c := range s.collections {
		if reflect.TypeOf(c.empty()) == reflect.TypeOf(object) {
			return c, nil
		}
	}
	return nil, fmt.Errorf("objects of type %T are not served", object)
}
