package app

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/statuspage"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/moves"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// A report lists at most maxTenants tenants, and maxMistakes mistakes of a refused
// policy.
const (
	maxTenants  = 1000
	maxMistakes = 100
)

// report describes the replica. It never holds one lock while it waits for another, so
// its parts may be moments apart.
func (s *server) report(about statuspage.Request) statusreport.Report {
	inForce := s.policy.Load()
	leads := s.leads.Load()
	s.status.mu.Lock()
	ready, holder := s.status.ready, s.status.holder
	s.status.mu.Unlock()

	r := statusreport.Report{
		APIVersion: statusreport.APIVersion, Kind: statusreport.Kind, Time: inSeconds(time.Now()),
		Program: statusreport.Program{Version: s.options.Build.Version, Commit: s.options.Build.Commit},
		Replica: statusreport.Replica{
			Identity: s.identity, Namespace: s.namespace, ProvisionerName: s.options.ProvisionerName,
			Ready: ready, Leads: leads.term != nil, LeadsSince: inSeconds(leads.since),
		},
		Leader:    statusreport.Leader{Identity: holder},
		Selection: s.selection(inForce, about),
	}
	if s.options.LeaderElect {
		r.Leader.Lease = s.namespace + "/" + wiring.LeaseName(s.options.ProvisionerName)
	}
	s.reportPolicy(&r, inForce)
	used := func(policy.QuotaScope) *policy.Usage { return nil }
	census := ledger.Census{}
	if leads.term == nil {
		r.LeaderOnly = leaderOnly(holder, s.identity)
	} else {
		r.Leader.Identity = s.identity
		hub := leads.term.provisioner
		selected := provisioner.Selected{Claim: about.Claim, Limit: about.Limit}
		if r.Selection != nil && r.Selection.Namespace == "" {
			selected.Namespaces = s.namespacesOf(inForce, r.Selection.Tenant)
		} else if r.Selection != nil {
			selected.Namespace = r.Selection.Namespace
		}
		claims, deletions := hub.ReportClaims(selected), hub.ReportDeletions(selected)
		r.Claims, r.Deletions = &claims, &deletions
		r.Expansions, r.Snapshots = leads.term.reportExpansions(selected), leads.term.reportSnapshots(selected)
		r.Attachments = leads.term.reportAttachments(selected)
		r.Audit = leads.term.auditor.result(selected)
		if r.Selection == nil {
			r.Moves = reportMoves(leads.term.moves)
		}
		r.Pods = leads.term.pods.result(r.Selection != nil)
		census = hub.Census()
		used = func(scope policy.QuotaScope) *policy.Usage {
			sum := census.Sums[ledger.Scope{Kind: scope.Kind, Name: scope.Name}]
			return &sum
		}
	}
	quotas := quotasOf(inForce, used)
	r.Backends = s.reportBackends(inForce, leads.term, quotas)
	r.Tenants, r.TenantsNotShown = reportTenants(inForce, r.Selection, quotas, census)
	r.KeptVolumes = reportKept(r.Selection, census)
	return r
}

func leaderOnly(holder, identity string) string {
	const missing = "usage, health of backends, claims and deletions"
	switch holder {
	case "":
		return fmt.Sprintf("this replica does not lead and knows no leader: only a leader knows %s", missing)
	case identity:
		return fmt.Sprintf("this replica is about to lead: it does not know %s yet", missing)
	}
	return fmt.Sprintf("this replica does not lead: ask %s for %s", holder, missing)
}

// selection returns the selected tenant, or the selected namespace with its tenant.
func (s *server) selection(inForce *policy.Policy, about statuspage.Request) *statusreport.Selection {
	isTenant := func(name string) bool {
		return slices.ContainsFunc(inForce.Tenants, func(t policy.Tenant) bool { return t.Name == name })
	}
	namespace := about.Namespace
	switch {
	case about.Find != "" && isTenant(about.Find):
		return &statusreport.Selection{Tenant: about.Find}
	case about.Find != "":
		namespace = about.Find
	case about.Tenant != "" && isTenant(about.Tenant):
		return &statusreport.Selection{Tenant: about.Tenant}
	case about.Tenant != "":
		return &statusreport.Selection{Message: fmt.Sprintf("the policy has no tenant %q", about.Tenant)}
	case namespace == "":
		return nil
	}
	chosen := &statusreport.Selection{Namespace: namespace, Claim: about.Claim}
	tenant, denial := inForce.TenantOf(namespace, s.namespaceLabels(namespace))
	if denial != nil {
		chosen.Message = denial.Message
		return chosen
	}
	chosen.Tenant = tenant.Name
	return chosen
}

