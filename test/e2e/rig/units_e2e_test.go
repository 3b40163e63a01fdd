//go:build e2e

package rig_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
)

// connectUnit connects a volume to an initiator.
func (c cinder) connectUnit(volume, initiator string) rig.Disk {
	c.t.Helper()
	var answer connection
	c.action(volume, http.StatusOK, "os-initialize_connection", object{"connector": unitConnector(initiator)}, &answer)
	data := answer.Info.Data
	return rig.Disk{Portal: data.Portal, IQN: data.IQN, LUN: data.LUN, Initiator: initiator}
}

func (c cinder) disconnectUnit(volume, initiator string) {
	c.t.Helper()
	c.action(volume, http.StatusAccepted, "os-terminate_connection", object{"connector": unitConnector(initiator)}, nil)
}

func unitConnector(initiator string) object {
	return object{"host": initiator, "ip": "127.0.0.1", "initiator": initiator}
}

const (
	first  = "iqn.2026-01.example:first"
	second = "iqn.2026-01.example:second"
)

func TestAFreedUnitIsGivenToTheNextVolume(t *testing.T) {
	env := load(t)
	for _, kind := range []string{env.Types.Units, env.Types.UnitsMasked} {
		t.Run(kind, func(t *testing.T) {
			c := noauth(t, env)
			create := func() string { return c.create("volume", "available", object{"size": 1, "volume_type": kind}) }
			old, other, next := create(), create(), create()
			was := c.connectUnit(old, first)
			beside := c.connectUnit(other, first)
			content := noise(4096)
			write(t, was, 0, content)
			c.disconnectUnit(old, first)
			c.waitUnits(env, was.IQN, 1)
			is := c.connectUnit(next, first)
			if is != was || beside.LUN == was.LUN {
				t.Errorf("the unit was %+v, is %+v, and beside it is %+v", was, is, beside)
			}
			expect(t, is, 0, make([]byte, 4096))
			again := c.connectUnit(old, first)
			expect(t, again, 0, content)
			for _, volume := range []string{old, other, next} {
				c.disconnectUnit(volume, first)
			}
			c.waitUnits(env, was.IQN, 0)
		})
	}
}

// waitUnits waits until a target has a number of units: Cinder ends a connection after
// it has answered.
func (c cinder) waitUnits(env rig.Env, iqn string, want int) {
	c.t.Helper()
	var have int
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		targets, err := env.Targets(c.t.Context())
		if err != nil {
			c.t.Fatal(err)
		}
		for _, target := range targets {
			if target.IQN == iqn {
				have = len(target.Disks)
			}
		}
		if have == want {
			return
		}
	}
	c.t.Fatalf("%s has %d units, want %d", iqn, have, want)
}

func TestAMaskedTargetLetsInItsInitiatorAlone(t *testing.T) {
	env := load(t)
	c := noauth(t, env)
	disks := map[string]rig.Disk{}
	for _, kind := range []string{env.Types.Units, env.Types.UnitsMasked} {
		volume := c.create("volume", "available", object{"size": 1, "volume_type": kind})
		disks[kind] = c.connectUnit(volume, first)
		t.Cleanup(func() { c.disconnectUnit(volume, first) })
		disk := disks[kind]
		expectSize(t, disk, gibibyte)
		disk.Initiator = second
		_, err := disk.Size(t.Context())
		if refused := errors.Is(err, rig.ErrLoginRefused) || errors.Is(err, rig.ErrTargetNotFound); refused != (kind == env.Types.UnitsMasked) {
			t.Errorf("%s, for another initiator: %v", kind, err)
		}
	}
}
