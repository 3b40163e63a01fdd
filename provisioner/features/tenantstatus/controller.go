// Package tenantstatus keeps one object in each namespace of a tenant, in which those who
// may view the namespace read what the policy gives them, what they use, and what was
// denied. The object is a projection: everything in it can be made again, and nothing
// reads it. It needs the component tenant-status, which has the CRD.
package tenantstatus

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

const (
	// lookEvery is how often the controller compares what is with what it wrote last. It
	// comes to one write in each namespace at most, however much changes there.
	lookEvery = 2 * time.Second
	// listEvery is how soon an object that somebody removed or edited is repaired.
	listEvery = time.Minute
	// listAgain is how soon to try again when the objects cannot be listed, as without
	// their CRD.
	listAgain = 10 * time.Second

	workers = 8
	// writesAtOnce lets a change of the policy reach a thousand namespaces in seconds;
	// writesPerSecond is what a tenant can cause that keeps changing what it uses.
	writesAtOnce    = 1000
	writesPerSecond = 50
	requestTimeout  = 10 * time.Second
)

// Objects are the objects of all namespaces.
type Objects interface {
	// List returns those of this installation by namespace.
	List(ctx context.Context) (map[string]Found, error)
	Apply(ctx context.Context, namespace, digest string, content *Content) (types.UID, error)
	// Delete fails if another object has taken the name.
	Delete(ctx context.Context, namespace string, uid types.UID) error
}

// Found is an object that exists. Its Digest is empty if it must be written again.
type Found struct {
	UID    types.UID
	Digest string
}

// Options configure a Controller.
type Options struct {
	Objects Objects
	Policy  func() *policy.Policy
	Usage   Usage
	// Waiting lists what waits in all namespaces.
	Waiting    func() []Waiting
	Namespaces corelisters.NamespaceLister
	// Tell reports that no object can be kept, to operators.
	Tell   func(message string)
	Logger *slog.Logger
	// Board is the term's.
	Board *parking.Board

	// Monitor watches the work. MaxWorkTime exceeds anything that the work may wait for.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound
}

// Controller keeps the objects during one term.
type Controller struct {
	Options
	loop  *worker.Loop[string]
	limit flowcontrol.RateLimiter
	// listed means that the last list succeeded, and told that an operator was told of one
	// that failed. nextList is when the next one is due. Only Run uses them.
	listed, told bool
	nextList     time.Time

	mu sync.Mutex
	// kept are by namespace. lists counts the lists that began.
	kept  map[string]*object
	lists int
	// failing counts the objects whose last write failed.
	failing int
}

// object is one namespace's.
type object struct {
	// wanted is the content to write, with its digest; empty if the namespace is to have
	// none. The content is dropped when it is written.
	wanted  string
	content *Content
	// uid and written are what exists.
	uid     types.UID
	written string
	// failed means that the last write failed, and will be tried again.
	failed bool
	// list is the number of lists when it was written last.
	list int
}

func (o *object) isDone() bool { return o.wanted == o.written && (o.wanted == "") == (o.uid == "") }

// New makes the Controller of one term.
func New(options Options) *Controller {
	c := &Controller{Options: options, kept: map[string]*object{}, limit: flowcontrol.NewTokenBucketRateLimiter(writesPerSecond, writesAtOnce)}
	c.loop = worker.New(worker.Options[string]{
		Name: "tenant statuses", Workers: workers, Do: c.do,
		Describe: func(namespace string) string {
			return "the worker that writes the TenantStatus of namespace " + namespace
		},
		Board: options.Board, Monitor: options.Monitor, MaxWorkTime: options.MaxWorkTime,
	})
	return c
}

// Run works until the context ends.
func (c *Controller) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { c.loop.Run(ctx) })
	defer group.Wait()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.look(ctx)
		}
	}
}

// look queues the namespaces whose objects are not as they should be.
func (c *Controller) look(ctx context.Context) {
	if !time.Now().Before(c.nextList) {
		c.list(ctx)
	}
	if !c.listed {
		return
	}
	if wanted := c.wanted(); wanted != nil {
		c.loop.Add(c.compare(wanted)...)
	}
}

// list learns which objects exist: those that an earlier leader wrote, and what has become
// of this one's.
func (c *Controller) list(ctx context.Context) {
	c.mu.Lock()
	c.lists++
	now := c.lists
	c.mu.Unlock()
	trying, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := c.Objects.List(trying)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		c.nextList = time.Now().Add(listAgain)
		// A list that fails in passing stops nothing: what was written last is known.
		if isMissing := apierrors.IsNotFound(err) || apierrors.IsForbidden(err); isMissing || !c.listed {
			c.listed = false
			c.tellOnce(err, isMissing)
		}
		return
	}
	if c.told && !c.listed {
		c.Logger.Info("TenantStatus objects are kept again")
	}
	c.listed, c.nextList = true, time.Now().Add(listEvery)
	c.mu.Lock()
	defer c.mu.Unlock()
	for namespace := range found {
		if c.kept[namespace] == nil {
			c.kept[namespace] = &object{}
		}
	}
	for namespace, o := range c.kept {
		// A list does not show what was written after it began.
		if o.list < now {
			o.uid, o.written = found[namespace].UID, found[namespace].Digest
		}
	}
}

