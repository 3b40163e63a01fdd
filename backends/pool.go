package backends

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
)

// PoolOptions configure a Pool.
type PoolOptions struct {
	// Size is how many logged-in clients are kept; 0 means 64. One more
	// evicts the client that was used longest ago.
	Size    int
	Sources auth.Sources
	Metrics *Metrics
	// CredentialsAge is how long credentials count as unchanged without a
	// look at their files; 0 means one second. It bounds the file reads of a
	// busy backend.
	CredentialsAge time.Duration
	// MayWrite is cinder.Options.MayWrite.
	MayWrite func() error
}

// Pool keeps one logged-in client per backend. An entry is keyed by the
// backend's name and versioned by a hash of configuration and credentials, so
// that changed credentials are used at the next look-up, without a restart.
type Pool struct {
	sources  auth.Sources
	metrics  *Metrics
	age      time.Duration
	mayWrite func() error
	logins   singleflight.Group
	// seal makes what CheckCredentials returns useless for guessing passwords.
	seal []byte

	mu      sync.Mutex
	clients *lru.Cache[string, *pooled]
	// readings holds each backend's last good reading of its credentials.
	readings map[string]*auth.Reading
}

type pooled struct {
	version string
	client  *cinder.Client
	// config is the version of the configuration alone and read the time at
	// which the credentials were last compared with their files.
	config string
	read   time.Time
}

// NewPool makes an empty pool; nobody is logged in yet.
func NewPool(options PoolOptions) *Pool {
	size := options.Size
	if size <= 0 {
		size = 64
	}
	age := options.CredentialsAge
	if age <= 0 {
		age = time.Second
	}
	// An evicted client is only forgotten, never closed: a caller may be in
	// the middle of a request with it. Its idle connections time out.
	clients, err := lru.New[string, *pooled](size)
	if err != nil {
		// lru.New refuses only sizes below one.
		panic(err)
	}
	return &Pool{sources: options.Sources, metrics: options.Metrics, age: age, mayWrite: options.MayWrite, seal: []byte(rand.Text()),
		clients: clients, readings: map[string]*auth.Reading{}}
}

// Client returns a logged-in client for the backend. Look-ups that need a
// login at the same time share one. Changed credentials are noticed within a
// second, or at once after Forget. While they cannot be read, as a file that is
// being written, the client that is logged in with the last good ones stays.
func (p *Pool) Client(ctx context.Context, config Config) (*cinder.Client, error) {
	config = config.withDefaults()
	configVersion := fingerprint.Of(config)
	if client, ok := p.fresh(config.Name, configVersion); ok {
		return client, nil
	}
	found, err := p.resolve(config, configVersion)
	if err != nil {
		if client, ok := p.working(config.Name, configVersion); ok {
			return client, nil
		}
		return nil, err
	}
	if client, ok := p.lookup(config.Name, found.Version, configVersion); ok {
		return client, nil
	}
	// The login outlives the caller that happened to come first: others wait
	// for it too. Every caller stops waiting when its own context ends.
	result := p.logins.DoChan(config.Name+" "+found.Version, func() (any, error) {
		// A caller that looked before the previous login ended finds its fruit.
		if client, ok := p.peek(config.Name, found.Version); ok {
			return client, nil
		}
		client, err := cinder.Login(context.WithoutCancel(ctx), found, cinder.Options{
			Backend:        config.Name,
			Workflow:       config.Workflow,
			Limits:         config.Limits,
			RequestTimeout: config.Timeouts.Request,
			Metrics:        p.metrics.Requests,
			MayWrite:       p.mayWrite,
		})
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.clients.Add(config.Name, &pooled{version: found.Version, client: client, config: configVersion, read: time.Now()})
		return client, nil
	})
	select {
	case <-ctx.Done():
		return nil, cinder.NotSent(config.Name, cinder.OperationLogin, ctx.Err())
	case done := <-result:
		if done.Err != nil {
			return nil, done.Err
		}
		return done.Val.(*cinder.Client), nil
	}
}

// fresh finds a client whose credentials were compared with their files a
// moment ago.
func (p *Pool) fresh(name, configVersion string) (*cinder.Client, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry, ok := p.clients.Get(name)
	if !ok || entry.config != configVersion || time.Since(entry.read) > p.age {
		return nil, false
	}
	p.metrics.lookup(name, "hit")
	return entry.client, true
}

// resolve reads the credentials and notes whether that went well.
func (p *Pool) resolve(config Config, configVersion string) (auth.Credentials, error) {
	p.mu.Lock()
	last := p.readings[config.Name]
	p.mu.Unlock()
	now := time.Now()
	next, err := p.sources.Reread(config.credentials(), configVersion, last)
	p.metrics.credentialsRead(config.Name, now, err == nil)
	if err != nil {
		return auth.Credentials{}, &cinder.Error{Backend: config.Name, Kind: cinder.KindConfig, Message: err.Error()}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readings[config.Name] = next
	found := next.Credentials()
	found.Version = fingerprint.Of(configVersion, found.Version)
	return found, nil
}

// CheckCredentials reads the backend's credentials now, without a request, and
// has a change of them used by the next look-up. The version stays the same
// while the credentials do and this process lives; it tells nothing about
// them. The error is of KindConfig and without secrets; a client that is logged
// in with the last good credentials goes on being used.
func (p *Pool) CheckCredentials(config Config) (version string, err error) {
	config = config.withDefaults()
	found, err := p.resolve(config, fingerprint.Of(config))
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Whether a client is used is not for this look to say: Peek leaves the
	// order of eviction alone.
	if entry, ok := p.clients.Peek(config.Name); ok {
		entry.read = time.Time{}
		if entry.version == found.Version {
			entry.read = time.Now()
		}
	}
	mac := hmac.New(sha256.New, p.seal)
	mac.Write([]byte(found.Version))
	return hex.EncodeToString(mac.Sum(nil)[:12]), nil
}

// working finds the client of this configuration although its credentials
// cannot be read any more. They are looked at again when their age is over.
func (p *Pool) working(name, configVersion string) (*cinder.Client, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry, ok := p.clients.Get(name)
	if !ok || entry.config != configVersion {
		return nil, false
	}
	p.metrics.lookup(name, "hit")
	entry.read = time.Now()
	return entry.client, true
}

func (p *Pool) lookup(name, version, configVersion string) (*cinder.Client, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry, ok := p.clients.Get(name)
	switch {
	case !ok:
		p.metrics.lookup(name, "miss")
		return nil, false
	case entry.version != version:
		p.metrics.lookup(name, "changed")
		return nil, false
	}
	p.metrics.lookup(name, "hit")
	entry.config, entry.read = configVersion, time.Now()
	return entry.client, true
}

func (p *Pool) peek(name, version string) (*cinder.Client, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry, ok := p.clients.Peek(name)
	if !ok || entry.version != version {
		return nil, false
	}
	return entry.client, true
}

// Forget drops a client whose credentials were refused, so that the next
// look-up logs in afresh. It does nothing when another login has replaced the
// client meanwhile.
func (p *Pool) Forget(client *cinder.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if entry, ok := p.clients.Peek(client.Backend()); ok && entry.client == client {
		p.clients.Remove(client.Backend())
	}
}
