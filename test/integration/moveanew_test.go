package integration

import (
	"regexp"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestMoveToAnotherNameOfTheBackend: a move encrypts data anew, also if there is only one Cinder.
// Both backends show all its volumes then.
func TestMoveToAnotherNameOfTheBackend(t *testing.T) {
	w, node := withCopyingNode(t, "moveanew", func(w *world) {
		auth := regexp.MustCompile(`auth: (\{noauth: .*\})\n`).FindStringSubmatch(w.policy)[1]
		w.policy = w.change("auth: {cloud: team-a}", "auth: "+auth)
	})
	w.claim("b", "data", "lab", "1Gi")
	first, err := node.boundTo(w.ctx, "data")
	w.must(err)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		node.prepare(`{}`, nil)
		code, output := w.volumeCommand("move", "moveanew-b/data", "--to-backend", "gold", "--storage-class", "moveanew-gold", "--image", "none.example/program", "--apply")
		if code != 0 {
			return output, nil // it is not marked as recorded yet
		}
		return "", nil
	}))
	second, err := node.boundTo(w.ctx, "data")
	w.must(err)
	former, err := node.boundTo(w.ctx, "data-former")
	w.must(err)
	if second.pv != first.pv || second.id == first.id || former.id != first.id {
		t.Errorf("claim data had volume %s, and has %s; data-former has %s", first.id, second.id, former.id)
	}
	if code, answer := w.audit(); code != 0 {
		t.Errorf("the audit finds %+v", answer.Findings)
	}
	w.must(suite.DeleteClaims(w.ctx, "moveanew-b"))
	w.noResidue()
}
