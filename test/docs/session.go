package docs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Lifecycle are the how-to guides that a test follows after the installation of
// README.md, in this order.
var Lifecycle = []string{
	"docs/how-to/tenants.md",
	"docs/how-to/change-policy.md",
	"docs/how-to/default-class.md",
	"docs/how-to/clone.md",
	"docs/how-to/move-claim.md",
	"docs/how-to/connect-cinder.md",
	"docs/how-to/retire-backend.md",
	"docs/how-to/kustomize.md",
	"docs/how-to/backup.md",
	"docs/how-to/upgrade.md",
	"docs/how-to/uninstall.md",
}

// Session follows a page as a reader would who copies every block.
//
// The HTML comment before a block says what a reader does with it: "file: NAME"
// writes it to a file; "terminal" runs it in another terminal, where it goes on
// while the reader does; "terminals closed" ends those first; "not run: REASON"
// is for reading only.
type Session struct {
	// Dir is where the commands run; Environment is all that they have.
	Dir         string
	Environment []string
	// Replaced are the placeholders of a page, with what a reader writes there.
	Replaced *strings.Replacer
	Log      func(format string, arguments ...any)

	terminals []*terminal
}

// Follow does what the blocks say. An error names the line.
func (s *Session) Follow(ctx context.Context, page *Page, blocks []Block) error {
	for _, block := range blocks {
		if block.Remark == "terminals closed" {
			s.Close()
		}
		name, isFile := strings.CutPrefix(block.Remark, "file: ")
		switch {
		case strings.HasPrefix(block.Remark, "not run: "):
		case isFile:
			if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(s.replace(block.Content)), 0o600); err != nil {
				return err
			}
		case block.Language == "sh" || block.Language == "console":
			for _, command := range block.Commands() {
				if err := s.do(ctx, command, block.Remark == "terminal"); err != nil {
					return fmt.Errorf("%s:%d: %w", page.Path, command.Line, err)
				}
			}
		}
	}
	return nil
}

func (s *Session) replace(text string) string {
	if s.Replaced == nil {
		return text
	}
	return s.Replaced.Replace(text)
}

func (s *Session) do(ctx context.Context, command Command, inTerminal bool) error {
	started := time.Now()
	text, expected := s.replace(command.Text), make([]string, len(command.Output))
	for i, line := range command.Output {
		expected[i] = s.replace(line)
	}
	var err error
	if inTerminal {
		err = s.open(ctx, text, expected)
	} else {
		err = s.run(ctx, text, expected)
	}
	s.Log("%.1f s: %s", time.Since(started).Seconds(), command.Text)
	return err
}

// run runs a command to its end. Output that the page shows but the command does
// not print yet is waited for, because a reader would look again.
func (s *Session) run(ctx context.Context, text string, expected []string) error {
	for {
		command := s.command(ctx, text)
		output, err := command.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", text, err, output)
		}
		missing := Missing(expected, string(output))
		if missing == "" {
			return nil
		}
		if !looksOnly(text) {
			return fmt.Errorf("%s: the page shows %q, which is not in the output:\n%s", text, missing, output)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: the page shows %q, which is not in the output:\n%s", text, ctx.Err(), missing, output)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// looksOnly reports whether a command may be repeated because it changes
// nothing.
func looksOnly(text string) bool {
	verb := regexp.MustCompile(`^(bin/)?kubectl (-n \S+ |--kubeconfig \S+ )*(get|describe|events|logs)\b`)
	return verb.MatchString(text)
}

func (s *Session) command(ctx context.Context, text string) *exec.Cmd {
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", text)
	command.Dir, command.Env = s.Dir, s.Environment
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = 20 * time.Second
	return command
}

// terminal is a command that goes on.
type terminal struct {
	stop context.CancelFunc
	done chan error

	mu     sync.Mutex
	output bytes.Buffer
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.output.Write(p)
}

func (t *terminal) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.output.String()
}

// open starts a command and returns once it has printed what the page shows.
func (s *Session) open(ctx context.Context, text string, expected []string) error {
	lifetime, stop := context.WithCancel(context.WithoutCancel(ctx))
	t := &terminal{stop: stop, done: make(chan error, 1)}
	command := s.command(lifetime, text)
	command.Stdout, command.Stderr = t, t
	if err := command.Start(); err != nil {
		stop()
		return err
	}
	s.terminals = append(s.terminals, t)
	go func() { t.done <- command.Wait() }()
	for {
		missing := Missing(expected, t.text())
		if missing == "" {
			return nil
		}
		select {
		case err := <-t.done:
			t.done <- err
			return fmt.Errorf("%s ended: %w", text, errors.Join(err, fmt.Errorf("the page shows %q, which is not in the output:\n%s", missing, t.text())))
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: the page shows %q, which is not in the output:\n%s", text, ctx.Err(), missing, t.text())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Close ends what goes on in terminals, the latest first.
func (s *Session) Close() {
	for i := len(s.terminals) - 1; i >= 0; i-- {
		s.terminals[i].stop()
		<-s.terminals[i].done
	}
	s.terminals = nil
}

// varying are the parts of an output that differ from run to run.
var varying = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\b\d+(\.\d+)?(ms|s|m|h)(\d+s)?\b`), "AGE"},
	{regexp.MustCompile(`revision [0-9a-f]{12}`), "revision REVISION"},
	{regexp.MustCompile(`\s+`), " "},
}

// Missing returns the first of a page's lines that an output does not have, in
// this order. A line of the page that ends in "..." is the beginning of one;
// "..." alone stands for any lines. Values that differ from run to run are not
// compared.
func Missing(expected []string, output string) string {
	lines := strings.Split(output, "\n")
	for _, wanted := range expected {
		if strings.TrimSpace(wanted) == "..." || strings.TrimSpace(wanted) == "" {
			continue
		}
		found := false
		for len(lines) > 0 && !found {
			found = fits(wanted, lines[0])
			lines = lines[1:]
		}
		if !found {
			return wanted
		}
	}
	return ""
}

func fits(wanted, line string) bool {
	for _, v := range varying {
		wanted, line = v.pattern.ReplaceAllString(wanted, v.with), v.pattern.ReplaceAllString(line, v.with)
	}
	wanted, line = strings.TrimSpace(wanted), strings.TrimSpace(line)
	if beginning, ok := strings.CutSuffix(wanted, "..."); ok {
		return strings.HasPrefix(line, strings.TrimSpace(beginning))
	}
	return wanted == line
}
