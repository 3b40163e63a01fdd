package backends

import (
	"cmp"
	"context"
	"crypto/rand"
	"net"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
)

// PoolOptions configure a Pool.
type PoolOptions struct {
	// Size is how many logged-in clients are kept; 0 means 64. One more evicts
	// the least recently used client.
	Size    int
	Sources auth.Sources
	Metrics *Metrics
	// CredentialsAge is how long credentials count as unchanged without a check of their
	// files; 0 means one second. It limits how often a busy backend reads files.
	CredentialsAge time.Duration
	// MayWrite is cinder.Options.MayWrite.
	MayWrite func() error
	// Dial is cinder.Options.Dial.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Warn is cinder.Options.Warn.
	Warn func(backend, message string)
}

// Pool keeps one logged-in client per backend and configuration: while a backend is
// reconfigured, operations that began before still use the earlier one. An entry's
// version is a hash of configuration and credentials, so the next look-up uses changed
// credentials without a restart.
type Pool struct {
	options PoolOptions
	logins  singleflight.Group
	// salt makes a version useless for guessing passwords.
	salt string

	mu      sync.Mutex
	clients *lru.Cache[key, *pooled]
	// readings holds the last good readings of the credentials. A key contains only what
	// matters to the credentials: a change of anything else must not lose them.
	readings *lru.Cache[key, *auth.Reading]
	// accounts holds the credentials in use, by their hash.
	accounts *lru.Cache[string, *cinder.Account]
	// queues holds every backend's queue, whose limits apply to all of the backend's
	// clients together.
	queues map[string]*turns.Queue
}

// key is a backend in one configuration.
type key struct{ backend, config string }

type pooled struct {
	version string
	client  *cinder.Client
	// read is when the credentials were last compared with their files.
	read time.Time
}

// NewPool returns a pool without logged-in clients.
func NewPool(options PoolOptions) *Pool {
	options.Size = cmp.Or(options.Size, 64)
	options.CredentialsAge = cmp.Or(options.CredentialsAge, time.Second)
	return &Pool{
		options: options,
		salt:    rand.Text(),
		// An evicted client is never closed, since a caller may be using it. Its idle
		// connections time out.
		clients:  newCache[key, *pooled](options.Size),
		readings: newCache[key, *auth.Reading](options.Size),
		accounts: newCache[string, *cinder.Account](options.Size),
		queues:   map[string]*turns.Queue{},
	}
}

func newCache[K comparable, V any](size int) *lru.Cache[K, V] {
	cache, err := lru.New[K, V](size)
	if err != nil {
		// lru.New rejects only sizes below one.
		panic(err)
	}
	return cache
}

// Client returns a logged-in client for the backend. Concurrent look-ups share a login.
// Changed credentials are noticed within a second, or at once after forget. While they
// cannot be read, for example because a file is being written, the last good ones stay in
// use.
func (p *Pool) Client(ctx context.Context, config Config) (*cinder.Client, error) {
	config = config.withDefaults()
	at := key{config.Name, fingerprint.Of(config)}
	if client, ok := p.fresh(at); ok {
		return client, nil
	}
	reading, err := p.read(config)
	if reading == nil {
		return nil, err
	}
	found := reading.Credentials
	found.Version = fingerprint.Of(p.salt, at.config, found.Version)
	client, result := p.lookup(at, found.Version)
	p.options.Metrics.lookup(at.backend, result)
	if client != nil {
		return client, nil
	}
	// The login outlives the caller that happened to come first, since others wait for it
	// too. Every caller stops waiting when its own context ends.
	login := p.logins.DoChan(config.Name+" "+found.Version, func() (any, error) {
		// A caller that looked before the previous login ended finds its result here.
		if client, _ := p.lookup(at, found.Version); client != nil {
			return client, nil
		}
		client, err := cinder.Login(context.WithoutCancel(ctx), found, cinder.Options{
			Backend:        config.Name,
			Workflow:       config.Workflow,
			Limits:         config.Limits,
			Account:        p.account(found),
			Queue:          p.queue(config),
			Warn:           p.options.Warn,
			RequestTimeout: config.Timeouts.Request,
			Metrics:        p.options.Metrics.Requests,
			MayWrite:       p.options.MayWrite,
			Dial:           p.options.Dial,
		})
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.clients.Add(at, &pooled{version: found.Version, client: client, read: time.Now()})
		return client, nil
	})
	select {
	case <-ctx.Done():
		return nil, cinder.NotSent(config.Name, cinder.OperationLogin, ctx.Err())
	case done := <-login:
		if done.Err != nil {
			return nil, done.Err
		}
		return done.Val.(*cinder.Client), nil
	}
}

// fresh finds a client whose credentials were just compared with their files.
func (p *Pool) fresh(at key) (*cinder.Client, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry, ok := p.clients.Get(at)
	if !ok || time.Since(entry.read) > p.options.CredentialsAge {
		return nil, false
	}
	p.options.Metrics.lookup(at.backend, "hit")
	return entry.client, true
}

