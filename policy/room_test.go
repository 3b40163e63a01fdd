package policy

import (
	"errors"
	"slices"
	"testing"
)

const roomPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}, limits: {volumes: 10}}
  - {name: silver, auth: {cloud: silver}, limits: {gigabytes: 100}}
tenants:
  - name: a
    namespaces: [a]
    quota: {volumes: 5}
    classes:
      - {storageClasses: [both], backends: [gold, silver], quota: {gigabytes: 50}}
      - {storageClasses: [one], backends: [silver]}
`

func TestRoom(t *testing.T) {
	p := mustParse(t, roomPolicy)
	tests := map[string]struct {
		class    string
		used     []ScopeUsage
		backends []string
		path     string
		message  string
	}{
		"all is free":      {"both", nil, []string{"gold", "silver"}, "", ""},
		"the last of each": {"both", []ScopeUsage{{Tenant: "a", Volumes: 4}, {Rule: "tenants[0].classes[0]", Gigabytes: 40}, {Backend: "gold", Volumes: 9}, {Backend: "silver", Gigabytes: 90}}, []string{"gold", "silver"}, "", ""},
		"the same, in two entries": {"both", []ScopeUsage{{Tenant: "a", Volumes: 2}, {Tenant: "a", Volumes: 3}}, []string{"gold", "silver"},
			"tenants[0].quota.volumes", "tenant a would use 6 of 5 volumes (tenants[0].quota.volumes)"},
		"a full backend": {"both", []ScopeUsage{{Backend: "gold", Volumes: 10}}, []string{"silver"}, "", ""},
		"a full rule": {"both", []ScopeUsage{{Rule: "tenants[0].classes[0]", Gigabytes: 41}}, []string{"gold", "silver"},
			"tenants[0].classes[0].quota.gigabytes", "StorageClasses [both] of tenant a would use 51 of 50 GiB (tenants[0].classes[0].quota.gigabytes)"},
		"another rule's use": {"one", []ScopeUsage{{Rule: "tenants[0].classes[0]", Gigabytes: 41}}, []string{"silver"}, "", ""},
		"the only backend is full": {"one", []ScopeUsage{{Backend: "silver", Gigabytes: 91}}, nil,
			"backends[1].limits.gigabytes", "backend silver would use 101 of 100 GiB (backends[1].limits.gigabytes)"},
		"both backends are full": {"both", []ScopeUsage{{Backend: "gold", Volumes: 10}, {Backend: "silver", Gigabytes: 91}}, nil,
			"tenants[0].classes[0].backends", "no backend of tenants[0].classes[0] has room: backend gold would use 11 of 10 volumes (backends[0].limits.volumes); backend silver would use 101 of 100 GiB (backends[1].limits.gigabytes)"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			used, err := p.Usages(test.used)
			if err != nil {
				t.Fatal(err)
			}
			d := p.Decide(Request{Namespace: "a", StorageClass: test.class, Bytes: 10 << 30})
			room := d.Room(used.Of)
			if !slices.Equal(room.Backends, test.backends) || len(room.Scopes) != len(d.Quotas) {
				t.Errorf("backends %v, %d scopes", room.Backends, len(room.Scopes))
			}
			want := &Denial{Reason: QuotaExceeded, Path: test.path, Message: test.message}
			if test.message == "" {
				want = nil
			}
			if (room.Denial == nil) != (want == nil) || want != nil && *room.Denial != *want {
				t.Errorf("\n got %+v\nwant %+v", room.Denial, want)
			}
		})
	}
}

func TestRoomRepeatsADenial(t *testing.T) {
	d := mustParse(t, roomPolicy).Decide(Request{Namespace: "b", StorageClass: "both", Bytes: 1})
	room := d.Room(Usages{}.Of)
	if room.Denial != d.Denial || room.Denial.Reason != NoMatchingTenant || room.Backends != nil || room.Scopes != nil {
		t.Errorf("%+v", room)
	}
}

func TestUsagesOfUnknownScopes(t *testing.T) {
	_, err := mustParse(t, roomPolicy).Usages([]ScopeUsage{{Tenant: "b"}, {Rule: "tenants[0]"}, {Backend: "gold"}, {Backend: "gild"}})
	want := `used[0].tenant: the policy has no tenant "b"; did you mean "a"?
used[1].rule: the policy has no rule "tenants[0]"; the rules are tenants[0].classes[0], tenants[0].classes[1]
used[3].backend: the policy has no backend "gild"; did you mean "gold"?`
	var unknown ErrorList
	if !errors.As(err, &unknown) || err.Error() != want {
		t.Errorf("\n got %v\nwant %s", err, want)
	}
}

func TestLine(t *testing.T) {
	p := mustParse(t, roomPolicy)
	for path, want := range map[string]int{
		"": 1, "tenants": 8, "tenants[0].quota.volumes": 10, "tenants[0].quota.gigabytes": 10,
		"tenants[0].classes[1]": 13, "backends[1].limits": 6, "nothing": 1,
	} {
		if got := p.Line(path); got != want {
			t.Errorf("line of %q: %d, want %d", path, got, want)
		}
	}
}

func TestCheckLabels(t *testing.T) {
	for name, test := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"none":    {nil, ""},
		"good":    {map[string]string{"example.com/a": "b", "c": ""}, ""},
		"a value": {map[string]string{"a": "b c"}, `"b c" cannot be a label's value; use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := CheckLabels(test.labels); got != test.want {
				t.Errorf("\n got %q\nwant %q", got, test.want)
			}
		})
	}
}
