package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// forNodes changes a volume to one of the CSI driver, with attachments and records
// given as "attachment node"; "attachment" has no record, and "-attachment node" is
// only a record.
func forNodes(texts ...string) func(*cinder.Volume) {
	return func(v *cinder.Volume) {
		v.Metadata[stamps.KeyMode] = stamps.ModeCSI
		for _, text := range texts {
			var id, node string
			_, _ = fmt.Sscan(text, &id, &node)
			if node != "" {
				v.Metadata[stamps.NodeRecordPrefix+"key-of-"+node] = stamps.NodeRecord{AttachmentID: id, Node: node}.String()
			}
			if id[0] != '-' {
				v.Attachments = append(v.Attachments, cinder.Attachment{ID: id})
			}
		}
	}
}

// asked returns a VolumeAttachment that is an hour old.
func asked(node string, change func(*objects.Attachment)) objects.Attachment {
	a := objects.Attachment{Name: "va-" + node, PV: "pvc-1", Node: node, NodeKey: "key-of-" + node, Attached: true, CreatedAt: now.Add(-time.Hour)}
	if change != nil {
		change(&a)
	}
	return a
}

func TestCompareAttachments(t *testing.T) {
	young := func(a *objects.Attachment) { a.CreatedAt = now.Add(-time.Minute) }
	waiting := func(a *objects.Attachment) { a.Attached = false }
	ending := func(a *objects.Attachment) { a.Ends = true }
	const leakedA1 = "LeakedAttachment: no VolumeAttachment asks for it on node n1 (attachment a1), which may still write to it"
	for name, test := range map[string]struct {
		before, after []string // after is the same as before if nil
		wanted        []objects.Attachment
		unread        error
		want          []string
	}{
		"nothing":                      {},
		"attached as it should be":     {before: []string{"a1 n1"}, wanted: []objects.Attachment{asked("n1", nil)}},
		"being detached":               {before: []string{"a1 n1"}, wanted: []objects.Attachment{asked("n1", ending)}},
		"detached, and being told":     {wanted: []objects.Attachment{asked("n1", ending)}},
		"leaked":                       {before: []string{"a1 n1"}, want: []string{leakedA1}},
		"leaked beside another node":   {before: []string{"a1 n1", "a2 n2"}, wanted: []objects.Attachment{asked("n2", nil)}, want: []string{leakedA1}},
		"detached meanwhile":           {before: []string{"a1 n1"}, after: []string{}},
		"detached, and attached again": {before: []string{"a1 n1"}, after: []string{"a3 n1"}},
		"attached after it was read":   {before: []string{"a1 n1"}, after: []string{"a3 n2"}, wanted: nil},
		"not to be read again":         {before: []string{"a1 n1"}, unread: errors.New("down")},
		"leaked without a record":      {before: []string{"a1"}, want: []string{"LeakedAttachment: no VolumeAttachment asks for it on a node that no record names (attachment a1), which may still write to it"}},
		"a record alone":               {before: []string{"-a1 n1"}, want: []string{"LeakedAttachment: it records attachment -a1 to node n1, which no VolumeAttachment asks for, and which no longer exists; the next attachment clears the record"}},
		"made, and not recorded yet":   {before: []string{"a1"}, wanted: []objects.Attachment{asked("n1", waiting)}},
		"not attached yet":             {wanted: []objects.Attachment{asked("n1", waiting)}},
		"missing":                      {wanted: []objects.Attachment{asked("n1", nil)}, want: []string{"MissingAttachment: VolumeAttachment va-n1 says that it is attached to node n1, but it is not: a pod there cannot reach it"}},
		"missing behind its record":    {before: []string{"-a1 n1"}, wanted: []objects.Attachment{asked("n1", nil)}, want: []string{"MissingAttachment: VolumeAttachment va-n1 says that it is attached to node n1, but it is not: a pod there cannot reach it"}},
		"missing at first":             {after: []string{"a1 n1"}, wanted: []objects.Attachment{asked("n1", nil)}},
		"attached a minute ago":        {wanted: []objects.Attachment{asked("n1", young)}},
		"the record is lost":           {before: []string{"a1"}, wanted: []objects.Attachment{asked("n1", nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.after == nil {
				test.after = test.before
			}
			listings := map[string]Listing{"gold": {Volumes: []cinder.Volume{stamped("v1", "1", "in-use", forNodes(test.before...))}, Place: here}}
			records := objects.Records{Volumes: []*objects.Volume{recorded("1", "v1", func(r *objects.Volume) { r.CSI = true })}, Names: map[string]bool{"pvc-1": true},
				Attachments: map[string][]objects.Attachment{"pvc-1": test.wanted}}
			reads := 0
			ConfirmAttachments(t.Context(), func(context.Context, string, string) (cinder.Volume, bool, error) {
				reads++
				return stamped("v1", "1", "in-use", forNodes(test.after...)), true, test.unread
			}, listings, records)
			var got []string
			for _, f := range Compare(State{Now: now, Cluster: "cluster-1", ClusterUID: "uid-1", Grace: 10 * time.Minute, Backends: listings, Records: records}) {
				got = append(got, fmt.Sprintf("%s: %s", f.Kind, f.Message))
				if f.Removable || f.PersistentVolume != "pvc-1" || f.Volume != "v1" || f.Backend != "gold" || f.Tenant != "a" {
					t.Errorf("finding %+v", f)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("found %q\nwant  %q", got, test.want)
			}
			if len(test.before) == 1 && name == "attached as it should be" && reads > 0 {
				t.Errorf("%d reads", reads)
			}
		})
	}
}
