package policy

import (
	"slices"
	"testing"
)

const snapshotPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
  - {name: silver, auth: {cloud: silver}}
  - {name: old, auth: {cloud: old}, suspended: true}
tenants:
  - name: a
    namespaces: [a]
    quota: {snapshots: 5, snapshotGigabytes: 100}
    classes:
      - {storageClasses: [fast], backends: [gold, old], quota: {snapshots: 2}}
  - name: b
    namespaceSelector: {matchLabels: {tenant: b}}
    classes:
      - {storageClasses: ["*"], backends: [gold, silver]}
`

func TestDecideSnapshot(t *testing.T) {
	p := mustParse(t, snapshotPolicy)
	of := func(change func(*SnapshotRequest)) SnapshotRequest {
		r := SnapshotRequest{Namespace: "a", StorageClass: "fast", Backend: "gold", Tenant: "a"}
		if change != nil {
			change(&r)
		}
		return r
	}
	parameters := func(pairs ...string) SnapshotRequest {
		return of(func(r *SnapshotRequest) {
			r.Parameters = map[string]string{}
			for i := 0; i < len(pairs); i += 2 {
				r.Parameters[pairs[i]] = pairs[i+1]
			}
		})
	}
	for name, test := range map[string]struct {
		request SnapshotRequest
		reason  Reason
		path    string
		message string
	}{
		"granted": {request: of(nil)},
		"granted by labels": {request: of(func(r *SnapshotRequest) {
			r.Namespace, r.NamespaceLabels, r.Tenant = "x", map[string]string{"tenant": "b"}, "b"
		})},
		"a namespace that no tenant names": {of(func(r *SnapshotRequest) { r.Namespace = "x" }), NoMatchingTenant, "tenants",
			"namespace x belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels"},
		"a namespace that cannot be": {of(func(r *SnapshotRequest) { r.Namespace = "A/b" }), InvalidClaim, "", `"A/b" cannot be the name of a namespace`},
		"a volume of another tenant": {of(func(r *SnapshotRequest) { r.Tenant = "b" }), OtherTenant, "tenants[0]",
			"namespace a belongs to tenant a (tenants[0]), but the volume was made for tenant b"},
		"a volume without a tenant": {of(func(r *SnapshotRequest) { r.Tenant = "" }), OtherTenant, "tenants[0]",
			"namespace a belongs to tenant a (tenants[0]), but the volume was made for tenant "},
		"a StorageClass without a rule": {of(func(r *SnapshotRequest) { r.StorageClass = "slow" }), NoMatchingClass, "tenants[0].classes",
			"tenant a has no rule for StorageClass slow (tenants[0].classes)"},
		"a backend that the rule does not name": {of(func(r *SnapshotRequest) { r.Backend = "silver" }), BackendNotGranted, "tenants[0].classes[0].backends",
			"the volume is on backend silver, which tenants[0].classes[0].backends does not name"},
		"a backend that is gone": {of(func(r *SnapshotRequest) { r.Backend = "gone" }), BackendNotGranted, "tenants[0].classes[0].backends",
			"the volume is on backend gone, which tenants[0].classes[0].backends does not name"},
		"a suspended backend": {of(func(r *SnapshotRequest) { r.Backend = "old" }), BackendsSuspended, "backends[2].suspended",
			"backend old, which has the volume, is suspended (backends[2])"},
		"an unknown parameter": {parameters("force", "true", "type", "snapshot"), ParameterNotAllowed, "tenants[0].classes[0]",
			`parameter "force" of the VolumeSnapshotClass is not known; there are only type and incremental`},
		"an unknown type": {parameters("type", "x"), ParameterNotAllowed, "tenants[0].classes[0]",
			`the VolumeSnapshotClass has type "x"; it must be snapshot or backup`},
		"an incremental snapshot": {parameters("incremental", "false"), ParameterNotAllowed, "tenants[0].classes[0]",
			"the VolumeSnapshotClass has incremental without type backup"},
		"a half incremental backup": {parameters("type", "backup", "incremental", "yes"), ParameterNotAllowed, "tenants[0].classes[0]",
			`the VolumeSnapshotClass has incremental "yes"; it must be true or false`},
		"a backup by a rule without": {parameters("type", "backup"), BackupNotGranted, "tenants[0].classes[0]",
			"tenants[0].classes[0] grants no backups; use a VolumeSnapshotClass of type snapshot, or add backups: true to the rule"},
		"a snapshot by its type": {request: parameters("type", "snapshot")},
	} {
		t.Run(name, func(t *testing.T) {
			d := p.DecideSnapshot(test.request)
			if test.reason == "" {
				if d.Denial != nil || d.Tenant != test.request.Tenant || len(d.Backends) != 1 || len(d.Quotas) != 2 {
					t.Errorf("decision %+v", d)
				}
				return
			}
			if d.Denial == nil || d.Denial.Reason != test.reason || d.Denial.Path != test.path || d.Denial.Message != test.message {
				t.Errorf("denial %+v", d.Denial)
			}
		})
	}
}

// TestGroupsAreGrantedByTheirRule: and nothing is taken in a way that the class does not mean.
func TestGroupsAreGrantedByTheirRule(t *testing.T) {
	p := mustParse(t, `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends: [{name: gold, auth: {cloud: gold}}]
