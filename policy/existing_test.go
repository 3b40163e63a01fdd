package policy

import (
	"strings"
	"testing"
)

func TestDecideRetype(t *testing.T) {
	p := mustParse(t, expansionPolicy)
	of := func(namespace, class string) Request {
		return Request{Namespace: namespace, StorageClass: class, Bytes: 1 << 40, VolumeMode: Filesystem}
	}
	for name, test := range map[string]struct {
		request Request
		of      Holding
		to      string
		reason  Reason
		message string
	}{
		"the rule leaves the type open":    {request: of("team-a", "plain"), of: Holding{"a", "gold"}, to: "hdd"},
		"the rule fixes this type":         {request: of("team-a", "fast"), of: Holding{"a", "gold"}, to: "ssd"},
		"on a suspended backend":           {request: of("team-a", "fast"), of: Holding{"a", "silver"}, to: "ssd"},
		"the rule fixes another type":      {of("team-a", "fast"), Holding{"a", "gold"}, "hdd", ParameterNotAllowed, `tenants[0].classes[0].volumeType grants only volumes of type "ssd"; change the rule first`},
		"another tenant's volume":          {of("team-b", "fast"), Holding{"a", "gold"}, "ssd", NoMatchingTenant, "namespace team-b belongs to tenant b now, but the volume counts for tenant a (tenants[1])"},
		"a backend that the rule left":     {of("team-a", "plain"), Holding{"a", "silver"}, "hdd", NoMatchingClass, "tenant a may not use backend silver, which has the volume, for StorageClass plain (tenants[0].classes[1].backends)"},
		"a backend that the policy left":   {of("team-b", "fast"), Holding{"b", "gone"}, "hdd", NoMatchingClass, "tenant b may not use backend gone, which has the volume, for StorageClass fast (tenants[1].classes[0].backends)"},
		"a StorageClass without a rule":    {of("team-a", "slow"), Holding{"a", "gold"}, "hdd", NoMatchingClass, "tenant a has no rule for StorageClass slow (tenants[0].classes)"},
		"a namespace that no tenant names": {of("x", "fast"), Holding{"a", "gold"}, "ssd", NoMatchingTenant, "namespace x belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels"},
	} {
		d := p.DecideRetype(test.request, test.of, test.to)
		switch {
		case test.reason == "" && d.Denial != nil, test.reason != "" && (d.Denial == nil || d.Denial.Reason != test.reason || d.Denial.Message != test.message):
			t.Errorf("%s: denial %+v, want %s: %s", name, d.Denial, test.reason, test.message)
		}
	}
}

func TestDecideModification(t *testing.T) {
	p := mustParse(t, strings.Replace(expansionPolicy, "storageClasses: [plain]", "storageClasses: [plain], volumeTypes: [hdd, ssd]", 1))
	for name, test := range map[string]struct {
		namespace, class string
		of               Holding
		to               string
		reason           Reason
		message          string
	}{
		"a type that the rule lists":         {namespace: "team-a", class: "plain", of: Holding{"a", "gold"}, to: "hdd"},
		"a type that the rule does not list": {"team-a", "plain", Holding{"a", "gold"}, "nvme", ParameterNotAllowed, `a VolumeAttributesClass asks for volumes of type "nvme", which tenants[0].classes[1].volumeTypes does not list`},
		"a rule that lists none":             {"team-a", "fast", Holding{"a", "gold"}, "ssd", ParameterNotAllowed, `a VolumeAttributesClass asks for volumes of type "ssd", which tenants[0].classes[0].volumeTypes does not list`},
		"another tenant's volume":            {"team-b", "fast", Holding{"a", "gold"}, "ssd", NoMatchingTenant, "namespace team-b belongs to tenant b now, but the volume counts for tenant a (tenants[1])"},
	} {
		d := p.DecideModification(Request{Namespace: test.namespace, StorageClass: test.class, Bytes: 1 << 30, VolumeMode: Filesystem}, test.of, test.to)
		switch {
		case test.reason == "" && d.Denial != nil, test.reason != "" && (d.Denial == nil || d.Denial.Reason != test.reason || d.Denial.Message != test.message):
			t.Errorf("%s: denial %+v, want %s: %s", name, d.Denial, test.reason, test.message)
		}
	}
}
