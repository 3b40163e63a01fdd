package contract

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// deleteRefusal is Cinder's message for a volume that cannot be deleted.
const deleteRefusal = "Invalid volume: Volume status must be available or error or error_restoring or error_extending or " +
	"error_managing and must not be migrating, attached, belong to a group, have snapshots, awaiting a transfer, or be " +
	"disassociated from snapshots after volume transfer."

// missingID is an ID that does not exist.
const missingID = "00000000-0000-4000-8000-000000000000"

// connector returns a node's description of itself.
func connector(host string, more object) object {
	c := object{
		"host": host, "ip": "127.0.0.1", "initiator": "iqn.1993-08.org.debian:01:" + host, "multipath": true,
		"platform": "x86_64", "os_type": "linux", "do_local_attach": false,
	}
	for key, value := range more {
		if value == nil {
			delete(c, key)
		} else {
			c[key] = value
		}
	}
	return c
}

// create requests a volume and ensures its removal. Fields of the request
// default to a unique name, one GiB and the iscsi type.
func create(t testing.TB, target Target, c *client, fields object) string {
	t.Helper()
	body := object{"name": unique(t, "volume"), "size": 1, "volume_type": target.Types.ISCSI}
	for key, value := range fields {
		body[key] = value
	}
	made := c.call(t, "POST", "/volumes", object{"volume": body}).want(t, http.StatusAccepted)
	return removed(t, target, c, made.object(t, "volume")["id"].(string))
}

// removed removes a volume when the test ends.
func removed(t testing.TB, target Target, c *client, id string) string {
	t.Helper()
	t.Cleanup(func() { remove(t, target, c, id) })
	return id
}

// available creates a volume and waits until it is available.
func available(t testing.TB, target Target, fields object) string {
	t.Helper()
	c := target.client()
	id := create(t, target, c, fields)
	waitStatus(t, target, c, id, "available")
	return id
}

// show returns the volume's view.
func show(t testing.TB, c *client, id string, version ...string) map[string]any {
	t.Helper()
	return c.call(t, "GET", "/volumes/"+id, nil, version...).want(t, http.StatusOK).object(t, "volume")
}

func status(t testing.TB, c *client, id string) string {
	t.Helper()
	return show(t, c, id)["status"].(string)
}

// wantStatus requires a volume's current status.
func wantStatus(t testing.TB, c *client, id, want string) {
	t.Helper()
	if got := status(t, c, id); got != want {
		t.Fatalf("the volume is %s, want %s", got, want)
	}
}

// eventually calls look until it succeeds, and fails the test when the wait is
// over.
func eventually(t testing.TB, target Target, what string, look func() (string, bool)) {
	t.Helper()
	deadline := time.Now().Add(target.Wait)
	for {
		seen, ok := look()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: still %s after %s", what, seen, target.Wait)
		}
		time.Sleep(target.Poll)
	}
}

func waitStatus(t testing.TB, target Target, c *client, id, want string) {
	t.Helper()
	eventually(t, target, "waiting for "+want, func() (string, bool) {
		got := status(t, c, id)
		if got != want && got == "error" {
			t.Fatalf("waiting for %s: the volume is in error", want)
		}
		return got, got == want
	})
}

func waitGone(t testing.TB, target Target, c *client, path string) {
	t.Helper()
	eventually(t, target, "waiting for the end of "+path, func() (string, bool) {
		got := c.call(t, "GET", path, nil)
		return fmt.Sprintf("%d %s", got.status, got.raw), got.status == http.StatusNotFound
	})
}

// remove removes a volume in any state.
func remove(t testing.TB, target Target, c *client, id string) {
	t.Helper()
	deadline := time.Now().Add(target.Wait)
	for time.Now().Before(deadline) {
		got := c.call(t, "GET", "/volumes/"+id, nil)
		if got.status == http.StatusNotFound {
			return
		}
		volume, _ := got.body["volume"].(map[string]any)
		switch volume["status"] {
		case "in-use", "detaching", "attaching", "reserved":
			for _, a := range attachmentsOf(t, c, id) {
				c.call(t, "DELETE", "/attachments/"+a["id"].(string), nil, "3.44")
			}
			c.call(t, "POST", "/volumes/"+id+"/action", object{"os-unreserve": object{}})
		case "error_deleting":
			c.call(t, "POST", "/volumes/"+id+"/action", object{"os-force_delete": object{}})
		case "deleting", "creating", "extending":
		default:
			c.call(t, "DELETE", "/volumes/"+id+"?cascade=true", nil)
		}
		time.Sleep(target.Poll)
	}
	t.Errorf("volume %s could not be removed", id)
}

// attachmentsOf lists a volume's attachments.
func attachmentsOf(t testing.TB, c *client, id string) []map[string]any {
	t.Helper()
	return c.call(t, "GET", "/attachments?volume_id="+id, nil, "3.27").want(t, http.StatusOK).list(t, "attachments")
}

// act performs an action on a volume.
func act(t testing.TB, c *client, id, action string, parameters any, version ...string) answer {
	t.Helper()
	return c.call(t, "POST", "/volumes/"+id+"/action", object{action: parameters}, version...)
}

// The steps of the reserve workflow, each of which must succeed.

func reserve(t testing.TB, c *client, id string) {
	t.Helper()
	act(t, c, id, "os-reserve", object{}).wantEmpty(t, http.StatusAccepted)
}

func initialize(t testing.TB, c *client, id string, from object) map[string]any {
	t.Helper()
	return act(t, c, id, "os-initialize_connection", object{"connector": from}).want(t, http.StatusOK).object(t, "connection_info")
}

func attach(t testing.TB, c *client, id, host string) {
	t.Helper()
	act(t, c, id, "os-attach", object{"host_name": host, "mountpoint": "/dev/sdb", "mode": "rw"}).wantEmpty(t, http.StatusAccepted)
}

func terminate(t testing.TB, c *client, id string, from object) {
	t.Helper()
	act(t, c, id, "os-terminate_connection", object{"connector": from}).wantEmpty(t, http.StatusAccepted)
}

func detach(t testing.TB, c *client, id string) {
	t.Helper()
	act(t, c, id, "os-detach", object{}).wantEmpty(t, http.StatusAccepted)
}

// attached makes a volume and takes it to in-use.
func attached(t testing.TB, target Target) string {
	t.Helper()
	id := available(t, target, nil)
	c := target.client()
	reserve(t, c, id)
	initialize(t, c, id, connector("node1", nil))
	attach(t, c, id, "node1")
	wantStatus(t, c, id, "in-use")
	return id
}
