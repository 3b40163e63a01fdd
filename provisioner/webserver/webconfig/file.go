package webconfig

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"
)

// config is a file. The format has more keys; those that change what Go does by itself, or
// what the package webserver bounds, are refused as unknown.
type config struct {
	TLS *tlsServer `yaml:"tls_server_config"`
	// Users are bcrypt hashes by name.
	Users map[string]string `yaml:"basic_auth_users"`

	// blank says that the file has nothing but comments.
	blank bool
	// folder is where the names of files begin.
	folder string
}

type tlsServer struct {
	CertFile     string   `yaml:"cert_file"`
	KeyFile      string   `yaml:"key_file"`
	ClientAuth   string   `yaml:"client_auth_type"`
	ClientCAFile string   `yaml:"client_ca_file"`
	ClientNames  []string `yaml:"client_allowed_sans"`
	MinVersion   string   `yaml:"min_version"`
}

// read returns what a file says. It does not read the files that it names.
func read(path string) (*config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := &config{folder: filepath.Dir(path)}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	switch err := decoder.Decode(c); {
	case errors.Is(err, io.EOF):
		c.blank = true
		return c, nil
	case err != nil:
		return nil, explain(err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		// What protects may be there.
		return nil, errors.New("a second YAML document begins; remove the line ---")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	var all yaml.Node
	if err := yaml.Unmarshal(text, &all); err != nil {
		return nil, explain(err)
	}
	return c, complete(&all)
}

// complete refuses a key without a value: its lines may be in comments, or not written yet,
// and what it restricts would be free.
func complete(n *yaml.Node) error {
	if n.Tag == "!!null" {
		return fmt.Errorf("line %d: a key has no value; write one, or remove the key", n.Line)
	}
	for _, part := range n.Content {
		if err := complete(part); err != nil {
			return err
		}
	}
	return nil
}

var (
	unknownKey = regexp.MustCompile(`field ([a-z_]{1,40}) not found in type \S+`)
	otherKey   = regexp.MustCompile(`(?s)field .* (not found|already set) in type \S+`)
	// quoted is what the YAML reader repeats of a file. It may be a password.
	quoted = regexp.MustCompile("(?s)`.*`|\".*\"|'.*'")
	// tagged is what it says of a value's type, which is also as the file has it.
	tagged = regexp.MustCompile(`cannot unmarshal \S+( a value)?`)
	goType = regexp.MustCompile(`into \S*(map|struct|webconfig)\S*`)
)

// explain returns an error of the YAML reader without values.
func explain(err error) error {
	text := unknownKey.ReplaceAllString(err.Error(), "$1 is unknown or not supported; remove it")
	text = otherKey.ReplaceAllString(text, "a key is unknown or repeated; remove it")
	text = tagged.ReplaceAllString(quoted.ReplaceAllString(text, "a value"), "cannot unmarshal a value")
	return errors.New(goType.ReplaceAllString(text, "into a mapping"))
}

// check reports what a file cannot mean.
func (c *config) check() error {
	for name, hash := range c.Users {
		if _, err := bcrypt.Cost([]byte(hash)); err != nil || strings.Contains(name, ":") || strings.Contains(name, "$") {
			// Either may be a password, or a part of one.
			return errors.New("basic_auth_users needs names, each with a colon, a space and a bcrypt hash after it; make one with htpasswd -nBC 10 NAME")
		}
	}
	if c.TLS == nil {
		return nil
	}
	_, err := c.TLS.settings()
	return err
}

// pick returns what a value names.
func pick[V any](key, name string, known map[string]V) (V, error) {
	value, ok := known[name]
	if !ok {
		return value, fmt.Errorf("tls_server_config.%s: %q is unknown; choose from %s", key, name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	return value, nil
}

// settings returns what needs no other file.
func (t *tlsServer) settings() (*tls.Config, error) {
	auths, versions := map[string]tls.ClientAuthType{}, map[string]uint16{"TLS12": tls.VersionTLS12, "TLS13": tls.VersionTLS13}
	for auth := tls.NoClientCert; auth <= tls.RequireAndVerifyClientCert; auth++ {
		auths[auth.String()] = auth
	}
	if t.CertFile == "" || t.KeyFile == "" {
		return nil, errors.New("tls_server_config needs cert_file and key_file; write both")
	}
	if strings.Contains(t.CertFile+t.KeyFile+t.ClientCAFile, "-----") {
		// An error must not repeat a key.
		return nil, errors.New("tls_server_config: cert_file, key_file and client_ca_file are names of files, not what belongs into them")
	}
	// A client that resumes a session would not be asked for what the file says by now.
	found := &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true, NextProtos: []string{"h2", "http/1.1"}}
	var err error
	if t.MinVersion != "" {
		if found.MinVersion, err = pick("min_version", t.MinVersion, versions); err != nil {
			return nil, err
		}
	}
	if t.ClientAuth != "" {
		if found.ClientAuth, err = pick("client_auth_type", t.ClientAuth, auths); err != nil {
			return nil, err
		}
	}
	// Without an authority, Go takes those of the system, whose certificates anyone can get.
	verifies := found.ClientAuth >= tls.VerifyClientCertIfGiven
	if verifies != (t.ClientCAFile != "") || t.ClientNames != nil && !verifies {
		return nil, errors.New("tls_server_config: client_ca_file, and client_allowed_sans, need a client_auth_type that verifies, which needs client_ca_file; write it with RequireAndVerifyClientCert")
	}
	if t.ClientNames != nil {
		found.VerifyConnection = func(state tls.ConnectionState) error { return hasName(state.PeerCertificates, t.ClientNames) }
	}
	return found, nil
}

// serverTLS returns the settings with what the files hold.
func (c *config) serverTLS() (*tls.Config, error) {
	found, err := c.TLS.settings()
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(c.near(c.TLS.CertFile), c.near(c.TLS.KeyFile))
	if err != nil {
		return nil, fmt.Errorf("tls_server_config: cert_file and key_file cannot be used: %w", err)
	}
	found.Certificates = []tls.Certificate{pair}
	if c.TLS.ClientCAFile != "" {
		authorities, err := os.ReadFile(c.near(c.TLS.ClientCAFile))
		if err != nil {
			return nil, fmt.Errorf("tls_server_config.client_ca_file: %w", err)
		}
		found.ClientCAs = x509.NewCertPool()
		if !found.ClientCAs.AppendCertsFromPEM(authorities) {
			return nil, errors.New("tls_server_config.client_ca_file has no certificate in PEM format; write that of the authority there")
		}
	}
	return found, nil
}

// near returns the path of a file that is relative to the one that names it.
func (c *config) near(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.folder, name)
}

// hasName checks that a client's certificate is for one of the names.
func hasName(presented []*x509.Certificate, names []string) error {
	if len(presented) > 0 {
		has := slices.Concat(presented[0].DNSNames, presented[0].EmailAddresses)
		for _, address := range presented[0].IPAddresses {
			has = append(has, address.String())
		}
		for _, uri := range presented[0].URIs {
			has = append(has, uri.String())
		}
		if slices.ContainsFunc(has, func(name string) bool { return slices.Contains(names, name) }) {
			return nil
		}
	}
	return errors.New("the client has no certificate with a name of client_allowed_sans")
}
