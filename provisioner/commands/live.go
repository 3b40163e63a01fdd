package commands

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// maxSkew is how far the clocks of a backend and of this machine may differ without a
// warning. It is well above the time of a request, and below what makes it hard to
// compare the logs of the two.
const maxSkew = time.Minute

// LiveCheck asks the backends of policies whether they can do what the policies
// require. It tries one login for each account, until one succeeds: Keystone may lock
// an account after a few wrong passwords, and a policy may use it in many backends and
// files.
type LiveCheck struct {
	protocols mappers.Protocols
	// pause is the time between two attempts to remove a volume.
	pause time.Duration

	mu       sync.Mutex
	accounts map[string]*account
}

// NewLiveCheck makes a check that maps connections of the protocols.
func NewLiveCheck(protocols mappers.Protocols) *LiveCheck {
	return &LiveCheck{protocols: protocols, pause: 2 * time.Second, accounts: map[string]*account{}}
}

// account is an account at a Keystone. The first login decides: if it is rejected
// or gets no answer, there is no second one.
type account struct {
	mu      sync.Mutex
	tried   bool
	failure error
}

// Check asks all backends concurrently.
func (l *LiveCheck) Check(ctx context.Context, p *policy.Policy, options policycli.LiveOptions) policycli.LiveReport {
	run := &liveRun{LiveCheck: l, policy: p, options: options, metrics: backends.NewMetrics(prometheus.NewRegistry()), advice: map[string]string{}, reported: map[string]bool{}}
	run.sources = auth.Sources{CloudsFile: options.CloudsFile}
	run.pool = backends.NewPool(backends.PoolOptions{Sources: run.sources, Metrics: run.metrics, Size: len(p.Backends) + 1, Warn: run.warn})
	var group sync.WaitGroup
	for i := range p.Backends {
		b := &liveBackend{run: run, Backend: &p.Backends[i], path: document.Element("backends", i)}
		b.config = wiring.BackendConfig(p, b.Backend, cmp.Or(p.ClusterID, trialHost))
		b.answer.Name = b.Name
		run.backends = append(run.backends, b)
		group.Go(func() { b.ask(ctx) })
	}
	group.Wait()
	var report policycli.LiveReport
	for _, b := range run.backends {
		report.Backends = append(report.Backends, b.answer)
		report.Findings = append(report.Findings, b.findings...)
	}
	if ctx.Err() != nil {
		// All other findings result from the interruption.
		report.Findings = []policycli.Finding{{Path: "backends", Message: "the command was interrupted; not all was checked"}}
		return report
	}
	report.Findings = append(report.Findings, run.ruleFindings()...)
	report.Findings = append(report.Findings, run.quotaFindings()...)
	if options.MakeVolume {
		trials, findings := run.tryVolumes(ctx)
		report.Trials, report.Findings = trials, append(report.Findings, findings...)
	}
	return report
}

// liveRun is the check of one policy.
type liveRun struct {
	*LiveCheck
	policy   *policy.Policy
	options  policycli.LiveOptions
	sources  auth.Sources
	pool     *backends.Pool
	metrics  *backends.Metrics
	backends []*liveBackend

	mu sync.Mutex
	// advice is what the logins show about a backend in addition to success.
	advice map[string]string
	// reported are the warnings about credentials, which their check has given.
	reported map[string]bool
}

func (r *liveRun) warn(backend, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.reported[message] {
		r.advice[backend] = message
	}
}

func (r *liveRun) adviceOn(backend string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.advice[backend]
}

func (r *liveRun) backend(name string) *liveBackend {
	for _, b := range r.backends {
		if b.Name == name {
			return b
		}
	}
	return nil
}

// liveBackend is a backend and what it answered.
type liveBackend struct {
	*policy.Backend
	run    *liveRun
	path   string
	config backends.Config
	// client is nil unless the backend is reachable.
	client *cinder.Client

	answer   policycli.LiveBackend
	findings []policycli.Finding
	// types and zones are nil if they could not be read, and empty if there are
	// none.
	types     []cinder.VolumeType
	zones     []cinder.Zone
	quota     cinder.ProjectQuota
	hasQuota  bool
	noDefault bool
}

// ask logs in and reads what the endpoint offers. The backend's own timeout bounds each
// request.
func (b *liveBackend) ask(ctx context.Context) {
	client, err := b.login(ctx)
	if err == nil {
		place, entry := client.Place(), client.CatalogEntry()
		b.answer.Endpoint, b.answer.Project, b.answer.Region, b.answer.Interface = client.Address(), place.Project, entry.Region, entry.Interface
		if advice := b.run.adviceOn(b.Name); advice != "" {
			b.findings = warning(b.path+".auth", "backend %s: %s", b.Name, advice)
		}
		err = client.ListVolumes(ctx, cinder.Query{PageSize: 1}, func([]cinder.Volume) bool { return false })
		b.compareClocks(client)
	}
	if err != nil {
		b.answer.Error = err.Error()
		b.findings = append(b.findings, mistake(b.path+".auth", "%s", err)...)
		return
	}
	b.client, b.answer.Reachable = client, true
	// The order of the findings must not depend on which answer arrives first.
	steps := []func(context.Context) []policycli.Finding{b.readWorkflow, b.readTypes, b.readZones, b.readQuota}
	found := make([][]policycli.Finding, len(steps))
	var group sync.WaitGroup
	for i, step := range steps {
		group.Go(func() { found[i] = step(ctx) })
	}
	group.Wait()
	for _, findings := range found {
		b.findings = append(b.findings, findings...)
	}
}

