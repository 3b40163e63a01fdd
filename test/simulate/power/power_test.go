package main

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestMistakesFitTheProgram(t *testing.T) {
	text, err := os.ReadFile("mistakes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var mistakes []mistake
	if err := yaml.UnmarshalStrict(text, &mistakes); err != nil {
		t.Fatal(err)
	}
	for _, one := range mistakes {
		for _, e := range one.Edits {
			content, err := os.ReadFile("../../../" + e.File)
			if err != nil {
				t.Fatal(err)
			}
			if e.Before == "" || !strings.Contains(string(content), e.Before) {
				t.Errorf("%s: %s does not contain %q", one.Name, e.File, e.Before)
			}
		}
	}
}
