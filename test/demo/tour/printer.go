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

// printer writes what the visitor reads. Several goroutines may use it.
type printer struct {
	started time.Time
	// unread is called when writing fails for good.
	unread func(error)

	mu    sync.Mutex
	to    io.Writer
	steps int
}

// step begins a numbered step; the time is the time since the start.
func (p *printer) step(title string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps++
	heading := fmt.Sprintf("%d. %s", p.steps, title)
	elapsed := fmt.Sprintf("[%3.0f s]", time.Since(p.started).Seconds())
	fill := max(1, lineWidth-utf8.RuneCountInString(heading)-len(elapsed))
	p.write("\n" + heading + strings.Repeat(" ", fill) + elapsed)
}

// say writes a paragraph.
func (p *printer) say(format string, arguments ...any) {
	p.lines(wrap(fmt.Sprintf(format, arguments...), lineWidth-len(indent)))
}

// command shows a command as it could be typed.
func (p *printer) command(line string) { p.lines([]string{"$ " + line}) }

// quote shows a text as it is.
func (p *printer) quote(text string) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight("| "+line, " ")
	}
	p.lines(lines)
}

// table aligns columns; the first row is the heading.
func (p *printer) table(rows [][]string) {
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

// Write passes on progress lines that others write during long steps.
func (p *printer) Write(text []byte) (int, error) {
	p.lines(strings.Split(strings.TrimRight(string(text), "\n"), "\n"))
	return len(text), nil
}

func (p *printer) lines(lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range lines {
		p.write(strings.TrimRight(indent+line, " "))
	}
}

// write writes a line; the caller has the lock.
func (p *printer) write(line string) {
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
