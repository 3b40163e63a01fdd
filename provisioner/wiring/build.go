package wiring

import (
	"runtime"
	"runtime/debug"
)

// Build says from what, and with what, the running program was built.
type Build struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// ThisBuild describes the running program by the version and the commit that the linker
// set, or else by what the go command recorded.
func ThisBuild(version, commit string) Build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(version, commit, info)
}

// buildOf describes a build by what the linker set or else by what the go
// command recorded about the checkout or the module; info may be nil.
func buildOf(version, commit string, info *debug.BuildInfo) Build {
	build := Build{Version: version, Commit: commit, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		info = &debug.BuildInfo{}
	}
	if build.Version == "" {
		build.Version = info.Main.Version
	}
	if build.Version == "" || build.Version == "(devel)" {
		build.Version = "v0.0.0-dev"
	}
	if build.Commit == "" {
		build.Commit = commitOf(info)
	}
	return build
}

func commitOf(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	switch revision := settings["vcs.revision"]; {
	case revision == "":
		return "unknown"
	case settings["vcs.modified"] == "true":
		return revision + "-dirty"
	default:
		return revision
	}
}
