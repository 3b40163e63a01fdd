package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	restwatch "k8s.io/client-go/rest/watch"
)

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := newAnswer(w, r)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has left
	}
	if group, served := s.resources(r.URL.Path); served {
		body, err := json.Marshal(group)
		a.info.MediaType = runtime.ContentTypeJSON
		a.write(http.StatusOK, body, err)
		return
	}
	t, err := s.find(r.URL.Path)
	if err != nil {
		a.fail(err)
		return
	}
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodGet && query.Get("watch") != "":
		s.watch(a, r, t)
	case r.Method == http.MethodGet && t.name == "":
		matches, err := filter(t, r)
		if err != nil {
			a.fail(err)
			return
		}
		objects, revision := s.list(t.collection, matches, query.Get("resourceVersion") == "0")
		a.list(t.collection, objects, revision)
	case r.Method == http.MethodGet:
		a.object(t.collection, http.StatusOK)(s.get(t.collection, t.namespace, t.name, query.Get("resourceVersion") == "0"))
	case r.Method == http.MethodPost:
		object, err := decode(t.collection, body)
		if err != nil {
			a.fail(err)
			return
		}
		a.object(t.collection, http.StatusCreated)(s.create(t.collection, t.namespace, object))
	case r.Method == http.MethodPut:
		a.object(t.collection, http.StatusOK)(s.update(t.collection, t.namespace, t.name, t.subresource, func(Object) (Object, error) { return decode(t.collection, body) }))
	case r.Method == http.MethodPatch:
		kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		a.object(t.collection, http.StatusOK)(s.update(t.collection, t.namespace, t.name, t.subresource, func(before Object) (Object, error) {
			return patched(t.collection, before, types.PatchType(kind), body)
		}))
	case r.Method == http.MethodDelete && t.name != "":
		var options metav1.DeleteOptions
		if len(body) > 0 {
			if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, new(corev1.SchemeGroupVersion.WithKind("DeleteOptions")), &options); err != nil {
				a.fail(apierrors.NewBadRequest(err.Error()))
				return
			}
		}
		a.object(t.collection, http.StatusOK)(s.delete(t.collection, t.namespace, t.name, options.Preconditions))
	default:
		a.fail(apierrors.NewMethodNotSupported(t.resource.GroupResource(), r.Method))
	}
}

// resources returns what a path that names a group and a version serves.
func (s *Server) resources(path string) (served *metav1.APIResourceList, found bool) {
	version, err := schema.ParseGroupVersion(strings.TrimPrefix(path, "/apis/"))
	if err != nil {
		return nil, false
	}
	served = &metav1.APIResourceList{GroupVersion: version.String()}
	for at, c := range s.collections {
		if at.GroupVersion() == version {
			served.APIResources = append(served.APIResources, metav1.APIResource{Name: at.Resource, Kind: c.kind.Kind})
		}
	}
	slices.SortFunc(served.APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	return served, len(served.APIResources) > 0
}

func decode(c *collection, body []byte) (Object, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, &c.kind, c.empty())
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	object.GetObjectKind().SetGroupVersionKind(c.kind)
	return object.(Object), nil
}

func patched(c *collection, before Object, kind types.PatchType, patch []byte) (Object, error) {
	document, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	switch kind {
	case types.StrategicMergePatchType:
		document, err = strategicpatch.StrategicMergePatch(document, patch, c.empty())
	case types.MergePatchType:
		document, err = jsonpatch.MergePatch(document, patch)
	case types.JSONPatchType:
		var steps jsonpatch.Patch
		if steps, err = jsonpatch.DecodePatch(patch); err == nil {
			document, err = steps.Apply(document)
		}
	default:
		err = fmt.Errorf("patches of type %s are not served", kind)
	}
	if err != nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", c.resource.GroupResource(), before.GetName(), err.Error(), 0, true)
	}
	after := c.empty()
	if err := json.Unmarshal(document, after); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return after, nil
}

// filter returns what selects the objects of a list or a watch.
func filter(t target, r *http.Request) (func(Object) bool, error) {
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return func(o Object) bool {
		return (t.namespace == "" || o.GetNamespace() == t.namespace) && byLabel.Matches(labels.Set(o.GetLabels())) && (byField.Empty() || byField.Matches(fieldsOf(o)))
	}, nil
}

func fieldsOf(o Object) fields.Set {
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	switch o := o.(type) {
	case *corev1.Event:
		set["type"], set["reason"] = o.Type, o.Reason
		set["involvedObject.uid"], set["involvedObject.name"], set["involvedObject.kind"] = string(o.InvolvedObject.UID), o.InvolvedObject.Name, o.InvolvedObject.Kind
	case *corev1.Pod:
		set["spec.nodeName"], set["status.phase"] = o.Spec.NodeName, string(o.Status.Phase)
	case *corev1.Secret:
		set["type"] = string(o.Type)
	}
	return set
}

