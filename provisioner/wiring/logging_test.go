package wiring

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"testing"
)

func TestLogger(t *testing.T) {
	for name, test := range map[string]struct {
		format    string
		verbosity int
		want      []string
	}{
		"quiet":   {LogJSON, 0, []string{`{"level":"INFO","msg":"info"}`, `{"level":"ERROR","msg":"error"}`}},
		"verbose": {LogJSON, 4, []string{`{"level":"DEBUG","msg":"level 2"}`, `{"level":"INFO","msg":"info"}`, `{"level":"ERROR","msg":"error"}`}},
		"text":    {LogText, 2, []string{`level=DEBUG msg="level 2"`, `level=INFO msg=info`, `level=ERROR msg=error`}},
	} {
		t.Run(name, func(t *testing.T) {
			var written bytes.Buffer
			logger, err := NewLogger(&written, test.format, test.verbosity)
			if err != nil {
				t.Fatal(err)
			}
			logger.Log(context.Background(), slog.Level(-2), "level 2")
			logger.Info("info")
			logger.Error("error")
			text := regexp.MustCompile(`"time":"[^"]*",|time=\S+ `).ReplaceAllString(strings.TrimSpace(written.String()), "")
			if want := strings.Join(test.want, "\n"); text != want {
				t.Errorf("got\n%s\nwant\n%s", text, want)
			}
		})
	}
	if _, err := NewLogger(nil, "xml", 0); err == nil || err.Error() != `--log-format is "xml"; give json or text` {
		t.Errorf("got %v", err)
	}
}
