package scale

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	restwatch "k8s.io/client-go/rest/watch"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// apiServer is as much of an API server as a replica needs: lists in pages,
// watches that stream the initial state, creation and updates, in JSON and
// protobuf. It keeps everything in memory, so that a cluster of any size exists
// at once, and binds claims as soon as their PersistentVolumes exist.
type apiServer struct {
	server *httptest.Server

	mu          sync.Mutex
	version     uint64
	collections map[string]*collection // by resource
}

// collection is the objects of one resource.
type collection struct {
	group    schema.GroupVersion
	empty    func() runtime.Object
	list     func() runtime.Object
	keys     []string // sorted
	objects  map[string]runtime.Object
	watchers map[*watcher]bool
}

// watcher is a client that watches. Its events wait without a bound.
type watcher struct {
	events []watch.Event
	more   chan struct{}
}

func startAPIServer() *apiServer {
	core := corev1.SchemeGroupVersion
	collect := func(group schema.GroupVersion, empty, list func() runtime.Object) *collection {
		return &collection{group: group, empty: empty, list: list, objects: map[string]runtime.Object{}, watchers: map[*watcher]bool{}}
	}
	s := &apiServer{collections: map[string]*collection{
		"persistentvolumeclaims": collect(core, func() runtime.Object { return &corev1.PersistentVolumeClaim{} }, func() runtime.Object { return &corev1.PersistentVolumeClaimList{} }),
		"persistentvolumes":      collect(core, func() runtime.Object { return &corev1.PersistentVolume{} }, func() runtime.Object { return &corev1.PersistentVolumeList{} }),
		"namespaces":             collect(core, func() runtime.Object { return &corev1.Namespace{} }, func() runtime.Object { return &corev1.NamespaceList{} }),
		"secrets":                collect(core, func() runtime.Object { return &corev1.Secret{} }, func() runtime.Object { return &corev1.SecretList{} }),
		"nodes":                  collect(core, func() runtime.Object { return &corev1.Node{} }, func() runtime.Object { return &corev1.NodeList{} }),
		"events":                 collect(core, func() runtime.Object { return &corev1.Event{} }, func() runtime.Object { return &corev1.EventList{} }),
		"storageclasses":         collect(storagev1.SchemeGroupVersion, func() runtime.Object { return &storagev1.StorageClass{} }, func() runtime.Object { return &storagev1.StorageClassList{} }),
		"volumeattachments":      collect(storagev1.SchemeGroupVersion, func() runtime.Object { return &storagev1.VolumeAttachment{} }, func() runtime.Object { return &storagev1.VolumeAttachmentList{} }),
		"pods":                   collect(core, func() runtime.Object { return &corev1.Pod{} }, func() runtime.Object { return &corev1.PodList{} }),
		"leases":                 collect(coordinationv1.SchemeGroupVersion, func() runtime.Object { return &coordinationv1.Lease{} }, func() runtime.Object { return &coordinationv1.LeaseList{} }),
	}}
	s.server = httptest.NewServer(s)
	return s
}

// close ends all watches, and the server.
func (s *apiServer) close() {
	s.server.CloseClientConnections()
	s.server.Close()
}

// kubeconfig writes a file that leads to the server.
func (s *apiServer) kubeconfig(dir string) (string, error) {
	path := filepath.Join(dir, "kubeconfig")
	return path, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"scale": {Server: s.server.URL}},
		Contexts:       map[string]*clientcmdapi.Context{"scale": {Cluster: "scale"}},
		CurrentContext: "scale",
	}, path)
}

// put stores an object, and sends it to the watches.
func (s *apiServer) put(resource string, object runtime.Object) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store(resource, object)
}

