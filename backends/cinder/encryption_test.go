package cinder

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

const (
	someVolume = "86a25cac-e84c-4ef1-816f-76fcd478cebd"
	someKey    = "9c2b1d2e-7a55-4b1c-8f0e-0f6a3c1d2e3f"
)

// withKeyManager returns a cloud whose catalog has key managers at addresses below it.
func withKeyManager(t *testing.T, answer http.HandlerFunc, endpoints ...map[string]any) *cindertest.Cloud {
	t.Helper()
	cloud := cindertest.NewCloud(t)
	cloud.Catalog = []any{cindertest.Entry("volumev3", "RegionOne", cloud.URL+"/volume/v3/0123456789abcdef0123456789abcdef")}
	for _, e := range endpoints {
		e["url"] = cloud.URL + e["url"].(string)
		cloud.Catalog = append(cloud.Catalog, map[string]any{"type": "key-manager", "name": "barbican", "endpoints": []any{e}})
	}
	cloud.Cinder = answer
	return cloud
}

func keyManagerAt(region, url string) map[string]any {
	return map[string]any{"interface": "public", "region": region, "region_id": region, "url": url}
}

func TestEncryption(t *testing.T) {
	for body, want := range map[string]Encryption{
		`{"encryption_key_id": "` + someKey + `", "control_location": "front-end", "cipher": "aes-xts-plain64", "key_size": 256, "provider": "luks"}`: {KeyID: someKey, ControlLocation: "front-end", Cipher: "aes-xts-plain64", KeyBits: 256, Provider: "luks"},
		`{"encryption_key_id": null}`: {},
		`{"encryption_key_id": "` + someKey + `", "control_location": "back-end", "cipher": null, "key_size": null, "provider": "x"}`: {KeyID: someKey, ControlLocation: "back-end", Provider: "x"},
	} {
		cloud := withKeyManager(t, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/volumes/"+someVolume+"/encryption") {
				t.Errorf("asked for %s", r.URL.Path)
			}
			cindertest.Answer(w, http.StatusOK, body)
		})
		got, err := logIn(t, cloud).Encryption(t.Context(), someVolume)
		if err != nil {
			t.Error(err)
		}
		equal(t, got, want)
	}
}