// namespacesOf returns the namespaces of a tenant; none if it has no name.
func (s *server) namespacesOf(inForce *policy.Policy, tenant string) sets.Set[string] {
	names := sets.New[string]()
	all, err := s.factory.Core().V1().Namespaces().Lister().List(labels.Everything())
	if err != nil {
		// Listing a cache never fails.
		panic(err)
	}
	for _, namespace := range all {
		if of, denial := inForce.TenantOf(namespace.Name, namespace.Labels); denial == nil && of.Name == tenant {
			names.Insert(namespace.Name)
		}
	}
	return names
}

// namespaceLabels returns the labels from the cache. Those of a namespace that does not
// exist follow from its name.
func (s *server) namespaceLabels(name string) map[string]string {
	namespace, err := s.factory.Core().V1().Namespaces().Lister().Get(name)
	if err != nil {
		return policy.NamespaceLabels(name, nil)
	}
	return namespace.Labels
}

func (s *server) reportPolicy(r *statusreport.Report, inForce *policy.Policy) {
	unreadable := s.status.unreadableByBackend()
	refusedRevision, refused := s.status.refusal()
	r.Policy = statusreport.Policy{File: s.options.PolicyFile, Revision: inForce.Revision(), Source: statusreport.FromFile, KeptIn: s.lastGood.String(), RefusedRevision: refusedRevision}
	if s.fromKept.Load() {
		r.Policy.Source = statusreport.FromLastGood
	}
	var mistakes policy.ErrorList
	switch {
	case errors.As(refused, &mistakes):
		for _, mistake := range mistakes[:min(len(mistakes), maxMistakes)] {
			r.Policy.Refused = append(r.Policy.Refused, mistake.Error())
		}
		if more := len(mistakes) - maxMistakes; more > 0 {
			r.Policy.Refused = append(r.Policy.Refused, fmt.Sprintf("and %d more", more))
		}
	case refused != nil:
		r.Policy.Refused = strings.Split(refused.Error(), "\n")
	}
	r.Credentials = []statusreport.CredentialTrouble{}
	for _, backend := range slices.Sorted(maps.Keys(unreadable)) {
		r.Credentials = append(r.Credentials, statusreport.CredentialTrouble{Backend: backend, Message: unreadable[backend].Error()})
	}
}

// quotasOf returns the limits of each scope and, if it is known, what counts
// against them.
func quotasOf(inForce *policy.Policy, used func(policy.QuotaScope) *policy.Usage) map[ledger.Scope][]statusreport.Quota {
	quotas := map[ledger.Scope][]statusreport.Quota{}
	for _, scope := range inForce.Scopes() {
		var sum policy.Usage
		known := used(scope)
		if known != nil {
			sum = *known
		}
		var limits []statusreport.Quota
		for _, l := range scope.Limits.Limits(sum) {
			if l.OfSnapshots && scope.Kind == policy.BackendScope {
				continue
			}
			quota := statusreport.Quota{Resource: statusreport.Resource(l.Key), Limit: l.Most}
			if known != nil {
				quota.Used = &l.Used
			}
			limits = append(limits, quota)
		}
		quotas[ledger.Scope{Kind: scope.Kind, Name: scope.Name}] = limits
	}
	return quotas
}

