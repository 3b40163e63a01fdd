package tour

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// TestPolicyDecidesAsTheTourTells: the whole tour needs a control plane. Its
// promises about the policy do not, and fail here first when the language
// changes.
func TestPolicyDecidesAsTheTourTells(t *testing.T) {
	for _, id := range []string{"", "k2x7qa"} {
		tour := &tour{names: namesOf(id)}
		head, rules := policyOf(tour.names, "http://127.0.0.1:8776/v3", "0123456789abcdef0123456789abcdef")
		parsed, err := policy.Parse([]byte(head+rules), "policy.yaml", mappers.BuiltIn().Describe())
		if err != nil {
			t.Fatalf("id %q: %v", id, err)
		}
		for _, warning := range parsed.Warnings {
			t.Errorf("id %q: %v", id, warning)
		}
		if parsed.ClusterID != tour.names.cluster {
			t.Errorf("id %q: clusterID %q, want %q", id, parsed.ClusterID, tour.names.cluster)
		}
		for _, e := range tour.expectations() {
			decision := parsed.Decide(policy.Request{
				Namespace:       e.namespace,
				NamespaceLabels: tour.namespaceLabels(e.namespace),
				StorageClass:    e.class,
				Bytes:           bytesOf(t, e.asked),
			})
			if !decision.Allowed() {
				t.Errorf("claim %s/%s is denied: %s", e.namespace, e.claim, decision.Denial.Message)
				continue
			}
			if decision.Tenant != e.tenant || decision.Rule != e.rule || decision.Backends[0] != e.backend ||
				decision.Volume.Type != e.protocol || decision.Volume.SizeGiB<<30 != bytesOf(t, e.given) {
				t.Errorf("claim %s/%s: %s, %s, %v, %+v, want %+v", e.namespace, e.claim,
					decision.Tenant, decision.Rule, decision.Backends, decision.Volume, e)
			}
		}
		guest := tour.names.guest()
		decision := parsed.Decide(policy.Request{
			Namespace: guest, NamespaceLabels: tour.namespaceLabels(guest), StorageClass: tour.names.fast(), Bytes: 1 << 30,
		})
		if decision.Allowed() || decision.Denial.Reason != policy.NoMatchingTenant {
			t.Errorf("id %q: the stranger gets %+v", id, decision)
		}
	}
}

func bytesOf(t *testing.T, quantity string) int64 {
	t.Helper()
	parsed, err := resource.ParseQuantity(quantity)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Value()
}

func TestNamesInASharedClusterAllCarryTheID(t *testing.T) {
	n := namesOf("k2x7qa")
	for _, name := range append(append(n.namespaces(), n.classes()...), n.provisioner, n.cluster) {
		if !strings.Contains(name, "k2x7qa") {
			t.Errorf("%q could be somebody else's", name)
		}
	}
}

func TestTextIsWrappedBetweenWords(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", []string{""}},
		{"one two three", []string{"one two", "three"}},
		{"  one\n two ", []string{"one two"}},
		{"a http://127.0.0.1:8776/v3 b", []string{"a", "http://127.0.0.1:8776/v3", "b"}},
		{"äöüäöü x y", []string{"äöüäöü x", "y"}},
	} {
		got := wrap(c.text, 8)
		if strings.Join(got, "|") != strings.Join(c.want, "|") {
			t.Errorf("%q is wrapped as %q, want %q", c.text, got, c.want)
		}
	}
}

func TestTableAlignsColumns(t *testing.T) {
	var out bytes.Buffer
	p := NewPrinter(&out, nil)
	p.Table([][]string{{"", "BEFORE", "NOW"}, {"volumes", "24", "0"}, {"äöü", "1", ""}})
	want := "            BEFORE  NOW\n   volumes  24      0\n   äöü      1\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestALostReaderIsNoticed(t *testing.T) {
	var noticed error
	p := NewPrinter(closedPipe{}, func(err error) { noticed = err })
	p.Say("hello")
	if noticed == nil || noticed.Error() != "the output is no longer read: broken pipe" {
		t.Errorf("noticed %v", noticed)
	}
}
