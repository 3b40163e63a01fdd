//go:build e2e

package rig_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
)

// These tests prove the fixture itself, above all its volume driver: what they
// show to hold, the end-to-end tests of the provisioner may rely on. They speak
// raw HTTP, so that nothing of the product can hide a fault of the fixture.

func TestDataIsSeenThroughEveryPortal(t *testing.T) {
	env := load(t)
	c := noauth(t, env)
	volume := c.create("volume", "available", object{"size": 1, "volume_type": env.Types.ISCSIMultipath})
	disk, answer := c.initialize(volume)
	data := answer.Info.Data
	if answer.Info.Type != "iscsi" || data.Method != "CHAP" || strings.Join(data.Portals, " ") != strings.Join(env.Portals, " ") {
		t.Fatalf("connection of type %q, method %q, portals %v", answer.Info.Type, data.Method, data.Portals)
	}

	content := noise(1<<20 + 3)
	write(t, disk, 12345, content)
	for i := range data.Portals {
		disk.Portal, disk.IQN, disk.LUN = data.Portals[i], data.IQNs[i], data.LUNs[i]
		expect(t, disk, 12345, content)
		expectSize(t, disk, gibibyte)
	}
}

func TestLoginNeedsTheVolumesOwnCredentials(t *testing.T) {
	env := load(t)
	c := noauth(t, env)
	disk, _ := c.initialize(c.create("volume", "available", object{"size": 1, "volume_type": env.Types.ISCSI}))
	other, _ := c.initialize(c.create("volume", "available", object{"size": 1, "volume_type": env.Types.ISCSI}))
	expectSize(t, disk, gibibyte)

	for name, change := range map[string]func(*rig.Disk){
		"none":              func(d *rig.Disk) { d.CHAPUser, d.CHAPPassword = "", "" },
		"wrong password":    func(d *rig.Disk) { d.CHAPPassword += "x" },
		"another volume's":  func(d *rig.Disk) { d.CHAPUser, d.CHAPPassword = other.CHAPUser, other.CHAPPassword },
		"another's at mine": func(d *rig.Disk) { d.CHAPPassword = other.CHAPPassword },
	} {
		wrong := disk
		change(&wrong)
		if _, err := wrong.Size(t.Context()); !errors.Is(err, rig.ErrLoginRefused) {
			t.Errorf("credentials %s: %v, want %v", name, err, rig.ErrLoginRefused)
		}
	}
}

func TestTheExportLivesFromInitializeToDetach(t *testing.T) {
	env := load(t)
	c := noauth(t, env)
	// Another target has to exist for tgtd to say that this one does not.
	c.initialize(c.create("volume", "available", object{"size": 1, "volume_type": env.Types.ISCSI}))
	volume := c.create("volume", "available", object{"size": 1, "volume_type": env.Types.ISCSI})
	if _, found := target(t, env, volume); found {
		t.Error("a volume that nobody connected to is exported")
	}
	var disk rig.Disk
	t.Run("attached", func(t *testing.T) {
		c := noauth(t, env)
		disk = c.attach(volume)
		exported, found := target(t, env, volume)
		if !found || len(exported.Disks) != 1 || len(exported.Accounts) != 1 || exported.Accounts[0] != disk.CHAPUser {
			t.Errorf("exported as %+v", exported)
		}
		write(t, disk, 0, noise(512))
	})
	if exported, found := target(t, env, volume); found {
		t.Errorf("still exported after detach: %+v", exported)
	}
	if _, err := disk.Size(t.Context()); !errors.Is(err, rig.ErrTargetNotFound) {
		t.Errorf("login after detach: %v, want %v", err, rig.ErrTargetNotFound)
	}
}

func TestDeleteRemovesTheExportOfAVolumeThatWasNeverAttached(t *testing.T) {
	env := load(t)
	var volume string
	t.Run("exported", func(t *testing.T) {
		c := noauth(t, env)
		volume = c.create("volume", "available", object{"size": 1, "volume_type": env.Types.ISCSI})
		c.initialize(volume)
		if _, found := target(t, env, volume); !found {
			t.Error("not exported")
		}
	})
	if exported, found := target(t, env, volume); found {
		t.Errorf("still exported after the delete: %+v", exported)
	}
}