tenants:
  - name: a
    namespaces: [a]
    quota: {snapshots: 2}
    classes:
      - {storageClasses: [fast], backends: [gold], groups: true}
      - {storageClasses: [slow], backends: [gold]}
`)
	with := func(consistency string) map[string]string { return map[string]string{"consistency": consistency} }
	for name, test := range map[string]struct {
		class      string
		parameters map[string]string
		reason     Reason
		message    string
	}{
		"granted":                   {"fast", with("none"), "", ""},
		"as by Kubernetes' suite":   {"fast", map[string]string{"consistency": "none", "deletionPolicy": "Delete"}, "", ""},
		"not granted":               {"slow", with("none"), GroupNotGranted, "tenants[0].classes[1] grants no VolumeGroupSnapshots; take VolumeSnapshots, or add groups: true to the rule"},
		"consistent by filesystems": {"fast", with("filesystem"), "", ""},
		"consistent by the array":   {"fast", map[string]string{"consistency": "array", "groupType": "cg"}, "", ""},
		"without a group type":      {"fast", with("array"), ParameterNotAllowed, "the VolumeGroupSnapshotClass has consistency array without groupType, which must name a group type of Cinder with the spec consistent_group_snapshot_enabled"},
		"a group type for nothing":  {"fast", map[string]string{"consistency": "none", "groupType": "cg"}, ParameterNotAllowed, "the VolumeGroupSnapshotClass has groupType without consistency array"},
		"no consistency":            {"fast", nil, ParameterNotAllowed, `the VolumeGroupSnapshotClass has consistency ""; it must be array (the storage takes all snapshots at one moment), filesystem (nobody writes while they are taken) or none (each is taken for itself, at about the same time)`},
		"an unknown consistency":    {"fast", with("x"), ParameterNotAllowed, `the VolumeGroupSnapshotClass has consistency "x"; it must be array (the storage takes all snapshots at one moment), filesystem (nobody writes while they are taken) or none (each is taken for itself, at about the same time)`},
		"a misspelled consistency":  {"fast", map[string]string{"consistency": "arrays", "groupType": "cg"}, ParameterNotAllowed, `the VolumeGroupSnapshotClass has consistency "arrays"; it must be array (the storage takes all snapshots at one moment), filesystem (nobody writes while they are taken) or none (each is taken for itself, at about the same time)`},
		"backups":                   {"fast", map[string]string{"consistency": "none", "type": "backup"}, ParameterNotAllowed, `parameter "type" of the VolumeGroupSnapshotClass is not known; there are only consistency and groupType`},
	} {
		t.Run(name, func(t *testing.T) {
			d := p.DecideSnapshot(SnapshotRequest{Namespace: "a", StorageClass: test.class, Backend: "gold", Tenant: "a", Parameters: test.parameters, Group: true})
			if test.reason == "" {
				if d.Denial != nil || d.Consistency != Consistency(test.parameters["consistency"]) || d.GroupType != test.parameters["groupType"] || len(d.Quotas) != 2 {
					t.Errorf("decision %+v", d)
				}
				return
			}
			if d.Denial == nil || d.Denial.Reason != test.reason || d.Denial.Message != test.message {
				t.Errorf("denial %+v", d.Denial)
			}
		})
	}
}

// TestBackupsAreGrantedByTheirRule: how a backup is made, and what it counts.
func TestBackupsAreGrantedByTheirRule(t *testing.T) {
	p := mustParse(t, `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends: [{name: gold, auth: {cloud: gold}}]
