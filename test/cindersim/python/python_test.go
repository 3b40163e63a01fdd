package python

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
		if got, err := Literal(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v, %v; want %#v", text, got, err, want)
		}
	}
	for _, text := range []string{``, `available`, `'a`, `{'a'}`, `{'a':}`, `[1`, `[1 2]`, `1 2`, `--`, `++0`, `01`, `true`, `null`, `{'a':1`, `'a\`, "'\n'"} {
		if got, err := Literal(text); err == nil {
			t.Errorf("%q is read as %#v", text, got)
		}
	}
}

func FuzzLiteral(f *testing.F) {
	for _, seed := range []string{`{'a': ['b', 1.5, (True,)]}`, `'it\'s'`, `[[[[`, `{1:{2:{}}}`, "'\xff'"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		value, err := Literal(text)
		if err != nil || !utf8.ValidString(text) {
			return
		}
		// What is printed reads back as the same value.
		printed := Repr(value)
		again, err := Literal(printed)
		if err != nil {
			t.Fatalf("%q is read as %#v, which prints as %q: %v", text, value, printed, err)
		}
		if reprinted := Repr(again); reprinted != printed {
			t.Fatalf("%q prints as %q and then as %q", text, printed, reprinted)
		}
	})
}
