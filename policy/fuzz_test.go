package policy

import (
	"errors"
	"os"
	"testing"
)

// FuzzParse looks for files that crash the reader, or that it accepts although
// they cannot be decided on.
func FuzzParse(f *testing.F) {
	for _, dir := range []string{"good", "bad"} {
		for _, file := range testdata(f, dir) {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			if len(data) < 4096 {
				f.Add(data)
			}
		}
	}
	for _, text := range []string{"{", "- &a [*a]", "? {a: b}\n: c", "!!binary x", "a: |\n b", "---\n---\n", "\xef\xbb\xbf", "%YAML 9\n---\n", "a: *b"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(data, "p.yaml", protocols())
		if err != nil {
			var mistakes ErrorList
			if p != nil || !errors.As(err, &mistakes) || len(mistakes) == 0 {
				t.Fatalf("Parse = %v, %v", p, err)
			}
			for _, e := range mistakes {
				if e.Message == "" || e.Line < 0 || e.Source != "p.yaml" {
					t.Fatalf("a mistake without a place or message: %+v", e)
				}
			}
			return
		}
		for _, tenant := range p.Tenants {
			for _, namespace := range append([]string{"team-a"}, tenant.Namespaces...) {
				for _, class := range tenant.Classes {
					for _, name := range class.StorageClasses {
						d := p.Decide(Request{Namespace: namespace, StorageClass: name, Bytes: 1})
						if d.Denial == nil && len(d.Backends) == 0 {
							t.Fatalf("granted without a backend: %+v", d)
						}
						if d.Denial != nil && d.Denial.Reason == AmbiguousTenant && tenant.NamespaceSelector == nil {
							t.Fatalf("names or patterns overlap: %+v", d)
						}
					}
				}
			}
		}
	})
}
