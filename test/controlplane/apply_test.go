package controlplane

import (
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestDecodeSplitsListsAndSkipsComments(t *testing.T) {
	for _, test := range []struct {
		name, document string
		want           []string
		wantErr        string
	}{
		{"object", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}", []string{"a"}, ""},
		{"JSON", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`, []string{"a"}, ""},
		{"list", "kind: List\napiVersion: v1\nitems:\n- {kind: ConfigMap, apiVersion: v1, metadata: {name: a}}\n- {kind: Secret, apiVersion: v1, metadata: {name: b}}", []string{"a", "b"}, ""},
		{"empty list", "kind: List\napiVersion: v1\nitems: []", nil, ""},
		{"comments", "# nothing\n# here\n", nil, ""},
		{"empty", "", nil, ""},
		{"duplicate field", "kind: ConfigMap\napiVersion: v1\nkind: Secret", nil, `yaml: unmarshal errors:
  line 3: key "kind" already set in map`},
		{"no kind", "metadata: {name: a}", nil, `Object 'Kind' is missing in '{"metadata":{"name":"a"}}'`},
	} {
		t.Run(test.name, func(t *testing.T) {
			objects, err := decode([]byte(test.document))
			var message string
			if err != nil {
				message = err.Error()
			}
			if message != test.wantErr {
				t.Errorf("error:\n got %s\nwant %s", message, test.wantErr)
			}
			if len(objects) != len(test.want) {
				t.Fatalf("got %d objects, want %d", len(objects), len(test.want))
			}
			for i, object := range objects {
				if object.GetName() != test.want[i] {
					t.Errorf("object %d: got %s, want %s", i, object.GetName(), test.want[i])
				}
			}
		})
	}
}

func testApply(t *testing.T, plane *ControlPlane, client kubernetes.Interface) {
	configMap := func(t *testing.T, name string) *core.ConfigMap {
		t.Helper()
		object, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), name, meta.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	t.Run("several manifests, documents and lists, in order", func(t *testing.T) {
		err := plane.Apply(t.Context(), []byte(`
# A comment alone is no document.
---
apiVersion: v1
kind: Namespace
metadata: {name: applied}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: listed, namespace: applied}, data: {number: "1"}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: applied}, data: {number: "2"}}
`), []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"json"},"data":{"number":"3"}}`))
		if err != nil {
			t.Fatal(err)
		}
		listed, err := client.CoreV1().ConfigMaps("applied").Get(t.Context(), "listed", meta.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := listed.Data["number"] + configMap(t, "applied").Data["number"] + configMap(t, "json").Data["number"]
		if got != "123" {
			t.Errorf("got %s, want 123", got)
		}
	})
	t.Run("changes to what exists, whoever made it", func(t *testing.T) {
		made := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "foreign"}, Data: map[string]string{"ours": "old", "theirs": "kept"}}
		if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), made, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		mustApply(t, plane, "{kind: ConfigMap, apiVersion: v1, metadata: {name: foreign}, data: {ours: new}}")
		if got := configMap(t, "foreign").Data; got["ours"] != "new" || got["theirs"] != "kept" {
			t.Errorf("got %v", got)
		}
	})
	t.Run("a kind and an object of it", func(t *testing.T) {
		mustApply(t, plane, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: samples.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: samples, singular: sample, kind: Sample, listKind: SampleList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
---
apiVersion: example.org/v1
kind: Sample
metadata: {name: one}
spec: {size: 1}
`)
		body, err := client.Discovery().RESTClient().Get().AbsPath("/apis/example.org/v1/namespaces/default/samples/one").DoRaw(t.Context())
		if err != nil || !strings.Contains(string(body), `"size":1`) {
			t.Errorf("got %s, %v", body, err)
		}
	})
	for _, test := range []struct{ name, manifest, want string }{
		{
			"nothing with an unknown field",
			"{kind: ConfigMap, apiVersion: v1, metadata: {name: typo}, dta: {}}",
			`apply: manifest 2: document 1: ConfigMap default/typo: failed to create typed patch object (default/typo; /v1, Kind=ConfigMap): .dta: field not declared in schema`,
		},
		{
			"nothing of an unknown kind",
			"---\n{kind: ConfigMap, apiVersion: v1, metadata: {name: fine}}\n---\n{kind: Nothing, apiVersion: example.org/v1, metadata: {name: x}}",
			`apply: manifest 2: document 2: Nothing x: no matches for kind "Nothing" in version "example.org/v1"`,
		},
		{
			"nothing without a name",
			"{kind: ConfigMap, apiVersion: v1, metadata: {generateName: x}}",
			`apply: manifest 2: document 1: ConfigMap : metadata.name is missing`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := plane.Apply(t.Context(), []byte("# no object\n"), []byte(test.manifest))
			if err == nil || err.Error() != test.want {
				t.Errorf("\n got %v\nwant %s", err, test.want)
			}
		})
	}
}
