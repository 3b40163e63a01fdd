package cindersim

import (
	"net/http"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/python"
)

// A volume's metadata are the user's own entries, without those that os-attach
// adds to the volume's view.

func (c *cloud) showMetadata(q *call, id string) (*reply, error) {
	v, err := c.find(q, id)
	if err != nil {
		return nil, err
	}
	return metadataReply(v), nil
}

func metadataReply(v *volume) *reply {
	return &reply{status: http.StatusOK, body: append(appendMap([]byte(`{"metadata":`), v.metadata), '}')}
}

// entries reads metadata that a request must have.
func (q *call) entries(key string) (map[string]string, error) {
	if err := q.decode(); err != nil {
		return nil, err
	}
	if _, given := q.body[key]; !given {
		return nil, refuse(http.StatusBadRequest, "'%s' is a required property", key)
	}
	return fields.Metadata(q.body, key)
}

// writeMetadata merges the given entries (POST) or replaces all by them (PUT).
func (c *cloud) writeMetadata(q *call, id string, replace bool, now time.Time) (*reply, error) {
	metadata, err := q.entries("metadata")
	if err != nil {
		return nil, err
	}
	v, err := c.find(q, id)
	if err != nil {
		return nil, err
	}
	if !replace {
		metadata = mergeMetadata(v.metadata, metadata)
	}
	v.metadata = metadata
	v.changed(now)
	v.index()
	return metadataReply(v), nil
}

func mergeMetadata(old, added map[string]string) map[string]string {
	merged := make(map[string]string, len(old)+len(added))
	for _, source := range []map[string]string{old, added} {
		for key, value := range source {
			merged[key] = value
		}
	}
	return merged
}

func (c *cloud) showMetadataKey(q *call, id, key string) (*reply, error) {
	v, err := c.find(q, id)
	if err != nil {
		return nil, err
	}
	value, ok := v.metadata[key]
	if !ok {
		return nil, metadataNotFound(id, key)
	}
	return success(http.StatusOK, map[string]any{"meta": map[string]string{key: value}}), nil
}

func metadataNotFound(id, key string) error {
	return refuse(http.StatusNotFound, "Volume %s has no metadata with key %s.", id, key)
}

func (c *cloud) writeMetadataKey(q *call, id, key string, now time.Time) (*reply, error) {
	meta, err := q.entries("meta")
	if err != nil {
		return nil, err
	}
	if len(meta) == 0 {
		return nil, fields.Invalid("meta", q.body["meta"], "{} does not have enough properties")
	}
	if len(meta) > 1 {
		return nil, fields.Invalid("meta", q.body["meta"], "%s has too many properties", python.Repr(q.body["meta"]))
	}
	value, ok := meta[key]
	if !ok {
		return nil, refuse(http.StatusBadRequest, "Request body and URI mismatch")
	}
	v, err := c.find(q, id)
	if err != nil {
		return nil, err
	}
	v.metadata = mergeMetadata(v.metadata, map[string]string{key: value})
	v.changed(now)
	v.index()
	return success(http.StatusOK, map[string]any{"meta": meta}), nil
}

func (c *cloud) deleteMetadataKey(q *call, id, key string, now time.Time) (*reply, error) {
	v, err := c.find(q, id)
	if err != nil {
		return nil, err
	}
	if _, ok := v.metadata[key]; !ok {
		return nil, metadataNotFound(id, key)
	}
	delete(v.metadata, key)
	v.changed(now)
	v.index()
	return deletion(http.StatusOK), nil
}
