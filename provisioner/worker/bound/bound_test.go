package bound

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestOnlyWhatIsTooLongIsCut(t *testing.T) {
	for name, c := range map[string]struct{ given, want string }{
		"short":           {"gold", "gold"},
		"as long as fits": {strings.Repeat("x", maxText), strings.Repeat("x", maxText)},
		"too long":        {strings.Repeat("x", maxText+1), strings.Repeat("x", maxText-len(mark)) + mark},
		"cut in a rune":   {strings.Repeat("é", maxText), strings.Repeat("é", (maxText-len(mark))/2) + mark},
	} {
		t.Run(name, func(t *testing.T) {
			got := Text(c.given)
			if got != c.want || len(got) > maxText || !utf8.ValidString(got) {
				t.Errorf("cut to %d bytes, %q", len(got), got)
			}
			if again := Text(got); again != got {
				t.Errorf("cut again to %q", again)
			}
		})
	}
	if got := Message(strings.Repeat("x", 1<<20)); len(got) != maxMessage {
		t.Errorf("a message has %d bytes", len(got))
	}
	if got := Summary(strings.Repeat("x", 1<<20)); len(got) != maxSummary {
		t.Errorf("a summary has %d bytes", len(got))
	}
}
