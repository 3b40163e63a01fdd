package collation

import "testing"

func TestCollationIgnoresCaseAccentsAndTrailingBlanks(t *testing.T) {
	for _, same := range [][2]string{{"pvc-1", "PVC-1"}, {"pvc-é", "pvc-E"}, {"a  ", "A"}, {"Ñandú", "nandu"}, {"", "  "}, {"ß", "s"}} {
		if Key(same[0]) != Key(same[1]) {
			t.Errorf("%q and %q differ", same[0], same[1])
		}
	}
	for _, differ := range [][2]string{{"a", "b"}, {" a", "a"}, {"pvc_1", "pvc-1"}, {"日", "本"}} {
		if Key(differ[0]) == Key(differ[1]) {
			t.Errorf("%q and %q are the same", differ[0], differ[1])
		}
	}
}

func TestLike(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"%B%", "ABC", true}, {"%B%", "AC", false}, {"A_C", "ABC", true}, {"A_C", "AC", false}, {"%", "", true}, {"", "", true},
		{"", "A", false}, {"%A%A%", "BAB", false}, {"%A%A%", "BABA", true}, {"%AB", "AAB", true},
	} {
		if got := Like(test.pattern, test.text); got != test.want {
			t.Errorf("%q like %q is %v", test.text, test.pattern, got)
		}
	}
}