tenants:
  - name: a
    namespaces: [a]
    quota: {snapshots: 0, backups: 2}
    classes: [{storageClasses: [fast], backends: [gold], backups: true, quota: {backupGigabytes: 30}}]
`)
	if !GrantsBackups(p, "gold") || GrantsBackups(p, "silver") || GrantsBackups(mustParse(t, snapshotPolicy), "gold") {
		t.Error("it is not known which policy grants backups")
	}
	for incremental, want := range map[string]Backup{"": FullBackup, "false": FullBackup, "true": IncrementalBackup} {
		parameters := map[string]string{"type": "backup"}
		if incremental != "" {
			parameters["incremental"] = incremental
		}
		d := p.DecideSnapshot(SnapshotRequest{Namespace: "a", StorageClass: "fast", Backend: "gold", Tenant: "a", Parameters: parameters})
		if d.Denial != nil || d.Backup != want {
			t.Errorf("incremental %q: %+v", incremental, d)
		}
		for _, test := range []struct {
			gib  int64
			used []ScopeUsage
			path string
		}{
			{30, []ScopeUsage{{Tenant: "a", Backups: 1}}, ""},
			{31, nil, "tenants[0].classes[0].quota.backupGigabytes"},
			{1, []ScopeUsage{{Tenant: "a", Backups: 2}}, "tenants[0].quota.backups"},
		} {
			used, err := p.Usages(test.used)
			if err != nil {
				t.Fatal(err)
			}
			if denial := d.SnapshotDenial(test.gib, used.Of); denial == nil && test.path != "" || denial != nil && denial.Path != test.path {
				t.Errorf("%d GiB, %+v used: %+v", test.gib, test.used, denial)
			}
		}
	}
}

// TestBackupsAreRestoredOnEveryBackendOfTheSameProject: where a claim with the content of a
// backup may be made.
func TestBackupsAreRestoredOnEveryBackendOfTheSameProject(t *testing.T) {
	p := mustParse(t, `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: one}}
  - {name: silver, auth: {cloud: one}, limits: {concurrency: 2}}
  - {name: other, auth: {cloud: two}}
  - {name: elsewhere, auth: {cloud: one}, region: elsewhere}
tenants:
  - name: a
    namespaces: [a]
    classes: [{storageClasses: [fast], backends: [gold, silver, other, elsewhere]}]