func TestSnapshotsAndClonesAreIndependentCopies(t *testing.T) {
	env := load(t)
	c := noauth(t, env)
	volume := c.create("volume", "available", object{"size": 1, "volume_type": env.Types.ISCSI})
	disk, _ := c.initialize(volume)
	before, after := noise(4096), noise(4096)
	write(t, disk, gibibyte-4096, before)
	snapshot := c.create("snapshot", "available", object{"volume_id": volume})
	clone := c.create("volume", "available", object{"size": 1, "source_volid": volume})
	write(t, disk, gibibyte-4096, after)
	restored := c.create("volume", "available", object{"size": 2, "snapshot_id": snapshot})

	expect(t, disk, gibibyte-4096, after)
	cloneDisk, _ := c.initialize(clone)
	expect(t, cloneDisk, gibibyte-4096, before)
	expectSize(t, cloneDisk, gibibyte)
	restoredDisk, _ := c.initialize(restored)
	expect(t, restoredDisk, gibibyte-4096, before)
	expect(t, restoredDisk, gibibyte, make([]byte, 4096))
	expectSize(t, restoredDisk, 2*gibibyte)
}

func TestExtendKeepsDataAndIsSeenByTheNextLogin(t *testing.T) {
	env := load(t)
	for _, attached := range []bool{false, true} {
		t.Run(fmt.Sprintf("attached=%t", attached), func(t *testing.T) {
			c := noauth(t, env)
			volume := c.create("volume", "available", object{"size": 1, "volume_type": env.Types.ISCSI})
			status := "available"
			var disk rig.Disk
			if attached {
				disk, status = c.attach(volume), "in-use"
			} else {
				disk, _ = c.initialize(volume)
			}
			content := noise(8192)
			write(t, disk, 0, content)
			c.action(volume, http.StatusAccepted, "os-extend", object{"new_size": 3}, nil)
			c.wait("/volumes/"+volume, "volume", status)
			if !attached {
				disk, _ = c.initialize(volume)
			}
			expectSize(t, disk, 3*gibibyte)
			expect(t, disk, 0, content)
		})
	}
}

func TestVolumesOfTheFailingTypeEndInError(t *testing.T) {
	env := load(t)
	c := noauth(t, env)
	volume := c.create("volume", "error", object{"size": 1, "volume_type": env.Types.Fail})
	c.action(volume, http.StatusInternalServerError, "os-initialize_connection", object{"connector": connector}, nil)
}

func TestRBDImagesCanBeWrittenAndRead(t *testing.T) {
	env := load(t)
	if env.Types.RBD == "" {
		t.Skip("the rig was started without RIG_CEPH=1")
	}
	c := noauth(t, env)
	volume := c.create("volume", "available", object{"size": 1, "volume_type": env.Types.RBD})
	var answer struct {
		Info struct {
			Type string `json:"driver_volume_type"`
			Data struct {
				Name string   `json:"name"`
				User string   `json:"auth_username"`
				Host []string `json:"hosts"`
			} `json:"data"`
		} `json:"connection_info"`
	}
	c.action(volume, http.StatusOK, "os-initialize_connection", object{"connector": connector}, &answer)
	data := answer.Info.Data
	if answer.Info.Type != "rbd" || data.Name != "volumes/volume-"+volume || len(data.Host) != 1 {
		t.Fatalf("connection %+v", answer.Info)
	}
	image := rig.Image{Monitors: []string{env.CephMonitor}, Pool: "volumes", Name: "volume-" + volume, User: data.User, Key: key(t, env)}
	content := noise(8192)
	if err := image.Write(t.Context(), 4096, content); err != nil {
		t.Fatal(err)
	}
	if got, err := image.Read(t.Context(), 4096, len(content)); err != nil || !bytes.Equal(got, content) {
		t.Fatalf("%v; the same: %t", err, bytes.Equal(got, content))
	}
	state, err := image.State(t.Context())
	if err != nil || !slices.Contains(state.Features, "layering") || len(state.Watchers) != 0 {
		t.Errorf("state %+v, %v", state, err)
	}
	images, err := env.Images(t.Context())
	if err != nil || !slices.Contains(images, image.Name) {
		t.Errorf("the pool has %v, %v", images, err)
	}
	image.Key = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQQ=="
	if _, err := image.Read(t.Context(), 0, 512); err == nil {
		t.Error("a wrong key opens the image")
	}
}