// tellOnce reports, once in a term, that the objects cannot be kept.
func (c *Controller) tellOnce(err error, isMissing bool) {
	if c.told {
		return
	}
	c.told = true
	if isMissing {
		err = fmt.Errorf("install the component tenant-status, which has their CRD and the rights, or remove --tenant-status: %w", err)
	}
	c.Logger.Warn("TenantStatus objects cannot be kept; all else works", "error", err)
	c.Tell("tenants cannot see their quotas and rules in their namespaces: " + err.Error())
}

// wanted returns the content for each namespace of a tenant; nil if the policy changed
// meanwhile.
func (c *Controller) wanted() map[string]*Content {
	namespaces, err := c.Namespaces.List(labels.Everything())
	if err != nil {
		// Listing a cache never fails.
		panic(err)
	}
	waiting := map[string][]Waiting{}
	for _, one := range c.Waiting() {
		waiting[one.Namespace] = append(waiting[one.Namespace], one)
	}
	p, common, wanted := c.Policy(), map[string]*Content{}, map[string]*Content{}
	for _, namespace := range namespaces {
		tenant, denial := p.TenantOf(namespace.Name, namespace.Labels)
		// Nothing can be created in a namespace that is being deleted.
		if denial != nil || namespace.DeletionTimestamp != nil {
			continue
		}
		content := common[tenant.Name]
		if content == nil {
			content = contentOf(p, tenant, c.Usage)
			common[tenant.Name] = content
		}
		if here := waiting[namespace.Name]; len(here) > 0 {
			content = content.with(p, here)
		}
		wanted[namespace.Name] = content
	}
	if c.Policy() != p {
		// The usage may be that of the next policy, where another tenant's rule has the
		// path of this tenant's.
		return nil
	}
	return wanted
}

// compare returns the namespaces that need a write and do not wait for another try.
func (c *Controller) compare(wanted map[string]*Content) (due []string) {
	// Most namespaces share the content of their tenant.
	digests := map[*Content]string{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for namespace, content := range wanted {
		o := c.kept[namespace]
		if o == nil {
			o = &object{}
			c.kept[namespace] = o
		}
		if digests[content] == "" {
			digests[content] = content.digest()
		}
		o.wanted, o.content = digests[content], content
	}
	for namespace, o := range c.kept {
		if wanted[namespace] == nil {
			o.wanted, o.content = "", nil
		}
		if o.isDone() {
			o.content = nil
			if o.wanted == "" && !o.failed {
				delete(c.kept, namespace)
			}
		} else if !o.failed {
			due = append(due, namespace)
		}
	}
	return due
}

// do writes or deletes the object of one namespace.
func (c *Controller) do(ctx context.Context, a *worker.Attempt[string]) worker.Outcome {
	again := worker.Outcome{Retry: &backoff.Delay{Outcome: "kubernetes", First: time.Second, Most: time.Minute}}
	if err := c.limit.Wait(ctx); err != nil {
		return again
	}
	c.mu.Lock()
	o := c.kept[a.Key]
	// Without its content, a list has just shown that it must be written again.
	if o == nil || o.isDone() || o.wanted != "" && o.content == nil {
		c.settle(a.Key, o, nil)
		c.mu.Unlock()
		return worker.Outcome{Done: true}
	}
	now := *o
	c.mu.Unlock()

	trying, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	uid, err := c.write(trying, a.Key, now)
	if ctx.Err() != nil {
		return again // or the next leader continues
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept[a.Key] != o {
		return worker.Outcome{Done: true} // a list has shown that it is gone
	}
	if err == nil {
		o.uid, o.written, o.list = uid, now.wanted, c.lists
	}
	c.settle(a.Key, o, err)
	if err != nil {
		return again
	}
	return worker.Outcome{Done: true}
}

// write writes or deletes an object, and returns the UID of the one that exists then.
func (c *Controller) write(ctx context.Context, namespace string, o object) (types.UID, error) {
	if o.wanted != "" {
		if o.uid != "" && o.written == "" {
			// Somebody has edited it, and what only they wrote would stay.
			if err := c.remove(ctx, namespace, o.uid); err != nil {
				return "", err
			}
		}
		content, at := *o.content, metav1.Now().Rfc3339Copy()
		content.UpdatedAt = &at
		return c.Objects.Apply(ctx, namespace, o.wanted, &content)
	}
	return "", c.remove(ctx, namespace, o.uid)
}

// remove deletes an object, unless it is gone or another one has taken the name.
func (c *Controller) remove(ctx context.Context, namespace string, uid types.UID) error {
	err := c.Objects.Delete(ctx, namespace, uid)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// settle notes how an attempt ended. The log gets the first failure, and that all objects
// are written again: a thousand namespaces may fail for one cause.
func (c *Controller) settle(namespace string, o *object, err error) {
	switch {
	case o == nil || o.failed == (err != nil):
	case err != nil:
		o.failed = true
		if c.failing++; c.failing == 1 {
			c.Logger.Warn("Cannot write the TenantStatus of a namespace; trying again", "namespace", namespace, "error", err)
		}
	default:
		o.failed = false
		if c.failing--; c.failing == 0 {
			c.Logger.Info("Every TenantStatus is written again")
		}
	}
}
