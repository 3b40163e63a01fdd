package wiring

import (
	"context"
	"log/slog"
	"strings"
)

// libraryLine is a kind of line that a library logs at a misleading level, or with a
// misleading message.
type libraryLine struct {
	// message is how the line begins, err a part of its error, and errEnd how the error
	// ends.
	message, err, errEnd string
	level                slog.Level
	// instead replaces the message if it is set.
	instead string
}

// libraryDetail is the level of verbosity 2, from which on lines of libraries are
// shown.
const libraryDetail = slog.Level(-2)

// libraryLines returns all kinds. The first that matches a line applies.
func libraryLines() []libraryLine {
	return []libraryLine{
		// The events themselves can be seen on their objects.
		{message: "Event occurred", level: libraryDetail},
		// The object is gone, as it should be, because another deletion came first.
		{message: "Unhandled Error", err: "error syncing volume", errEnd: " not found", level: libraryDetail, instead: "The PersistentVolume is gone already"},
		{message: "Unhandled Error", err: "in work queue no longer exists", level: libraryDetail},
		// These errors are handled: the same attempt is made again.
		{message: "Unhandled Error", err: "error syncing", level: slog.LevelWarn, instead: "An attempt failed and will be retried"},
		// These lines repeat what was already logged.
		{message: "Retrying syncing", level: libraryDetail},
		{message: "Volume deletion failed", level: libraryDetail},
		{message: "Failed to delete persistentvolume", level: libraryDetail},
		{message: "Failed to get persistentvolume to update finalizer", level: libraryDetail},
		{message: "Failed to remove finalizer for persistentvolume", level: libraryDetail},
		// Another replica took the lease a moment earlier.
		{message: "Failed to update lease", err: "the object has been modified", level: libraryDetail, instead: "Another replica holds the lease"},
		{message: "Failed to update lock", err: "the object has been modified", level: libraryDetail, instead: "Another replica holds the lease"},
		// The elector tries again, and logs it when it gives up.
		{message: "Failed to update lease", level: slog.LevelWarn},
		{message: "Failed to update lock", level: slog.LevelWarn},
		{message: "Error retrieving lease lock", level: slog.LevelWarn},
	}
}

func (l libraryLine) matches(message, err string) bool {
	return strings.HasPrefix(message, l.message) && strings.Contains(err, l.err) && strings.HasSuffix(err, l.errEnd)
}

// libraryHandler corrects the lines of libraries on their way to the log.
type libraryHandler struct {
	slog.Handler
	lines []libraryLine
}

// Handle implements slog.Handler.
func (h libraryHandler) Handle(ctx context.Context, r slog.Record) error {
	var err string
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			err = a.Value.String()
		}
		return a.Key != "err"
	})
	for _, line := range h.lines {
		if !line.matches(r.Message, err) {
			continue
		}
		if !h.Enabled(ctx, line.level) {
			return nil
		}
		r = r.Clone()
		r.Level = line.level
		if line.instead != "" {
			r.Message = line.instead
		}
		break
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h libraryHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return libraryHandler{h.Handler.WithAttrs(attrs), h.lines}
}

// WithGroup implements slog.Handler.
func (h libraryHandler) WithGroup(name string) slog.Handler {
	return libraryHandler{h.Handler.WithGroup(name), h.lines}
}
