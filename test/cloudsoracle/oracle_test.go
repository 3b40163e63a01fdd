package cloudsoracle

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gophercloud/utils/v2/openstack/clientconfig"
	"gopkg.in/yaml.v3"
)

// reading is a case as the product records it.
type reading struct {
	Case        string
	Files       files
	Region      string
	Environment map[string]string
	Cloud       any
	Login       any
	Oracle      map[string]string
	Why         string
}

func TestClientconfigReadsTheSame(t *testing.T) {
	content, err := os.ReadFile("../../backends/auth/testdata/cloudsreadings.json")
	if err != nil {
		t.Fatal(err)
	}
	var readings []reading
	if err := json.Unmarshal(content, &readings); err != nil {
		t.Fatal(err)
	}
	if len(readings) == 0 {
		t.Fatal("no readings to compare with")
	}
	withoutOpenStack(t)
	differing := 0
	for _, r := range readings {
		t.Run(r.Case, func(t *testing.T) {
			for name, value := range r.Environment {
				t.Setenv(name, value)
			}
			cloud, login := read(t, r.Files, r.Region)
			compare(t, r, fields(r.Cloud, r.Login), fields(cloud, login))
		})
		if len(r.Oracle) > 0 {
			differing++
		}
	}
	t.Logf("%d cases compared, %d of them with differences that have a reason", len(readings), differing)
}

// compare compares clientconfig's reading field by field with the product's
// reading and its listed differences.
func compare(t *testing.T, r reading, product, oracle map[string]string) {
	t.Helper()
	want := maps.Clone(product)
	for _, field := range slices.Sorted(maps.Keys(r.Oracle)) {
		value := r.Oracle[field]
		if product[field] == value && !hasBelow(product, field) {
			t.Errorf("%s is %q in both readings; remove the listed difference", field, value)
		}
		maps.DeleteFunc(want, func(other, _ string) bool { return other == field || strings.HasPrefix(other, field+".") })
		if value != "" {
			want[field] = value
		}
	}
	all := maps.Clone(want)
	maps.Copy(all, oracle)
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if want[field] != oracle[field] {
			t.Errorf("%s: clientconfig has %q, want %q", field, oracle[field], want[field])
		}
	}
}

func hasBelow(values map[string]string, field string) bool {
	for other := range values {
		if strings.HasPrefix(other, field+".") {
			return true
		}
	}
	return false
}

// read reads the cloud gold, and makes the login that Keystone would receive.
// Nil means an error.
func read(t *testing.T, f files, region string) (cloud, login any) {
	t.Helper()
	options := clientconfig.ClientOpts{Cloud: "gold", RegionName: region, YAMLOpts: f}
	found, err := clientconfig.GetCloudFromYAML(&options)
	if err != nil {
		return nil, nil
	}
	// Its NewServiceClient prefers the requested region.
	if region != "" {
		found.RegionName = region
	}
	cloud = generic(t, found)
	auth, err := clientconfig.AuthOptions(&options)
	if err != nil {
		return cloud, nil
	}
	scope, err := auth.ToTokenV3ScopeMap()
	if err != nil {
		return cloud, nil
	}
	body, err := auth.ToTokenV3CreateMap(scope)
	if err != nil {
		return cloud, nil
	}
	return cloud, generic(t, body["auth"])
}

// generic returns a value after a round trip through JSON.
func generic(t *testing.T, value any) any {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var decoded any
	if err := json.Unmarshal(encoded, &decoded); err != nil {
		t.Fatal(err)
	}
	return decoded
}

// fields maps the path of every value of a reading to the value. The two
// spellings of an interface count as one, verification is the default, and the
// list of regions counts only as far as it affects other fields.
func fields(cloud, login any) map[string]string {
	if cloud == nil {
		return map[string]string{"cloud": "refused"}
	}
	found := map[string]string{"login": "refused", "cloud.verify": "true"}
	flatten(found, "cloud", cloud)
	if login != nil {
		delete(found, "login")
		flatten(found, "login", login)
	}
	if found["cloud.endpoint_type"] == "" && found["cloud.interface"] != "" {
		found["cloud.endpoint_type"] = found["cloud.interface"]
	}
	delete(found, "cloud.interface")
	maps.DeleteFunc(found, func(field, _ string) bool { return strings.HasPrefix(field, "cloud.regions.") })
	return found
}

func flatten(into map[string]string, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, element := range value {
			flatten(into, path+"."+key, element)
		}
	case []any:
		for i, element := range value {
			flatten(into, fmt.Sprintf("%s.%d", path, i), element)
		}
	default:
		into[path] = fmt.Sprint(value)
	}
}

// files are clouds.yaml and the files next to it, by name. clientconfig's own
// search would find this machine's.
type files map[string]string

func (f files) LoadCloudsYAML() (map[string]clientconfig.Cloud, error) {
	return load(f["clouds.yaml"])
}

func (f files) LoadSecureCloudsYAML() (map[string]clientconfig.Cloud, error) {
	return load(f["secure.yaml"])
}

func (f files) LoadPublicCloudsYAML() (map[string]clientconfig.Cloud, error) {
	var document clientconfig.PublicClouds
	err := yaml.Unmarshal([]byte(f["clouds-public.yaml"]), &document)
	return document.Clouds, err
}

func load(content string) (map[string]clientconfig.Cloud, error) {
	var document clientconfig.Clouds
	err := yaml.Unmarshal([]byte(content), &document)
	return document.Clouds, err
}

// withoutOpenStack hides the machine's OS_* variables, which clientconfig
// reads.
func withoutOpenStack(t *testing.T) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OS_") {
			t.Setenv(name, "")
		}
	}
}
