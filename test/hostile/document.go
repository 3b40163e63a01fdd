package hostile

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
)

// Someone is the ID of an object that does not exist.
const Someone = "deadbeef-dead-4eef-8eef-deadbeefdead"

// edit sends the true answer after a change of its document.
func (e exchange) edit(change func(document object)) {
	document := e.truth.document()
	change(document)
	encoded, err := json.Marshal(document)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	e.replace(encoded)
}

// about returns the part of a document that describes its object.
func about(document object) (name string, found object) {
	for _, name := range []string{"volume", "attachment"} {
		if found, ok := document[name].(object); ok {
			return name, found
		}
	}
	return "", object{}
}

// documents returns attacks on the document about a volume or an attachment.
func documents() []Attack {
	of := []string{"volume", "attachment"}
	field := func(name string, change func(object)) Attack {
		return Attack{Name: name, of: of, answer: func(e exchange) {
			e.edit(func(document object) {
				_, found := about(document)
				change(found)
			})
		}}
	}
	return []Attack{
		field("no id", func(o object) { delete(o, "id") }),
		field("null id", func(o object) { o["id"] = nil }),
		field("number as id", func(o object) { o["id"] = 7 }),
		field("path as id", func(o object) { o["id"] = "../../v3/limits" }),
		field("no status", func(o object) { delete(o, "status") }),
		field("null status", func(o object) { o["status"] = nil }),
		field("unknown status", func(o object) { o["status"] = "reticulating\nsplines" }),
		field("text as size", func(o object) { o["size"] = "ten" }),
		field("huge size", func(o object) { o["size"] = json.Number("1e99") }),
		field("list as metadata", func(o object) { o["metadata"] = []any{"a"} }),
		field("no metadata", func(o object) { delete(o, "metadata") }),
		field("text as attachments", func(o object) { o["attachments"] = "none" }),
		field("many attachments", func(o object) {
			var many []any
			for range 5000 {
				many = append(many, object{})
			}
			o["attachments"] = many
		}),
		field("invalid time", func(o object) { o["created_at"] = "yesterday" }),
		// Nothing else in the answer to a create names an attachment, so only a
		// volume's answer can be recognized as another's.
		{Name: "unknown id", of: []string{"volume"}, answer: func(e exchange) {
			e.edit(func(document object) { document["volume"].(object)["id"] = Someone })
		}},
		{Name: "no volume of the attachment", of: []string{"attachment"}, answer: func(e exchange) {
			e.edit(func(document object) { delete(document["attachment"].(object), "volume_id") })
		}},
		{Name: "other volume of the attachment", of: []string{"attachment"}, answer: func(e exchange) {
			e.edit(func(document object) { document["attachment"].(object)["volume_id"] = Someone })
		}},
		{Name: "null object", of: of, answer: func(e exchange) {
			e.edit(func(document object) {
				name, _ := about(document)
				document[name] = nil
			})
		}},
		{Name: "other object", of: of, answer: func(e exchange) {
			e.edit(func(document object) {
				name, found := about(document)
				if e.other != nil {
					document[name] = e.other
					return
				}
				found["id"], found["volume_id"] = Someone, Someone
			})
		}},
		{Name: "second id", of: []string{"volume"}, answer: func(e exchange) {
			_, found := about(e.truth.document())
			id := Someone
			if e.other != nil {
				id = fmt.Sprint(e.other["id"])
			}
			encoded, _ := json.Marshal(found) // it was decoded from JSON
			e.replace(fmt.Appendf(nil, `{"volume": %s, "id": %q}}`, strings.TrimSuffix(string(encoded), "}"), id))
		}},
		{Name: "no connection", of: []string{"connection_info", "attachment"}, answer: func(e exchange) {
			e.edit(func(document object) {
				_, found := about(document)
				delete(found, "connection_info")
				delete(document, "connection_info")
			})
		}},
		{Name: "text as connection", of: []string{"connection_info", "attachment"}, answer: func(e exchange) {
			e.edit(func(document object) {
				if _, found := about(document); len(found) > 0 {
					found["connection_info"] = "see below"
					return
				}
				document["connection_info"] = "see below"
			})
		}},
	}
}

