package statusreport

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestEveryFieldIsDocumented compares with the reference of status.json.
func TestEveryFieldIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "status.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, reference, found := strings.Cut(string(text), "\n## Fields of status.json\n")
	if !found {
		t.Fatal("docs/reference/status.md has no section about the fields")
	}
	names := map[string]bool{}
	fieldsOf(reflect.TypeFor[Report](), names)
	if len(names) < 50 {
		t.Errorf("only %d fields were found", len(names))
	}
	for name := range names {
		if !strings.Contains(reference, "`"+name+"`") && !strings.Contains(reference, "`"+name+"[]`") {
			t.Errorf("the field %s is not documented", name)
		}
	}
}

func fieldsOf(of reflect.Type, names map[string]bool) {
	switch {
	case of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice:
		fieldsOf(of.Elem(), names)
	case of.Kind() == reflect.Struct && of != reflect.TypeFor[time.Time]():
		for i := range of.NumField() {
			field := of.Field(i)
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
				names[name] = true
			}
			fieldsOf(field.Type, names)
		}
	}
}
