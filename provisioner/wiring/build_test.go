package wiring

import (
	"runtime/debug"
	"testing"
)

func TestLinkerSetsTheVersionElseTheCheckoutDoes(t *testing.T) {
	checkout := &debug.BuildInfo{Main: debug.Module{Version: "v0.1.1-0.20261122101010-ac5d48109f2b+dirty"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "ac5d48109f2b"}, {Key: "vcs.modified", Value: "true"}}}
	unstamped := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	for name, c := range map[string]struct {
		version, commit string
		info            *debug.BuildInfo
		want            Build
	}{
		"a release":             {"v0.1.0", "1234", unstamped, Build{Version: "v0.1.0", Commit: "1234"}},
		"go build":              {"", "", checkout, Build{Version: "v0.1.1-0.20261122101010-ac5d48109f2b+dirty", Commit: "ac5d48109f2b-dirty"}},
		"a module":              {"", "", &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, Build{Version: "v0.1.0", Commit: "unknown"}},
		"a build without a VCS": {"", "", unstamped, Build{Version: "v0.0.0-dev", Commit: "unknown"}},
		"no information at all": {"", "", nil, Build{Version: "v0.0.0-dev", Commit: "unknown"}},
	} {
		if got := buildOf(c.version, c.commit, c.info); got.Version != c.want.Version || got.Commit != c.want.Commit {
			t.Errorf("%s: version %q and commit %q, want %q and %q", name, got.Version, got.Commit, c.want.Version, c.want.Commit)
		}
	}
}
