package cindersim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
)

// A recording contains the trimmed answers of a real Cinder and Keystone: times
// are "<time>", irrelevant values "<any>", and "<more>" replaces omitted parts
// (as a key: further keys, as the last element: further elements, at the end of
// a string: more text).
type recording struct {
	About string `json:"about"`
	// Given are the volumes that existed before.
	Given     []recordedVolume `json:"given"`
	Exchanges []recordedStep   `json:"exchanges"`
}

type recordedVolume struct {
	ID       string            `json:"id"`
	Type     string            `json:"type"`
	Name     string            `json:"name"`
	Project  string            `json:"project"`
	Metadata map[string]string `json:"metadata"`
	Created  string            `json:"created"`
}

type recordedStep struct {
	Step    string            `json:"step"`
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    any               `json:"body"`
	Raw     *string           `json:"raw"`
	// Advance is the time that passed before the request.
	Advance string `json:"advance"`
	// BackendFails means that the storage backend failed in this step.
	BackendFails bool   `json:"backendFails"`
	Then         string `json:"then"`
	Answer       struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
		Body    any               `json:"body"`
		// Issues labels the token that the answer issued.
		Issues string `json:"issues"`
	} `json:"answer"`
}

// recordedOptions describe the installation that was recorded.
func recordedOptions(now func() time.Time) Options {
	identity := keystone.Identity{}
	for _, tenant := range []struct{ name, project, user string }{
		{"admin", "3fe2430162c04574b351b61a7d319093", "103c339fd0c4466fb475b745b9eb7549"},
		{"team-a", "1e6f6a068bb4412aad68d95771d7c229", "ffd24db0665a4c1fac6e69c9f37df577"},
		{"team-b", "21f0e7b6ff784a728374d2c14cd8c716", "4a61205ec7e34f72a88ee3c45c94681b"},
	} {
		identity.Projects = append(identity.Projects, keystone.Project{ID: tenant.project, Name: tenant.name})
		identity.Users = append(identity.Users, keystone.User{
			ID: tenant.user, Name: tenant.name, Password: tenant.name + "-pass", Projects: []string{tenant.name}, Admin: tenant.name == "admin",
		})
	}
	types := drivers.DefaultVolumeTypes()
	for i, id := range []string{
		"fc14e4f8-937a-4447-87a3-78d00c7b3691", "948435ca-577e-4d58-a65d-263a18dd6aca",
		"3dc1e9d4-97f5-4c50-8568-fe2858326a86", "03a39410-9b21-4904-b5ec-37e7de1a37cc",
	} {
		types[i].ID = id
	}
	types = append(types, drivers.VolumeType{
		ID: "502fcf8e-cbee-4f4c-99c8-61caaa5de77e", Name: "__DEFAULT__", Description: "Default Volume Type", Backend: "iscsi", ExtraSpecs: map[string]string{},
	})
	return Options{
		PlacementDelay: 100 * time.Millisecond, CreateDelay: 2 * time.Second, DeleteDelay: 2 * time.Second,
		ExtendDelay: time.Second, SnapshotDelay: time.Second, RPCTimeout: time.Nanosecond,
		Quota: map[string]int{
			"volumes": 100, "snapshots": 50, "gigabytes": 1000, "backups": 10, "backup_gigabytes": 1000, "groups": 10,
		},
		Types: types, Identity: identity, Now: now, Seed: 1,
	}
}

// TestRecordingsReplay sends every recorded request to the simulator and
// requires the recorded answer: status, headers, and body with the IDs mapped.
func TestRecordingsReplay(t *testing.T) {
	files, err := filepath.Glob("testdata/recorded/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var recorded recording
			if err := json.Unmarshal(raw, &recorded); err != nil {
				t.Fatal(err)
			}
			newReplay(t, &recorded).run(t, recorded.Exchanges)
		})
	}
}

type replay struct {
	simulator *Simulator
	now       time.Time
	ids       map[string]string // recorded to actual
	taken     map[string]bool   // actual ids that stand for a recorded one
	tokens    map[string]string
	secrets   map[string]string
}

