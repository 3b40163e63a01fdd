package cindersim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
)

// consistent lists contradictions in the state: the order, the usage of quotas,
// the attachments and the statuses derived from them.
func consistent(c *cloud) []string {
	var problems []string
	complain := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if len(c.order) != len(c.volumes) {
		complain("%d volumes are ordered, %d exist", len(c.order), len(c.volumes))
	}
	counted := make(map[string]map[string]int)
	count := func(project, resource string, n int) {
		if counted[project] == nil {
			counted[project] = make(map[string]int)
		}
		counted[project][resource] += n
	}
	attachments := 0
	for i, v := range c.order {
		if c.volumes[v.id] != v || v.gone {
			complain("%s is ordered but gone", v.id)
		}
		if i > 0 && !c.order[i-1].precedes(v.created, v.id) {
			complain("%s is out of order", v.id)
		}
		count(v.project, "volumes", 1)
		count(v.project, "gigabytes", v.size)
		attachments += len(v.attachments)
		for j, a := range v.attachments {
			if c.attachments[a.id] != a || a.volumeID != v.id {
				complain("attachment %s is lost", a.id)
			}
			if j > 0 && v.attachments[j-1].id >= a.id {
				complain("attachment %s is out of order", a.id)
			}
		}
		if !slices.Contains(volumeStatuses(), any(v.status)) {
			complain("volume %s has the status %q", v.id, v.status)
		}
		snapshots := 0
		for _, s := range c.snapshots {
			if s.volumeID == v.id {
				snapshots++
			}
		}
		if snapshots != v.snapshots {
			complain("volume %s counts %d snapshots and has %d", v.id, v.snapshots, snapshots)
		}
	}
	if attachments != len(c.attachments) {
		complain("%d attachments belong to volumes, %d exist", attachments, len(c.attachments))
	}
	for _, s := range c.snapshots {
		count(s.project, "snapshots", 1)
		count(s.project, "gigabytes", s.size)
		if c.volumes[s.volumeID] == nil {
			complain("snapshot %s has no volume", s.id)
		}
	}
	for project, u := range c.usage {
		for _, resource := range []string{"volumes", "gigabytes", "snapshots"} {
			if u.inUse[resource] != counted[project][resource] {
				complain("project %s: %s in use %d, counted %d", project, resource, u.inUse[resource], counted[project][resource])
			}
			if u.reserved[resource] < 0 {
				complain("project %s: %s reserved %d", project, resource, u.reserved[resource])
			}
		}
	}
	return problems
}

// TestRandomCallsKeepTheStateConsistent makes random API calls, valid and
// invalid ones, and checks the whole state after each.
func TestRandomCallsKeepTheStateConsistent(t *testing.T) {
	for seed := uint64(1); seed <= 8; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			clock := newClock()
			s, err := New(clock.options(Options{
				PlacementDelay: time.Second, CreateDelay: 3 * time.Second, DeleteDelay: 2 * time.Second, ExtendDelay: time.Second,
				SnapshotDelay: 2 * time.Second, RPCTimeout: time.Nanosecond, Seed: seed, Quota: map[string]int{"volumes": 12, "gigabytes": 40},
				Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: "shared", Multiattach: true}),
			}))
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(seed, 1))
			handler := s.NoauthHandler()
			statuses := make(map[int]int)
			for step := range 1200 {
				method, path, body, version := randomCall(rng, s)
				request := httptest.NewRequest(method, "http://cinder/v3"+path, strings.NewReader(body))
				request.Header.Set("X-Auth-Token", "admin:"+DefaultNoauthProject)
				request.Header.Set("OpenStack-API-Version", "volume "+version)
				recorder := httptest.NewRecorder()
				handler.ServeHTTP(recorder, request)
				statuses[recorder.Code]++
				if rng.IntN(3) == 0 {
					clock.advance(time.Duration(rng.IntN(1500)) * time.Millisecond)
				}
				s.cloud.lock()
				problems := consistent(s.cloud)
				s.cloud.unlock()
				if len(problems) > 0 {
					t.Fatalf("step %d, %s %s %s: %s", step, method, path, body, strings.Join(problems, "; "))
				}
			}
			for _, want := range []int{http.StatusOK, http.StatusAccepted, http.StatusNoContent, http.StatusBadRequest, http.StatusNotFound,
				http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusInternalServerError} {
				if statuses[want] == 0 {
					t.Errorf("no call was answered with %d; the walk is too tame: %v", want, statuses)
				}
			}
		})
	}
}

