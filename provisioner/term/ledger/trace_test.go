package ledger_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

func granted(refused *ledger.Refusal, err error) string {
	switch {
	case err != nil:
		return err.Error() + "\n"
	case refused != nil && refused.Denial != nil:
		return string(refused.Reason) + ": " + refused.Message + "\n"
	}
	return "granted\n"
}

func passed(over []ledger.PassedOver) (text string) {
	for _, b := range over {
		text += "not on " + b.Backend + ": " + b.Why + "\n"
	}
	return text
}

func freed(of string, freed bool) string {
	switch {
	case !freed:
		return ""
	case of == "":
		return "frees room\n"
	}
	return "frees room of " + tenant(of) + "\n"
}

func tenant(name string) string {
	if name == "" {
		return "no tenant"
	}
	return "tenant " + name
}

// position says where a claim counts.
func (s *scenario) position(claim types.UID) string {
	p, counts := s.PositionOf(claim)
	state := "recorded"
	switch {
	case !counts:
		return "counts nowhere\n"
	case p.NothingSeen:
		state = "reserved"
	case s.IsFound(claim, p.Backend):
		state = "found"
	case s.WasRecorded(claim, p.VolumeID):
		state = "left behind"
	}
	if p.Imported {
		state += " for the import of " + p.VolumeID
	}
	if s.IsGrowing(claim) {
		state += " and growing"
	}
	return fmt.Sprintf("%s on %s for %s\n", state, p.Backend, tenant(p.Tenant))
}

// changes says what the scopes use now whose usage was another before.
func (s *scenario) changes() string {
	changed, sums := map[string]policy.Usage{}, s.Census().Sums
	for _, scope := range s.inForce.Scopes() {
		if of := (ledger.Scope{Kind: scope.Kind, Name: scope.Name}); sums[of] != s.shown[of] {
			changed[string(scope.Kind)+" "+scope.Name] = sums[of]
		}
	}
	s.shown = sums
	return list(changed)
}

// list prints usage, and names together what uses the same.
func list(used map[string]policy.Usage) string {
	same := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		var parts []string
		if u := used[name]; u.Volumes > 0 || u.Gigabytes > 0 {
			parts = append(parts, fmt.Sprintf("volumes %d, GiB %d", u.Volumes, u.Gigabytes))
		}
		if u := used[name]; u.Snapshots > 0 || u.SnapshotGigabytes > 0 {
			parts = append(parts, fmt.Sprintf("snapshots %d, GiB %d", u.Snapshots, u.SnapshotGigabytes))
		}
		text := cmp.Or(strings.Join(parts, "; "), "nothing")
		same[text] = append(same[text], name)
	}
	var lines []string
	for text, names := range same {
		lines = append(lines, strings.Join(names, ", ")+": "+text+"\n")
	}
	return strings.Join(slices.Sorted(slices.Values(lines)), "")
}