// store does the same as put. The caller must hold the lock.
func (s *apiServer) store(resource string, object runtime.Object) runtime.Object {
	c := s.collections[resource]
	accessor, _ := meta.Accessor(object)
	s.version++
	accessor.SetResourceVersion(strconv.FormatUint(s.version, 10))
	if accessor.GetUID() == "" {
		accessor.SetUID(types.UID(uuid.NewString()))
		accessor.SetCreationTimestamp(metav1.Now())
	}
	key := accessor.GetNamespace() + "/" + accessor.GetName()
	kind := watch.Modified
	if _, ok := c.objects[key]; !ok {
		kind = watch.Added
		at, _ := slices.BinarySearch(c.keys, key)
		c.keys = slices.Insert(c.keys, at, key)
	}
	c.objects[key] = object
	for w := range c.watchers {
		w.push(watch.Event{Type: kind, Object: object})
	}
	return object
}

// bound counts the bound claims.
func (s *apiServer) bound() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, object := range s.collections["persistentvolumeclaims"].objects {
		if object.(*corev1.PersistentVolumeClaim).Status.Phase == corev1.ClaimBound {
			n++
		}
	}
	return n
}

func (w *watcher) push(event watch.Event) {
	w.events = append(w.events, event)
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource, namespace, name := target(r.URL.Path)
	c := s.collections[resource]
	switch {
	case c == nil:
		http.Error(w, r.URL.Path+" is not served", http.StatusNotFound)
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		s.watch(w, r, c)
	case r.Method == http.MethodGet && name == "":
		s.answer(w, r, c, http.StatusOK, s.page(c, namespace, r))
	case r.Method == http.MethodGet:
		s.mu.Lock()
		object, ok := c.objects[namespace+"/"+name]
		s.mu.Unlock()
		if !ok {
			s.fail(w, r, c, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name))
			return
		}
		s.answer(w, r, c, http.StatusOK, object)
	default:
		s.change(w, r, resource, namespace, name)
	}
}

// target splits a path such as /api/v1/namespaces/x/secrets/y.
func target(path string) (resource, namespace, name string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" {
		parts = parts[2:]
	} else {
		parts = parts[min(3, len(parts)):]
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	switch len(parts) {
	case 0:
		return "", "", ""
	case 1:
		return parts[0], namespace, ""
	}
	return parts[0], namespace, parts[1]
}

// page lists up to the request's limit, beginning at its token.
func (s *apiServer) page(c *collection, namespace string, r *http.Request) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, _ := slices.BinarySearch(c.keys, r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	var objects []runtime.Object
	next := ""
	for _, key := range c.keys[from:] {
		if namespace != "" && !strings.HasPrefix(key, namespace+"/") {
			continue
		}
		if limit > 0 && len(objects) == limit {
			next = key
			break
		}
		objects = append(objects, c.objects[key])
	}
	list := c.list()
	if err := meta.SetList(list, objects); err != nil {
		panic(err)
	}
	accessor, _ := meta.ListAccessor(list)
	accessor.SetContinue(next)
	accessor.SetResourceVersion(strconv.FormatUint(s.version, 10))
	return list
}

func (s *apiServer) change(w http.ResponseWriter, r *http.Request, resource, namespace, name string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	c := s.collections[resource]
	if r.Method == http.MethodPatch || r.Method == http.MethodDelete {
		// Patches repeat events; nothing here reads them.
		s.answer(w, r, c, http.StatusOK, c.empty())
		return
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, c.empty())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	accessor, _ := meta.Accessor(object)
	accessor.SetNamespace(namespace)
	s.mu.Lock()
	defer s.mu.Unlock()
	before, exists := c.objects[namespace+"/"+accessor.GetName()]
	switch {
	case r.Method == http.MethodPost && exists:
		s.fail(w, r, c, apierrors.NewAlreadyExists(schema.GroupResource{Resource: resource}, name))
		return
	case exists:
		earlier, _ := meta.Accessor(before)
		if earlier.GetResourceVersion() != accessor.GetResourceVersion() {
			s.fail(w, r, c, apierrors.NewConflict(schema.GroupResource{Resource: resource}, name, fmt.Errorf("it was changed")))
			return
		}
	}
	s.store(resource, object)
	if pv, ok := object.(*corev1.PersistentVolume); ok {
		s.bind(pv)
	}
	s.answer(w, r, c, http.StatusCreated, object)
}