func randomCall(rng *rand.Rand, s *Simulator) (method, path, body, version string) {
	pick := func(options ...string) string { return options[rng.IntN(len(options))] }
	s.cloud.lock()
	volumes := slices.Sorted(maps.Keys(s.cloud.volumes))
	attachments := slices.Sorted(maps.Keys(s.cloud.attachments))
	snapshots := slices.Sorted(maps.Keys(s.cloud.snapshots))
	s.cloud.unlock()
	id := pick(append(volumes, "00000000-0000-4000-8000-000000000000")...)
	attachment := pick(append(attachments, "00000000-0000-4000-8000-000000000000")...)
	snapshot := pick(append(snapshots, "00000000-0000-4000-8000-000000000000")...)
	from := pick(`{"host": "a", "initiator": "iqn.a"}`, `{"host": "b", "initiator": "iqn.b", "multipath": true}`, `{"host": "c"}`, `{}`, `null`)
	if rng.IntN(400) == 0 {
		s.StopVolumeServices()
	} else if rng.IntN(20) == 0 {
		s.StartVolumeServices()
	}
	if rng.IntN(10) == 0 {
		s.Inject(Fault{Kind: FailBackend, Times: 1})
	}
	version = pick("3.0", "3.27", "3.44", "3.54", "3.70")
	switch rng.IntN(12) {
	case 0, 1:
		return "POST", "/volumes", fmt.Sprintf(`{"volume": {"name": %q, "size": %d, "volume_type": %q%s}}`, pick("a", "b"), 1+rng.IntN(4),
			pick("iscsi", "rbd", "fail", "shared", "nope"), pick("", "", `, "snapshot_id": "`+snapshot+`"`, `, "source_volid": "`+id+`"`)), version
	case 2:
		return "DELETE", "/volumes/" + id + pick("", "", "?cascade=true", "?force=true"), "", version
	case 3:
		return "POST", "/attachments", fmt.Sprintf(`{"attachment": {"volume_uuid": %q, "connector": %s%s}}`, id, from,
			pick("", "", `, "instance_uuid": "11111111-0000-4000-8000-000000000000"`)), pick("3.27", "3.44", "3.54")
	case 4:
		return "PUT", "/attachments/" + attachment, `{"attachment": {"connector": ` + from + `}}`, pick("3.27", "3.44")
	case 5:
		return "DELETE", "/attachments/" + attachment, "", "3.44"
	case 6:
		return "POST", "/attachments/" + attachment + "/action", `{"os-complete": null}`, "3.44"
	case 7:
		if rng.IntN(2) == 0 {
			return "POST", "/snapshots", fmt.Sprintf(`{"snapshot": {"volume_id": %q, "force": %s}}`, id, pick("true", "false")), version
		}
		return "DELETE", "/snapshots/" + snapshot, "", version
	case 8:
		return "GET", "/volumes" + pick("", "/detail", "/detail?limit=2", "?status=available", "?name=a&sort=name:asc", "/"+id), "", version
	case 9:
		return pick("POST", "PUT"), "/volumes/" + id + "/metadata", pick(`{"metadata": {"k": "v"}}`, `{"metadata": {}}`, `{"metadata": {"k": 1}}`), version
	}
	action := pick(`{"os-reserve": {}}`, `{"os-unreserve": {}}`, `{"os-begin_detaching": {}}`, `{"os-roll_detaching": {}}`, `{"os-detach": {}}`,
		`{"os-detach": {"attachment_id": "`+attachment+`"}}`, `{"os-initialize_connection": {"connector": `+from+`}}`,
		`{"os-terminate_connection": {"connector": `+from+`}}`, `{"os-attach": {"host_name": "`+pick("a", "b")+`", "mountpoint": "/dev/sdb"}}`,
		`{"os-attach": {"instance_uuid": "11111111-0000-4000-8000-000000000000", "mountpoint": "/dev/sdb", "mode": "ro"}}`,
		`{"os-extend": {"new_size": `+pick("2", "3", "9")+`}}`, `{"os-force_delete": {}}`, `{"os-force_detach": {}}`,
		`{"os-reset_status": {"status": "`+pick("available", "error", "in-use", "error_deleting")+`"}}`,
		`{"os-reset_status": {"status": "available", "attach_status": "detached"}}`, `{"os-update_readonly_flag": {"readonly": `+pick("true", "false")+`}}`)
	return "POST", "/volumes/" + id + "/action", action, version
}

