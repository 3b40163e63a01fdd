package status

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/client-go/transport"
)

// httpConfig is what a replica with a --web-config-file may demand, in Prometheus' format
// for HTTP clients:
// https://prometheus.io/docs/prometheus/latest/configuration/configuration/#http_config
type httpConfig struct {
	TLS struct {
		CAFile     string `yaml:"ca_file"`
		CertFile   string `yaml:"cert_file"`
		KeyFile    string `yaml:"key_file"`
		ServerName string `yaml:"server_name"`
		Insecure   bool   `yaml:"insecure_skip_verify"`
	} `yaml:"tls_config"`
	BasicAuth struct {
		Username     string `yaml:"username"`
		UsernameFile string `yaml:"username_file"`
		Password     string `yaml:"password"`
		PasswordFile string `yaml:"password_file"`
	} `yaml:"basic_auth"`
}

// values are those that the errors of the YAML reader repeat.
var values = regexp.MustCompile("(?s)`.*?`")

// readHTTPConfig returns the transport that a file describes. Names of files in it are
// relative to it.
func readHTTPConfig(path string) (http.RoundTripper, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var config httpConfig
	// A password such as 0123 is a text, although YAML has it for a number.
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&config); err != nil && !errors.Is(err, io.EOF) {
		// A value in the wrong place may be a password.
		return nil, fmt.Errorf("cannot be read as tls_config and basic_auth: %s", values.ReplaceAllString(err.Error(), "a value"))
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
