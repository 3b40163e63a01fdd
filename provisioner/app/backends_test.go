package app

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// TestAMoveIsToldByWhoeverSeesItFirst: an audit may see it between a reload and what
// follows it. Without the report, the backend would not be counted again.
func TestAMoveIsToldByWhoeverSeesItFirst(t *testing.T) {
	const text = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, region: one, auth: {cloud: gold}}
tenants:
  - name: a
    namespaces: [team-a]
    volumeSize: {max: 10Gi}
    classes:
      - {storageClasses: [one], backends: [gold]}
`
	parse := func(text string) *policy.Policy {
		p, err := policy.Parse([]byte(text), "policy.yaml", mappers.BuiltIn().Describe())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	var inForce atomic.Pointer[policy.Policy]
	inForce.Store(parse(text))
	var moved []string
	b := &termBackends{
		policy: inForce.Load, retired: &retiredBackends{}, cluster: "cluster", metrics: backends.NewMetrics(prometheus.NewRegistry()),
		termCtx: t.Context(), fence: func() error { return nil }, logger: slog.New(slog.DiscardHandler), watchQueue: func(string) {},
		board: parking.NewBoard(), moved: func(name string) { moved = append(moved, name) }, lifecycles: map[string]*termBackend{},
	}
	if _, err := b.current("gold"); err != nil {
		t.Fatal(err)
	}
	inForce.Store(parse(strings.Replace(text, "region: one", "region: two", 1)))
	if b.isGone("gold", "volume-1") {
		t.Error("a volume is gone that nothing has listed")
	}
	b.update()
	if !slices.Equal(moved, []string{"gold"}) {
		t.Errorf("a move was told of %v, want [gold]", moved)
	}
}
