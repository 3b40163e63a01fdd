package template_test

import (
	"encoding/json"
	"strings"
	"testing"
	gotemplate "text/template"

	"github.com/standalone-cinder/standalone-cinder/mappers/template"
)

// TestTextTemplateWouldNotDo shows what text/template does where this package
// promises something else. If a case fails with a new release of Go, look again.
// See docs/decisions.md, "Templates".
func TestTextTemplateWouldNotDo(t *testing.T) {
	functions := gotemplate.FuncMap{
		"default": func(other, value any) any {
			if value == nil || value == "" {
				return other
			}
			return value
		},
		"json": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
	}
	const missing = `map has no entry for key "absent"`
	for _, c := range []struct {
		why, option, text string
		// theirs is the result of text/template, or part of its error; ours is
		// part of what this package answers.
		theirs, ours string
	}{
		{"a missing value is text unless missingkey=error", "missingkey=default", `{{ .connection.absent }}`, "<no value>", "connection.absent is missing"},
		{"with missingkey=error nothing can be optional", "missingkey=error", `{{ .connection.absent | default "x" }}`, missing, "x"},
		{"null is text even with missingkey=error", "missingkey=error", `{{ .volume.zone }}`, "<no value>", "volume.zone is missing"},
		{"a missing element cannot be optional", "missingkey=default", `{{ index .connection.luns 9 | default "x" }}`, "index out of range: 9", "x"},
		{"lists and objects have a text, with credentials in it", "missingkey=error", `{{ .connection.config }}`, "not-a-real-token", "connection.config is an object, but text is needed"},
		{"a computed name reaches a credential", "missingkey=error", `{{ index .connection.config (printf "api_%s" "token") }}`, "not-a-real-token", "may be used only under secret.data"},
		{"a function does not know where its value comes from", "missingkey=error", `{{ .connection.config | json }}`, "not-a-real-token", "may be used only under secret.data"},
		{"a wrong type is text", "missingkey=error", `{{ printf "%d" .connection.name }}`, "%!d(string=volumes/volume-1)", "connection.name is not a whole number"},
	} {
		var result strings.Builder
		parsed, err := gotemplate.New("").Option(c.option).Funcs(functions).Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if err := parsed.Execute(&result, values(t)); err != nil {
			result.WriteString(err.Error())
		}
		if !strings.Contains(result.String(), c.theirs) {
			t.Errorf("%s: text/template now makes %q of %s", c.why, result.String(), c.text)
		}
		own, err := template.Parse(c.text, template.Use{})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := own.Execute(values(t))
		if err != nil {
			answer = err.Error()
		}
		if !strings.Contains(answer, c.ours) {
			t.Errorf("%s: %s comes out as %q", c.why, c.text, answer)
		}
	}
}