// watch streams changes until the client leaves.
func (s *Server) watch(a answer, r *http.Request, t target) {
	query := r.URL.Query()
	matches, err := filter(t, r)
	if err != nil {
		a.fail(err)
		return
	}
	initial := query.Get("sendInitialEvents") == "true"
	if initial && !s.options.WatchLists {
		a.fail(apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", nil))
		return
	}
	revision, _ := strconv.Atoi(query.Get("resourceVersion"))
	var first []watch.Event
	if initial || revision == 0 {
		var objects []Object
		objects, revision = s.list(t.collection, matches, query.Get("resourceVersion") == "0")
		for _, object := range objects {
			first = append(first, watch.Event{Type: watch.Added, Object: object})
		}
		if initial {
			mark := t.empty()
			mark.SetResourceVersion(strconv.Itoa(revision))
			mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
			first = append(first, watch.Event{Type: watch.Bookmark, Object: mark})
		}
	}
	send := a.stream(t.collection)
	for _, event := range first {
		if err := send(event); err != nil {
			return
		}
	}
	me := Watch{Client: ClientOf(r), Path: r.URL.Path}
	timeout, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	end := time.NewTimer(time.Duration(max(timeout, 300)) * time.Second)
	defer end.Stop()
	for {
		changes, more, restarted := s.since(t.collection, revision)
		for _, c := range changes {
			revision = c.revision
			event := c.event(matches)
			if event == nil {
				continue
			}
			if s.options.Deliver(me) != nil || r.Context().Err() != nil || send(*event) != nil {
				return
			}
			select {
			case <-restarted:
				return
			default:
			}
		}
		if len(changes) > 0 {
			continue
		}
		select {
		case <-more:
		case <-restarted:
			return
		case <-r.Context().Done():
			return
		case <-end.C:
			return
		}
	}
}

// HeaderClient names the client of a request.
const HeaderClient = "Simulated-Client"

// ClientOf returns who sent a request.
func ClientOf(r *http.Request) string { return r.Header.Get(HeaderClient) }

// answer is what a client gets, as it wants it.
type answer struct {
	http.ResponseWriter
	info    runtime.SerializerInfo
	partial bool
}

func newAnswer(w http.ResponseWriter, r *http.Request) answer {
	accept := r.Header.Get("Accept")
	a := answer{ResponseWriter: w, partial: strings.Contains(accept, "as=PartialObjectMetadata")}
	media := runtime.ContentTypeJSON
	if !a.partial && strings.HasPrefix(accept, runtime.ContentTypeProtobuf) {
		media = runtime.ContentTypeProtobuf
	}
	a.info, _ = runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), media)
	return a
}

// encode returns an object as bytes. Encoding writes into the object, hence the copy.
func (a answer) encode(c *collection, object runtime.Object) ([]byte, error) {
	if a.partial {
		return json.Marshal(object)
	}
	var body bytes.Buffer
	err := scheme.Codecs.EncoderForVersion(a.info.Serializer, c.kind.GroupVersion()).Encode(object.DeepCopyObject(), &body)
	return body.Bytes(), err
}

func (a answer) write(status int, body []byte, err error) {
	if err != nil {
		http.Error(a, err.Error(), http.StatusInternalServerError)
		return
	}
	a.Header().Set("Content-Type", a.info.MediaType)
	a.WriteHeader(status)
	_, _ = a.Write(body)
}

func (a answer) object(c *collection, status int) func(Object, error) {
	return func(object Object, err error) {
		if err != nil {
			a.fail(err)
			return
		}
		if a.partial {
			object = partial(object)
		}
		body, err := a.encode(c, object)
		a.write(status, body, err)
	}
}

func (a answer) list(c *collection, objects []Object, revision int) {
	var list runtime.Object = &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
	items := make([]runtime.Object, len(objects))
	for i, object := range objects {
		items[i] = object
		if a.partial {
			items[i] = partial(object)
		}
	}
	if !a.partial {
		list, _ = scheme.Scheme.New(c.kind.GroupVersion().WithKind(c.kind.Kind + "List"))
	}
	if err := meta.SetList(list, items); err != nil {
		panic(err)
	}
	accessor, _ := meta.ListAccessor(list)
	accessor.SetResourceVersion(strconv.Itoa(revision))
	body, err := a.encode(c, list)
	a.write(http.StatusOK, body, err)
}

func (a answer) fail(err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	content := status.Status()
	content.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	body, err := json.Marshal(content)
	a.info.MediaType = runtime.ContentTypeJSON
	a.write(int(content.Code), body, err)
}

// stream begins to send events.
func (a answer) stream(c *collection) func(watch.Event) error {
	a.Header().Set("Content-Type", a.info.MediaType+";stream=watch")
	a.WriteHeader(http.StatusOK)
	flush := a.ResponseWriter.(http.Flusher)
	flush.Flush()
	if a.partial {
		encoder := json.NewEncoder(a)
		return func(event watch.Event) error {
			raw, err := json.Marshal(partial(event.Object.(Object)))
			if err == nil {
				err = encoder.Encode(metav1.WatchEvent{Type: string(event.Type), Object: runtime.RawExtension{Raw: raw}})
			}
			flush.Flush()
			return err
		}
	}
	encoder := restwatch.NewEncoder(
		streaming.NewEncoder(a.info.StreamSerializer.NewFrameWriter(a), scheme.Codecs.EncoderForVersion(a.info.StreamSerializer.Serializer, corev1.SchemeGroupVersion)),
		scheme.Codecs.EncoderForVersion(a.info.Serializer, c.kind.GroupVersion()))
	return func(event watch.Event) error {
		event.Object = event.Object.DeepCopyObject()
		err := encoder.Encode(&event)
		flush.Flush()
		return err
	}
}