// TestKey: what the key manager says is bounded, and its failures are not those of the volume.
func TestKey(t *testing.T) {
	key := []byte("\x00key with\nany bytes, 32 of it!\xff\x10")
	for name, test := range map[string]struct {
		endpoints []map[string]any
		status    int
		body      string
		kind      Kind
		text      string
	}{
		"a key":                                  {endpoints: []map[string]any{keyManagerAt("RegionOne", "/key-manager")}, status: http.StatusOK, body: string(key)},
		"an address with a version":              {endpoints: []map[string]any{keyManagerAt("RegionOne", "/key-manager/v1/")}, status: http.StatusOK, body: string(key)},
		"an empty answer":                        {endpoints: []map[string]any{keyManagerAt("RegionOne", "/key-manager")}, status: http.StatusOK, kind: KindInternal, text: "cannot be a key"},
		"an endless answer":                      {endpoints: []map[string]any{keyManagerAt("RegionOne", "/key-manager")}, status: http.StatusOK, body: strings.Repeat("k", 5<<20), kind: KindInternal, text: "cannot be a key"},
		"no key":                                 {endpoints: []map[string]any{keyManagerAt("RegionOne", "/key-manager")}, status: http.StatusNotFound, body: `{}`, kind: KindConfig, text: "the key manager has no key " + someKey},
		"a key of somebody else":                 {endpoints: []map[string]any{keyManagerAt("RegionOne", "/key-manager")}, status: http.StatusForbidden, body: `{"code": 403}`, kind: KindForbidden, text: "does not give key " + someKey},
		"a key manager that rejects every token": {endpoints: []map[string]any{keyManagerAt("RegionOne", "/key-manager")}, status: http.StatusUnauthorized, body: `{"error": {"code": 401}}`, kind: KindForbidden, text: "the key manager rejects the token"},
		"a key manager that is away":             {endpoints: []map[string]any{keyManagerAt("RegionOne", "/key-manager")}, status: http.StatusServiceUnavailable, kind: KindUnavailable, text: "the key manager: "},
		"no key manager":                         {kind: KindConfig, text: "the service catalog has no key-manager endpoint in region"},
		"a key manager in another region":        {endpoints: []map[string]any{keyManagerAt("RegionTwo", "/key-manager")}, kind: KindConfig, text: "the service catalog has no key-manager endpoint in region"},
		"two key managers":                       {endpoints: []map[string]any{keyManagerAt("RegionOne", "/one"), keyManagerAt("RegionOne", "/two")}, kind: KindConfig, text: "several key-manager endpoints"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := withKeyManager(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/key-manager/v1/secrets/"+someKey+"/payload" || r.Header.Get("Accept") != "application/octet-stream" || r.Header.Get("X-Auth-Token") == "" {
					t.Errorf("asked for %s with %v", r.URL.Path, r.Header)
				}
				w.Header().Set("Content-Type", "application/octet-stream")
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(test.body))
			}, test.endpoints...)
			got, err := logIn(t, cloud).Key(t.Context(), someKey)
			if test.kind != "" {
				if !IsKind(err, test.kind) || !strings.Contains(err.Error(), test.text) || effectUnknown(err) {
					t.Errorf("got %v of kind %s, want %s of kind %s", err, KindOf(err), test.text, test.kind)
				}
				return
			}
			if err != nil || got.Passphrase() != hex.EncodeToString(key) {
				t.Errorf("the key is wrong, %v", err)
			}
			encoded, err := json.Marshal(map[string]any{"k": got})
			if err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			slog.New(slog.NewTextHandler(&log, nil)).Info("logged", "key", got, "at", &got)
			if shown := fmt.Sprintf("%v %+v %#v %s %v", got, got, got, got, &got) + log.String() + string(encoded); strings.Contains(shown, "any bytes") || strings.Contains(shown, got.Passphrase()) || strings.Contains(shown, "107 101 121") {
				t.Errorf("the key is shown: %s", shown)
			}
		})
	}
	t.Run("an ID that is a path", func(t *testing.T) {
		cloud := withKeyManager(t, func(http.ResponseWriter, *http.Request) { t.Error("it was asked for") }, keyManagerAt("RegionOne", "/key-manager"))
		if _, err := logIn(t, cloud).Key(t.Context(), "../../v1/orders"); !IsKind(err, KindInternal) {
			t.Errorf("%v", err)
		}
	})
	t.Run("a cloud without Keystone", func(t *testing.T) {
		client, err := logInNoauth(t, auth.Noauth{Endpoint: cindertest.NewCloud(t).URL + "/v3", User: "admin", Project: "0123456789abcdef0123456789abcdef"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Key(t.Context(), someKey); !IsKind(err, KindConfig) || !strings.Contains(err.Error(), "csi.encryption.fixedKeySecret") {
			t.Errorf("%v", err)
		}
	})
}

// TestWhatIsNoKeyIsNotTakenForOne: a new volume is formatted with whatever the key manager
// answers. A proxy's page with status 200, or a cut-off or re-encoded answer, would become
// its only key, and when the key manager answers again, its key opens nothing.
func TestWhatIsNoKeyIsNotTakenForOne(t *testing.T) {
	for name, answer := range map[string]struct{ contentType, body string }{
		"a page of a proxy":          {"text/html; charset=utf-8", "<html><body>Maintenance, back soon</body></html>"},
		"a document of the API":      {"application/json", `{"status": "ACTIVE", "name": null}`},
		"a key as text":              {"text/plain", "c3dvcmRmaXNo"},
		"one byte":                   {"application/octet-stream", "\n"},
		"a key that is half a key":   {"application/octet-stream", strings.Repeat("k", 7)},
		"a key with a line break":    {"application/octet-stream", strings.Repeat("k", 32) + "\n"},
		"a page without a good name": {"application/octet-stream", "<html><body>Maintenance, back soon</body></html>"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := withKeyManager(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", answer.contentType)
				_, _ = w.Write([]byte(answer.body))
			}, keyManagerAt("RegionOne", "/key-manager"))
			if key, err := logIn(t, cloud).Key(t.Context(), someKey); err == nil {
				t.Errorf("%q of type %s is a key, with the passphrase %s", answer.body, answer.contentType, key.Passphrase())
			}
		})
	}
}

// TestASilentKeyManagerLeavesCinderItsTurns: requests for keys take the slots of the
// backend's Cinder, and no breaker ends them. As many pods with encrypted volumes as the
// backend has slots (16 by default) stop all its requests: also those of other tenants, of
// detaching, and of the leader's lists.
func TestASilentKeyManagerLeavesCinderItsTurns(t *testing.T) {
	end := make(chan struct{})
	asked := make(chan struct{}, 16)
	cloud := withKeyManager(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/key-manager/") {
			asked <- struct{}{}
			select {
			case <-end:
			case <-r.Context().Done():
			}
			return
		}
		cindertest.Answer(w, http.StatusOK, `{"encryption_key_id": null}`)
	}, keyManagerAt("RegionOne", "/key-manager"))
	defer close(end)
	client := logIn(t, cloud) // with 16 slots
	for range 16 {
		go func() { _, _ = client.Key(t.Context(), someKey) }()
	}
	for range 16 {
		select {
		case <-asked:
		case <-time.After(5 * time.Second):
			t.Fatal("the key manager was not asked")
		}
	}
	ctx, cancel := context.WithTimeout(turns.WithCaller(t.Context(), turns.Caller{Tenant: "another"}), 3*time.Second)
	defer cancel()
	if _, err := client.Encryption(ctx, someVolume); err != nil {
		t.Errorf("Cinder answers at once, but another tenant's request ends with: %v", err)
	}
}