func TestAVolumesLifeByTheClock(t *testing.T) {
	clock := newClock()
	s := started(t, clock.options(Options{PlacementDelay: time.Second, CreateDelay: 5 * time.Second, DeleteDelay: 3 * time.Second}))
	c := noauthSender(t, s)
	host := func(id string) any {
		return c.do(http.StatusOK, "GET", "/volumes/"+id, "").body["volume"].(map[string]any)["os-vol-host-attr:host"]
	}
	id := c.create("a")
	if c.status(id) != "creating" || host(id) != nil {
		t.Errorf("at once it is %s on %v", c.status(id), host(id))
	}
	clock.advance(time.Second)
	if c.status(id) != "creating" || host(id) != "cinder@iscsi#iscsi" {
		t.Errorf("after the placement it is %s on %v", c.status(id), host(id))
	}
	c.do(http.StatusBadRequest, "DELETE", "/volumes/"+id, "")
	clock.advance(4 * time.Second)
	if c.status(id) != "available" {
		t.Errorf("after the create delay it is %s", c.status(id))
	}
	c.do(http.StatusAccepted, "DELETE", "/volumes/"+id, "")
	clock.advance(3*time.Second - 1)
	if c.status(id) != "deleting" {
		t.Errorf("during the delete it is %s", c.status(id))
	}
	clock.advance(1)
	c.do(http.StatusNotFound, "GET", "/volumes/"+id, "")

	unplaced := c.create("b")
	c.do(http.StatusAccepted, "DELETE", "/volumes/"+unplaced, "")
	c.do(http.StatusNotFound, "GET", "/volumes/"+unplaced, "")
	clock.advance(time.Hour)
	if left := s.Volumes(); len(left) != 0 {
		t.Errorf("a volume that was deleted before its placement came back: %v", left)
	}
}

func TestStoppedVolumeServicesGoOnWithWhatWasAsked(t *testing.T) {
	clock := newClock()
	s := started(t, clock.options(Options{CreateDelay: time.Second, DeleteDelay: time.Second, RPCTimeout: time.Millisecond}))
	c := noauthSender(t, s)
	reserved, doomed, free := c.create("reserved"), c.create("doomed"), c.create("free")
	clock.advance(time.Second)
	c.act(http.StatusAccepted, reserved, "os-reserve", `{}`)
	s.StopVolumeServices()
	made := c.create("late")
	c.do(http.StatusAccepted, "DELETE", "/volumes/"+doomed, "")
	c.act(http.StatusInternalServerError, reserved, "os-initialize_connection", `{"connector": {"host": "n", "initiator": "iqn.n"}}`)
	c.act(http.StatusInternalServerError, free, "os-attach", `{"host_name": "n", "mountpoint": "/dev/sdb"}`)
	clock.advance(time.Hour)
	for id, want := range map[string]string{reserved: "attaching", doomed: "deleting", made: "creating", free: "available"} {
		if got := c.status(id); got != want {
			t.Errorf("while the services are stopped a volume is %s, want %s", got, want)
		}
	}
	s.StartVolumeServices()
	c.do(http.StatusNotFound, "GET", "/volumes/"+doomed, "")
	for id, want := range map[string]string{reserved: "attaching", made: "available", free: "in-use"} {
		if got := c.status(id); got != want {
			t.Errorf("afterwards a volume is %s, want %s", got, want)
		}
	}
	if v, _ := s.Volume(reserved); !v.Export.Present {
		t.Error("the export that was asked for is not made")
	}
}