func newReplay(t *testing.T, recorded *recording) *replay {
	t.Helper()
	r := &replay{
		now: time.Date(2026, 11, 20, 15, 30, 0, 123456000, time.UTC), ids: map[string]string{}, taken: map[string]bool{},
		tokens: map[string]string{}, secrets: map[string]string{},
	}
	var err error
	if r.simulator, err = New(recordedOptions(func() time.Time { return r.now })); err != nil {
		t.Fatal(err)
	}
	r.simulator.SetURLs("http://127.0.0.1:8776/v3", "http://127.0.0.1:8777/v3", "http://127.0.0.1:5000/v3")
	for _, v := range recorded.Given {
		given := Volume{ID: v.ID, Type: v.Type, Name: v.Name, Project: v.Project, Metadata: v.Metadata, User: "admin", Updated: r.now}
		if v.Created != "" {
			if given.Created, err = time.Parse(timeLayout, v.Created); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.simulator.AddVolume(given); err != nil {
			t.Fatal(err)
		}
		r.ids[v.ID], r.taken[v.ID] = v.ID, true
	}
	return r
}

var uuidInText = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// translate replaces the recorded IDs with those of the simulator.
func (r *replay) translate(text string) string {
	return uuidInText.ReplaceAllStringFunc(text, func(id string) string {
		if actual, ok := r.ids[id]; ok {
			return actual
		}
		return id
	})
}

func (r *replay) run(t *testing.T, steps []recordedStep) {
	for i, step := range steps {
		name := fmt.Sprintf("%02d %s", i+1, step.Step)
		if step.Advance != "" {
			pause, err := time.ParseDuration(step.Advance)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			r.now = r.now.Add(pause)
		}
		if step.BackendFails {
			r.simulator.Inject(Fault{Kind: FailBackend, Times: 1})
		}
		switch step.Then {
		case "stop volume services":
			defer r.simulator.StartVolumeServices()
		case "start volume services", "":
		default:
			t.Fatalf("%s: unknown instruction %q", name, step.Then)
		}
		for _, difference := range r.exchange(t, step) {
			t.Errorf("%s: %s", name, difference)
		}
		switch step.Then {
		case "stop volume services":
			r.simulator.StopVolumeServices()
		case "start volume services":
			r.simulator.StartVolumeServices()
		}
	}
}

// exchange sends one request and compares the answer.
func (r *replay) exchange(t *testing.T, step recordedStep) []string {
	t.Helper()
	body := ""
	if step.Raw != nil {
		body = *step.Raw
	} else if step.Body != nil {
		raw, err := json.Marshal(step.Body)
		if err != nil {
			t.Fatal(err)
		}
		body = r.translate(string(raw))
	}
	request := httptest.NewRequest(step.Method, r.translate(step.URL), strings.NewReader(body))
	if body != "" || step.Raw != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	for header, value := range step.Headers {
		if label, ok := strings.CutPrefix(value, "<token "); ok {
			value = r.tokens[strings.TrimSuffix(label, ">")]
		}
		request.Header.Set(header, value)
	}
	handlers := map[string]http.Handler{
		"127.0.0.1:8776": r.simulator.NoauthHandler(),
		"127.0.0.1:8777": r.simulator.CinderHandler(),
		"127.0.0.1:5000": r.simulator.KeystoneHandler(),
	}
	recorder := httptest.NewRecorder()
	handlers[request.Host].ServeHTTP(recorder, request)
	answer := recorder.Result()
	if step.Answer.Issues != "" {
		r.tokens[step.Answer.Issues] = answer.Header.Get("X-Subject-Token")
	}

	var differences []string
	if answer.StatusCode != step.Answer.Status {
		differences = append(differences, fmt.Sprintf("status %d, recorded %d; body %s", answer.StatusCode, step.Answer.Status, recorder.Body))
	}
	for header, want := range step.Answer.Headers {
		if got := answer.Header.Get(header); got != want {
			differences = append(differences, fmt.Sprintf("header %s: %q, recorded %q", header, got, want))
		}
	}
	if step.Answer.Body == nil {
		if recorder.Body.Len() > 0 {
			differences = append(differences, fmt.Sprintf("body %s, recorded none", recorder.Body))
		}
		return differences
	}
	var actual any
	if err := json.Unmarshal(recorder.Body.Bytes(), &actual); err != nil {
		return append(differences, fmt.Sprintf("body %q: %v", recorder.Body, err))
	}
	return append(differences, r.compare("body", step.Answer.Body, actual)...)
}

// compare lists where an answer differs from the recorded one.
func (r *replay) compare(path string, recorded, actual any) []string {
	differ := func() []string {
		return []string{fmt.Sprintf("%s: %v, recorded %v", path, actual, recorded)}
	}
	switch want := recorded.(type) {
	case map[string]any:
		got, ok := actual.(map[string]any)
		if !ok {
			return differ()
		}
		var differences []string
		for key, value := range want {
			if key == "<more>" {
				continue
			}
			if _, present := got[key]; !present {
				differences = append(differences, fmt.Sprintf("%s.%s is missing", path, key))
				continue
			}
			if key == "auth_username" || key == "auth_password" {
				differences = append(differences, r.compareSecret(path+"."+key, value, got[key])...)
				continue
			}
			if key == "messages" {
				// Those of one second come in any order.
				value, got[key] = byEvent(value), byEvent(got[key])
			}
			differences = append(differences, r.compare(path+"."+key, value, got[key])...)
		}
		for key := range got {
			if _, known := want[key]; !known && want["<more>"] == nil {
				differences = append(differences, fmt.Sprintf("%s.%s: %v was not recorded", path, key, got[key]))
			}
		}
		return differences
	case []any:
		got, ok := actual.([]any)
		if ok && len(want) > 0 && want[len(want)-1] == "<more>" && len(got) >= len(want)-1 {
			want = want[:len(want)-1]
			got = got[:len(want)]
		}
		if !ok || len(got) != len(want) {
			return differ()
		}
		var differences []string
		for i := range want {
			differences = append(differences, r.compare(fmt.Sprintf("%s[%d]", path, i), want[i], got[i])...)
		}
		return differences
	case string:
		got, ok := actual.(string)
		if !ok || !r.sameText(want, got) {
			return differ()
		}
		return nil
	}
	if recorded != actual {
		return differ()
	}
	return nil
}

// byEvent sorts user messages by their events; a list that was cut stays as it is.
func byEvent(list any) any {
	messages, _ := list.([]any)
	event := func(message any) string {
		fields, _ := message.(map[string]any)
		text, _ := fields["event_id"].(string)
		return text
	}
	if slices.Contains(messages, any("<more>")) {
		return list
	}
	sorted := slices.Clone(messages)
	slices.SortStableFunc(sorted, func(a, b any) int { return strings.Compare(event(a), event(b)) })
	return sorted
}

// compareSecret requires that the same credential stays the same.
func (r *replay) compareSecret(path string, recorded, actual any) []string {
	want, got := recorded.(string), actual.(string)
	if want == "cinder" {
		if got != want {
			return []string{path + ": not the Ceph user"}
		}
		return nil
	}
	if known, ok := r.secrets[want]; ok && known != got || len(got) != len(want) {
		return []string{path + ": not the credential that was given before"}
	}
	r.secrets[want] = got
	return nil
}

var recordedTime = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z?$`)

// sameText compares texts in which IDs may differ, as long as each recorded ID
// always corresponds to the same actual one.
func (r *replay) sameText(want, got string) bool {
	switch want {
	case "<time>":
		return recordedTime.MatchString(got)
	case "<any>":
		return got != ""
	}
	if prefix, ok := strings.CutSuffix(want, "<more>"); ok {
		return len(got) > len(prefix) && r.sameText(prefix, got[:len(prefix)])
	}
	if uuidInText.ReplaceAllString(want, "#") != uuidInText.ReplaceAllString(got, "#") {
		return false
	}
	wantIDs, gotIDs := uuidInText.FindAllString(want, -1), uuidInText.FindAllString(got, -1)
	if len(wantIDs) != len(gotIDs) {
		return false
	}
	for i, id := range wantIDs {
		known, ok := r.ids[id]
		if !ok {
			if r.taken[gotIDs[i]] {
				return false
			}
			r.ids[id], r.taken[gotIDs[i]] = gotIDs[i], true
			continue
		}
		if known != gotIDs[i] {
			return false
		}
	}
	return true
}

// TestRecordingsAreWhole protects the replay from recordings that were trimmed
// until nothing is left to compare.
func TestRecordingsAreWhole(t *testing.T) {
	files, _ := filepath.Glob("testdata/recorded/*.json")
	requests, bodies := 0, 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var recorded recording
		if err := json.Unmarshal(raw, &recorded); err != nil {
			t.Fatal(err)
		}
		requests += len(recorded.Exchanges)
		for _, step := range recorded.Exchanges {
			if step.Answer.Body != nil {
				bodies++
			}
		}
	}
	if requests < 550 || bodies < 400 {
		t.Errorf("%d requests with %d bodies are recorded, want at least 550 with 400", requests, bodies)
	}
	if !slices.Contains(files, "testdata/recorded/02-noauth.json") {
		t.Error("the recording of noauth mode is missing")
	}
}
