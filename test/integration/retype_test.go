package integration

import (
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
)

// TestRetypeAVolume: an operator changes the type of a volume in use, which
// does not disturb the leader.
func TestRetypeAVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "retype", cindersim.Options{Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: "other", Backend: "iscsi", RequiresInitiator: true})})
	w.policy = strings.Replace(w.policy, "clusterID: cluster-retype\n", "clusterID: cluster-retype\naudit: {interval: 500ms, grace: 1m, delete: true}\n", 1)
	w.start()
	w.claim("a", "data", "gold", "1Gi")
	_, err := suite.WaitBound(w.ctx, "retype-a", 1)
	w.must(err)
	retype := func(claim, kind string, apply ...string) (int, string) {
		return w.volumeCommand("retype", append([]string{"--namespace", "retype-a", "--claim", claim, "--type", kind}, apply...)...)
	}
	is := func(kind string) {
		t.Helper()
		if volumes := w.sim.Volumes(); len(volumes) != 1 || volumes[0].Type != kind {
			t.Errorf("the volumes are %s of type %s, want %s", describe(volumes), volumes[0].Type, kind)
		}
	}
	for _, test := range []struct {
		claim, to, apply string
		code             int
		said, then       string
	}{
		{claim: "data", to: "other", said: `nothing was changed; with --apply, the command would change the type of volume `, then: "iscsi"},
		{claim: "data", to: "other", apply: "--apply", said: `now has type "other"; it had "iscsi"`, then: "other"},
		{claim: "data", to: "other", apply: "--apply", said: `already has type "other"; nothing to do`, then: "other"},
		{claim: "none", to: "other", apply: "--apply", code: 1, said: "claim retype-a/none does not exist", then: "other"},
		{claim: "data", to: "unknown", apply: "--apply", code: 1, said: `there is no volume type "unknown", or the project may not use it`, then: "other"},
		{claim: "data", to: "iscsi-mp", apply: "--apply", code: 1, said: `but it still has type "other": its storage cannot change it in place`, then: "other"},
	} {
		var apply []string
		if test.apply != "" {
			apply = []string{test.apply}
		}
		if code, output := retype(test.claim, test.to, apply...); code != test.code || !strings.Contains(output, test.said) {
			t.Errorf("%s to %s %s: exit code %d:\n%s", test.claim, test.to, test.apply, code, output)
		}
		is(test.then)
	}
	if code, answer := w.audit(); code != 0 {
		t.Errorf("the audit finds %+v", answer.Findings)
	}
	w.must(suite.DeleteClaims(w.ctx, "retype-a"))
}
