package mappers_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// golden is a case file of testdata: what Cinder answered, and what else the
// provisioner knows.
type golden struct {
	// Source says where the document comes from, in one line.
	Source   string
	Request  goldenRequest
	Document json.RawMessage
}

// goldenRequest holds what differs from the request that most cases share.
type goldenRequest struct {
	FSType      string
	Block       bool
	MultiAttach bool
	AccessModes []corev1.PersistentVolumeAccessMode
	Initiator   *string
	WWPNs       []string
	Mappings    map[string]mapping.Mapping
}

const (
	testPV        = "pvc-5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d0001"
	testSecret    = testPV + "-credentials"
	testNamespace = "standalone-cinder"
	testInitiator = "iqn.2026-01.org.example:kubernetes"
	testNQN       = "nqn.2014-08.org.nvmexpress:uuid:6953a373-c3f7-4ea8-ae77-105c393012ff"
)

// plainRequest returns the request that the tests vary.
func plainRequest() mappers.Request {
	return mappers.Request{
		PVName:      testPV,
		SecretName:  testSecret,
		Backend:     "gold",
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Connector:   mappers.Connector{Host: "node-1", Initiator: testInitiator, NQN: testNQN},
		Volume:      mappers.Volume{ID: "7c1f8b52-3d6e-4a0b-9a51-2f0c6f4be001", Name: testPV, SizeGiB: 10, Type: "fast", Zone: "az1"},
		Claim:       mappers.Claim{Namespace: "team-a", Name: "data", UID: "5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d0001"},
		Tenant:      "team-a",
	}
}

func newRegistry(t testing.TB) *mappers.Registry {
	t.Helper()
	registry, err := mappers.New(mappers.Options{SecretNamespace: testNamespace, Protocols: mappers.BuiltIn()})
	if err != nil {
		t.Fatal(err)
	}
	return registry
}

func readGolden(t testing.TB, path string) (golden, mappers.Request) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read golden
	if err := yaml.UnmarshalStrict(content, &read); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if read.Source == "" || strings.Contains(read.Source, "\n") {
		t.Errorf("%s: \"source\" must say in one line where the document comes from", path)
	}
	request := plainRequest()
	request.FSType, request.Block, request.MultiAttach = read.Request.FSType, read.Request.Block, read.Request.MultiAttach
	if read.Request.AccessModes != nil {
		request.AccessModes = read.Request.AccessModes
	}
	if read.Request.Initiator != nil {
		request.Connector.Initiator = *read.Request.Initiator
	}
	request.Connector.WWPNs = read.Request.WWPNs
	request.Mappings = read.Request.Mappings
	return read, request
}

func goldenPaths(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden cases: %v", err)
	}
	return paths
}

// mapDocument parses a document and maps the connection.
func mapDocument(registry *mappers.Registry, document []byte, request mappers.Request) (mappers.Result, error) {
	connection, err := mappers.ParseConnection(document)
	if err != nil {
		return mappers.Result{}, err
	}
	request.Connection = connection
	return registry.Map(request)
}

// render writes a result as a golden file shows it, secrets included.
func render(t *testing.T, result mappers.Result) string {
	t.Helper()
	view := map[string]any{"source": result.Source, "readOnly": result.ReadOnly}
	if result.Secret != nil {
		values := map[string]string{}
		for key, value := range result.Secret.Data {
			values[key] = string(value)
		}
		secret := map[string]any{
			"namespace": result.Secret.Namespace, "name": result.Secret.Name,
			"type": result.Secret.Type, "values": values,
		}
		if result.Secret.Shared {
			secret["shared"] = true
		}
		view["secret"] = secret
	}
	if len(result.MountOptions) > 0 {
		view["mountOptions"] = result.MountOptions
	}
	if len(result.Warnings) > 0 {
		view["warnings"] = result.Warnings
	}
	text, err := yaml.Marshal(view)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestGolden(t *testing.T) {
	registry := newRegistry(t)
	for _, path := range goldenPaths(t) {
		stem := strings.TrimSuffix(path, ".json")
		t.Run(strings.TrimPrefix(stem, "testdata/"), func(t *testing.T) {
			read, request := readGolden(t, path)
			result, err := mapDocument(registry, read.Document, request)

			var refusal *mappers.Refusal
			var want, got, stale string
			switch {
			case err == nil:
				want, stale, got = stem+".golden.yaml", stem+".refused.txt", render(t, result)
			case errors.As(err, &refusal):
				want, stale, got = stem+".refused.txt", stem+".golden.yaml", fmt.Sprintf("%s: %s\n", refusal.Reason, refusal.Message)
			default:
				t.Fatalf("error is no refusal: %v", err)
			}
			if *update {
				if err := os.WriteFile(want, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(stale); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				return
			}
			expected, err := os.ReadFile(want)
			if err != nil {
				t.Fatalf("%v; got:\n%s", err, got)
			}
			if string(expected) != got {
				t.Errorf("%s differs; got:\n%s\nwant:\n%s", want, got, expected)
			}
			if _, err := os.Stat(stale); err == nil {
				t.Errorf("%s is left over", stale)
			}
		})
	}
}

func TestEveryProtocolHasGoldenDataFromADriver(t *testing.T) {
	for _, protocol := range newRegistry(t).Protocols() {
		mapped, err := filepath.Glob(filepath.Join("testdata", protocol, "*.golden.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		documented := slices.ContainsFunc(mapped, func(path string) bool {
			read, _ := readGolden(t, strings.TrimSuffix(path, ".golden.yaml")+".json")
			return strings.HasPrefix(read.Source, "cinder/") || strings.Contains(read.Source, "recorded from Cinder")
		})
		if !documented {
			t.Errorf("protocol %s has no mapped case in testdata/%s whose source is a Cinder driver or a recording", protocol, protocol)
		}
	}
}

func TestEveryGoldenDirectoryIsAProtocol(t *testing.T) {
	directories, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	known := newRegistry(t).Protocols()
	for _, directory := range directories {
		// "other" holds what no mapper is asked about, and "fuzz" belongs to go
		// test.
		if name := directory.Name(); name != "other" && name != "fuzz" && !slices.Contains(known, name) {
			t.Errorf("testdata/%s is the name of no protocol (known: %s)", name, strings.Join(known, ", "))
		}
	}
}

// TestEnvelopesMapAlike: the facts of a volume do not depend on the API that
// they came from.
func TestEnvelopesMapAlike(t *testing.T) {
	registry := newRegistry(t)
	facts := map[string]any{
		"target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume-1", "target_lun": 3,
		"auth_method": "CHAP", "auth_username": "user", "auth_password": "not-a-real-secret",
	}
	flat := map[string]any{"driver_volume_type": "iscsi", "attachment_id": "a"}
	for key, value := range facts {
		flat[key] = value
	}
	nested := map[string]any{"driver_volume_type": "iscsi", "data": facts}
	want := ""
	for _, document := range []map[string]any{
		nested,
		{"connection_info": nested},
		flat,
		{"connection_info": flat},
		{"attachment": map[string]any{"attach_mode": "null", "connection_info": flat}},
	} {
		encoded, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		connection, err := mappers.ParseConnection(encoded)
		if err != nil {
			t.Fatal(err)
		}
		request := plainRequest()
		request.Connection = connection
		result, err := registry.Map(request)
		if err != nil {
			t.Fatal(err)
		}
		got := render(t, result)
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("%v maps to\n%s\nnot to\n%s", document, got, want)
		}
	}
}
