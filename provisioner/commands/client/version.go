package client

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
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

// NewVersionCommand returns the command that describes a build.
func NewVersionCommand(build Build) *cobra.Command {
	const text, asJSON = "text", "json"
	output := text
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, the version of Go and the platform",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) (err error) {
			switch output {
			case text:
				_, err = fmt.Fprintf(command.OutOrStdout(), "standalone-cinder %s (commit %s, %s, %s)\n", build.Version, build.Commit, build.GoVersion, build.Platform)
			case asJSON:
				encoder := json.NewEncoder(command.OutOrStdout())
				encoder.SetIndent("", "  ")
				err = encoder.Encode(build)
			default:
				err = &policycli.ExitError{Code: policycli.ExitUsage, Err: fmt.Errorf("--output must be %s or %s, not %q", text, asJSON, output)}
			}
			return err
		},
	}
	command.Flags().StringVarP(&output, "output", "o", output, "`format` of the output: text or json")
	return command
}
