package cindersim

import (
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"
)

func TestLiteral(t *testing.T) {
	for text, want := range map[string]any{
		`'a'`:                        "a",
		`"it's"`:                     "it's",
		`'it\'s'`:                    "it's",
		`'a\\b\n'`:                   "a\\b\n",
		`'\d'`:                       `\d`,
		`5`:                          json.Number("5"),
		`-1.5e3`:                     json.Number("-1.5e3"),
		`True`:                       true,
		`None`:                       nil,
		`[1, 'b',]`:                  []any{json.Number("1"), "b"},
		`()`:                         []any{},
		`('a')`:                      "a",
		`('a',)`:                     []any{"a"},
		`{'k':'v', "l": {1: False}}`: map[string]any{"k": "v", "l": map[string]any{"1": false}},
		` {} `:                       map[string]any{},
		`'é'`:                        "é",
	} {
		if got, err := literal(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v, %v; want %#v", text, got, err, want)
		}
	}
	for _, text := range []string{``, `available`, `'a`, `{'a'}`, `{'a':}`, `[1`, `[1 2]`, `1 2`, `--`, `++0`, `01`, `true`, `null`, `{'a':1`, `'a\`, "'\n'"} {
		if got, err := literal(text); err == nil {
			t.Errorf("%q is read as %#v", text, got)
		}
	}
}

func FuzzLiteral(f *testing.F) {
	for _, seed := range []string{`{'a': ['b', 1.5, (True,)]}`, `'it\'s'`, `[[[[`, `{1:{2:{}}}`, "'\xff'"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		value, err := literal(text)
		if err != nil || !utf8.ValidString(text) {
			return
		}
		// What is printed reads back as the same value.
		printed := pythonRepr(value)
		again, err := literal(printed)
		if err != nil {
			t.Fatalf("%q is read as %#v, which prints as %q: %v", text, value, printed, err)
		}
		if reprinted := pythonRepr(again); reprinted != printed {
			t.Fatalf("%q prints as %q and then as %q", text, printed, reprinted)
		}
	})
}

func TestCollationIgnoresCaseAccentsAndTrailingBlanks(t *testing.T) {
	for _, same := range [][2]string{{"pvc-1", "PVC-1"}, {"pvc-é", "pvc-E"}, {"a  ", "A"}, {"Ñandú", "nandu"}, {"", "  "}, {"ß", "s"}} {
		if collate(same[0]) != collate(same[1]) {
			t.Errorf("%q and %q differ", same[0], same[1])
		}
	}
	for _, differ := range [][2]string{{"a", "b"}, {" a", "a"}, {"pvc_1", "pvc-1"}, {"日", "本"}} {
		if collate(differ[0]) == collate(differ[1]) {
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
		if got := like(test.pattern, test.text); got != test.want {
			t.Errorf("%q like %q is %v", test.text, test.pattern, got)
		}
	}
}
