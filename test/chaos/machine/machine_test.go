package machine

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// TestAKilledProcessChangesNothing: nor does it end a lock that its successor has taken.
func TestAKilledProcessChangesNothing(t *testing.T) {
	n := csinode.New()
	old, fresh := &process{node: n}, &process{node: n}
	release, err := old.Lock(t.Context(), "/run/a", true)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error)
	go func() {
		_, err := old.Lock(context.Background(), "/run/a", true)
		waits <- err
	}()
	old.kill()
	n.Restart()
	if _, err := fresh.Lock(t.Context(), "/run/a", false); err != nil {
		t.Fatal(err)
	}
	release()
	if _, err := fresh.Lock(t.Context(), "/run/a", false); !errors.Is(err, host.ErrLocked) {
		t.Errorf("the lock is gone: %v", err)
	}
	for what, err := range map[string]error{"a wait": <-waits, "a file": old.Replace("/a", nil), "a mount": func() error {
		_, err := old.Run(t.Context(), host.Command{Tool: "umount", Arguments: []string{"/x"}})
		return err
	}()} {
		if !errors.Is(err, csinode.ErrCrashed) {
			t.Errorf("%s of a killed process: %v", what, err)
		}
	}
}

// TestACutLinkEndsRequests: those under way, and those that come later.
func TestACutLinkEndsRequests(t *testing.T) {
	arrived, ends := make(chan bool), make(chan bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			arrived <- true
			<-ends
		}
	}))
	defer server.Close()
	defer close(ends)
	var l link
	client := &http.Client{Transport: l.over(http.DefaultTransport)}
	get := func(path string) error {
		response, err := client.Get(server.URL + path)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	failed := make(chan error)
	go func() { failed <- get("/slow") }()
	<-arrived
	l.set(true)
	if err := <-failed; err == nil {
		t.Error("a request under way succeeded")
	}
	if err := get("/"); !errors.Is(err, errCut) {
		t.Errorf("a later request: %v", err)
	}
	l.set(false)
	if err := get("/"); err != nil {
		t.Error(err)
	}
}

// TestAMachineWritesWhereItWasTold: also after the array has given the address to another
// volume, until the machine is switched off.
func TestAMachineWritesWhereItWasTold(t *testing.T) {
	array := &drivers.Array{Target: "iqn.x", Portal: "192.0.2.1:3260"}
	kind := array.Type("x")
	connector := map[string]any{"host": "n1", "initiator": "iqn.n1"}
	connect := func(id string) {
		t.Helper()
		if _, err := kind.Connection(drivers.ConnectionRequest{VolumeID: id, Connector: connector}); err != nil {
			t.Fatal(err)
		}
	}
	const first, second = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	storage := NewStorage(array)
	m := New(Options{Name: "n1", Storage: storage})
	m.on = true
	connect(first)
	v := storage.volume(first)
	v.Filesystem, v.UUID = "ext4", first
	session := func() int {
		_, id := m.host.LogIn(array.Target, array.Portal, "iqn.n1")
		return id
	}()
	device := m.host.Find(session, 1)
	if _, err := m.host.Run(t.Context(), host.Command{Tool: "mount", Arguments: []string{"-t", "ext4", "-o", "rw", "/dev/" + device, "/staging"}}); err != nil {
		t.Fatal(err)
	}
	wants := func(want ...Write) {
		t.Helper()
		if got := storage.Writes([]*Machine{m}); !slices.Equal(got, want) {
			t.Errorf("writes %+v, want %+v", got, want)
		}
	}
	wants(Write{"n1", first, "LUN 1 of iqn.x", first})
	kind.Disconnect(first, connector)
	wants(Write{"n1", first, "LUN 1 of iqn.x", ""})
	connect(second)
	wants(Write{"n1", first, "LUN 1 of iqn.x", second})
	m.write()
	if data := storage.volume(second).Data; data != first+" of n1" {
		t.Errorf("the second volume holds %q", data)
	}
	boot := m.IDs().Boot
	m.Off()
	wants()
	if m.IDs().Boot == boot {
		t.Error("it has the boot of before")
	}
	uuid := m.IDs().SystemUUID
	m.Replace()
	if m.IDs().SystemUUID == uuid {
		t.Error("it is the machine of before")
	}
}

// TestAPluginIsStartedAgain: after it died at a change, or later.
func TestAPluginIsStartedAgain(t *testing.T) {
	m := New(Options{Name: "n1", Storage: NewStorage()})
	m.host.CrashAt(1, false)
	m.plugin = &plugin{process: &process{node: m.host}, end: func() {}}
	m.killAt = time.Now().Add(-time.Second)
	old := m.plugin.process
	m.supervise(t.Context())
	if m.plugin != nil {
		t.Error("it is still there")
	}
	if _, err := old.ReadFile("/etc/machine-id"); !errors.Is(err, csinode.ErrCrashed) {
		t.Errorf("it still reads: %v", err)
	}
}
