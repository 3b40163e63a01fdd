package policy

import (
	"reflect"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/hints"
)

// TestMisplacedKeysAreUnknownWhereTheyAre: a remedy for a key that the language
// now has there, or for a type that has another name, would never be shown.
func TestMisplacedKeysAreUnknownWhereTheyAre(t *testing.T) {
	types := map[string][]string{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if types[typ.Name()] != nil {
			return
		}
		types[typ.Name()] = []string{}
		for i := range typ.NumField() {
			if name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
				types[typ.Name()] = append(types[typ.Name()], name)
				walk(typ.Field(i).Type)
			}
		}
	}
	walk(reflect.TypeFor[Policy]())
	for typ, keys := range hints.Keys() {
		known, ok := types[typ]
		if !ok {
			t.Errorf("no part of a policy has the type %s", typ)
		}
		for key := range keys {
			for _, name := range known {
				if name == key {
					t.Errorf("%s is a key of %s", key, typ)
				}
			}
			// A similar key is suggested instead, as for other typing errors.
			if near, ok := document.Suggest(key, known); ok {
				t.Errorf("%s of %s is taken for a misspelled %s", key, typ, near)
			}
		}
	}
}