// entries changes the list of the true answer.
func (e exchange) entries(change func(document object, list []any) []any) {
	name, list := e.truth.list()
	e.edit(func(document object) { document[name] = change(document, list) })
}

// listings returns attacks on a list.
func listings() []Attack {
	of := []string{"volumes", "attachments"}
	first := func(name string, change func(object)) Attack {
		return Attack{Name: name, of: of, answer: func(e exchange) {
			e.entries(func(_ object, list []any) []any {
				if len(list) == 0 {
					list = []any{object{"id": Someone}}
				}
				change(list[0].(object))
				return list
			})
		}}
	}
	link := func(name string, next func(e exchange) string) Attack {
		return Attack{Name: name, of: []string{"volumes"}, answer: func(e exchange) {
			e.entries(func(document object, list []any) []any {
				document["volumes_links"] = []any{object{"rel": "next", "href": next(e)}}
				return list
			})
		}}
	}
	return []Attack{
		first("entry without id", func(o object) { delete(o, "id") }),
		first("entry without status", func(o object) { delete(o, "status") }),
		first("entry with text as size", func(o object) { o["size"] = "10 GiB" }),
		first("entry with number as status", func(o object) { o["status"] = 1 }),
		first("entry with list as metadata", func(o object) { o["metadata"] = []any{} }),
		first("entry of another volume", func(o object) {
			if _, has := o["volume_id"]; has {
				o["volume_id"] = Someone
			}
		}),
		link("link to ever new pages", func(e exchange) string {
			return fmt.Sprintf("http://192.0.2.1/v3/volumes/detail?limit=1&marker=%s-%p", Someone, e.r)
		}),
		link("link to the same page", func(e exchange) string { return "http://192.0.2.1/v3/volumes/detail?" + e.r.URL.RawQuery }),
		link("link that is no address", func(exchange) string { return "http://[::1%/%zz" }),
		{Name: "text instead of a list", of: of, answer: func(e exchange) {
			e.edit(func(document object) {
				for name := range maps.Clone(document) {
					document[name] = "none"
				}
			})
		}},
		{Name: "null instead of a list", of: of, answer: func(e exchange) {
			e.edit(func(document object) {
				for name := range maps.Clone(document) {
					document[name] = nil
				}
			})
		}},
		{Name: "more entries than asked for", of: of, answer: func(e exchange) {
			e.entries(func(_ object, list []any) []any {
				for i := range 5000 {
					list = append(list, object{"id": fmt.Sprintf("made-up-%d", i), "status": "available"})
				}
				return list
			})
		}},
		{Name: "entries with each other's ids", of: of, answer: func(e exchange) {
			e.entries(func(_ object, list []any) []any {
				var ids []any
				for _, entry := range list {
					ids = append(ids, entry.(object)["id"])
				}
				for i, entry := range list {
					entry.(object)["id"] = ids[(i+1)%len(ids)]
				}
				return list
			})
		}},
	}
}

// logins returns attacks on the answer to a login.
func logins() []Attack {
	of := []string{"token"}
	field := func(name string, change func(object)) Attack {
		return Attack{Name: name, of: of, answer: func(e exchange) {
			e.edit(func(document object) { change(document["token"].(object)) })
		}}
	}
	return []Attack{
		field("catalog without services", func(o object) { o["catalog"] = []any{} }),
		field("no catalog", func(o object) { delete(o, "catalog") }),
		field("text as catalog", func(o object) { o["catalog"] = "see below" }),
		field("catalog of empty services", func(o object) {
			var many []any
			for range 50_000 {
				many = append(many, object{})
			}
			o["catalog"] = many
		}),
		field("no project", func(o object) { delete(o, "project") }),
		{Name: "no token", of: of, answer: func(e exchange) {
			header := e.truth.header.Clone()
			header.Del("X-Subject-Token")
			e.truth.header = header
			e.replace(e.truth.body)
		}},
		{Name: "token of control characters", of: of, answer: func(e exchange) {
			e.truth.header.Set("X-Subject-Token", "\x7fbroken\x7f")
			e.replace(e.truth.body)
		}},
		{Name: "unknown token", of: of, answer: func(e exchange) {
			e.truth.header.Set("X-Subject-Token", http.StatusText(http.StatusTeapot))
			e.replace(e.truth.body)
		}},
	}
}
