package contract

import "testing"

// A testCase checks one fact about Cinder or Keystone.
type testCase struct {
	name string
	// modes is empty for both.
	modes mode
	run   func(*testing.T, Target)
}

type mode int

const (
	both mode = iota
	onlyNoauth
	onlyKeystone
)

// allCases returns the suite.
func allCases() []testCase {
	var all []testCase
	for _, part := range [][]testCase{
		discoveryCases(), noauthCases(), keystoneCases(), tenancyCases(), createCases(), invalidCases(), listCases(), pagingCases(),
		metadataCases(), reserveCases(), connectionCases(), attachCases(), detachCases(), raceCases(), deleteCases(), overrideCases(),
		attachmentCases(), attachmentTrapCases(), sharedCases(), extendCases(), encryptionCases(), retypeCases(), snapshotCases(), quotaCases(), lifecycleCases(),
	} {
		all = append(all, part...)
	}
	return all
}

// TestContract runs every case against every target. Real targets, whose volumes take
// seconds each, are several ways to one Cinder, so in short mode they share the cases
// that all of them pass.
func TestContract(t *testing.T) {
	simulators, servers := simulatorTargets(t, 0), realTargets(t)
	for n, target := range append(simulators, servers...) {
		server := n - len(simulators)
		t.Run(target.Name, func(t *testing.T) {
			target := target.ready(t)
			for i, c := range allCases() {
				if c.modes == onlyNoauth && !target.noauth() || c.modes == onlyKeystone && target.noauth() {
					continue
				}
				if testing.Short() && server >= 0 && c.modes == both && i%len(servers) != server {
					continue
				}
				t.Run(c.name, func(t *testing.T) { c.run(t, target) })
			}
		})
	}
}

// TestCasesAreNamedOnce rejects two cases with one name.
func TestCasesAreNamedOnce(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range allCases() {
		if seen[c.name] {
			t.Errorf("two cases have the name %q", c.name)
		}
		seen[c.name] = true
	}
	t.Logf("%d cases", len(seen))
}
