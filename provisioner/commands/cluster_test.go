package commands

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// kubeconfigOf writes a kubeconfig file for a server.
func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "` + server + `"}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
users: [{name: test, user: {token: hush}}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestPlacesAreKnownOffline: no request is sent, and no file is read that the
// test did not name.
func TestPlacesAreKnownOffline(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	clouds := write("clouds.yaml", `clouds:
  by-id: {auth: {auth_url: "http://keystone/v3", user_id: u, password: hush, project_id: 0123abcd}}
  by-name: {auth: {auth_url: "http://keystone/v3", user_id: u, password: hush, project_name: storage, project_domain_id: default}}
`)
	write("cloud.conf", "[Global]\nauth-url = http://keystone/v3\nuser-id = u\npassword = hush\ntenant-id = 4567cdef\n")
	t.Setenv("OS_CLIENT_CONFIG_FILE", clouds)
	t.Setenv("OS_CINDER_ENDPOINT", "http://somewhere:8776/v3")
	loaded, err := policy.Load(write("policy.yaml", `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: lab, auth: {noauth: {endpoint: "http://Cinder:8776/v3", user: admin, project: "0123"}}}
  - {name: id, auth: {cloud: by-id}}
  - {name: name, auth: {cloud: by-name}}
  - {name: none, auth: {cloud: nobody}}
  - {name: ini, auth: {cloudConfig: cloud.conf}}
  - {name: absent, auth: {cloudConfig: absent.conf}}
  - {name: environment, auth: {environment: true}}
tenants:
  - {name: a, namespaces: [a], classes: [{storageClasses: [fast], backends: [lab]}]}
`), mappers.BuiltIn().Describe())

	if err != nil {
		t.Fatal(err)
	}
	lab, ini := review.Place{Endpoint: "http://cinder:8776/v3", Project: "0123"}, review.Place{Project: "4567cdef"}
	for file, want := range map[string]map[string]review.Place{
		"":                                   {"lab": lab, "ini": ini},
		clouds:                               {"lab": lab, "ini": ini, "id": {Project: "0123abcd"}},
		filepath.Join(dir, "no-clouds.yaml"): {"lab": lab, "ini": ini},
	} {
		if got := Places(loaded, file); !maps.Equal(got, want) {
			t.Errorf("with clouds.yaml %q\n got %v\nwant %v", file, got, want)
		}
	}
}

// apiServer answers list requests with the given lists, otherwise with an empty one,
// and remembers the requests.
func apiServer(t *testing.T, lists map[string]string) (server *httptest.Server, asked func() []string) {
	t.Helper()
	var mu sync.Mutex
	var requests []string
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, r.Method+" "+r.URL.Path+" "+r.Header.Get("User-Agent"))
		w.Header().Set("Content-Type", "application/json")
		answer := lists[r.URL.Path]
		if answer == "" {
			answer = `{"items": []}`
		}
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	return server, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(requests)
	}
}

func TestReadExistingOfAKubeconfig(t *testing.T) {
	server, asked := apiServer(t, map[string]string{
		"/api/v1/namespaces": `{"kind": "NamespaceList", "apiVersion": "v1", "items": [{"metadata": {"name": "kube-system", "uid": "cluster-1"}}]}`,
		"/api/v1/persistentvolumeclaims": `{"kind": "PersistentVolumeClaimList", "apiVersion": "v1", "items": [
			{"metadata": {"name": "data", "namespace": "team-a", "annotations": {"volume.kubernetes.io/storage-provisioner": "mine"}}, "spec": {"storageClassName": "fast"}}]}`,
	})
	// Whatever the environment says, only the file's cluster gets requests.
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "absent"))
	existing, err := ReadExisting(t.Context(), kubeconfigOf(t, server.URL), "mine")
	if err != nil {
		t.Fatal(err)
	}
	if existing.Cluster != "cluster-1" || len(existing.Claims) != 1 || existing.Claims[0].Name != "data" {
		t.Errorf("%+v", existing)
	}
	want := []string{
		"GET /api/v1/persistentvolumeclaims standalone-cinder",
		"GET /api/v1/persistentvolumes standalone-cinder",
		"GET /api/v1/namespaces standalone-cinder",
		"GET /apis/storage.k8s.io/v1/storageclasses standalone-cinder",
	}
	if got := asked(); !slices.Equal(got, want) {
		t.Errorf("asked %q\nwant %q", got, want)
	}
}

func TestReadExistingOfWhatIsNoCluster(t *testing.T) {
	server, _ := apiServer(t, nil)
	server.Close()
	absent := filepath.Join(t.TempDir(), "absent")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// An environment that leads to a cluster does not replace the file.
	alive, asked := apiServer(t, nil)
	t.Setenv("KUBECONFIG", kubeconfigOf(t, alive.URL))
	for name, test := range map[string]struct{ kubeconfig, begin, end string }{
		"no file":        {"", "no kubeconfig file is given", ""},
		"an absent file": {absent, "kubeconfig " + absent + ": ", "no such file or directory"},
		"an empty file":  {empty, "kubeconfig " + empty + ": it is another file than a kubeconfig", ""},
		"a dead server":  {kubeconfigOf(t, server.URL), "cannot list PersistentVolumeClaims: ", "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadExisting(t.Context(), test.kubeconfig, "mine")
			if err == nil || !strings.HasPrefix(err.Error(), test.begin) || !strings.HasSuffix(err.Error(), test.end) {
				t.Errorf("error %v, want %s...%s", err, test.begin, test.end)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("the error shows the token: %v", err)
			}
		})
	}
	if got := asked(); len(got) > 0 {
		t.Errorf("the environment's cluster was asked: %q", got)
	}
}

func TestReadingIsInterrupted(t *testing.T) {
	server, _ := apiServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ReadExisting(ctx, kubeconfigOf(t, server.URL), "mine"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
