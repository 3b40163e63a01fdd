package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	authentication "k8s.io/api/authentication/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// The users of the token file. All but the administrator have the rights that
// the API server's bootstrap roles give to these names.
const (
	userAdmin             = "admin"
	userControllerManager = "kube-controller-manager"
	userScheduler         = "kube-scheduler"
)

// users returns these users, and those of the nodes.
func users(nodes []string) []string {
	all := []string{userAdmin, userControllerManager, userScheduler}
	for _, node := range nodes {
		all = append(all, nodeUser(node))
	}
	return all
}

// nodePrefix begins the users of nodes. No other user has it.
const nodePrefix = "node:"

func nodeUser(node string) string { return nodePrefix + node }

// ServiceAddress is that of the Service kubernetes, as pods know it. Nothing makes it reach
// the API server but what a test does on its nodes.
const ServiceAddress = "10.0.0.1"

// tokenLifetime is the lifetime of the service account tokens in kubeconfigs:
// longer than any test, since nothing renews them.
const tokenLifetime = 24 * time.Hour

// credentials are all the secrets of one control plane.
type credentials struct {
	certificate     []byte // PEM; the serving certificate and its authority
	certificatePath string
	keyPath         string
	accountKeyPath  string // signs service account tokens
	tokensPath      string
	tokens          map[string]string // by user
}

// loadCredentials reads the keys in dir, or makes them if there are none, and
// gives every user a new token.
func loadCredentials(dir string, nodes []string) (*credentials, error) {
	c := &credentials{
		certificatePath: filepath.Join(dir, "server.crt"),
		keyPath:         filepath.Join(dir, "server.key"),
		accountKeyPath:  filepath.Join(dir, "service-accounts.key"),
		tokensPath:      filepath.Join(dir, "tokens.csv"),
		tokens:          map[string]string{},
	}
	if err := c.loadCertificate(); err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	if err := c.makeAccountKey(); err != nil {
		return nil, fmt.Errorf("service account key: %w", err)
	}
	if err := c.makeTokens(nodes); err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	return c, nil
}

func (c *credentials) loadCertificate() error {
	// The key is written last, so that a certificate is never without one.
	_, err := os.Stat(c.keyPath)
	if err == nil {
		c.certificate, err = os.ReadFile(c.certificatePath)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(ServiceAddress)}, []string{"localhost"})
	if err != nil {
		return err
	}
	c.certificate = certificate
	if err := os.WriteFile(c.certificatePath, certificate, 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.keyPath, key, 0o600)
}

func (c *credentials) makeAccountKey() error {
	if _, err := os.Stat(c.accountKeyPath); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(c.accountKeyPath, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}), 0o600)
}

func (c *credentials) makeTokens(nodes []string) error {
	var file strings.Builder
	for _, user := range users(nodes) {
		token := rand.Text()
		c.tokens[user] = token
		switch {
		case user == userAdmin:
			fmt.Fprintf(&file, "%s,%s,%s,system:masters\n", token, user, user)
		case strings.HasPrefix(user, nodePrefix):
			fmt.Fprintf(&file, "%s,system:%s,%s,system:nodes\n", token, user, user)
		default:
			fmt.Fprintf(&file, "%s,system:%s,%s\n", token, user, user)
		}
	}
	return os.WriteFile(c.tokensPath, []byte(file.String()), 0o600)
}

func (c *ControlPlane) kubeconfigPath(user string) string {
	return filepath.Join(c.dir, strings.ReplaceAll(user, ":", "-")+".kubeconfig")
}

// ServiceAccountKubeconfig writes a kubeconfig that holds a new token of that
// service account and returns its path: a program that runs with it has just
// the rights that RBAC grants to the account. Its default namespace is the
// account's. The account must exist. The token is good for a day.
func (c *ControlPlane) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (path string, err error) {
	seconds := int64(tokenLifetime.Seconds())
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &seconds}}
	answer, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, meta.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of service account %s/%s: %w", namespace, name, err)
	}
	// Neither part of the name can have an underscore in it.
	path = filepath.Join(c.dir, fmt.Sprintf("%s_%s.kubeconfig", namespace, name))
	return path, writeKubeconfig(path, c.serverURL(), c.credentials.certificate, name, namespace, answer.Status.Token)
}

func writeKubeconfig(path, server string, authority []byte, user, namespace, token string) error {
	const cluster = "controlplane"
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{cluster: {Server: server, CertificateAuthorityData: authority}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{user: {Cluster: cluster, AuthInfo: user, Namespace: namespace}},
		CurrentContext: user,
	}
	if err := clientcmd.WriteToFile(config, path); err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", user, err)
	}
	return nil
}
