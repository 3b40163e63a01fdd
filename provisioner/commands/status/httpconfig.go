package status

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/transport"
	"sigs.k8s.io/yaml"
)

// httpConfig is what a replica with a --web-config-file may demand, in Prometheus' format
// for HTTP clients:
// https://prometheus.io/docs/prometheus/latest/configuration/configuration/#http_config
type httpConfig struct {
	TLS struct {
		CAFile     string `json:"ca_file"`
		CertFile   string `json:"cert_file"`
		KeyFile    string `json:"key_file"`
		ServerName string `json:"server_name"`
		Insecure   bool   `json:"insecure_skip_verify"`
	} `json:"tls_config"`
	BasicAuth struct {
		Username     string `json:"username"`
		UsernameFile string `json:"username_file"`
		Password     string `json:"password"`
		PasswordFile string `json:"password_file"`
	} `json:"basic_auth"`
}

// readHTTPConfig returns the transport that a file describes. Names of files in it are
// relative to it.
func readHTTPConfig(path string) (http.RoundTripper, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var config httpConfig
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		return nil, fmt.Errorf("cannot be read as tls_config and basic_auth: %w", err)
	}
	near := func(name string) string {
		if name == "" || filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(filepath.Dir(path), name)
	}
	value := func(given, file string) string {
		if file == "" {
			return given
		}
		text, problem := os.ReadFile(near(file))
		err = errors.Join(err, problem)
		return strings.TrimSpace(string(text))
	}
	tls, login := config.TLS, config.BasicAuth
	wanted := &transport.Config{
		TLS:      transport.TLSConfig{CAFile: near(tls.CAFile), CertFile: near(tls.CertFile), KeyFile: near(tls.KeyFile), ServerName: tls.ServerName, Insecure: tls.Insecure},
		Username: value(login.Username, login.UsernameFile), Password: value(login.Password, login.PasswordFile),
	}
	if err != nil {
		return nil, err
	}
	return transport.New(wanted)
}