func (s *server) reportBackends(inForce *policy.Policy, of *term, quotas map[ledger.Scope][]statusreport.Quota) []statusreport.Backend {
	all := []statusreport.Backend{}
	for i := range inForce.Backends {
		backend := &inForce.Backends[i]
		all = append(all, statusreport.Backend{
			Name: backend.Name, Suspended: backend.Suspended,
			Quotas:       quotas[ledger.Scope{Kind: policy.BackendScope, Name: backend.Name}],
			Certificates: certificatesOf(s.pool.Expiry(wiring.BackendConfig(inForce, backend, s.cluster))),
		})
	}
	for _, name := range s.retired.names() {
		all = append(all, statusreport.Backend{Name: name, Retired: true, Quotas: []statusreport.Quota{}})
	}
	var lifecycles map[string]*backends.Lifecycle
	if of != nil {
		lifecycles = of.backends.present()
	}
	for i := range all {
		all[i].State = statusreport.Unknown
		if of == nil {
			continue
		}
		lifecycle, ok := lifecycles[all[i].Name]
		if !ok {
			all[i].State = statusreport.Unused
			continue
		}
		condition := lifecycle.Condition()
		all[i].State = statusreport.CircuitOpen
		if condition.Answers {
			all[i].State = statusreport.Answers
		}
		all[i].Since, all[i].FailuresInARow = inSeconds(condition.Since), condition.FailuresInARow
		all[i].LastFailure, all[i].LastFailureAt = condition.LastFailure, inSeconds(condition.LastFailureAt)
	}
	return all
}

// certificatesOf lists the certificates that were seen.
func certificatesOf(found backends.Expiry) []statusreport.Certificate {
	return slices.DeleteFunc([]statusreport.Certificate{
		{Of: "client", Expires: found.ClientCertificate}, {Of: "keystone", Expires: found.Keystone}, {Of: "cinder", Expires: found.Cinder},
	}, func(c statusreport.Certificate) bool { return c.Expires.IsZero() })
}

func reportTenants(inForce *policy.Policy, selection *statusreport.Selection, quotas map[ledger.Scope][]statusreport.Quota, census ledger.Census) (all []statusreport.Tenant, notShown int) {
	shares := map[string][]statusreport.Share{}
	for share, used := range census.Shares {
		shares[share.Tenant] = append(shares[share.Tenant], shareOf(share, used))
	}
	all = []statusreport.Tenant{}
	for _, tenant := range inForce.Tenants {
		if selection != nil && tenant.Name != selection.Tenant {
			continue
		}
		if len(all) == maxTenants {
			notShown++
			continue
		}
		t := statusreport.Tenant{
			Name:   tenant.Name,
			Quotas: quotas[ledger.Scope{Kind: policy.TenantScope, Name: tenant.Name}],
			Rules:  []statusreport.Rule{}, Shares: shares[tenant.Name],
		}
		slices.SortFunc(t.Shares, func(x, y statusreport.Share) int { return cmp.Compare(x.Backend, y.Backend) })
		for _, class := range tenant.Classes {
			t.Rules = append(t.Rules, statusreport.Rule{
				Path: class.Path(), StorageClasses: class.StorageClasses, Backends: class.Backends,
				Quotas: quotas[ledger.Scope{Kind: policy.ClassScope, Name: class.Path()}],
			})
		}
		all = append(all, t)
	}
	return all, notShown
}

func reportKept(selection *statusreport.Selection, census ledger.Census) []statusreport.Kept {
	var all []statusreport.Kept
	for share, used := range census.Kept {
		if selection == nil || share.Tenant == selection.Tenant {
			all = append(all, statusreport.Kept{Tenant: share.Tenant, Share: shareOf(share, used)})
		}
	}
	slices.SortFunc(all, func(x, y statusreport.Kept) int {
		return cmp.Or(cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(x.Backend, y.Backend))
	})
	return all
}

func reportMoves(reporter *moves.Reporter) []statusreport.Move {
	counts, err := reporter.Counts()
	if err != nil {
		return nil // The cache never returns an error.
	}
	var all []statusreport.Move
	for group, count := range counts {
		all = append(all, statusreport.Move{
			Copy: group.Copy, Share: statusreport.Share{Backend: group.Backend, Volumes: int64(count.Volumes), Gigabytes: count.GiB}, Oldest: inSeconds(count.Oldest),
		})
	}
	slices.SortFunc(all, func(x, y statusreport.Move) int {
		return cmp.Or(cmp.Compare(x.Copy, y.Copy), cmp.Compare(x.Backend, y.Backend))
	})
	return all
}

func shareOf(share ledger.Share, used policy.Usage) statusreport.Share {
	return statusreport.Share{Backend: share.Backend, Volumes: used.Volumes, Gigabytes: used.Gigabytes}
}

// inSeconds returns a time in the precision of reports.
func inSeconds(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Second)
}
