package wiring

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

func TestDefaultInitiatorIsAValidNameOfItsOwnForEveryCluster(t *testing.T) {
	for cluster, want := range map[string]string{
		"5f2c1c1e-4b1e-4c53-9f8e-0d6f7b3a2c11": "iqn.2018-01.io.k8s.standalone-cinder:5f2c1c1e-4b1e-4c53-9f8e-0d6f7b3a2c11",
		"Prod EU_1":                            "iqn.2018-01.io.k8s.standalone-cinder:prod-eu-1",
	} {
		if got := defaultInitiator(cluster); got != want {
			t.Errorf("%q gives %s, want %s", cluster, got, want)
		}
	}
	if long := defaultInitiator(strings.Repeat("x", 400)); len(long) != 223 {
		t.Errorf("a long cluster id gives a name of %d characters, the limit is 223", len(long))
	}
}

func TestBackendIsTranslatedWhole(t *testing.T) {
	parsed, err := policy.Parse([]byte(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: full
    auth: {cloudConfig: old.conf}
    region: R1
    interface: internal
    limits: {concurrency: 3, requestsPerSecond: 7.5}
    timeouts: {create: 1m, delete: 2m, request: 3s}
    connector: {host: h, ip: 10.0.0.1, initiator: "iqn.2026-01.example:x", wwpns: ["50060e8012345678"], nqn: "nqn.2014-08.org.nvmexpress:uuid:1", multipath: true}
tenants:
  - {name: a, namespaces: [a], classes: [{storageClasses: [c], backends: [full]}]}
`), "/etc/policy/policy.yaml", mappers.BuiltIn().Describe())

	if err != nil {
		t.Fatal(err)
	}
	got := BackendConfig(parsed, &parsed.Backends[0], "cluster")
	if got.Auth.Source.CloudConfig != "/etc/policy/old.conf" || got.Auth.Region != "R1" || got.Auth.Interface != "internal" ||
		got.Limits.Concurrency != 3 || got.Limits.RequestsPerSecond != 7.5 ||
		got.Timeouts.Create != time.Minute || got.Timeouts.Delete != 2*time.Minute || got.Timeouts.Request != 3*time.Second ||
		got.Connector.Host != "h" || got.Connector.IP != "10.0.0.1" || got.Connector.Initiator != "iqn.2026-01.example:x" ||
		len(got.Connector.WWPNs) != 1 || got.Connector.NQN == "" || !got.Connector.Multipath {
		t.Errorf("%+v", got)
	}
}

// TestCloudConfigOfARelativePolicy: the policy's directory is added to the file name
// once.
func TestCloudConfigOfARelativePolicy(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("conf", 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"policy.yaml": `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends: [{name: old, auth: {cloudConfig: old.conf}}]
tenants: [{name: a, namespaces: [a], classes: [{storageClasses: [c], backends: [old]}]}]
`,
		"old.conf": "[Global]\nauth-url=http://k/v3\nuser-id=u\npassword=p\ntenant-id=x\n",
	} {
		if err := os.WriteFile(filepath.Join("conf", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := policy.Load(filepath.Join("conf", "policy.yaml"), mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	config := BackendConfig(parsed, &parsed.Backends[0], "cluster")
	if _, err := (auth.Sources{}).Resolve(config.Auth); err != nil {
		t.Error(err)
	}
}
