package routes

import "testing"

func TestFind(t *testing.T) {
	for _, test := range []struct {
		method, path string
		want         Route
	}{
		{"GET", "volumes", Route{Operation: "volume.list", Collection: "volumes"}},
		{"GET", "fade/volumes", Route{Operation: "volume.list", Project: "fade", Collection: "volumes"}},
		{"GET", "fade/volumes/detail", Route{Operation: "volume.list", Project: "fade", Collection: "volumes", Detail: true}},
		{"DELETE", "volumes/detail", Route{Operation: "volume.delete", Collection: "volumes", ID: "detail"}},
		{"GET", "types/detail", Route{Operation: "type.get", Collection: "types", ID: "detail"}},
		{"GET", "attachments/detail", Route{Operation: "attachment.list", Minor: 27, Collection: "attachments", Detail: true}},
		{"PUT", "attachments/a", Route{Operation: "attachment.update", Minor: 27, Collection: "attachments", ID: "a"}},
		{"POST", "attachments/a/action", Route{Operation: "attachment.action", Collection: "attachments", ID: "a"}},
		{"POST", "volumes/v/action", Route{Operation: "action", Collection: "volumes", ID: "v"}},
		{"PUT", "volumes/v/metadata/k", Route{Operation: "metadata.set", Collection: "volumes", ID: "v", Key: "k"}},
		{"POST", "snapshots/s/metadata", Route{Operation: "snapshot.metadata.update", Collection: "snapshots", ID: "s"}},
		{"GET", "scheduler-stats/get_pools", Route{Operation: "pool.list", Collection: "scheduler-stats", ID: "get_pools"}},
		{"GET", "messages", Route{Operation: "message.list", Minor: 3, Collection: "messages"}},
	} {
		if got, ok := Find(test.method, test.path); !ok || got != test.want {
			t.Errorf("%s %s: %+v, %v; want %+v", test.method, test.path, got, ok, test.want)
		}
	}
	for _, unknown := range []string{
		"", "fade", "volumes/", "fade/volumes/", "not hexadecimal/volumes", "fade/nothing", "fade/fade/volumes", "scheduler-stats/other",
		"limits/x", "volumes/v/action", "volumes/v/other/k", "volumes/v/metadata/k/more",
	} {
		if got, ok := Find("GET", unknown); ok {
			t.Errorf("GET %q is %+v", unknown, got)
		}
	}
}
