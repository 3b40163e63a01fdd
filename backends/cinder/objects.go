package cinder

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
)

// objects makes the requests that volumes, snapshots and backups have in common.
type objects[T Object] struct {
	*requests
	// noun begins the names of operations. With an s, it names the collection.
	noun string
	// minor is the microversion 3.minor that the objects need, and what they need it for;
	// 0 if every endpoint has them.
	minor int
	what  string
	// read decodes an object; keep is that of a Query. odd means that a field that the
	// program acts on has a wrong type.
	read func(decode func(document any) error, keep func(key string) bool) (object T, odd bool, err error)
	// fields returns what the checks of an answer need, besides the ID.
	fields func(*T) (status *Status, metadata map[string]string)
	// shown are parameters that make Cinder show more of an object.
	shown map[string]string
}

func volumesOf(r *requests) objects[Volume] {
	return objects[Volume]{requests: r, noun: "volume", read: readVolume, fields: func(v *Volume) (*Status, map[string]string) { return &v.Status, v.Metadata }}
}

func snapshotsOf(r *requests) objects[Snapshot] {
	return objects[Snapshot]{requests: r, noun: "snapshot", read: readSnapshot, fields: func(s *Snapshot) (*Status, map[string]string) { return &s.Status, s.Metadata }}
}

// create requests an object, with the microversion 3.minor. An answer about one that was
// not requested would make the program use that one.
func (o objects[T]) create(ctx context.Context, minor int, body any, isWanted func(T) bool) (T, error) {
	var none T
	r := request{operation: o.noun + ".create", method: http.MethodPost, path: []string{o.noun + "s"}, minor: minor, body: body, codes: []int{http.StatusAccepted}}
	made, err := o.one(ctx, r)
	if err == nil && !isWanted(made) {
		return none, o.unusable(r.operation, fmt.Sprintf("the answer is about %s %s, which is not the one requested", o.noun, IDOf(made)))
	}
	return made, err
}

// createNamed requests an object that Cinder answers about only with its ID and its name.
func (o objects[T]) createNamed(ctx context.Context, operation, name string, body any) (id string, err error) {
	if err := o.offered(ctx, operation); err != nil {
		return "", err
	}
	var answer map[string]struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	}
	err = o.send(ctx, request{operation: operation, method: http.MethodPost, path: []string{o.noun + "s"}, minor: o.minor, body: map[string]any{o.noun: body}, codes: []int{http.StatusAccepted}, answer: &answer})
	made := answer[o.noun]
	switch {
	case err != nil:
		return "", err
	case !usableID.MatchString(made.ID) || made.Name != name:
		return "", o.unusable(operation, "the answer is not about the "+o.noun+" requested")
	}
	return made.ID, nil
}

// offered returns an error if the endpoint is too old for the objects. It would answer that
// it does not accept the request, which looks like a failure of the endpoint.
func (o objects[T]) offered(ctx context.Context, operation string) error {
	if o.minor == 0 {
		return nil
	}
	return o.needs(ctx, operation, o.minor, o.what)
}

// get reads one object. A 404 without Cinder's own fault proves nothing unless a listing
// of all projects confirms it.
func (o objects[T]) get(ctx context.Context, id string) (T, error) {
	var none T
	r := request{operation: o.noun + ".get", path: []string{o.noun + "s", id}, minor: o.minor, query: o.parameters()}
	if err := o.offered(ctx, r.operation); err != nil {
		return none, err
	}
	if err := o.checkID(r.operation, id); err != nil {
		return none, err
	}
	found, err := o.one(ctx, r)
	if err == nil && IDOf(found) != id {
		return none, o.wrong(r.operation, fmt.Sprintf("the answer is about %s %s, not about %s", o.noun, IDOf(found), id))
	}
	if statusOf(err) != http.StatusNotFound || IsKind(err, KindNotFound) {
		return found, err
	}
	listed := false
	listErr := o.list(ctx, Query{AllProjects: true, PageSize: defaultPageSize}, func(page []T) bool {
		listed = slices.ContainsFunc(page, func(object T) bool { return IDOf(object) == id })
		return !listed
	})
	if listErr != nil || listed {
		return none, err
	}
	return none, &Error{Backend: o.backend, Operation: r.operation, Kind: KindNotFound, Status: http.StatusNotFound,
		Message: fmt.Sprintf("%s %s is not in the list of %ss", o.noun, id, o.noun)}
}

func (o objects[T]) parameters() url.Values {
	values := url.Values{}
	for name, value := range o.shown {
		values.Set(name, value)
	}
	return values
}

// one sends a request whose answer describes one object.
func (o objects[T]) one(ctx context.Context, r request) (T, error) {
	var none T
	var answer map[string]json.RawMessage
	r.answer = &answer
	if err := o.send(ctx, r); err != nil {
		return none, err
	}
	document := answer[o.noun]
	if len(document) == 0 || string(document) == "null" {
		return none, o.unusable(r.operation, "the answer names no "+o.noun)
	}
	object, odd, err := o.read(func(into any) error { return json.Unmarshal(document, into) }, nil)
	id, status, _ := object.State()
	switch {
	case err != nil || odd:
		return none, o.unusable(r.operation, notDescribed)
	case id == "":
		return none, o.unusable(r.operation, "the answer names no "+o.noun)
	case !usableID.MatchString(id):
		return none, o.unusable(r.operation, fmt.Sprintf("the answer names %q, which is not a %s ID", sentence(id), o.noun))
	case status == "":
		// An object without a status exists. If it counted as absent, it would be created
		// again.
		return none, o.unusable(r.operation, fmt.Sprintf("the answer gives no status of %s %s", o.noun, sentence(id)))
	}
	return object, nil
}

// updateMetadata writes metadata; other keys stay.
func (o objects[T]) updateMetadata(ctx context.Context, operation, id string, metadata map[string]string) error {
	return o.about(ctx, id, request{operation: operation, method: http.MethodPost, path: []string{o.noun + "s", id, "metadata"}, body: map[string]any{"metadata": metadata}, codes: []int{http.StatusOK}})
}

// hasAll reports whether metadata contains every wanted key and value.
func hasAll(metadata, wanted map[string]string) bool {
	for key, value := range wanted {
		if metadata[key] != value {
			return false
		}
	}
	return true
}
