package provisioner

import (
	"context"
	"sync"

	"golang.org/x/time/rate"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
)

// tenantRates limits the request rate of every tenant, across all backends.
type tenantRates struct {
	policy func() *policy.Policy

	mu       sync.Mutex
	byTenant map[string]*rate.Limiter
}

func newTenantRates(p func() *policy.Policy) *tenantRates {
	return &tenantRates{policy: p, byTenant: map[string]*rate.Limiter{}}
}

// of returns the limiter of a tenant under the policy in force, or nil if the
// tenant has no limit.
func (p *tenantRates) of(tenant string) *rate.Limiter {
	t, ok := p.policy().Tenant(tenant)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ok || t.Limits.RequestsPerSecond <= 0 {
		delete(p.byTenant, tenant)
		return nil
	}
	limit := rate.Limit(t.Limits.RequestsPerSecond)
	burst := max(1, int(limit))
	limiter, ok := p.byTenant[tenant]
	if !ok {
		limiter = rate.NewLimiter(limit, burst)
		p.byTenant[tenant] = limiter
	}
	if limiter.Limit() != limit {
		limiter.SetLimit(limit)
		limiter.SetBurst(burst)
	}
	return limiter
}

// OnBehalfOf marks requests to Cinder as a tenant's, so that tenants take turns at a
// backend and stay within their request rates.
func (p *tenantRates) OnBehalfOf(ctx context.Context, tenant string) context.Context {
	return turns.WithCaller(ctx, turns.Caller{Tenant: tenant, Pace: p.of(tenant), Waits: liveness.PauseOf(ctx), Answered: requestids.Answered(ctx)})
}