// read returns the credentials as the files have them now. If they cannot be read, it
// returns the last good ones, if any, and the reason.
func (p *Pool) read(config Config) (*auth.Reading, error) {
	credentials := config.Auth
	at := key{config.Name, fingerprint.Of(credentials)}
	p.mu.Lock()
	last, _ := p.readings.Get(at)
	p.mu.Unlock()
	now := time.Now()
	next, err := p.options.Sources.Reread(credentials, last)
	p.options.Metrics.credentialsRead(config.Name, now, err == nil)
	if err != nil {
		next = last
		err = &cinder.Error{Backend: config.Name, Kind: cinder.KindConfig, Message: err.Error()}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if present, ok := p.readings.Peek(at); ok && err != nil && present != last {
		// Another caller has read the file since, when it was good.
		next = present
	}
	if next != nil {
		p.readings.Add(at, next)
	}
	return next, err
}

// CheckCredentials reads the backend's credentials now, without a request, and makes the
// next look-up use changed ones. Within a process, the version changes only with the
// credentials; it reveals nothing about them. The error has KindConfig and contains no
// secrets; the version is then that of the last good credentials, which stay in use, or
// empty if there are none.
func (p *Pool) CheckCredentials(config Config) (version string, err error) {
	config = config.withDefaults()
	at := key{config.Name, fingerprint.Of(config)}
	reading, err := p.read(config)
	if reading == nil {
		return "", err
	}
	version = fingerprint.Of(p.salt, at.config, reading.Credentials.Version)
	p.mu.Lock()
	defer p.mu.Unlock()
	// Peek does not affect the order of eviction: this is not a use of the
	// client.
	if entry, ok := p.clients.Peek(at); ok {
		entry.read = time.Time{}
		if entry.version == version {
			entry.read = time.Now()
		}
	}
	return version, err
}

// lookup returns the client with that version, and how the metrics call the result.
func (p *Pool) lookup(at key, version string) (client *cinder.Client, result string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry, ok := p.clients.Get(at)
	switch {
	case !ok:
		return nil, "miss"
	case entry.version != version:
		return nil, "changed"
	}
	entry.read = time.Now()
	return entry.client, "hit"
}

// account returns what all clients with this user and secret share.
func (p *Pool) account(found auth.Credentials) *cinder.Account {
	id := found.Account()
	p.mu.Lock()
	defer p.mu.Unlock()
	account, ok := p.accounts.Get(id)
	if !ok {
		account = cinder.NewAccount()
		p.accounts.Add(id, account)
	}
	return account
}

// queue returns the backend's queue, with the limits of the configuration that logs in.
func (p *Pool) queue(config Config) *turns.Queue {
	p.mu.Lock()
	defer p.mu.Unlock()
	queue, ok := p.queues[config.Name]
	if !ok {
		queue = turns.NewQueue(config.Limits)
		p.queues[config.Name] = queue
	}
	queue.SetLimits(config.Limits)
	return queue
}

// Progress reports whether requests to a backend wait for their turn, and a mark
// that changes whenever one gets it.
func (p *Pool) Progress(backend string) (waiting bool, mark string) {
	p.mu.Lock()
	queue, ok := p.queues[backend]
	p.mu.Unlock()
	if !ok {
		return false, ""
	}
	return queue.Progress()
}

// forget drops a client whose credentials were rejected, so that the next
// look-up logs in again. It does nothing if another login has already replaced
// the client.
func (p *Pool) forget(rejected Cinder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.clients.Keys() {
		if entry, ok := p.clients.Peek(at); ok && rejected == (loggedIn{entry.client}) {
			p.clients.Remove(at)
		}
	}
}

// Expiry is when a backend's dependencies expire. A zero time means unknown or never.
type Expiry struct {
	cinder.Expiry
	// ClientCertificate is the certificate that the program presents.
	ClientCertificate time.Time
}

// Expiry returns what the last read of the credentials and the backend's last answers
// have shown. It reads and sends nothing.
func (p *Pool) Expiry(config Config) Expiry {
	config = config.withDefaults()
	p.mu.Lock()
	last, read := p.readings.Peek(key{config.Name, fingerprint.Of(config.Auth)})
	entry, loggedIn := p.clients.Peek(key{config.Name, fingerprint.Of(config)})
	p.mu.Unlock()
	var found Expiry
	if read {
		if settings := last.Credentials.TLS; settings != nil && len(settings.Certificates) > 0 && settings.Certificates[0].Leaf != nil {
			found.ClientCertificate = settings.Certificates[0].Leaf.NotAfter
		}
	}
	if loggedIn {
		// Reading the token's expiry also decodes the catalog, which is too slow
		// to do under the lock.
		found.Expiry = entry.client.Expiry()
	}
	return found
}
