package backends

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

func TestRetype(t *testing.T) {
	const request = "volume.os-retype volume-1"
	for name, test := range map[string]struct {
		volume  cinder.Volume // its stamp is claim 1's
		foreign bool
		to      string
		fault   mishap
		want    int // requests
		kind    cinder.Kind
		wantErr string
	}{
		"available":     {volume: cinder.Volume{Status: cinder.StatusAvailable, Type: "hdd"}, to: "ssd", want: 1},
		"in use":        {volume: cinder.Volume{Status: cinder.StatusInUse, Type: "hdd"}, to: "ssd", want: 1},
		"it has it":     {volume: cinder.Volume{Status: cinder.StatusInUse, Type: "ssd"}, to: "ssd"},
		"a lost answer": {volume: cinder.Volume{Status: cinder.StatusInUse, Type: "hdd"}, to: "ssd", fault: lost, want: 1, kind: cinder.KindUnavailable},
		"reserved": {volume: cinder.Volume{Status: cinder.StatusReserved, Type: "hdd"}, to: "ssd", kind: cinder.KindConflict,
			wantErr: "backend gold: volume volume-1 is reserved; waiting for that operation to finish"},
		"in error": {volume: cinder.Volume{Status: cinder.StatusError, Type: "hdd"}, to: "ssd", kind: cinder.KindConflict,
			wantErr: "backend gold: volume volume-1 is error; waiting for that operation to finish"},
		"another's": {volume: cinder.Volume{Status: cinder.StatusAvailable, Type: "hdd"}, foreign: true, to: "ssd", kind: KindNotOurs},
		"no such type": {volume: cinder.Volume{Status: cinder.StatusAvailable, Type: "hdd"}, to: unknownType, want: 1, kind: cinder.KindInvalid,
			wantErr: `backend gold: there is no volume type "unknown", or the project may not use it`},
		"limits of one in use": {volume: cinder.Volume{Status: cinder.StatusInUse, Type: "hdd"}, to: limitedType, want: 1, kind: cinder.KindConflict,
			wantErr: "if the front-end QoS of the types differs, stop the pods that use volume volume-1, and change its type while it is attached nowhere: backend gold: volume.os-retype: Invalid volume: for in-use volumes front-end qos specs cannot change (HTTP 400)"},
		"its storage cannot": {volume: cinder.Volume{Status: cinder.StatusAvailable, Type: "hdd"}, to: "tape", want: 1, kind: KindVolumeFailed,
			wantErr: `backend gold: Cinder accepted the change of volume volume-1 to type "tape", but it still has type "hdd": its storage cannot change it in place, or the type is that of another storage; see the log of cinder-scheduler`},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.unchangeable = "tape"
			stamp := claimStamp(1)
			if test.foreign {
				stamp = claimStamp(2)
			}
			test.volume.Metadata = stamp.Metadata(nil)
			id := memory.add(test.volume)
			if test.fault != noFault {
				memory.fault = func(operation, _ string) mishap {
					if operation == "volume.os-retype" {
						return test.fault
					}
					return noFault
				}
			}
			l := memory.term(t)
			v, err := l.Retype(t.Context(), claimTarget(1, id), test.to, false)
			equal(t, cinder.KindOf(err), test.kind)
			if test.wantErr != "" {
				equal(t, err.Error(), test.wantErr)
			}
			requests := 0
			for _, change := range memory.changes() {
				if change == request {
					requests++
				}
			}
			equal(t, requests, test.want)
			switch {
			case test.kind == "":
				equal(t, v.Type, test.to)
				equal(t, v.Status, test.volume.Status)
			case test.fault == lost:
				// The next run finds what the lost request did, and requests nothing.
				memory.fault = nil
				v, err := memory.term(t).Retype(t.Context(), claimTarget(1, id), test.to, false)
				success(t, err)
				equal(t, v.Type, test.to)
				equal(t, len(memory.changes()), 1)
			default:
				equal(t, memory.volumes[id].Type, "hdd")
			}
		})
	}
}

// TestMigrate: Cinder may copy the volume to the storage of the new type.
func TestMigrate(t *testing.T) {
	for name, test := range map[string]struct {
		status  cinder.Status
		to      string
		wantErr string
	}{
		"to another storage":                {status: cinder.StatusAvailable, to: "tape"},
		"that an earlier command asked for": {status: cinder.StatusRetyping, to: "tape"},
		"although a pod has it by now": {status: cinder.StatusInUse, to: "tape",
			wantErr: "backend gold: volume volume-1 is in-use, and Cinder may copy it only while it is available; stop the pods that use it"},
		"to a storage that cannot be reached": {status: cinder.StatusAvailable, to: "moon",
			wantErr: `backend gold: Cinder accepted the change of volume volume-1 to type "moon", but it still has type "hdd": Cinder could not copy it to a storage of that type, or the volume has snapshots; see the logs of cinder-scheduler and cinder-volume`},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.unchangeable, memory.unreachable = "tape", "moon"
			id := memory.add(cinder.Volume{Status: test.status, Type: "hdd", Metadata: claimStamp(1).Metadata(nil)})
			if test.status == cinder.StatusRetyping {
				memory.volumes[id].Status = cinder.StatusAvailable
				success(t, memory.client().RetypeVolume(t.Context(), id, test.to, true))
			}
			v, err := memory.term(t).Retype(t.Context(), claimTarget(1, id), test.to, true)
			if test.wantErr != "" {
				equal(t, fmt.Sprint(err), test.wantErr)
				equal(t, len(memory.changes()) == 0, test.status == cinder.StatusInUse)
				return
			}
			success(t, err)
			equal(t, v.Type, test.to)
			equal(t, len(memory.changes()), 1)
		})
	}
}

func TestHasType(t *testing.T) {
	for volumeType, want := range map[string]bool{quickType: true, strings.ToUpper(quickID): true, unknownType: false} {
		has, err := newMemoryCinder().term(t).HasType(t.Context(), volumeType)
		success(t, err)
		equal(t, has, want)
	}
}

// TestRetypeToATypeByItsID: Cinder takes a type by its ID, and shows its name.
func TestRetypeToATypeByItsID(t *testing.T) {
	const nobodys = "7b0f4b43-8d4e-4f3b-9d3f-6a116f3d7f7c"
	for name, test := range map[string]struct {
		has, to, shown string
		requests       int
	}{
		"another type":               {has: "hdd", to: quickID, shown: quickType, requests: 1},
		"the type that it has":       {has: quickType, to: quickID, shown: quickType},
		"a name that looks like one": {has: "hdd", to: nobodys, shown: nobodys, requests: 1},
		"such a name, and it has it": {has: nobodys, to: nobodys, shown: nobodys},
		"the name of one, as before": {has: "hdd", to: quickType, shown: quickType, requests: 1},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.add(cinder.Volume{Status: cinder.StatusInUse, Type: test.has, Metadata: claimStamp(1).Metadata(nil)})
			// csi-resizer repeats a call that got no answer.
			for range 3 {
				v, err := memory.term(t).Retype(t.Context(), claimTarget(1, id), test.to, false)
				success(t, err)
				equal(t, v.Type, test.shown)
			}
			requests := slices.DeleteFunc(memory.changes(), func(request string) bool { return request != "volume.os-retype "+id })
			equal(t, len(requests), test.requests)
		})
	}
}
