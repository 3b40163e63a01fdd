package tour

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// lineWidth is the width at which text is wrapped, in characters.
const lineWidth = 100

const indent = "   "

// Printer writes what the visitor reads. Several goroutines may use it.
type Printer struct {
	started time.Time
	unread  func(error)

	mu    sync.Mutex
	to    io.Writer
	steps int
}

// NewPrinter returns a printer whose time begins now. It calls unread when writing fails for
// good.
func NewPrinter(to io.Writer, unread func(error)) *Printer {
	return &Printer{to: to, started: time.Now(), unread: unread}
}

// Step begins a numbered step; the time is the time since the start.
func (p *Printer) Step(title string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps++
	heading := fmt.Sprintf("%d. %s", p.steps, title)
	elapsed := fmt.Sprintf("[%3.0f s]", time.Since(p.started).Seconds())
	fill := max(1, lineWidth-utf8.RuneCountInString(heading)-len(elapsed))
	p.write("\n" + heading + strings.Repeat(" ", fill) + elapsed)
}

// Say writes a paragraph.
func (p *Printer) Say(format string, arguments ...any) {
	p.lines(wrap(fmt.Sprintf(format, arguments...), lineWidth-len(indent)))
}

// Command shows a command as it could be typed.
func (p *Printer) Command(line string) { p.lines([]string{"$ " + line}) }

// Quote shows a text as it is.
func (p *Printer) Quote(text string) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight("| "+line, " ")
	}
	p.lines(lines)
}

// Table aligns columns; the first row is the heading.
func (p *Printer) Table(rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		lines[n] = strings.TrimRight(line.String(), " ")
	}
	p.lines(lines)
}

// EveryMinute reports that a long step is still running, until the returned
// function is called.
func (p *Printer) EveryMinute(what string) (stop func()) {
	done := make(chan struct{})
	started := time.Now()
	go func() {
		ticker := time.NewTicker(time.Minute)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				p.Say("... %s after %s", what, time.Since(started).Round(time.Minute))
			}
		}
	}()
	return func() { close(done) }
}

// Write passes on progress lines that others write during long steps.
func (p *Printer) Write(text []byte) (int, error) {
	p.lines(strings.Split(strings.TrimRight(string(text), "\n"), "\n"))
	return len(text), nil
}

func (p *Printer) lines(lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range lines {
		p.write(strings.TrimRight(indent+line, " "))
	}
}

// write writes a line; the caller has the lock.
func (p *Printer) write(line string) {
	if _, err := fmt.Fprintln(p.to, line); err != nil {
		p.unread(fmt.Errorf("the output is no longer read: %w", err))
	}
}

// wrap breaks a text between words. A word longer than a line stays whole, so
// that it can be copied.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
