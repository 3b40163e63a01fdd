package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// referenceFile is the page of the policy's fields.
const referenceFile = "../../docs/reference/policy.md"

// TestReferenceIsUpToDate keeps the page of the policy's fields in step with
// the schema.
func TestReferenceIsUpToDate(t *testing.T) {
	want := reference(t)
	if *update {
		if err := os.WriteFile(referenceFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the schema says; run go test ./policy/schema -run TestReferenceIsUpToDate -update", referenceFile)
	}
}

// described is what the page says about a part of the schema.
type described struct {
	Type                 string
	Description          string
	Enum                 []string
	Ref                  string `json:"$ref"`
	AllOf                []described
	Items                *described
	AdditionalProperties json.RawMessage
	Properties           map[string]described
	Definitions          map[string]described
	Required             []string
}

func reference(t *testing.T) string {
	t.Helper()
	var root described
	if err := json.Unmarshal(JSON(protocols()), &root); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Policy fields\n\n" +
		"Generated from the JSON Schema; do not edit. `go test ./policy/schema -run TestReferenceIsUpToDate -update` regenerates it.\n" +
		"[config.example.yaml](../../config.example.yaml) shows the fields in use; [mappings](../protocols.md#writing-a-mapping) have their own page.\n")
	section(&b, "Policy", root)
	waiting, done := below(root), map[string]bool{}
	for len(waiting) > 0 {
		name := waiting[0]
		waiting = waiting[1:]
		if !done[name] {
			done[name] = true
			section(&b, name, root.Definitions[name])
			waiting = append(waiting, below(root.Definitions[name])...)
		}
	}
	if len(done) != len(root.Definitions) {
		t.Errorf("the page has %d of %d definitions", len(done), len(root.Definitions))
	}
	return b.String()
}

func section(b *strings.Builder, name string, part described) {
	fmt.Fprintf(b, "\n## %s\n\n| field | type | |\n|---|---|---|\n", name)
	for _, field := range slices.Sorted(maps.Keys(part.Properties)) {
		about := part.Properties[field]
		required := ""
		if slices.Contains(part.Required, field) {
			required = "**Required.** "
		}
		fmt.Fprintf(b, "| `%s` | %s | %s%s |\n", field, kind(about), required, strings.ReplaceAll(about.Description, "|", `\|`))
	}
}

// kind returns the type of a field.
func kind(about described) string {
	if name := definitionOf(about); name != "" {
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	}
	switch {
	case len(about.Enum) > 0:
		return "`" + strings.Join(about.Enum, "`, `") + "`"
	case about.Items != nil:
		return "list of " + kind(*about.Items)
	case about.Type == "object":
		var value described
		if json.Unmarshal(about.AdditionalProperties, &value) != nil {
			return about.Type
		}
		return "map of " + kind(value)
	}
	return about.Type
}

// definitionOf returns the name of the definition that a field has, if any.
func definitionOf(about described) string {
	if about.Ref != "" {
		return strings.TrimPrefix(about.Ref, "#/definitions/")
	}
	for _, part := range about.AllOf {
		if name := definitionOf(part); name != "" {
			return name
		}
	}
	return ""
}

// below returns the definitions that the fields of a definition refer to.
func below(part described) []string {
	var names []string
	for _, field := range slices.Sorted(maps.Keys(part.Properties)) {
		about := part.Properties[field]
		for _, candidate := range []*described{&about, about.Items, valueOf(about)} {
			if candidate == nil {
				continue
			}
			if name := definitionOf(*candidate); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// valueOf describes the values of a map.
func valueOf(about described) *described {
	var value described
	if json.Unmarshal(about.AdditionalProperties, &value) != nil {
		return nil
	}
	return &value
}