// key returns the key of the user "cinder", from its keyring file.
func key(t *testing.T, env rig.Env) string {
	t.Helper()
	content, err := os.ReadFile(env.CephKeyring)
	if err != nil {
		t.Fatal(err)
	}
	_, key, found := strings.Cut(string(content), "key = ")
	if !found {
		t.Fatal("the keyring holds no key")
	}
	return strings.TrimSpace(key)
}

func TestConnectionsOfTheKeyringTypeHoldTheKey(t *testing.T) {
	env := load(t)
	if env.Types.RBDKeyring == "" {
		t.Skip("the rig was started without RIG_CEPH=1")
	}
	c := noauth(t, env)
	for kind, want := range map[string]bool{env.Types.RBDKeyring: true, env.Types.RBD: false} {
		volume := c.create("volume", "available", object{"size": 1, "volume_type": kind})
		var answer struct {
			Info struct {
				Data struct {
					Keyring string `json:"keyring"`
				} `json:"data"`
			} `json:"connection_info"`
		}
		c.action(volume, http.StatusOK, "os-initialize_connection", object{"connector": connector}, &answer)
		if got := strings.Contains(answer.Info.Data.Keyring, "key = "+key(t, env)); got != want {
			t.Errorf("type %s: the connection holds the key: %t, want %t", kind, got, want)
		}
	}
}

// TestManyExportsAtOnce: tgt-admin alone gives the same number to targets that
// are made at once.
func TestManyExportsAtOnce(t *testing.T) {
	env := load(t)
	c := noauth(t, env)
	const count = 12
	types := []string{env.Types.ISCSI, env.Types.ISCSIMultipath}
	volumes := make([]string, count)
	for i := range volumes {
		volumes[i] = c.create("volume", "available", object{"size": 1, "volume_type": types[i%len(types)]})
	}
	codes := make([]int, count)
	answers := make([]connection, count)
	var calls sync.WaitGroup
	for i, volume := range volumes {
		calls.Go(func() {
			body := object{"os-initialize_connection": object{"connector": connector}}
			codes[i] = c.call(http.MethodPost, "/volumes/"+volume+"/action", body, &answers[i])
		})
	}
	calls.Wait()
	for i, volume := range volumes {
		exported, found := target(t, env, volume)
		if codes[i] != http.StatusOK || !found || len(exported.Disks) != 1 || exported.IQN != answers[i].Info.Data.IQN {
			t.Errorf("volume %d: answer %d, exported as %+v", i, codes[i], exported)
		}
	}
}

func TestTenantsSeeTheirOwnVolumesOnly(t *testing.T) {
	env := load(t)
	identity, scope := password(env, env.TeamA)
	teamA, project := logIn(t, env, identity, scope)
	if project != env.TeamA.ProjectID {
		t.Errorf("team-a's project is %s, want %s", project, env.TeamA.ProjectID)
	}
	identity, scope = password(env, env.TeamB)
	teamB, _ := logIn(t, env, identity, scope)
	credential, project := logIn(t, env, object{
		"methods":                []string{"application_credential"},
		"application_credential": object{"id": env.TeamACredential.ID, "secret": env.TeamACredential.Secret},
	}, nil)
	if project != env.TeamA.ProjectID {
		t.Errorf("the application credential's project is %s, want %s", project, env.TeamA.ProjectID)
	}

	volume := teamA.create("volume", "available", object{"size": 1, "volume_type": env.Types.ISCSI})
	credential.must(http.StatusOK, http.MethodGet, "/volumes/"+volume, nil, nil)
	noauth(t, env).must(http.StatusOK, http.MethodGet, "/volumes/"+volume, nil, nil)
	teamB.must(http.StatusNotFound, http.MethodGet, "/volumes/"+volume, nil, nil)
	teamB.must(http.StatusNotFound, http.MethodDelete, "/volumes/"+volume, nil, nil)
}
