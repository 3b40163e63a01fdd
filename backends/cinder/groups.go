package cinder

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/jsonstream"
)

// The operations that change a group or a group snapshot, as named in metrics.
const (
	OperationGroupCreate         = "group.create"
	OperationGroupUpdate         = "group.update"
	OperationGroupDelete         = "group.delete"
	OperationGroupSnapshotCreate = "group_snapshot.create"
	OperationGroupSnapshotDelete = "group_snapshot.delete"
)

// MicroversionGroups is the first that lists group snapshots in pages; groups came with 3.13,
// group snapshots with 3.14, and the list of a group's volumes with 3.25.
const MicroversionGroups = 29

// groupsNeed says in errors what needs it.
const groupsNeed = "group snapshots"

// Group is Cinder's record of a group of volumes, with the fields that the program needs.
type Group struct {
	ID, Name, Description string
	Status                Status
	// Volumes are the IDs of the volumes that are in it.
	Volumes   []string
	CreatedAt time.Time
}

// State implements Object.
func (g Group) State() (string, Status, time.Time) { return g.ID, g.Status, g.CreatedAt }

// GroupSnapshot is Cinder's record of the snapshots that were taken together of the volumes
// that were in a group.
type GroupSnapshot struct {
	ID, Description, GroupID string
	Status                   Status
	CreatedAt                time.Time
}

// State implements Object.
func (g GroupSnapshot) State() (string, Status, time.Time) { return g.ID, g.Status, g.CreatedAt }

// groupClient makes the requests about groups, groupSnapshotClient those about their
// snapshots.
type (
	groupClient         struct{ objects[Group] }
	groupSnapshotClient struct {
		objects[GroupSnapshot]
		members objects[Snapshot]
	}
)

func groupsOf(r *requests) groupClient {
	return groupClient{objects[Group]{
		requests: r, noun: "group", minor: MicroversionGroups, what: groupsNeed, read: readGroup,
		fields: func(g *Group) (*Status, map[string]string) { return &g.Status, map[string]string{} }, shown: map[string]string{"list_volume": "True"},
	}}
}

func groupSnapshotsOf(r *requests) groupSnapshotClient {
	members := snapshotsOf(r)
	members.minor, members.what = MicroversionGroups, groupsNeed
	return groupSnapshotClient{
		objects[GroupSnapshot]{
			requests: r, noun: "group_snapshot", minor: MicroversionGroups, what: groupsNeed, read: readGroupSnapshot,
			fields: func(g *GroupSnapshot) (*Status, map[string]string) { return &g.Status, map[string]string{} },
		},
		members,
	}
}

// groupDocument has what a group and a group snapshot have in the API's JSON form.
type groupDocument struct {
	ID          jsonstream.Text `json:"id"`
	Name        jsonstream.Text `json:"name"`
	Description jsonstream.Text `json:"description"`
	Status      jsonstream.Text `json:"status"`
	CreatedAt   jsonstream.Text `json:"created_at"`
	GroupID     jsonstream.Text `json:"group_id"`
	Volumes     []string        `json:"volumes"`
}

func (d groupDocument) odd() bool {
	return d.ID.Odd || d.Description.Odd || d.Status.Odd || d.GroupID.Odd || slices.ContainsFunc(d.Volumes, func(id string) bool { return !usableID.MatchString(id) })
}

func readGroup(decode func(document any) error, _ func(key string) bool) (Group, bool, error) {
	var d groupDocument
	err := decode(&d)
	return Group{d.ID.Value, d.Name.Value, d.Description.Value, Status(d.Status.Value), d.Volumes, parseTime(d.CreatedAt.Value)}, d.odd(), err
}

func readGroupSnapshot(decode func(document any) error, _ func(key string) bool) (GroupSnapshot, bool, error) {
	var d groupDocument
	err := decode(&d)
	return GroupSnapshot{d.ID.Value, d.Description.Value, d.GroupID.Value, Status(d.Status.Value), parseTime(d.CreatedAt.Value)}, d.odd(), err
}

// NewGroup is a request for a group without volumes.
type NewGroup struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	// Type is the group type, by its name or ID.
	Type string `json:"group_type"`
	// VolumeTypes are those that its volumes may have, by name or ID.
	VolumeTypes []string `json:"volume_types"`
	Zone        string   `json:"availability_zone,omitempty"`
}

// CreateGroup requests a group; it returns before the group is available. Cinder accepts a
// second group of the same name, so the caller must look before it creates.
func (c groupClient) CreateGroup(ctx context.Context, wanted NewGroup) (Group, error) {
	id, err := c.createNamed(ctx, OperationGroupCreate, wanted.Name, wanted)
	return Group{ID: id, Name: wanted.Name, Description: wanted.Description, Status: StatusCreating}, err
}

// Group reads one group, as Volume does, with its volumes.
func (c groupClient) Group(ctx context.Context, id string) (Group, error) {
	return c.get(ctx, id)
}

// ListGroups lists groups with their volumes, as ListVolumes does.
func (c groupClient) ListGroups(ctx context.Context, query Query, yield func(page []Group) (more bool)) error {
	return c.list(ctx, query, yield)
}

// MostInGroupUpdate is how many volumes one request can name: Cinder's schema has 255
// characters for the list of IDs.
const MostInGroupUpdate = 6

