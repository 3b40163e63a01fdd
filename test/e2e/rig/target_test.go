package rig

import (
	"os"
	"reflect"
	"testing"
)

// TestParseTargets reads the answer of tgt 1.0.85, with one initiator logged in
// at the first target and a second target that has neither account nor disk.
func TestParseTargets(t *testing.T) {
	output, err := os.ReadFile("testdata/targets.txt")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseTargets(output)
	if err != nil {
		t.Fatal(err)
	}
	want := []Target{
		{
			IQN:        "iqn.2010-10.org.openstack:volume-f4638a46-9922-46ae-ab20-a062a8f4b250",
			Accounts:   []string{"YNhGj8Gbnzccp2APcHVZ"},
			Initiators: []string{"iqn.2026-01.example:e2e"},
			Disks:      map[int]string{1: "/state/data/volumes/iscsi-mp/volume-f4638a46-9922-46ae-ab20-a062a8f4b250"},
		},
		{
			IQN:   "iqn.2010-10.org.openstack:volume-0d6bbd21-7c3c-4d0b-8d4a-3c9c2f5d0c11",
			Disks: map[int]string{},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseTargetsOfNone(t *testing.T) {
	got, err := parseTargets(nil)
	if err != nil || len(got) != 0 {
		t.Errorf("got %v, %v; want no target and no error", got, err)
	}
}

func TestParseTargetsRefusesWhatIsNoList(t *testing.T) {
	for output, want := range map[string]string{
		"tgtadm: can't send the request to the tgt daemon\n":          `list iSCSI targets: line 1 of tgtadm's answer is not a target: "tgtadm: can't send the request to the tgt daemon"`,
		"Target 1: iqn.x:a\n    LUN information:\n        LUN: one\n": `list iSCSI targets: line 3 of tgtadm's answer: strconv.Atoi: parsing "one": invalid syntax`,
	} {
		if _, err := parseTargets([]byte(output)); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
