// Package schema generates the JSON Schema of policy files, with which editors complete
// and check them.
package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// object is a JSON Schema, or part of one. Its keys are sorted when written, so that
// equal schemas have equal bytes.
type object = map[string]any

// JSON returns the JSON Schema (draft 7, which editors know best) of policy files. It is
// derived from the types that policy.Parse decodes into and from the descriptions in
// fields.go. It accepts every valid policy. Only policy.Parse finds what it cannot
// express, such as overlapping patterns or unknown backends.
func JSON(protocols mapping.Protocols) []byte {
	b := &builder{fields: fields(protocols), definitions: object{}}
	root := b.object(reflect.TypeFor[policy.Policy]())
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "standalone-cinder policy"
	root["definitions"] = b.definitions
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		// The schema consists of maps, lists, strings and numbers only.
		panic("schema: the schema cannot be written: " + err.Error())
	}
	return append(text, '\n')
}

// field describes what the type of a field does not express.
type field struct {
	description string
	required    bool
	// rules are merged into the schema of the value.
	rules object
	// entries are merged into the schema of each entry of a list or value of
	// a mapping.
	entries object
}

// builder creates definitions for types as it encounters them.
type builder struct {
	fields      map[string]field
	definitions object
}

// of returns the schema of a value of the type. It accepts what decode does.
func (b *builder) of(t reflect.Type) object {
	switch {
	case t.Kind() == reflect.Pointer:
		return b.of(t.Elem())
	case t == reflect.TypeFor[policy.Size]():
		return object{"type": "string", "pattern": policy.SizePattern}
	case t == reflect.TypeFor[time.Duration]():
		return object{"type": "string", "pattern": durationPattern}
	}
	switch t.Kind() {
	case reflect.Struct:
		name := definition(t)
		if _, known := b.definitions[name]; !known {
			b.definitions[name] = object{} // ends recursion
			b.definitions[name] = b.object(t)
		}
		return object{"$ref": "#/definitions/" + name}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": b.of(t.Elem())}
	case reflect.Slice:
		return object{"type": "array", "items": b.of(t.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int64:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	}
	// As in decodeScalar: a mistake that the drift test shows.
	panic("schema: no schema for " + t.String())
}

// definition returns a struct's name in the schema, without its package unless the name
// alone is ambiguous.
func definition(t reflect.Type) string {
	if t == reflect.TypeFor[mapping.Secret]() {
		return "MappingSecret"
	}
	return t.Name()
}

// object returns the schema of a struct. A field without an entry in the table is a
// programming mistake, which the drift test catches.
func (b *builder) object(t reflect.Type) object {
	properties, required := object{}, []string{}
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		about, ok := b.fields[definition(t)+"."+name]
		if !ok {
			panic(fmt.Sprintf("schema: fields.go says nothing about %s.%s", definition(t), name))
		}
		value := b.of(field.Type)
		for _, inner := range []string{"items", "additionalProperties"} {
			if entries, ok := value[inner].(object); ok {
				maps.Copy(entries, about.entries)
			}
		}
		if value["type"] == "string" && value["pattern"] == nil {
			// Empty values are refused; see decodeStruct.
			value["minLength"] = 1
		}
		if value["$ref"] != nil {
			// Draft 7 ignores keywords next to a reference.
			value = object{"allOf": []object{value}}
		}
		maps.Copy(value, about.rules)
		value["description"] = about.description
		properties[name] = value
		if about.required {
			required = append(required, name)
		}
	}
	result := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		result["required"] = required
	}
	maps.Copy(result, b.fields[definition(t)].rules)
	return result
}

// durationPattern matches what time.ParseDuration accepts, if positive.
const durationPattern = `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`

// Checks of the package policy as regular expressions that both Go and ECMAScript
// understand. They may accept more than the checks, never less.
const (
	textPattern         = `^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$`
	labelPattern        = `^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	subdomainPattern    = `^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`
	namespacePattern    = `^[a-z0-9*]([a-z0-9*-]*[a-z0-9*])?$`
	storageClassPattern = `^[a-z0-9*]([a-z0-9*.-]*[a-z0-9*])?$`
	labelKeyPattern     = `^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	labelValuePattern   = `^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$`
	endpointPattern     = `^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@]+(/[^?#]*)?$`
	ownMetadataPattern  = `^[sS][tT][aA][nN][dD][aA][lL][oO][nN][eE]-[cC][iI][nN][dD][eE][rR]\.[oO][pP][eE][nN][sS][tT][aA][cC][kK]\.[oO][rR][gG]/`
	withoutColonPattern = `^[^:]*$`
	csiDriverPattern    = `^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`
	secretKeyPattern    = `^[A-Za-z0-9._-]+$`
	notZeroPattern      = `[1-9]`
)

// choice lists values that a schema has as an enum.
func choice[T ~string](values ...T) object {
	list := make([]string, len(values))
	for i, value := range values {
		list[i] = string(value)
	}
	return object{"enum": list}
}

func textRules() object {
	return object{"pattern": textPattern, "maxLength": policy.MaxTextLength}
}

// both requires a value to match two schemas.
func both(a, b object) object { return object{"allOf": []object{a, b}} }

// when requires something of mappings of a form.
func when(as mapping.Form, then object) object {
	return object{
		"if":   object{"properties": object{"as": object{"const": string(as)}}, "required": []string{"as"}},
		"then": then,
	}
}

// without forbids keys of an object.
func without(keys ...string) object {
	forbidden := object{}
	for _, key := range keys {
		forbidden[key] = false
	}
	return object{"properties": forbidden}
}

// mappingRules relates keys to forms and protocols.
func mappingRules(protocols mapping.Protocols) object {
	of := func(protocol string) object {
		all := []object{{"$ref": "#/definitions/" + definition(reflect.TypeFor[mapping.Mapping]())}}
		for _, as := range mapping.Forms() {
			all = append(all, when(as, without(protocols.Unfit(protocol, as)...)))
		}
		return object{"allOf": all}
	}
	driver := when(mapping.CSI, object{"required": []string{"driver"}})
	known := object{}
	for protocol, about := range protocols {
		switch {
		case about.CephCSI:
			// The built-in mapping has a driver, and needs the name of the cluster.
			known[protocol] = both(of(protocol), when(mapping.CSI, object{"oneOf": []object{
				{"required": []string{"clusterID"}, "properties": without(append([]string{"volumeHandle", "secret"}, mapping.SecretReferenceKeys()[1:]...)...)["properties"]},
				{"required": []string{"volumeHandle"}, "properties": without("clusterID", "imageFeatures")["properties"]},
			}}))
		case about.Native:
			known[protocol] = both(of(protocol), driver)
		}
	}
	return object{
		"propertyNames": object{"pattern": mapping.ProtocolPattern},
		"properties":    known,
		"additionalProperties": object{"allOf": []object{
			of(""), driver,
			{"properties": object{"as": choice(mapping.CSI, mapping.FlexVolume)}},
		}},
	}
}

// selectorRequirementRules define which operators take values.
func selectorRequirementRules() object {
	with := object{"properties": object{"operator": choice(metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), "values": object{"minItems": 1}}, "required": []string{"values"}}
	alone := object{"properties": object{"operator": choice(metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist), "values": object{"maxItems": 0}}}
	return object{"oneOf": []object{with, alone}}
}

func labelKeyNames() object {
	return object{"propertyNames": object{"pattern": labelKeyPattern, "maxLength": validation.DNS1123SubdomainMaxLength + 1 + validation.LabelValueMaxLength}}
}
