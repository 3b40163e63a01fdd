package policy

import (
	"fmt"
	"strings"
	"testing"
)

const locationPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: gold
    auth: {cloud: gold}
    zones:
      - {name: az1, nodeLabels: {rack: a}}
      - {name: az2, nodeLabels: {rack: b}}
  - {name: silver, auth: {cloud: silver}}
  - name: lead
    auth: {cloud: lead}
    zones: [{name: az1, nodeLabels: {rack: c}}]
tenants:
  - name: team-a
    namespaces: [team-a]
    classes:
      - {storageClasses: [all], backends: [gold, silver, lead]}
      - {storageClasses: [az1], backends: [gold, silver, lead], availabilityZone: az1}
`

// inOrder returns where a decision tries to make the volume, as backend/zone,
// and the quotas that it counts against.
func inOrder(d Decision) string {
	var locations, quotas []string
	for _, backend := range d.Backends {
		for _, at := range d.LocationsOn(backend) {
			locations = append(locations, at.Backend+"/"+at.Zone)
		}
		if first := d.LocationsOn(backend)[0].Zone; first != d.VolumeOn(backend).AvailabilityZone {
			locations = append(locations, fmt.Sprintf("(%s is not requested in %s)", backend, first))
		}
	}
	for _, scope := range d.Quotas {
		quotas = append(quotas, scope.Name)
	}
	return strings.Join(locations, " ") + "; " + strings.Join(quotas, " ")
}

func TestLocationsThatFailedAreTriedLast(t *testing.T) {
	p, err := Parse([]byte(locationPolicy), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		class  string
		source *Source
		last   []Location
		want   string
	}{
		"none":                       {class: "all", want: "gold/az1 gold/az2 silver/ lead/az1; team-a tenants[0].classes[0] gold silver lead"},
		"the first zone":             {class: "all", last: []Location{{"gold", "az1"}}, want: "gold/az2 gold/az1 silver/ lead/az1; team-a tenants[0].classes[0] gold silver lead"},
		"every zone of a backend":    {class: "all", last: []Location{{"gold", "az2"}, {"gold", "az1"}}, want: "silver/ lead/az1 gold/az1 gold/az2; team-a tenants[0].classes[0] silver lead gold"},
		"a backend without zones":    {class: "all", last: []Location{{"silver", ""}}, want: "gold/az1 gold/az2 lead/az1 silver/; team-a tenants[0].classes[0] gold lead silver"},
		"all":                        {class: "all", last: []Location{{"lead", "az1"}, {"gold", "az1"}, {"silver", ""}, {"gold", "az2"}}, want: "gold/az1 gold/az2 silver/ lead/az1; team-a tenants[0].classes[0] gold silver lead"},
		"zones that are not used":    {class: "all", last: []Location{{"gold", "az9"}, {"tin", "az1"}}, want: "gold/az1 gold/az2 silver/ lead/az1; team-a tenants[0].classes[0] gold silver lead"},
		"of a rule with a zone":      {class: "az1", last: []Location{{"gold", "az1"}, {"silver", "az1"}}, want: "lead/az1 gold/az1 silver/az1; team-a tenants[0].classes[1] lead gold silver"},
		"the zone of another source": {class: "all", source: &Source{Name: "claim team-a/x", Tenant: "team-a", Backend: "gold", SizeGiB: 1}, last: []Location{{"gold", "az1"}}, want: "gold/; team-a tenants[0].classes[0] gold"},
	} {
		t.Run(name, func(t *testing.T) {
			decided := p.Decide(Request{Namespace: "team-a", Claim: "data", StorageClass: c.class, Bytes: 1, Source: c.source})
			if decided.Denial != nil {
				t.Fatal(decided.Denial.Message)
			}
			before := inOrder(decided)
			if got := inOrder(decided.TryLast(c.last)); got != c.want {
				t.Errorf("the order is %s\nwant %s", got, c.want)
			}
			if after := inOrder(decided); after != before {
				t.Errorf("the decision itself changed to %s", after)
			}
		})
	}
}
