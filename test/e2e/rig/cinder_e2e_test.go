//go:build e2e

package rig_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
)

const gibibyte = 1 << 30

func load(t *testing.T) rig.Env {
	t.Helper()
	env, err := rig.Load(rig.EnvFile())
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// cinder is one endpoint with one token.
type cinder struct {
	t     *testing.T
	url   string
	token string
}

func noauth(t *testing.T, env rig.Env) cinder {
	return cinder{t: t, url: env.Noauth.Endpoint + "/" + env.Noauth.Project, token: env.Noauth.User + ":" + env.Noauth.Project}
}

// call returns the status code and decodes a JSON answer, if there is one.
func (c cinder) call(method, path string, body, answer any) int {
	c.t.Helper()
	return call(c.t, method, c.url+path, c.token, body, answer).StatusCode
}

// call fails the test only for what is no answer at all.
func call(t *testing.T, method, url, token string, body, answer any) *http.Response {
	t.Helper()
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, url, content)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Auth-Token", token)
	// The first version in which a volume that is in use can be extended.
	request.Header.Set("OpenStack-API-Version", "volume 3.42")
	// Not under the test's own context: clean-up functions call too, and by then
	// it is over.
	client := http.Client{Timeout: 90 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer != nil {
		if err := json.Unmarshal(text, answer); err != nil {
			t.Fatalf("%s %s: %s: %v: %s", method, url, response.Status, err, text)
		}
	}
	return response
}

func (c cinder) must(want int, method, path string, body, answer any) {
	c.t.Helper()
	if got := c.call(method, path, body, answer); got != want {
		c.t.Fatalf("%s %s answered %d, want %d", method, path, got, want)
	}
}

type object = map[string]any

// create makes a volume (or, with kind "snapshot", a snapshot), waits for the
// wanted status and has it deleted after the test.
func (c cinder) create(kind, wanted string, properties object) string {
	c.t.Helper()
	var answer map[string]struct{ ID string }
	properties["name"] = c.t.Name()
	c.must(http.StatusAccepted, http.MethodPost, "/"+kind+"s", object{kind: properties}, &answer)
	id := answer[kind].ID
	path := "/" + kind + "s/" + id
	c.t.Cleanup(func() {
		c.must(http.StatusAccepted, http.MethodDelete, path, nil, nil)
		c.waitGone(path)
	})
	c.wait(path, kind, wanted)
	return id
}

func (c cinder) wait(path, kind, wanted string) {
	c.t.Helper()
	var status string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var answer map[string]struct{ Status string }
		c.must(http.StatusOK, http.MethodGet, path, nil, &answer)
		if status = answer[kind].Status; status == wanted {
			return
		}
		if strings.HasPrefix(status, "error") {
			break
		}
	}
	c.t.Fatalf("%s is %q, want %q", path, status, wanted)
}

func (c cinder) waitGone(path string) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if c.call(http.MethodGet, path, nil, nil) == http.StatusNotFound {
			return
		}
	}
	c.t.Errorf("%s is still there", path)
}

func (c cinder) action(volume string, want int, action string, arguments, answer any) {
	c.t.Helper()
	c.must(want, http.MethodPost, "/volumes/"+volume+"/action", object{action: arguments}, answer)
}

var connector = object{"host": "e2e", "ip": "127.0.0.1", "initiator": "iqn.2026-01.example:e2e", "multipath": true}

type connection struct {
	Info struct {
		Type string `json:"driver_volume_type"`
		Data struct {
			Portal   string   `json:"target_portal"`
			IQN      string   `json:"target_iqn"`
			LUN      int      `json:"target_lun"`
			Portals  []string `json:"target_portals"`
			IQNs     []string `json:"target_iqns"`
			LUNs     []int    `json:"target_luns"`
			Method   string   `json:"auth_method"`
			User     string   `json:"auth_username"`
			Password string   `json:"auth_password"`
		} `json:"data"`
	} `json:"connection_info"`
}