// login logs in, unless an earlier login of the same account has shown that it
// would fail.
func (b *liveBackend) login(ctx context.Context) (*cinder.Client, error) {
	found, err := b.run.sources.Resolve(b.config.Auth)
	if err != nil {
		return nil, fmt.Errorf("backend %s cannot log in with these credentials: %w", b.Name, err)
	}
	b.run.mu.Lock()
	for _, warning := range found.Warnings {
		b.run.reported[warning] = true
	}
	b.run.mu.Unlock()
	key := found.Account()
	if key == "" {
		return b.run.pool.Client(ctx, b.config)
	}
	b.run.LiveCheck.mu.Lock()
	a := b.run.accounts[key]
	if a == nil {
		a = &account{}
		b.run.accounts[key] = a
	}
	b.run.LiveCheck.mu.Unlock()
	a.mu.Lock()
	if !a.tried {
		defer a.mu.Unlock()
		client, err := b.run.pool.Client(ctx, b.config)
		a.tried = true
		switch cinder.KindOf(err) {
		case cinder.KindUnauthorized, cinder.KindForbidden, cinder.KindRateLimited, cinder.KindUnavailable:
			a.failure = err
		}
		return client, err
	}
	a.mu.Unlock()
	if a.failure != nil {
		return nil, fmt.Errorf("backend %s was not tried, since the login with the same account has just failed: %w", b.Name, a.failure)
	}
	return b.run.pool.Client(ctx, b.config)
}

func (b *liveBackend) compareClocks(client *cinder.Client) {
	ahead, known := client.ClockAhead()
	if !known {
		return
	}
	// A Date header has no fractions of a second, so it is half a second old on
	// average.
	ahead = (ahead + time.Second/2).Round(time.Second)
	seconds := int64(ahead / time.Second)
	b.answer.ClockAheadSeconds = &seconds
	if ahead.Abs() > maxSkew {
		direction := "ahead of"
		if ahead < 0 {
			direction = "behind"
		}
		b.findings = append(b.findings, warning(b.path, "backend %s: its clock is %s %s this machine's, more than %s; fix the one that is wrong, since the ages of volumes and tokens are judged by them",
			b.Name, ahead.Abs(), direction, maxSkew)...)
	}
}

// unread returns the finding about something that could not be read and is therefore
// not checked.
func (b *liveBackend) unread(what string, err error) []policycli.Finding {
	return warning(b.path, "%s cannot be read and are not checked: %s", what, err)
}

func (b *liveBackend) readWorkflow(ctx context.Context) []policycli.Finding {
	newest, err := b.client.MaxMicroversion(ctx)
	if err != nil {
		return b.unread("the microversions", err)
	}
	var findings []policycli.Finding
	b.answer.Microversion = fmt.Sprintf("3.%d", newest)
	if newest < cinder.MicroversionMessages {
		findings = warning(b.path, "backend %s offers microversions only up to 3.%d; without 3.%d, events do not say why Cinder failed to create a volume", b.Name, newest, cinder.MicroversionMessages)
	}
	workflow, err := b.client.Workflow(ctx)
	if err != nil {
		return append(findings, mistake(b.path+".workflow", "%s", err)...)
	}
	b.answer.Workflow = string(workflow)
	if rule := b.csiRule(); rule != "" && workflow != cinder.WorkflowAttachment {
		findings = append(findings, mistake(rule, "mode csi needs microversion 3.44, but backend %s offers only up to 3.%d; use mode native", b.Name, newest)...)
	}
	return findings
}

// csiRule returns the first rule that makes volumes of the CSI driver on the backend;
// empty if there is none.
func (b *liveBackend) csiRule() string {
	for _, tenant := range b.run.policy.Tenants {
		for _, class := range tenant.Classes {
			if slices.Contains(class.Backends, b.Name) && class.ModeOn(*b.Backend) == policy.ModeCSI {
				return class.Path()
			}
		}
	}
	return ""
}

func (b *liveBackend) readTypes(ctx context.Context) []policycli.Finding {
	types, err := b.client.VolumeTypes(ctx)
	if err != nil {
		return b.unread("the volume types", err)
	}
	b.types = append([]cinder.VolumeType{}, types...)
	for _, t := range types {
		b.answer.VolumeTypes = append(b.answer.VolumeTypes, t.Name)
	}
	byDefault, err := b.client.DefaultVolumeType(ctx)
	b.answer.DefaultType = byDefault.Name
	b.noDefault = cinder.IsKind(err, cinder.KindNotFound)
	if err != nil && !b.noDefault {
		return b.unread("the default volume type", err)
	}
	return nil
}

func (b *liveBackend) readZones(ctx context.Context) []policycli.Finding {
	zones, err := b.client.Zones(ctx)
	if err != nil {
		return b.unread("the availability zones", err)
	}
	b.zones = append([]cinder.Zone{}, zones...)
	for _, zone := range zones {
		b.answer.Zones = append(b.answer.Zones, zone.Name)
	}
	return nil
}

func (b *liveBackend) readQuota(ctx context.Context) []policycli.Finding {
	quota, err := b.client.Quota(ctx)
	if err != nil {
		return b.unread("Cinder's quotas", err)
	}
	b.quota, b.hasQuota = quota, true
	b.answer.Quota = &policycli.LiveQuota{
		Volumes:   policycli.LiveLimit{Limit: quota.MaxVolumes, Used: quota.Volumes},
		Gigabytes: policycli.LiveLimit{Limit: quota.MaxGigabytes, Used: quota.Gigabytes},
	}
	return nil
}
