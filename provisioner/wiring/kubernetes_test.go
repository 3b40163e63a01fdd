package wiring

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

const kubeconfigOf = `apiVersion: v1
kind: Config
current-context: there
contexts: [{name: there, context: {cluster: NAME}}, {name: elsewhere, context: {cluster: other}}]
clusters: [{name: NAME, cluster: {server: "https://NAME.example"}}, {name: other, cluster: {server: "https://other.example"}}]
`

// TestCommandsConnectAsKubectl compares with the order that kubectl documents: the flag,
// then the files of $KUBECONFIG together, then the file of the home directory.
func TestCommandsConnectAsKubectl(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(kubeconfigOf, "NAME", name)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	other := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const another = "it is another file than a kubeconfig, which has kind: Config and a cluster; give --kubeconfig"
	home := clientcmd.RecommendedHomeFile
	t.Cleanup(func() { clientcmd.RecommendedHomeFile = home })
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, test := range map[string]struct {
		flag, context, environment, home string
		want, wantErr                    string
	}{
		"the flag before all else":    {flag: write("flag"), environment: write("environment"), home: write("home"), want: "https://flag.example"},
		"a context":                   {flag: write("flag"), context: "elsewhere", want: "https://other.example"},
		"the environment before home": {environment: write("environment"), home: write("home"), want: "https://environment.example"},
		"files of the environment":    {environment: filepath.Join(dir, "missing") + ":" + write("second"), want: "https://second.example"},
		"the home directory":          {home: write("home"), want: "https://home.example"},
		"nothing":                     {wantErr: "no connection to Kubernetes: neither $KUBECONFIG nor ~/.kube/config has a configuration, and this is not a pod; give --kubeconfig"},
		"a context that is missing":   {environment: write("environment"), context: "none", wantErr: `no connection to Kubernetes (give --kubeconfig): context "none" does not exist`},
		"a manifest":                  {flag: other("manifest", "apiVersion: storage.k8s.io/v1\nkind: StorageClass\n"), wantErr: "kubeconfig " + dir + "/manifest: " + another},
		"a clouds.yaml":               {flag: other("clouds.yaml", "clouds: {gold: {}}\n"), wantErr: "kubeconfig " + dir + "/clouds.yaml: " + another},
		"a file that is missing":      {flag: dir + "/none", wantErr: "kubeconfig " + dir + "/none: stat " + dir + "/none: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", test.environment)
			clientcmd.RecommendedHomeFile = filepath.Join(dir, "nowhere")
			if test.home != "" {
				clientcmd.RecommendedHomeFile = test.home
			}
			config, err := ConnectAsKubectl(test.flag, &clientcmd.ConfigOverrides{CurrentContext: test.context})
			switch {
			case err != nil && err.Error() != test.wantErr || err == nil && test.wantErr != "":
				t.Errorf("error %v, want %q", err, test.wantErr)
			case err == nil && config.Host != test.want:
				t.Errorf("the server is %s, want %s", config.Host, test.want)
			}
		})
	}
}
