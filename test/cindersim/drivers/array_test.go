package drivers

import "testing"

// TestAnArrayGivesFreedAddressesToTheNextVolume: to everybody, or to each initiator.
func TestAnArrayGivesFreedAddressesToTheNextVolume(t *testing.T) {
	for _, masks := range []bool{false, true} {
		a := &Array{Target: "iqn.x", Portal: "192.0.2.1:3260", Masks: masks}
		connect := func(volume, host string, lun int) {
			t.Helper()
			document, err := a.connect(ConnectionRequest{VolumeID: volume, Connector: map[string]any{"host": host, "initiator": "iqn." + host}})
			if err != nil {
				t.Fatal(err)
			}
			if got := document["data"].(map[string]any)["target_lun"]; got != lun {
				t.Errorf("masks %t: volume %s is at LUN %v of %s, want %d", masks, volume, got, host, lun)
			}
		}
		shows := func(host string, lun int, volume string) {
			t.Helper()
			if got := a.Behind("iqn."+host, lun); got != volume {
				t.Errorf("masks %t: %s sees %q at LUN %d, want %q", masks, host, got, lun, volume)
			}
		}
		second := map[bool]int{false: 2, true: 1}[masks]
		connect("v1", "a", 1)
		connect("v1", "a", 1)
		connect("v2", "b", second)
		shows("a", 1, "v1")
		shows("b", 1, map[bool]string{false: "v1", true: "v2"}[masks])
		// A volume that two nodes have keeps its address until both are disconnected.
		connect("v1", "b", map[bool]int{false: 1, true: 2}[masks])
		a.disconnect("v1", map[string]any{"host": "a"})
		shows("a", 1, map[bool]string{false: "v1", true: ""}[masks])
		a.disconnect("v1", nil)
		shows("a", 1, "")
		connect("v3", "a", 1)
		shows("a", 1, "v3")
		connect("v4", "b", map[bool]int{false: 3, true: 2}[masks])
		a.disconnect("v3", map[string]any{"host": "a"})
		a.disconnect("v4", map[string]any{"host": "b"})
		connect("v5", "b", map[bool]int{false: 3, true: 2}[masks])
	}
}
