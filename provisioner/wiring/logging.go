package wiring

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"k8s.io/klog/v2"
)

// The formats of log lines.
const (
	LogJSON = "json"
	LogText = "text"
)

// maxVerbosity is the highest level that is passed to the Kubernetes libraries. From
// level 8 on they log the bodies of requests, and with them the Secrets that this
// program writes.
const maxVerbosity = 7

// NewLogger makes a logger that writes lines in a format, for the program and its
// libraries.
func NewLogger(to io.Writer, format string, verbosity int) (*slog.Logger, error) {
	verbosity = min(verbosity, maxVerbosity)
	options := &slog.HandlerOptions{Level: slog.Level(-verbosity), ReplaceAttr: plainLevel}
	var handler slog.Handler
	switch format {
	case LogJSON:
		handler = slog.NewJSONHandler(to, options)
	case LogText:
		handler = slog.NewTextHandler(to, options)
	default:
		return nil, fmt.Errorf("--log-format is %q; give %s or %s", format, LogJSON, LogText)
	}
	logger := slog.New(handler)
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(verbosity)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	klog.SetSlogLogger(slog.New(libraryHandler{handler, libraryLines()}))
	return logger, nil
}

// plainLevel names every level of verbosity DEBUG. Programs that read logs know DEBUG,
// INFO, WARN and ERROR, but not slog's DEBUG+2.
func plainLevel(groups []string, a slog.Attr) slog.Attr {
	if level, ok := a.Value.Any().(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey && level < slog.LevelInfo {
		return slog.String(slog.LevelKey, slog.LevelDebug.String())
	}
	return a
}
