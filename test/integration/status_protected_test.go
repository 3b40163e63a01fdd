package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestStatusCommandsAskProtectedReplicas asks replicas with a web configuration
// through the proxy of a real API server.
//
//tier:outage
func TestStatusCommandsAskProtectedReplicas(t *testing.T) {
	t.Parallel()
	const (
		certificate = "tls_server_config: {cert_file: tls.crt, key_file: tls.key"
		// The hash is that of the password hunter2 (bcrypt).
		login = "basic_auth_users: {prometheus: $2a$04$lNuS1TAKld8P.ZqmBhGvBehNoDjWHbqXKbDhMMFIcT8WtE1l8B9tm}"
	)
	address := proxyableAddress(t)
	w := &statusWorld{world: newWorld(t, "shut", cindersim.Options{})}
	w.kubeconfig, w.plugin = w.operator(), w.linkPlugin()
	start := func(i int, webConfig string) (replica *harness.Replica, pod string) {
		authority := authtest.NewAuthority(t)
		_, _, cert, key := authority.Issue("server", false)
		dir := authtest.WriteFiles(t, map[string]string{"web.yaml": webConfig, "tls.crt": cert, "tls.key": key, "ca.crt": authority.PEM})
		pod = w.podName(i)
		replica = w.startPod(pod, address, "--web-config-file", filepath.Join(dir, "web.yaml"), "--health-listen", "127.0.0.1:0")
		return replica, pod
	}

	// The leader has TLS alone, with a certificate of an authority that nobody knows.
	leader, leaderPod := start(0, certificate+"}\n")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if strings.Contains(leader.Log(), `"msg":"Leading"`) {
			return "", nil
		}
		return "nobody leads yet", nil
	}))
	text := w.ask(suite.Program, leader, 0, "status")
	w.contains("status of a leader with TLS", text, "leader   "+leaderPod+"_")
	text = w.ask(w.plugin, leader, 0, "quota", "shut-b")
	w.contains("quota by a leader with TLS", text, "tenant-b")

	for i, c := range []struct {
		webConfig, want, scheme string
	}{
		{certificate + "}\n" + login + "\n", "asks for a login", "https"},
		{login + "\n", "asks for a login", "http"},
		{certificate + ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert}\n", "does not accept the TLS connection of the API server's proxy, probably because it asks for a client certificate", "https"},
	} {
		replica, pod := start(i+1, c.webConfig)
		text := w.ask(suite.Program, replica, 2, "status", "--pod", pod)
		w.contains("status of "+pod, text, "pod "+harness.Namespace+"/"+pod+" "+c.want, "port-forward "+pod, "--url "+c.scheme+"://127.0.0.1:", "--http-config-file")
	}
}
