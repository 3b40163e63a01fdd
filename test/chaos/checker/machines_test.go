package checker

import (
	"slices"
	"testing"
)

func TestCourseFindsWhatIsPlantedAmongWrites(t *testing.T) {
	for _, c := range []struct {
		name   string
		writes []Write
		want   []Finding
	}{
		{"nothing", nil, nil},
		{"one writer", []Write{{"n1", "v1", "LUN 1", "v1"}, {"n2", "v2", "LUN 2", "v2"}}, nil},
		{"a first node that the array keeps out", []Write{{"n1", "v1", "LUN 1", ""}, {"n2", "v1", "LUN 1", "v1"}}, nil},
		{"one writer by two devices", []Write{{"n1", "v1", "LUN 1", "v1"}, {"n1", "v1", "LUN 1", "v1"}}, nil},
		{"two writers", []Write{{"n2", "v1", "LUN 1", "v1"}, {"n1", "v1", "LUN 3", "v1"}},
			[]Finding{{TwoWriters, "volume v1", "it is mounted on n1 and n2, and the array lets all of them write", "v1", ""}}},
		{"an address of another volume", []Write{{"n1", "v1", "LUN 1 of array", "v2"}},
			[]Finding{{WrongContent, "node n1", "it has volume v1 mounted, and writes to LUN 1 of array, where volume v2 is by now", "v1", ""}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			course := NewCourse(host)
			course.Look(Sample{Writes: c.writes, Asked: func(string) bool { return false }})
			if got := course.Findings(); !slices.Equal(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// onMachines returns a sound state in which a pod runs on a machine.
func onMachines() State {
	s := withPods()
	s.Machines = []string{"n1", "n2"}
	s.Reports = []Report{{Node: "n1", There: true, Volumes: []string{"v5"}}, {Node: "n2", There: true}}
	s.Writes = []Write{{"n1", "v5", "LUN 1", "v5"}}
	s.Pods = []Pod{{"pod-5", "u5", "v5", "n1", true}}
	return s
}

func TestEndingFindsWhatIsPlantedAmongMachines(t *testing.T) {
	last := len(sound().Volumes)
	for _, c := range []struct {
		name  string
		plant func(*State)
		want  []Finding
	}{
		{"nothing", func(*State) {}, nil},
		{"a pod without its volume", func(s *State) { s.Pods[0].Runs = false },
			[]Finding{{HeldForEver, "claim pod-5", "its pod on node n1 does not get volume v5", "v5", "u5"}}},
		{"a pod whose claim got no volume", func(s *State) { s.Pods = append(s.Pods, Pod{Claim: "pod-9", ClaimUID: "u9", Node: "n2"}) },
			[]Finding{{HeldForEver, "claim pod-9", "its pod on node n2 does not get volume of the claim", "", "u9"}}},
		{"a barred node", func(s *State) { s.Reports[1].Volumes = []string{"v6"} },
			[]Finding{{HeldForEver, "node n2", "its report names volume v6 (pvc-u6, available), which nothing attaches to it, and bars it from all others", "v6", "u6"}}},
		{"a report of a volume that is gone", func(s *State) { s.Reports[1].Volumes = []string{"v9"} },
			[]Finding{{HeldForEver, "node n2", "its report names volume v9, which is gone", "v9", ""}}},
		{"a report of a node that is gone", func(s *State) { s.Reports[1] = Report{Node: "n2", Volumes: []string{"v6"}} },
			[]Finding{{HeldForEver, "node n2", "its report names volume v6, and its Node is gone", "v6", ""}}},
		{"a mount that nothing wants", func(s *State) { s.Writes = append(s.Writes, Write{"n2", "v6", "LUN 1", ""}) },
			[]Finding{{HeldForEver, "node n2", "it has volume v6 mounted, which nothing attaches to it", "v6", ""}}},
		{"an owed attachment", func(s *State) { s.Volumes[last+1] = onNodes("v6", "u6", "n2") }, []Finding{
			{HeldForEver, "volume v6 (pvc-u6, in-use)", `attachment attachment-n2 of node "n2" (attached), and no VolumeAttachment wants it`, "v6", "u6"},
			{HeldForEver, "volume v6 (pvc-u6, in-use)", `a record of attachment attachment-n2 of node "n2", and no VolumeAttachment wants it`, "v6", "u6"}}},
		{"a volume that is never attached", func(s *State) {
			s.Attachments = append(s.Attachments, Attachment{UID: "a6", Name: "pvc-u6-n2", PV: "pvc-u6", VolumeID: "v6", Node: "n2", Error: "still staged on node n1"})
		}, []Finding{{HeldForEver, "VolumeAttachment pvc-u6-n2", "is not attached: still staged on node n1", "v6", "u6"}}},
		{"a detachment that is never answered", func(s *State) {
			s.Attachments = append(s.Attachments, Attachment{UID: "a6", Name: "pvc-u6-n2", PV: "pvc-u6", VolumeID: "v6", Node: "n2", Asked: true, Error: "no answer"})
		}, []Finding{{HeldForEver, "VolumeAttachment pvc-u6-n2", "is deleted and does not go: no answer", "v6", "u6"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := onMachines()
			c.plant(&s)
			if got := Ending(s); !slices.Equal(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}
