package policy

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
)

// schema is a JSON Schema, or a part of one. Its keys are sorted when it is
// written, so that equal schemas have equal bytes.
type schema = map[string]any

// Schema returns the JSON Schema (draft 7, which editors know best) of policy
// files. It is made from the types that Parse decodes into and from what
// schema_fields.go says about each field. It accepts every good policy. What
// it cannot express, such as overlapping patterns or unknown backends, only
// Parse finds.
func Schema(protocols mapping.Protocols) []byte {
	b := &schemaBuilder{fields: fieldSchemas(protocols), definitions: schema{}}
	root := b.object(reflect.TypeFor[Policy]())
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "standalone-cinder policy"
	root["definitions"] = b.definitions
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		// It consists of maps, lists, strings and numbers only.
		panic("policy: the schema cannot be written: " + err.Error())
	}
	return append(text, '\n')
}

// fieldSchema is what the type of a field does not say.
type fieldSchema struct {
	description string
	required    bool
	// rules are merged into the schema of the value.
	rules schema
	// entries are merged into the schema of each entry of a list or value of
	// a mapping.
	entries schema
}

// schemaBuilder makes definitions for types as it meets them.
type schemaBuilder struct {
	fields      map[string]fieldSchema
	definitions schema
}

// of is the schema of a value of the type. It accepts what decode does.
func (b *schemaBuilder) of(t reflect.Type) schema {
	switch {
	case t.Kind() == reflect.Pointer:
		return b.of(t.Elem())
	case t == reflect.TypeFor[Size]():
		return schema{"type": "string", "pattern": sizePattern.String()}
	case t == reflect.TypeFor[time.Duration]():
		return schema{"type": "string", "pattern": durationPattern}
	}
	switch t.Kind() {
	case reflect.Struct:
		name := definition(t)
		if _, known := b.definitions[name]; !known {
			b.definitions[name] = schema{} // ends recursion
			b.definitions[name] = b.object(t)
		}
		return schema{"$ref": "#/definitions/" + name}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": b.of(t.Elem())}
	case reflect.Slice:
		return schema{"type": "array", "items": b.of(t.Elem())}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Int64:
		return schema{"type": "integer"}
	case reflect.Float64:
		return schema{"type": "number"}
	}
	// As in decodeScalar: a mistake that the drift test shows.
	panic("policy: no schema for " + t.String())
}

// definition is the name of a struct in the schema. The package of a type is not
// part of it, unless the rest says too little.
func definition(t reflect.Type) string {
	if t == reflect.TypeFor[mapping.Secret]() {
		return "MappingSecret"
	}
	return t.Name()
}

// object is the schema of a struct. A field without an entry in the table is a
// programming mistake, which the drift test shows.
func (b *schemaBuilder) object(t reflect.Type) schema {
	properties, required := schema{}, []string{}
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		about, ok := b.fields[definition(t)+"."+name]
		if !ok {
			panic(fmt.Sprintf("policy: schema_fields.go says nothing about %s.%s", definition(t), name))
		}
		value := b.of(field.Type)
		for _, inner := range []string{"items", "additionalProperties"} {
			if entries, ok := value[inner].(schema); ok {
				maps.Copy(entries, about.entries)
			}
		}
		if value["type"] == "string" && value["pattern"] == nil {
			// Empty values are refused; see decodeStruct.
			value["minLength"] = 1
		}
		if value["$ref"] != nil {
			// Draft 7 ignores what stands beside a reference.
			value = schema{"allOf": []schema{value}}
		}
		maps.Copy(value, about.rules)
		value["description"] = about.description
		properties[name] = value
		if about.required {
			required = append(required, name)
		}
	}
	object := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		object["required"] = required
	}
	maps.Copy(object, b.fields[definition(t)].rules)
	return object
}

// durationPattern is what time.ParseDuration accepts, as far as it is positive.
const durationPattern = `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`

// These say in regular expressions that Go and ECMAScript both understand what
// validate.go and names.go say in Go. They may accept more, never less.
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
func choice[T ~string](values ...T) schema {
	list := make([]string, len(values))
	for i, value := range values {
		list[i] = string(value)
	}
	return schema{"enum": list}
}

func textRules() schema {
	return schema{"pattern": textPattern, "maxLength": maxTextLength}
}

// both demands two schemas of one value.
func both(a, b schema) schema { return schema{"allOf": []schema{a, b}} }

// when demands something of a mapping whose as is of that kind.
func when(as mapping.Form, then schema) schema {
	return schema{
		"if":   schema{"properties": schema{"as": schema{"const": string(as)}}, "required": []string{"as"}},
		"then": then,
	}
}

// without forbids keys of an object.
func without(keys ...string) schema {
	forbidden := schema{}
	for _, key := range keys {
		forbidden[key] = false
	}
	return schema{"properties": forbidden}
}

// mappingRules says which keys go with which form and protocol.
func mappingRules(protocols mapping.Protocols) schema {
	of := func(protocol string) schema {
		all := []schema{{"$ref": "#/definitions/" + definition(reflect.TypeFor[mapping.Mapping]())}}
		for _, as := range mapping.Forms() {
			all = append(all, when(as, without(protocols.Unfit(protocol, as)...)))
		}
		return schema{"allOf": all}
	}
	driver := when(mapping.CSI, schema{"required": []string{"driver"}})
	known := schema{}
	for protocol, about := range protocols {
		switch {
		case about.CephCSI:
			// The built-in mapping has a driver, and needs the name of the cluster.
			known[protocol] = both(of(protocol), when(mapping.CSI, schema{"oneOf": []schema{
				{"required": []string{"clusterID"}, "properties": without(append([]string{"volumeHandle", "secret"}, mapping.SecretReferenceKeys()[1:]...)...)["properties"]},
				{"required": []string{"volumeHandle"}, "properties": without("clusterID", "imageFeatures")["properties"]},
			}}))
		case about.Native:
			known[protocol] = both(of(protocol), driver)
		}
	}
	return schema{
		"propertyNames": schema{"pattern": mapping.ProtocolPattern},
		"properties":    known,
		"additionalProperties": schema{"allOf": []schema{
			of(""), driver,
			{"properties": schema{"as": choice(mapping.CSI, mapping.FlexVolume)}},
		}},
	}
}

// selectorRequirementRules say which operators take values.
func selectorRequirementRules() schema {
	with := schema{"properties": schema{"operator": choice(metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), "values": schema{"minItems": 1}}, "required": []string{"values"}}
	alone := schema{"properties": schema{"operator": choice(metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist), "values": schema{"maxItems": 0}}}
	return schema{"oneOf": []schema{with, alone}}
}

func labelKeyNames() schema {
	return schema{"propertyNames": schema{"pattern": labelKeyPattern, "maxLength": validation.DNS1123SubdomainMaxLength + 1 + validation.LabelValueMaxLength}}
}
