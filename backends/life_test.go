package backends

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// ServeHTTP serves the volumes API of a memoryCinder, as far as the lifecycle
// uses it.
func (m memoryClient) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, rest, _ := strings.Cut(r.URL.Path, "/volumes")
	id, action, _ := strings.Cut(strings.Trim(rest, "/"), "/")
	switch {
	case r.Method == http.MethodPost && id == "":
		var body struct {
			Volume struct {
				Name     string            `json:"name"`
				Size     int64             `json:"size"`
				Metadata map[string]string `json:"metadata"`
			} `json:"volume"`
		}
		if json.NewDecoder(r.Body).Decode(&body) != nil {
			cindertest.Answer(w, http.StatusBadRequest, `{"badRequest": {"code": 400, "message": "Malformed request body"}}`)
			return
		}
		v, err := m.CreateVolume(r.Context(), cinder.NewVolume{Name: body.Volume.Name, SizeGiB: body.Volume.Size, Metadata: body.Volume.Metadata})
		reply(w, http.StatusAccepted, map[string]any{"volume": view(v)}, err)
	case r.Method == http.MethodGet && id == "detail":
		m.serveList(w, r)
	case r.Method == http.MethodGet:
		v, err := m.Volume(r.Context(), id)
		reply(w, http.StatusOK, map[string]any{"volume": view(v)}, err)
	case r.Method == http.MethodDelete:
		reply(w, http.StatusAccepted, nil, m.DeleteVolume(r.Context(), id))
	case r.Method == http.MethodPost && action == "action":
		m.serveAction(w, r, id)
	default:
		cindertest.Answer(w, http.StatusNotFound, cindertest.RoutingNotFound)
	}
}

// serveList returns pages of at most 20 volumes, whatever the requested limit.
func (m memoryClient) serveList(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	limit, _ := strconv.Atoi(query.Get("limit"))
	if limit == 0 || limit > 20 {
		limit = 20
	}
	volumes := []map[string]any{}
	past, more := query.Get("marker") == "", false
	err := m.ListVolumes(r.Context(), cinder.Query{Status: cinder.Status(query.Get("status"))}, func(page []cinder.Volume) bool {
		for _, v := range page {
			if past && len(volumes) == limit {
				more = true
				return false
			}
			if past {
				volumes = append(volumes, view(v))
			}
			past = past || v.ID == query.Get("marker")
		}
		return true
	})
	if err == nil && !past {
		err = notFound("volume.list", query.Get("marker"))
	}
	document := map[string]any{"volumes": volumes}
	if more {
		query.Set("marker", volumes[len(volumes)-1]["id"].(string))
		document["volumes_links"] = []any{map[string]any{"rel": "next", "href": "http://internal.invalid/v3/volumes/detail?" + query.Encode()}}
	}
	reply(w, http.StatusOK, document, err)
}

func (m memoryClient) serveAction(w http.ResponseWriter, r *http.Request, id string) {
	var body map[string]json.RawMessage
	if json.NewDecoder(r.Body).Decode(&body) != nil || len(body) != 1 {
		cindertest.Answer(w, http.StatusBadRequest, `{"badRequest": {"code": 400, "message": "Malformed request body"}}`)
		return
	}
	ctx := r.Context()
	for name, raw := range body {
		var arguments struct {
			Host       string `json:"host_name"`
			Attachment string `json:"attachment_id"`
		}
		_ = json.Unmarshal(raw, &arguments)
		switch name {
		case "os-reserve":
			reply(w, http.StatusAccepted, nil, m.Reserve(ctx, id))
		case "os-unreserve":
			reply(w, http.StatusAccepted, nil, m.Unreserve(ctx, id))
		case "os-attach":
			reply(w, http.StatusAccepted, nil, m.Attach(ctx, id, arguments.Host, false))
		case "os-detach":
			reply(w, http.StatusAccepted, nil, m.Detach(ctx, id, arguments.Attachment))
		case "os-terminate_connection":
			reply(w, http.StatusAccepted, nil, m.TerminateConnection(ctx, id, cinder.Connector{}))
		case "os-initialize_connection":
			document, err := m.InitializeConnection(ctx, id, cinder.Connector{})
			reply(w, http.StatusOK, map[string]any{"connection_info": json.RawMessage(document)}, err)
		default:
			cindertest.Answer(w, http.StatusBadRequest, `{"badRequest": {"code": 400, "message": "There is no such action: `+name+`"}}`)
		}
	}
}

func view(v cinder.Volume) map[string]any {
	attachments := []any{}
	for _, a := range v.Attachments {
		attachments = append(attachments, map[string]any{"attachment_id": a.ID, "host_name": a.Host, "server_id": nil})
	}
	metadata := map[string]string{}
	maps.Copy(metadata, v.Metadata)
	return map[string]any{"id": v.ID, "name": v.Name, "status": string(v.Status), "size": v.SizeGiB, "metadata": metadata, "encrypted": v.Encrypted, "multiattach": v.MultiAttach,
		"attachments": attachments, "created_at": v.CreatedAt.Format("2006-01-02T15:04:05.000000")}
}

// reply answers with a document or an error's fault.
func reply(w http.ResponseWriter, status int, document map[string]any, err error) {
	var failed *cinder.Error
	if errors.As(err, &failed) {
		name := map[int]string{400: "badRequest", 404: "itemNotFound", 403: "forbidden"}[failed.Status]
		cindertest.Answer(w, failed.Status, fmt.Sprintf(`{%q: {"code": %d, "message": %q}}`, cmp.Or(name, "computeFault"), failed.Status, failed.Message))
		return
	}
	if document == nil {
		w.WriteHeader(status)
		return
	}
	encoded, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	cindertest.Answer(w, status, string(encoded))
}

// TestLifeOverHTTP takes many volumes through their lives with all components:
// pool, login, paging, a token that expires meanwhile, few slots.
func TestLifeOverHTTP(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	memory := newMemoryCinder()
	cloud.Cinder = memory.client().ServeHTTP
	for range 50 {
		memory.add(cinder.Volume{Status: cinder.StatusAvailable})
	}
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	config := gold
	config.Limits.Concurrency = 4
	term := func() *Lifecycle {
		return NewLifecycle(LifecycleOptions{Config: config, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Term: t.Context(),
			Logger: discard(), Metrics: testMetrics(), Poll: time.Millisecond})
	}
	const claims = 30
	l := term()
	connected := make([]Connected, claims)
	atOnce(t, claims, func(claim int) (err error) {
		connected[claim], err = l.Connect(t.Context(), claimSpec(claim))
		return err
	})
	for claim := range claims {
		if found := memory.stamped(claimStamp(claim)); len(found) != 1 || found[0].Status != cinder.StatusAttaching {
			t.Errorf("claim %d has %+v", claim, found)
		}
	}
	equal(t, len(memory.changes()), 3*claims)
	cloud.Revoke()
	atOnce(t, claims, func(claim int) error {
		return l.Complete(t.Context(), claimTarget(claim, connected[claim].Volume.ID), false)
	})
	cloud.Revoke()
	l = term()
	atOnce(t, claims, func(claim int) error {
		return l.Remove(t.Context(), claimTarget(claim, connected[claim].Volume.ID))
	})
	equal(t, len(memory.present()), 50)
	equal(t, cloud.LoginCount(), 3)
	idle(t, l)
}