// AddToGroup requests that volumes be in the group, which must be available. It
// is complete when the group is available again. Cinder refuses a volume that is in another
// group, or on another storage than the group.
func (c groupClient) AddToGroup(ctx context.Context, id string, volumes []string) error {
	return c.update(ctx, id, "add_volumes", volumes)
}

// RemoveFromGroup requests that volumes leave the group, all of which must be in it.
func (c groupClient) RemoveFromGroup(ctx context.Context, id string, volumes []string) error {
	return c.update(ctx, id, "remove_volumes", volumes)
}

// RenameGroup changes the name of a group. Cinder also sets its status to available, whatever
// it is (update in cinder/group/api.py).
func (c groupClient) RenameGroup(ctx context.Context, id, name string) error {
	return c.change(ctx, id, "name", name)
}

func (c groupClient) update(ctx context.Context, id, field string, volumes []string) error {
	for _, volume := range volumes {
		if err := c.checkID(OperationGroupUpdate, volume); err != nil {
			return err
		}
	}
	return c.change(ctx, id, field, strings.Join(volumes, ","))
}

func (c groupClient) change(ctx context.Context, id, field, value string) error {
	return c.about(ctx, id, request{operation: OperationGroupUpdate, method: http.MethodPut, path: []string{"groups", id}, minor: c.minor, body: map[string]any{"group": map[string]any{field: value}}, codes: []int{http.StatusAccepted}})
}

// DeleteGroup requests a group's deletion, which is complete when the group is gone. Cinder
// refuses it while volumes are in the group, or group snapshots of it exist.
func (c groupClient) DeleteGroup(ctx context.Context, id string) error {
	// With this flag set, Cinder would delete the volumes, too.
	body := map[string]any{"delete": map[string]any{"delete-volumes": false}}
	return c.about(ctx, id, request{operation: OperationGroupDelete, method: http.MethodPost, path: []string{"groups", id, "action"}, minor: c.minor, body: body, codes: []int{http.StatusAccepted}})
}

// GroupType is a group type that the project may use.
type GroupType struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Specs are shown only to administrators; nil to others.
	Specs map[string]string `json:"group_specs"`
}

// IsConsistent reports whether the storage takes the snapshots of a group of the type at one
// moment; known is false if Cinder does not show it.
func (t GroupType) IsConsistent() (consistent, known bool) {
	return t.Specs["consistent_group_snapshot_enabled"] == "<is> True", t.Specs != nil
}

// GroupTypes lists the public group types.
func (c groupClient) GroupTypes(ctx context.Context) ([]GroupType, error) {
	const operation = "group_type.list"
	if err := c.offered(ctx, operation); err != nil {
		return nil, err
	}
	var all []GroupType
	address := c.service.ServiceURL("group_types") + fmt.Sprintf("?limit=%d", defaultPageSize)
	err := c.stream(ctx, operation, address, c.minor, func(decoder *json.Decoder, key string) (err error) {
		if key != "group_types" {
			return decoder.Decode(&jsonstream.Skipped{})
		}
		_, err = jsonstream.Elements(decoder, func() error {
			var t GroupType
			err := decoder.Decode(&t)
			if err == nil && len(all) == defaultPageSize {
				err = jsonstream.ErrUnexpectedJSON
			}
			all = append(all, t)
			return err
		})
		return err
	})
	return all, translate(c.backend, operation, err)
}

// CreateGroupSnapshot requests snapshots of all volumes that are in a group, at one moment if
// the group's type and the storage provide for that; it returns before they are available.
// They get no metadata.
func (c groupSnapshotClient) CreateGroupSnapshot(ctx context.Context, groupID, name, description string) (GroupSnapshot, error) {
	if err := c.checkID(OperationGroupSnapshotCreate, groupID); err != nil {
		return GroupSnapshot{}, err
	}
	body := map[string]string{"group_id": groupID, "name": name, "description": description}
	id, err := c.createNamed(ctx, OperationGroupSnapshotCreate, name, body)
	return GroupSnapshot{ID: id, Description: description, GroupID: groupID, Status: StatusCreating}, err
}

// GroupSnapshot reads one group snapshot, as Volume does.
func (c groupSnapshotClient) GroupSnapshot(ctx context.Context, id string) (GroupSnapshot, error) {
	return c.get(ctx, id)
}

// ListGroupSnapshots lists group snapshots, as ListVolumes does.
func (c groupSnapshotClient) ListGroupSnapshots(ctx context.Context, query Query, yield func(page []GroupSnapshot) (more bool)) error {
	return c.list(ctx, query, yield)
}

// ListGroupedSnapshots lists snapshots as ListSnapshots does, with the group snapshots that
// they belong to.
func (c groupSnapshotClient) ListGroupedSnapshots(ctx context.Context, query Query, yield func(page []Snapshot) (more bool)) error {
	return c.members.list(ctx, query, yield)
}

// DeleteGroupSnapshot requests the deletion of all snapshots of a group snapshot, which is
// complete when it is gone. Cinder deletes none of them alone.
func (c groupSnapshotClient) DeleteGroupSnapshot(ctx context.Context, id string) error {
	return c.about(ctx, id, request{operation: OperationGroupSnapshotDelete, method: http.MethodDelete, path: []string{"group_snapshots", id}, minor: c.objects.minor, codes: []int{http.StatusAccepted}})
}