// TestHostsThatAttachAtOnceAllSucceed reproduces a race of the real Cinder,
// which checks an os-attach against the status before the effect of the others.
func TestHostsThatAttachAtOnceAllSucceed(t *testing.T) {
	s := started(t, Options{})
	c := noauthSender(t, s)
	id := c.create("a")
	var arrived []func() *reply
	for _, host := range []string{"a", "b", "c", "d"} {
		body := `{"os-attach": {"host_name": "` + host + `", "mountpoint": "/dev/sdb"}}`
		request := httptest.NewRequest("POST", "http://cinder/v3/volumes/"+id+"/action", nil)
		request.Header.Set("X-Auth-Token", c.token)
		x := &exchange{endpoint: Noauth, request: request, body: []byte(body)}
		_, observed := s.describe(x)
		arrived = append(arrived, func() *reply {
			answer, _ := s.perform(x, observed, false)
			return answer
		})
	}
	for i, perform := range arrived {
		if answer := perform(); answer.status != http.StatusAccepted {
			t.Errorf("host %d, which attached at once with others, got %d: %s", i, answer.status, answer.body)
		}
	}
	if v, _ := s.Volume(id); len(v.Attachments) != 4 {
		t.Errorf("the volume has %d attachments", len(v.Attachments))
	}
	c.act(http.StatusConflict, id, "os-detach", `{}`)
}

func TestMultiattachTypesTakeSeveralHosts(t *testing.T) {
	s := started(t, Options{Types: []drivers.VolumeType{{Name: "shared", Multiattach: true}}})
	c := noauthSender(t, s)
	id := c.create("a")
	for _, host := range []string{"a", "b"} {
		c.act(http.StatusAccepted, id, "os-reserve", `{}`)
		c.act(http.StatusAccepted, id, "os-attach", `{"host_name": "`+host+`", "mountpoint": "/dev/sdb"}`)
	}
	v, _ := s.Volume(id)
	if len(v.Attachments) != 2 || v.Status != "in-use" {
		t.Fatalf("the volume is %s with %d attachments", v.Status, len(v.Attachments))
	}
	c.act(http.StatusConflict, id, "os-detach", `{}`)
	for i, want := range []string{"in-use", "available"} {
		c.act(http.StatusAccepted, id, "os-detach", `{"attachment_id": "`+v.Attachments[i].ID+`"}`)
		if got := c.status(id); got != want {
			t.Errorf("after %d detaches the volume is %s", i+1, got)
		}
	}
}

func TestTypesWithConnectionsOfTheirOwn(t *testing.T) {
	s := started(t, Options{Types: []drivers.VolumeType{
		{Name: "fc", Connection: drivers.FixedConnection("fibre_channel", map[string]any{"target_wwn": []string{"500"}, "target_lun": 3, "encrypted": true})},
		{Name: "broken", Connection: func(drivers.ConnectionRequest) (map[string]any, error) { return nil, fmt.Errorf("no controller") }},
		{Name: "echo", Connection: func(r drivers.ConnectionRequest) (map[string]any, error) {
			return map[string]any{"driver_volume_type": "echo", "data": map[string]any{"id": r.VolumeID, "size": r.SizeGiB, "wwpns": r.Connector["wwpns"]}}, nil
		}},
	}})
	c := noauthSender(t, s)
	made := func(kind string) string {
		got := c.do(http.StatusAccepted, "POST", "/volumes", `{"volume": {"size": 2, "volume_type": "`+kind+`"}}`)
		return got.body["volume"].(map[string]any)["id"].(string)
	}
	const from = `{"connector": {"host": "n", "wwpns": ["1", "2"]}}`
	document := c.act(http.StatusOK, made("fc"), "os-initialize_connection", from).body["connection_info"].(map[string]any)
	data := document["data"].(map[string]any)
	if document["driver_volume_type"] != "fibre_channel" || data["target_lun"] != 3.0 || data["encrypted"] != true || data["access_mode"] != "rw" {
		t.Errorf("the document is %v", document)
	}
	broken := made("broken")
	c.act(http.StatusInternalServerError, broken, "os-initialize_connection", from)
	if v, _ := s.Volume(broken); v.Export.Present {
		t.Error("a driver that failed leaves its export")
	}
	echo := made("echo")
	data = c.act(http.StatusOK, echo, "os-initialize_connection", from).body["connection_info"].(map[string]any)["data"].(map[string]any)
	if data["id"] != echo || data["size"] != 2.0 || len(data["wwpns"].([]any)) != 2 {
		t.Errorf("the driver saw %v", data)
	}
}

