package placement

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

const testPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: gold
    auth: {cloud: gold}
  - name: silver
    auth: {cloud: silver}
tenants:
  - name: a
    namespaces: [team-a]
    volumeSize: {max: 10Gi}
    classes:
      - {storageClasses: [both], backends: [gold, silver]}
`

// fakeVolumes fakes the volumes of one backend.
type fakeVolumes struct {
	listed  []cinder.Volume
	listErr error
	onList  func()
	health  error
	// touched holds the UIDs of claims for which a volume may have been created.
	touched map[string]bool
}

func (f *fakeVolumes) Volumes(context.Context) ([]cinder.Volume, error) {
	if f.onList != nil {
		f.onList()
	}
	return f.listed, f.listErr
}

func (f *fakeVolumes) Relist(ctx context.Context) ([]cinder.Volume, error) { return f.Volumes(ctx) }

func (f *fakeVolumes) KnowsNothingOf(stamp stamps.Volume) bool { return !f.touched[stamp.ClaimUID] }

func (f *fakeVolumes) Health() error { return f.health }

// fixture is a Placer with two backends.
type fixture struct {
	*Placer
	backends map[string]*fakeVolumes
	// begun holds the claims with unfinished attempts.
	begun map[types.UID]stamps.Volume
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	parsed, err := policy.Parse([]byte(testPolicy), "policy.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	inForce := func() *policy.Policy { return parsed }
	f := &fixture{backends: map[string]*fakeVolumes{"gold": {}, "silver": {}}, begun: map[types.UID]stamps.Volume{}}
	f.Placer = New(Options{
		Policy: inForce, Ledger: ledger.New(inForce), Term: t.Context(),
		Backends: func() []string { return slices.Sorted(maps.Keys(f.backends)) },
		Volumes: func(name string) (Volumes, error) {
			if volumes, ok := f.backends[name]; ok {
				return volumes, nil
			}
			return nil, fmt.Errorf("backend %q is not in the policy", name)
		},
		Unfinished: func(claim types.UID) (stamps.Volume, bool) {
			stamp, begun := f.begun[claim]
			return stamp, begun
		},
	})
	return f
}