// bind does what the controller-manager does with a new PersistentVolume.
func (s *apiServer) bind(pv *corev1.PersistentVolume) {
	claims := s.collections["persistentvolumeclaims"]
	object, ok := claims.objects[pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name]
	if !ok {
		return
	}
	bound := pv.DeepCopy()
	bound.Status.Phase = corev1.VolumeBound
	s.store("persistentvolumes", bound)
	claim := object.(*corev1.PersistentVolumeClaim).DeepCopy()
	claim.Spec.VolumeName = pv.Name
	s.store("persistentvolumeclaims", claim)
	claim = claim.DeepCopy()
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: pv.Spec.AccessModes, Capacity: pv.Spec.Capacity}
	s.store("persistentvolumeclaims", claim)
}

// watch streams changes, beginning with the present state if requested.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, c *collection) {
	info := s.negotiate(r)
	me := &watcher{more: make(chan struct{}, 1)}
	s.mu.Lock()
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, key := range c.keys {
			me.push(watch.Event{Type: watch.Added, Object: c.objects[key]})
		}
		end := c.empty()
		accessor, _ := meta.Accessor(end)
		accessor.SetResourceVersion(strconv.FormatUint(s.version, 10))
		accessor.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		me.push(watch.Event{Type: watch.Bookmark, Object: end})
	}
	c.watchers[me] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(c.watchers, me)
	}()
	w.Header().Set("Content-Type", info.MediaType+";stream=watch")
	w.WriteHeader(http.StatusOK)
	flush := w.(http.Flusher)
	flush.Flush()
	encoder := restwatch.NewEncoder(
		streaming.NewEncoder(info.StreamSerializer.NewFrameWriter(w), scheme.Codecs.EncoderForVersion(info.StreamSerializer.Serializer, corev1.SchemeGroupVersion)),
		scheme.Codecs.EncoderForVersion(info.Serializer, c.group))
	for {
		select {
		case <-r.Context().Done():
			return
		case <-me.more:
		}
		s.mu.Lock()
		events := me.events
		me.events = nil
		s.mu.Unlock()
		for _, event := range events {
			event.Object = event.Object.DeepCopyObject() // see answer
			if err := encoder.Encode(&event); err != nil {
				return
			}
		}
		flush.Flush()
	}
}

// negotiate picks protobuf if the client accepts it, otherwise JSON.
func (s *apiServer) negotiate(r *http.Request) runtime.SerializerInfo {
	media := runtime.ContentTypeJSON
	if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		media = runtime.ContentTypeProtobuf
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), media)
	return info
}

// answer encodes a copy: encoding temporarily writes the version into the
// object, and other goroutines may be encoding it too.
func (s *apiServer) answer(w http.ResponseWriter, r *http.Request, c *collection, status int, object runtime.Object) {
	info := s.negotiate(r)
	var body bytes.Buffer
	if err := scheme.Codecs.EncoderForVersion(info.Serializer, c.group).Encode(object.DeepCopyObject(), &body); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes())
}

func (s *apiServer) fail(w http.ResponseWriter, r *http.Request, c *collection, err *apierrors.StatusError) {
	status := err.Status()
	s.answer(w, r, c, int(status.Code), &status)
}

// holdLease makes another replica lead until the lease is released.
func (s *apiServer) holdLease(namespace, name string) (giveUp func()) {
	lease := func(holder string) *coordinationv1.Lease {
		seconds, now := int32(3600), metav1.NowMicro()
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "lease"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
		}
	}
	s.put("leases", lease("another"))
	return func() { s.put("leases", lease("")) }
}