func TestVolumesThatNoPoolCanHoldEndInError(t *testing.T) {
	s := started(t, Options{})
	c := noauthSender(t, s)
	got := c.do(http.StatusAccepted, "POST", "/volumes", `{"volume": {"size": 900000}}`)
	id := got.body["volume"].(map[string]any)["id"].(string)
	if status := c.status(id); status != "error" {
		t.Errorf("the volume is %s", status)
	}
	messages := c.do(http.StatusOK, "GET", "/messages?resource_uuid="+id, "", "OpenStack-API-Version", "volume 3.5").body["messages"].([]any)
	if len(messages) != 1 {
		t.Errorf("the messages are %v", messages)
	}
}

// TestVolumesOfAFullZoneEndInError: the scheduler says what it says of a volume
// that is too large, since in both cases its filters leave no host.
func TestVolumesOfAFullZoneEndInError(t *testing.T) {
	s := started(t, Options{Zones: []string{"az1", "az2"}})
	c := noauthSender(t, s)
	made := func(zone string) (id string) {
		got := c.do(http.StatusAccepted, "POST", "/volumes", `{"volume": {"size": 1, "availability_zone": "`+zone+`"}}`)
		return got.body["volume"].(map[string]any)["id"].(string)
	}
	s.SetZoneFull("az1", true)
	full := made("az1")
	view := c.do(http.StatusOK, "GET", "/volumes/"+full, "").body["volume"].(map[string]any)
	if view["status"] != "error" || view["availability_zone"] != "az1" {
		t.Errorf("the volume is %v in zone %v", view["status"], view["availability_zone"])
	}
	messages := c.do(http.StatusOK, "GET", "/messages?resource_uuid="+full, "", "OpenStack-API-Version", "volume 3.5").body["messages"].([]any)
	if len(messages) != 1 || messages[0].(map[string]any)["user_message"] != "schedule allocate volume:Could not find any available weighted backend." {
		t.Errorf("the messages are %v", messages)
	}
	if status := c.status(made("az2")); status != "available" {
		t.Errorf("a volume of the other zone is %s", status)
	}
	s.SetZoneFull("az1", false)
	if status := c.status(made("az1")); status != "available" {
		t.Errorf("once the zone has room again, a volume is %s", status)
	}
}

