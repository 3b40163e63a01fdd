package statusreport

import "fmt"

// Section lists the objects of one kind that cannot continue now.
type Section struct {
	// ID is an anchor of the page.
	ID string
	// Name says what the objects are, and Count how many.
	Name, Count string
	// noun names one of them.
	noun string
	// Columns are the titles of what Cells returns. The first names the object.
	Columns []string
	Waiting
	Cells func(Pending) []string
}

// Sections returns what waits. Claims and deletions have their sections even if none
// waits.
func (r *Report) Sections() []Section {
	claim := func(p Pending) string {
		if p.Name == "" {
			return ""
		}
		return p.Namespace + "/" + p.Name
	}
	var all []Section
	if c := r.Claims; c != nil {
		all = append(all, Section{"pending", "Pending claims", fmt.Sprint(c.Total), "claim", []string{"Claim", "StorageClass"}, c.Waiting,
			func(p Pending) []string { return []string{claim(p), p.StorageClass} }})
	}
	if d := r.Deletions; d != nil {
		all = append(all, Section{"deletions", "Deletions", fmt.Sprintf("%d in progress, %d waiting", d.InProgress, d.Total), "deletion", []string{"PersistentVolume", "Claim"}, d.Waiting,
			func(p Pending) []string { return []string{p.PersistentVolume, claim(p)} }})
	}
	if e := r.Expansions; e != nil && e.Total > 0 {
		all = append(all, Section{"expansions", "Expansions", fmt.Sprint(e.Total), "expansion", []string{"Claim", "PersistentVolume"}, *e,
			func(p Pending) []string { return []string{claim(p), p.PersistentVolume} }})
	}
	if s := r.Snapshots; s != nil && s.Total > 0 {
		all = append(all, Section{"snapshots", "Snapshots", fmt.Sprint(s.Total), "snapshot", []string{"VolumeSnapshot", "VolumeSnapshotContent"}, *s,
			func(p Pending) []string { return []string{claim(p), p.Content} }})
	}
	if a := r.Attachments; a != nil {
		all = append(all, Section{"attachments", "Attachments", fmt.Sprintf("%d attached, %d in progress, %d waiting", a.Attached, a.InProgress, a.Total), "attachment", []string{"PersistentVolume", "Claim", "Node"}, a.Waiting,
			func(p Pending) []string { return []string{p.PersistentVolume, claim(p), p.Node} }})
	}
	return all
}