`)
	for isBackup, want := range map[bool][]string{false: {"gold"}, true: {"gold", "silver"}} {
		d := p.Decide(Request{Namespace: "a", StorageClass: "fast", Bytes: 1 << 30, Source: &Source{Name: "it", IsSnapshot: true, IsBackup: isBackup, Tenant: "a", Backend: "gold", SizeGiB: 1}})
		if d.Denial != nil || !slices.Equal(d.Backends, want) {
			t.Errorf("backup %t: %v, %+v", isBackup, d.Backends, d.Denial)
		}
	}
}

func TestSnapshotsCountAgainstTheirQuotas(t *testing.T) {
	p := mustParse(t, snapshotPolicy)
	decision := p.DecideSnapshot(SnapshotRequest{Namespace: "a", StorageClass: "fast", Backend: "gold", Tenant: "a"})
	for name, test := range map[string]struct {
		tenant, rule, gib int64
		message           string
	}{
		"room for one":      {4, 1, 1, ""},
		"room for its size": {4, 1, 40, ""},
		"its size":          {4, 1, 41, "tenant a would use 101 of 100 GiB of snapshots (tenants[0].quota.snapshotGigabytes)"},
		"the rule":          {4, 2, 1, "StorageClasses [fast] of tenant a would use 3 of 2 snapshots (tenants[0].classes[0].quota.snapshots)"},
		"the tenant":        {5, 1, 1, "tenant a would use 6 of 5 snapshots (tenants[0].quota.snapshots)"},
	} {
		t.Run(name, func(t *testing.T) {
			usages, err := p.Usages([]ScopeUsage{{Tenant: "a", Snapshots: test.tenant, SnapshotGigabytes: 60}, {Rule: "tenants[0].classes[0]", Snapshots: test.rule}})
			if err != nil {
				t.Fatal(err)
			}
			message := ""
			if denial := decision.SnapshotDenial(test.gib, usages.Of); denial != nil {
				message = string(denial.Reason) + ": " + denial.Message
			}
			want := ""
			if test.message != "" {
				want = "QuotaExceeded: " + test.message
			}
			if message != want {
				t.Errorf("%q, want %q", message, want)
			}
		})
	}
}

func TestDecideSnapshotImport(t *testing.T) {
	p := mustParse(t, importPolicy)
	const noSuch = `tenant a has kept no snapshot with the ID "wanted", and tenants[0].classes[0].import grants none on the backends of the rule; correct spec.source.snapshotHandle of the VolumeSnapshotContent, or the rule`
	keptBy := func(tenant string) func(r *SnapshotRequest) {
		return func(r *SnapshotRequest) { r.Import = &Existing{Wanted: "wanted", KeptBy: tenant} }
	}
	for name, test := range map[string]struct {
		change  func(r *SnapshotRequest)
		reason  Reason
		message string
	}{
		"granted":                        {change: func(*SnapshotRequest) {}},
		"of a volume of another tenant":  {change: func(r *SnapshotRequest) { r.Tenant = "b" }},
		"on another backend of the rule": {change: func(r *SnapshotRequest) { r.Backend = "silver" }},
		"another name":                   {func(r *SnapshotRequest) { r.Import.Name = "b-1" }, ImportedSnapshotNotFound, noSuch},
		"another type":                   {func(r *SnapshotRequest) { r.Import.Type = "tape" }, ImportedSnapshotNotFound, noSuch},
		"no metadata":                    {func(r *SnapshotRequest) { r.Import.Metadata = nil }, ImportedSnapshotNotFound, noSuch},
		"a backend of no rule":           {func(r *SnapshotRequest) { r.Backend = "gone" }, ImportedSnapshotNotFound, noSuch},
		"a suspended backend": {func(r *SnapshotRequest) { r.Backend = "old" }, BackendsSuspended,
			"backend old, which has the snapshot, is suspended (backends[2])"},
		"a rule without import": {func(r *SnapshotRequest) { r.StorageClass = "new" }, ImportNotGranted,
			`tenant a has kept no snapshot with the ID "wanted", and tenants[0].classes[1] grants no others that exist at Cinder; correct spec.source.snapshotHandle of the VolumeSnapshotContent, or add import to the rule`},
		"kept by the tenant":                      {change: keptBy("a")},
		"kept by another":                         {keptBy("b"), ImportedSnapshotNotFound, noSuch},
		"kept by another, and as the rule grants": {func(r *SnapshotRequest) { r.Import.KeptBy = "b" }, ImportedSnapshotNotFound, noSuch},
		"kept on a backend of no rule": {func(r *SnapshotRequest) { keptBy("a")(r); r.Backend = "gone" }, BackendNotGranted,
			"the snapshot is on backend gone, which tenants[0].classes[0].backends does not name"},
		"no rule": {func(r *SnapshotRequest) { r.StorageClass = "slow" }, NoMatchingClass,
			"tenant a has no rule for StorageClass slow (tenants[0].classes)"},
	} {
		t.Run(name, func(t *testing.T) {
			r := SnapshotRequest{Namespace: "a", StorageClass: "fast", Backend: "gold",
				Import: &Existing{Wanted: "wanted", Name: "a-1", Type: "ssd", Metadata: map[string]string{"owner": "a"}}}
			test.change(&r)
			d := p.DecideSnapshot(r)
			if test.reason == "" {
				if d.Denial != nil || d.Rule != "tenants[0].classes[0]" || d.Import == nil || len(d.Quotas) != 2 {
					t.Errorf("decision %+v, denial %+v", d, d.Denial)
				}
				return
			}
			if d.Denial == nil || d.Denial.Reason != test.reason || d.Denial.Message != test.message {
				t.Errorf("denial %+v, want %s: %s", d.Denial, test.reason, test.message)
			}
		})
	}
}

// TestDecideSnapshotImportBeforeTheSearch: the rule says where the snapshot may be.
func TestDecideSnapshotImportBeforeTheSearch(t *testing.T) {
	p := mustParse(t, importPolicy)
	of := func(namespace, class string) Decision {
		return p.DecideSnapshotImport(SnapshotRequest{Namespace: namespace, StorageClass: class})
	}
	if d := of("a", "fast"); d.Denial != nil || d.Tenant != "a" || !slices.Equal(d.Backends, []string{"gold", "silver"}) || d.Import == nil {
		t.Errorf("decision %+v", d)
	}
	for name, test := range map[string]struct {
		namespace, class string
		reason           Reason
	}{
		"no tenant":           {"x", "fast", NoMatchingTenant},
		"no rule":             {"a", "slow", NoMatchingClass},
		"only suspended":      {"a", "old", BackendsSuspended},
		"an odd namespace":    {"A/b", "fast", InvalidClaim},
		"an odd StorageClass": {"a", "A/b", InvalidClaim},
	} {
		if d := of(test.namespace, test.class); d.Denial == nil || d.Denial.Reason != test.reason {
			t.Errorf("%s: denial %+v, want %s", name, d.Denial, test.reason)
		}
	}
	if d := of("a", "new"); d.Denial != nil || d.Import != nil || d.Rule != "tenants[0].classes[1]" {
		t.Errorf("a rule without import: %+v", d)
	}
	// Without a StorageClass, a snapshot that was kept may be under any rule.
	if d := of("a", ""); d.Denial != nil || d.Rule != "" || d.Import != nil || !slices.Equal(d.Backends, []string{"gold", "silver"}) {
		t.Errorf("all rules: %+v", d)
	}
}

// TestKeptSnapshotNeedsNoImport: the rule need not import what the tenant itself kept. A
// tenant that restores any snapshot may have all that were kept, but not those that
// nobody kept.
func TestKeptSnapshotNeedsNoImport(t *testing.T) {
	decide := func(p *Policy, namespace, keptBy string) *Denial {
		return p.DecideSnapshot(SnapshotRequest{Namespace: namespace, StorageClass: "fast", Backend: "gold", Import: &Existing{Wanted: "wanted", KeptBy: keptBy}}).Denial
	}
	without := mustParse(t, `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends: [{name: gold, auth: {cloud: gold}}]
tenants:
  - {name: a, namespaces: [a], classes: [{storageClasses: [fast], backends: [gold]}]}
  - {name: backup, namespaces: [backup], restoreAnySnapshot: true, quota: {gigabytes: 5}, classes: [{storageClasses: [fast], backends: [gold]}]}
`)
	for _, test := range []struct {
		namespace, keptBy string
		want              Reason
	}{
		{"a", "a", ""}, {"a", "b", ImportNotGranted}, {"a", "", ImportNotGranted}, {"a", "backup", ImportNotGranted},
		{"backup", "backup", ""}, {"backup", "a", ""}, {"backup", "gone", ""}, {"backup", "", ImportNotGranted},
	} {
		denial := decide(without, test.namespace, test.keptBy)
		if denial == nil && test.want != "" || denial != nil && denial.Reason != test.want {
			t.Errorf("kept by %q, for namespace %s: %+v", test.keptBy, test.namespace, denial)
		}
	}
}