func TestStateCanBeSetAndInspectedBehindTheAPI(t *testing.T) {
	s := started(t, Options{})
	c := noauthSender(t, s)
	id, err := s.AddVolume(Volume{
		Name: "given", SizeGiB: 4, Status: "in-use", Metadata: map[string]string{"k": "v"}, AdminMetadata: map[string]string{"attached_mode": "rw"},
		Attachments: []Attachment{{Host: "node1", Mountpoint: "/dev/sdb"}}, Export: Export{Present: true, Username: "u", Password: "p"},
	})
	if err != nil {
		t.Fatal(err)
	}
	view := c.do(http.StatusOK, "GET", "/volumes/"+id, "").body["volume"].(map[string]any)
	if view["status"] != "in-use" || len(view["attachments"].([]any)) != 1 || view["metadata"].(map[string]any)["attached_mode"] != "rw" {
		t.Errorf("the view is %v", view)
	}
	data := c.act(http.StatusOK, id, "os-initialize_connection", `{"connector": {"host": "n", "initiator": "iqn.n"}}`).
		body["connection_info"].(map[string]any)["data"].(map[string]any)
	if data["auth_username"] != "u" || data["auth_password"] != "p" {
		t.Error("the export's credentials are not those that were given")
	}

	copied := s.VolumesNamed("given")[0]
	copied.Metadata["k"] = "changed"
	copied.Attachments[0].Host = "changed"
	if again, _ := s.Volume(id); again.Metadata["k"] != "v" || again.Attachments[0].Host != "node1" {
		t.Error("a copy shares memory with the state")
	}
	for _, step := range []struct {
		change func() error
		want   string
	}{
		{func() error { return s.SetVolumeStatus(id, "error_deleting") }, "error_deleting"},
		{func() error { return s.SetVolumeMetadata(id, map[string]string{"other": "x"}) }, "error_deleting"},
	} {
		if err := step.change(); err != nil {
			t.Error(err)
		}
		if got := c.status(id); got != step.want {
			t.Errorf("the volume is %s", got)
		}
	}
	if found := c.do(http.StatusOK, "GET", "/volumes?metadata=%7B'other':'x'%7D", "").body["volumes"].([]any); len(found) != 1 {
		t.Errorf("the metadata that was set is not found: %v", found)
	}
	if err := s.RemoveVolume(id); err != nil {
		t.Error(err)
	}
	c.do(http.StatusNotFound, "GET", "/volumes/"+id, "")
	s.cloud.lock()
	problems := consistent(s.cloud)
	s.cloud.unlock()
	if len(problems) > 0 {
		t.Error(problems)
	}

	for want, attempt := range map[string]func() error{
		"set the status of volume nope: there is none of that id":   func() error { return s.SetVolumeStatus("nope", "error") },
		"set the metadata of volume nope: there is none of that id": func() error { return s.SetVolumeMetadata("nope", nil) },
		"remove volume nope: there is none of that id":              func() error { return s.RemoveVolume("nope") },
		`add volume: no volume type is named "nope"`:                func() error { _, err := s.AddVolume(Volume{Type: "nope"}); return err },
	} {
		if err := attempt(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestQuotasOfProjectsAndOptions(t *testing.T) {
	identity := keystone.DefaultIdentity()
	identity.Projects[1].Quota = map[string]int{"volumes": 1}
	s := started(t, Options{Identity: identity, Quota: map[string]int{"volumes": 2, "per_volume_gigabytes": 5}})
	for user, allowed := range map[string]int{"team-a": 1, "team-b": 2} {
		c := loggedIn(t, s, user)
		for range allowed {
			c.create("fits")
		}
		c.do(http.StatusRequestEntityTooLarge, "POST", "/volumes", `{"volume": {"size": 1}}`)
	}
	s.SetQuota("team-a", map[string]int{"volumes": -1})
	c := loggedIn(t, s, "team-a")
	c.create("more")
	got := c.do(http.StatusRequestEntityTooLarge, "POST", "/volumes", `{"volume": {"size": 6}}`)
	want := "VolumeSizeExceedsLimit: Requested volume size 6G is larger than maximum allowed limit 5G."
	if message := got.body["overLimit"].(map[string]any)["message"]; message != want {
		t.Errorf("the message is %v", message)
	}
}

// TestReadsLag: reads show the state as it was a while ago, whoever changed it, and
// changes depend on the state as it is.
func TestReadsLag(t *testing.T) {
	clock := newClock()
	s := started(t, clock.options(Options{Lag: 10 * time.Second, CreateDelay: time.Second}))
	c := noauthSender(t, s)
	id := c.create("a")
	gone := func() { t.Helper(); c.do(http.StatusNotFound, "GET", "/volumes/"+id, "") }
	count := func(path, list string, want int) {
		t.Helper()
		if shown := c.do(http.StatusOK, "GET", path, "").body[list].([]any); len(shown) != want {
			t.Errorf("%s shows %d, want %d", path, len(shown), want)
		}
	}
	is := func(status string) {
		t.Helper()
		if shown := c.status(id); shown != status {
			t.Errorf("shown as %s, want %s", shown, status)
		}
	}
	gone()
	clock.advance(9 * time.Second)
	gone()
	count("/volumes/detail", "volumes", 0)
	clock.advance(time.Second)
	is("creating")
	clock.advance(time.Second)
	is("available")
	count("/volumes/detail", "volumes", 1)

	c.do(http.StatusOK, "POST", "/volumes/"+id+"/metadata", `{"metadata": {"k": "v"}}`)
	c.act(http.StatusAccepted, id, "os-reserve", "null")
	c.act(http.StatusBadRequest, id, "os-reserve", "null")
	is("available")
	if shown := c.do(http.StatusOK, "GET", "/volumes/"+id+"/metadata", "").body["metadata"].(map[string]any); len(shown) > 0 {
		t.Errorf("metadata %v", shown)
	}
	clock.advance(10 * time.Second)
	is("attaching")
	c.act(http.StatusAccepted, id, "os-unreserve", "null")
	c.do(http.StatusOK, "POST", "/attachments", `{"attachment": {"volume_uuid": "`+id+`", "connector": null}}`, "OpenStack-API-Version", "volume 3.27")
	if _, err := s.AddSnapshot(id, "s", nil); err != nil {
		t.Fatal(err)
	}
	count("/snapshots/detail", "snapshots", 0)
	clock.advance(10 * time.Second)
	is("reserved")
	count("/snapshots/detail", "snapshots", 1)
	if err := s.RemoveVolume(id); err != nil {
		t.Fatal(err)
	}
	clock.advance(9 * time.Second)
	is("reserved")
	clock.advance(time.Second)
	gone()
}
