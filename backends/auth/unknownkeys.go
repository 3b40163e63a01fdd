package auth

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"go.yaml.in/yaml/v3"
)

// UnknownKey is a key of an entry of clouds.yaml or secure.yaml that nothing reads.
// Other programs may read it, so only a key that resembles a known one is a
// mistake.
type UnknownKey struct {
	File  string
	Line  int
	Key   string
	Known []string
}

// UnknownKeys lists the keys of an entry that nothing reads.
func (s Sources) UnknownKeys(name string) []UnknownKey {
	path, err := s.cloudsFile()
	if err != nil {
		return nil
	}
	var found []UnknownKey
	for _, file := range []string{path, filepath.Join(filepath.Dir(path), "secure.yaml")} {
		var document struct {
			Clouds map[string]yaml.Node `yaml:"clouds"`
		}
		if err := (fileSet{}).readYAML(file, &document); err != nil {
			continue // which Resolve reports
		}
		entry := document.Clouds[name]
		found = append(found, unknownKeys(file, &entry, reflect.TypeFor[clouds.Cloud]())...)
	}
	return found
}

func unknownKeys(file string, mapping *yaml.Node, of reflect.Type) []UnknownKey {
	if mapping.Kind != yaml.MappingNode {
		return nil
	}
	known := map[string]reflect.Type{}
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("yaml"), ",")
		known[name] = of.Field(i).Type
	}
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	var found []UnknownKey
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		of, ok := known[key.Value]
		switch {
		case !ok:
			found = append(found, UnknownKey{File: file, Line: key.Line, Key: key.Value, Known: names})
		case of == reflect.TypeFor[*clouds.AuthInfo]():
			found = append(found, unknownKeys(file, value, of.Elem())...)
		}
	}
	return found
}