// attach takes a volume to in-use, and back after the test.
func (c cinder) attach(volume string) rig.Disk {
	c.t.Helper()
	c.action(volume, http.StatusAccepted, "os-reserve", object{}, nil)
	disk, _ := c.initialize(volume)
	c.action(volume, http.StatusAccepted, "os-attach", object{"host_name": "e2e", "mountpoint": "/dev/e2e"}, nil)
	c.wait("/volumes/"+volume, "volume", "in-use")
	c.t.Cleanup(func() {
		c.action(volume, http.StatusAccepted, "os-terminate_connection", object{"connector": connector}, nil)
		c.action(volume, http.StatusAccepted, "os-detach", object{}, nil)
	})
	return disk
}

func (c cinder) initialize(volume string) (rig.Disk, connection) {
	c.t.Helper()
	var answer connection
	c.action(volume, http.StatusOK, "os-initialize_connection", object{"connector": connector}, &answer)
	data := answer.Info.Data
	return rig.Disk{
		Portal: data.Portal, IQN: data.IQN, LUN: data.LUN,
		CHAPUser: data.User, CHAPPassword: data.Password,
		Initiator: "iqn.2026-01.example:e2e",
	}, answer
}

func target(t *testing.T, env rig.Env, volume string) (rig.Target, bool) {
	t.Helper()
	targets, err := env.Targets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		if strings.Contains(target.IQN, volume) {
			return target, true
		}
	}
	return rig.Target{}, false
}

func noise(length int) []byte {
	data := make([]byte, length)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	return data
}

func write(t *testing.T, disk rig.Disk, offset int64, data []byte) {
	t.Helper()
	if err := disk.Write(t.Context(), offset, data); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, disk rig.Disk, offset int64, want []byte) {
	t.Helper()
	got, err := disk.Read(t.Context(), offset, len(want))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes at %d differ from what was written", disk, len(want), offset)
	}
}

func expectSize(t *testing.T, disk rig.Disk, want int64) {
	t.Helper()
	if got, err := disk.Size(t.Context()); err != nil || got != want {
		t.Fatalf("size is %d, %v; want %d", got, err, want)
	}
}

// logIn returns the member's own view of Cinder, found through the catalog.
func logIn(t *testing.T, env rig.Env, identity object, scope object) (cinder, string) {
	t.Helper()
	auth := object{"identity": identity}
	if scope != nil {
		auth["scope"] = scope
	}
	var answer struct {
		Token struct {
			Project struct{ ID string }
			Catalog []struct {
				Type      string
				Endpoints []struct{ Interface, Region, URL string }
			}
		}
	}
	response := call(t, http.MethodPost, env.KeystoneURL+"/auth/tokens", "", object{"auth": auth}, &answer)
	if response.StatusCode != http.StatusCreated {
		t.Fatalf("log in: %s", response.Status)
	}
	endpoints := map[string]string{}
	for _, service := range answer.Token.Catalog {
		for _, endpoint := range service.Endpoints {
			if endpoint.Region == env.Region {
				endpoints[service.Type+" "+endpoint.Interface] = endpoint.URL
			}
		}
	}
	want := env.CinderURL + "/" + answer.Token.Project.ID
	for _, entry := range []string{"volumev3 public", "volumev3 internal", "block-storage public", "block-storage internal"} {
		if endpoints[entry] != want {
			t.Errorf("catalog: %s is %q, want %q", entry, endpoints[entry], want)
		}
	}
	return cinder{t: t, url: want, token: response.Header.Get("X-Subject-Token")}, answer.Token.Project.ID
}

func password(env rig.Env, account rig.Account) (identity, scope object) {
	domain := object{"name": env.Domain}
	return object{
			"methods":  []string{"password"},
			"password": object{"user": object{"name": account.User, "domain": domain, "password": account.Password}},
		}, object{
			"project": object{"name": account.Project, "domain": domain},
		}
}
