package checker

import (
	"slices"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// onNodes returns a volume of mode csi that Cinder attaches to nodes, with their
// records.
func onNodes(id, uid string, nodes ...string) cindersim.Volume {
	v := stamped(id, uid)
	v.Metadata[stampMode], v.Metadata[stampMarked] = modeCSI, "true"
	v.Status, v.Attachments = available, nil
	for _, node := range nodes {
		v.Status = inUse
		v.Attachments = append(v.Attachments, cindersim.Attachment{ID: "attachment-" + node, Host: node + ".1a2b3c4d", Status: statusAttached})
		v.Metadata[nodeRecord+node] = "attachment-" + node + " " + node
	}
	return v
}

// withPods returns a sound state with a volume on a node, and one on none.
func withPods() State {
	s := sound()
	s.Claims = append(s.Claims, Claim{UID: "u5", Namespace: "a", Name: "pod-5", Bound: true}, Claim{UID: "u6", Namespace: "a", Name: "pod-6", Bound: true})
	s.PVs = append(s.PVs, PV{Name: "pvc-u5", ClaimUID: "u5", VolumeID: "v5", CSI: true}, PV{Name: "pvc-u6", ClaimUID: "u6", VolumeID: "v6", CSI: true})
	s.Volumes = append(s.Volumes, onNodes("v5", "u5", "n1"), onNodes("v6", "u6"))
	s.Attachments = []Attachment{{UID: "a5", Name: "pvc-u5-n1", PV: "pvc-u5", VolumeID: "v5", Node: "n1", Attached: true}}
	return s
}

func TestEndingFindsWhatIsPlantedAmongAttachments(t *testing.T) {
	last := len(sound().Volumes)
	for _, c := range []struct {
		name  string
		plant func(*State)
		want  []Finding
	}{
		{"nothing", func(*State) {}, nil},
		{"an attachment that nothing wants", func(s *State) { s.Attachments = nil }, []Finding{
			{LeakedAttachment, "volume v5 (pvc-u5, in-use)", `attachment attachment-n1 of node "n1" (attached), and no VolumeAttachment wants it`, "v5", "u5"},
			{LeakedAttachment, "volume v5 (pvc-u5, in-use)", `a record of attachment attachment-n1 of node "n1", and no VolumeAttachment wants it`, "v5", "u5"}}},
		{"a record that nothing wants", func(s *State) { s.Volumes[last+1].Metadata[nodeRecord+"n2"] = "x n2" },
			[]Finding{{LeakedAttachment, "volume v6 (pvc-u6, available)", `a record of attachment x of node "n2", and no VolumeAttachment wants it`, "v6", "u6"}}},
		{"an emptied record", func(s *State) { s.Volumes[last+1].Metadata[nodeRecord+"n2"] = "" }, nil},
		{"a node that lost its volume", func(s *State) { s.Volumes[last] = onNodes("v5", "u5") },
			[]Finding{{LostAttachment, "VolumeAttachment pvc-u5-n1", `Cinder attaches volume v5 (pvc-u5, available) to []`, "v5", "u5"}}},
		{"a volume on two nodes", func(s *State) { s.Volumes[last] = onNodes("v5", "u5", "n1", "n2") }, []Finding{
			{LeakedAttachment, "volume v5 (pvc-u5, in-use)", `attachment attachment-n2 of node "n2" (attached), and no VolumeAttachment wants it`, "v5", "u5"},
			{LeakedAttachment, "volume v5 (pvc-u5, in-use)", `a record of attachment attachment-n2 of node "n2", and no VolumeAttachment wants it`, "v5", "u5"}}},
		{"a volume twice on a node", func(s *State) {
			s.Volumes[last].Attachments = append(s.Volumes[last].Attachments, s.Volumes[last].Attachments[0])
		},
			[]Finding{{DoubledAttachment, "volume v5 (pvc-u5, in-use)", `attachment attachment-n1 of node "n1" (attached) is not the only one`, "v5", "u5"}}},
		{"a volume that is never attached", func(s *State) { s.Attachments[0].Attached, s.Attachments[0].Error = false, "waiting" },
			[]Finding{{Stuck, "VolumeAttachment pvc-u5-n1", "is not attached: waiting", "v5", "u5"}}},
		{"a volume that is never detached", func(s *State) { s.Attachments[0].Asked, s.Attachments[0].Error = true, "no answer" }, []Finding{
			{Stuck, "VolumeAttachment pvc-u5-n1", "is deleted and does not go: no answer", "v5", "u5"},
			{LeakedAttachment, "volume v5 (pvc-u5, in-use)", `attachment attachment-n1 of node "n1" (attached), and no VolumeAttachment wants it`, "v5", "u5"},
			{LeakedAttachment, "volume v5 (pvc-u5, in-use)", `a record of attachment attachment-n1 of node "n1", and no VolumeAttachment wants it`, "v5", "u5"}}},
		{"an unmarked volume", func(s *State) { delete(s.Volumes[last].Metadata, stampMarked) },
			[]Finding{{Stuck, "PersistentVolume pvc-u5", "its claim a/pod-5 is bound and volume v5 (pvc-u5, in-use) is not marked as recorded", "v5", "u5"}}},
		{"a volume in error", func(s *State) { s.Volumes[last+1].Status = "error" },
			[]Finding{{Stuck, "PersistentVolume pvc-u6", "its claim a/pod-6 is bound and volume v6 (pvc-u6, error) cannot be attached", "v6", "u6"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := withPods()
			c.plant(&s)
			if got := Ending(s); !slices.Equal(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestCourseFindsWhatIsPlantedAmongAttachments(t *testing.T) {
	both := Attachment{UID: "a6", Name: "pvc-u5-n2", PV: "pvc-u5", VolumeID: "v5", Node: "n2", Attached: true}
	last := len(sound().Volumes)
	for _, c := range []struct {
		name  string
		plant func(s *Sample, asked map[string]bool)
		want  []Kind
	}{
		{"nothing", func(*Sample, map[string]bool) {}, nil},
		{"a node that lost its volume", func(s *Sample, _ map[string]bool) { s.Volumes[last] = onNodes("v5", "u5") }, []Kind{LostAttachment}},
		{"a node whose volume was detached as asked", func(s *Sample, asked map[string]bool) { s.Volumes[last], asked["a5"] = onNodes("v5", "u5"), true }, nil},
		{"a node that was told nothing yet", func(s *Sample, _ map[string]bool) {
			s.Volumes[last], s.Attachments[0].Attached = onNodes("v5", "u5"), false
		}, nil},
		{"another node has it", func(s *Sample, _ map[string]bool) { s.Volumes[last] = onNodes("v5", "u5", "n2") }, []Kind{LostAttachment}},
		{"two nodes were told that they have it", func(s *Sample, _ map[string]bool) { s.Attachments = append(s.Attachments, both) }, []Kind{DoubledAttachment, LostAttachment}},
		{"two nodes have it", func(s *Sample, _ map[string]bool) { s.Volumes[last] = onNodes("v5", "u5", "n1", "n2") }, []Kind{DoubledAttachment}},
		{"a volume that is gone", func(s *Sample, _ map[string]bool) { s.Volumes = slices.Delete(s.Volumes, last+1, last+2) }, []Kind{WronglyDeleted}},
		{"a volume that is being deleted", func(s *Sample, _ map[string]bool) { s.Volumes[last+1].Status = "deleting" }, []Kind{WronglyDeleted}},
		{"a volume that is being attached", func(s *Sample, _ map[string]bool) { s.Volumes[last+1].Status = "reserved" }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, asked := withPods(), map[string]bool{}
			sample := Sample{PVs: s.PVs, Bound: map[string]bool{"u5": true, "u6": true}, Volumes: s.Volumes, Foreign: s.Foreign, Attachments: s.Attachments,
				Asked: func(string) bool { return false }, AttachmentAsked: func(uid string) bool { return asked[uid] }}
			c.plant(&sample, asked)
			course := NewCourse(host)
			course.Look(sample)
			var got []Kind
			for _, f := range course.Findings() {
				got = append(got, f.Kind)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q: %+v", got, c.want, course.Findings())
			}
		})
	}
}
