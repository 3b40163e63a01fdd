package timeline

import (
	"strings"
	"testing"
	"time"
)

func TestTimelineKeepsWhatItSays(t *testing.T) {
	var out strings.Builder
	l := New(&out)
	l.Note("before")
	l.Begin(time.Now())
	l.Say("after %d", 1)
	lines := l.All()
	if len(lines) != 2 || !strings.HasSuffix(lines[0], "   0.00s  before") || !strings.HasSuffix(lines[1], "s  after 1") || out.String() != "chaos: after 1\n" {
		t.Errorf("lines %q, said %q", lines, out.String())
	}
}
