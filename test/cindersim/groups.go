package cindersim

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
)

// Generic volume groups and group snapshots (cinder/group/api.py, cinder/volume/manager.py).
// What a volume service does to them takes Options.SnapshotDelay.

// GroupType is a group type.
type GroupType struct {
	Name, ID string
	// Specs are shown only to administrators.
	Specs map[string]string
	// NoStorage means that the scheduler finds no storage for its groups.
	NoStorage bool
}

// DefaultGroupTypes returns a type whose snapshots show one moment, and one whose do not.
func DefaultGroupTypes() []GroupType {
	return []GroupType{
		{Name: "consistent", Specs: map[string]string{"consistent_group_snapshot_enabled": "<is> True"}},
		{Name: "plain", Specs: map[string]string{}},
	}
}

// Microversions of groups, and of what their views show.
const (
	minorGroupSnapshots = 14
	minorGroupVolumes   = 25
)

const statusUpdating = "updating"

type group struct {
	id, project, user string
	name, description *string
	kind              *GroupType
	types             []*drivers.VolumeType
	zone              string
	host              string
	status            string
	created           time.Time
}

type groupSnapshot struct {
	id, project       string
	name, description *string
	group             *group
	status            string
	created           time.Time
}

func (c *cloud) findGroup(q *call, id string) (*group, error) {
	g := c.groups[id]
	if g == nil || !q.admin && g.project != q.project {
		return nil, refuse(http.StatusNotFound, "Group %s could not be found.", id)
	}
	return g, nil
}

func (c *cloud) findGroupSnapshot(q *call, id string) (*groupSnapshot, error) {
	g := c.groupSnapshots[id]
	if g == nil || !q.admin && g.project != q.project {
		return nil, refuse(http.StatusNotFound, "GroupSnapshot %s could not be found.", id)
	}
	return g, nil
}

func (c *cloud) findGroupType(name string) *GroupType {
	i := slices.IndexFunc(c.options.GroupTypes, func(t GroupType) bool { return t.Name == name || t.ID == name })
	if i < 0 {
		return nil
	}
	return &c.options.GroupTypes[i]
}

// volumesIn returns the volumes of a group, the oldest first.
func (c *cloud) volumesIn(g *group) (all []*volume) {
	for _, v := range c.order {
		if v.groupID == g.id {
			all = append(all, v)
		}
	}
	return all
}

func (c *cloud) snapshotsIn(g *groupSnapshot) (all []*snapshot) {
	for _, s := range c.snapshots {
		if s.groupSnapshotID == g.id {
			all = append(all, s)
		}
	}
	return all
}

func (c *cloud) hasGroupSnapshots(g *group) bool {
	for _, taken := range c.groupSnapshots {
		if taken.group.id == g.id {
			return true
		}
	}
	return false
}

func (c *cloud) listGroupTypes(q *call) (*reply, error) {
	views := []map[string]any{}
	for _, t := range c.options.GroupTypes {
		view := map[string]any{"id": t.ID, "name": t.Name, "description": nil, "is_public": true}
		if q.admin {
			view["group_specs"] = t.Specs
		}
		views = append(views, view)
	}
	return success(http.StatusOK, map[string]any{"group_types": views}), nil
}

func (c *cloud) groupView(q *call, g *group) (map[string]any, error) {
	var types, volumes = []string{}, []string{}
	for _, kind := range g.types {
		types = append(types, kind.ID)
	}
	view := map[string]any{
		"id": g.id, "status": g.status, "availability_zone": g.zone, "created_at": stamp(g.created), "name": g.name, "description": g.description,
		"group_type": g.kind.ID, "volume_types": types,
	}
	if q.minor >= minorGroupSnapshots {
		view["group_snapshot_id"], view["source_group_id"] = nil, nil
	}
	wanted, err := q.flag("list_volume")
	if wanted && q.minor >= minorGroupVolumes {
		for _, v := range c.volumesIn(g) {
			volumes = append(volumes, v.id)
		}
		view["volumes"] = volumes
	}
	return view, err
}

func (g *groupSnapshot) view() map[string]any {
	return map[string]any{
		"id": g.id, "group_id": g.group.id, "group_type_id": g.group.kind.ID, "status": g.status, "created_at": stamp(g.created), "name": g.name, "description": g.description,
	}
}

func (c *cloud) showGroup(q *call, id string) (*reply, error) {
	g, err := c.findGroup(q, id)
	if err != nil {
		return nil, err
	}
	view, err := c.groupView(q, g)
	return success(http.StatusOK, map[string]any{"group": view}), err
}

func (c *cloud) listGroups(q *call, detail bool) (*reply, error) {
	var found []listed
	for _, g := range c.groups {
		if !q.shows(g.project, false, map[string]string{"status": g.status}) {
			continue
		}
		view, err := c.groupView(q, g)
		if err != nil {
			return nil, err
		}
		if !detail {
			view = map[string]any{"id": g.id, "name": g.name}
		}
		found = append(found, listed{g.id, g.created, func() map[string]any { return view }})
	}
	return c.paged(q, collection{"groups", "group_links", "group"}, detail, found)
}

func (c *cloud) createGroup(q *call, now time.Time) (*reply, error) {
	body, err := q.entity("group")
	if err != nil {
		return nil, err
	}
	if err := fields.Only("group", body, "description", "group_type", "name", "volume_types", "availability_zone"); err != nil {
		return nil, err
	}
	g := &group{id: c.ids.UUID(), project: q.project, user: q.user, status: statusCreating, created: now, zone: c.options.Zones[0]}
	g.name = fields.Read(&err, fields.Name, body, "name")
	g.description = fields.Read(&err, fields.Name, body, "description")
	if err != nil {
		return nil, err
	}
	if zone, given := body["availability_zone"].(string); given {
		g.zone = zone
	}
	wanted, _ := body["group_type"].(string)
	if g.kind = c.findGroupType(wanted); g.kind == nil {
		return nil, refuse(http.StatusNotFound, "Group type with name %s could not be found.", wanted)
	}
	names, _ := body["volume_types"].([]any)
	if len(names) == 0 {
		return nil, fields.Invalid("volume_types", body["volume_types"], "[] is too short")
	}
	for _, one := range names {
		name, _ := one.(string)
		kind := c.typeIndex[name]
		if kind == nil {
			return nil, refuse(http.StatusNotFound, "Volume type %s could not be found.", name)
		}
		g.types = append(g.types, kind)
	}
	if _, limit, _, over := c.exceeded(q.project, map[string]int{"groups": 1}); over {
		return nil, overLimit("GroupLimitExceeded: Maximum number of groups allowed (%d) exceeded", limit)
	}
	c.groups[g.id] = g
	c.usageOf(g.project).inUse["groups"]++
	broken := q.broken
	c.later(now, c.options.SnapshotDelay, func(time.Time) {
		if c.groups[g.id] == nil || g.status != statusCreating {
			return
		}
		g.status, g.host = statusAvailable, g.types[0].Backend
		if broken || g.kind.NoStorage || slices.ContainsFunc(g.types, func(t *drivers.VolumeType) bool { return t.Backend != g.host }) {
			g.status, g.host = statusError, ""
		}
	})
	return success(http.StatusAccepted, map[string]any{"group": map[string]any{"id": g.id, "name": g.name}}), nil
}

func (c *cloud) updateGroup(q *call, id string, now time.Time) (*reply, error) {
	body, err := q.entity("group")
	if err != nil {
		return nil, err
	}
	if err := fields.Only("group", body, "name", "description", "add_volumes", "remove_volumes"); err != nil {
		return nil, err
	}
	texts := map[string]*string{}
	for _, field := range []string{"name", "description", "add_volumes", "remove_volumes"} {
		texts[field] = fields.Read(&err, fields.Name, body, field)
	}
	if err != nil {
		return nil, err
	}
	g, err := c.findGroup(q, id)
	if err != nil {
		return nil, err
	}
	add, remove, err := c.groupChange(q, g, listOf(texts["add_volumes"]), listOf(texts["remove_volumes"]))
	if err != nil {
		return nil, err
	}
	isNews := func(now, wanted *string) bool { return wanted != nil && stringOf(wanted) != stringOf(now) }
	switch changes := len(add)+len(remove) > 0; {
	case !changes && !isNews(g.name, texts["name"]) && !isNews(g.description, texts["description"]):
		return nil, refuse(http.StatusBadRequest, "Invalid Group: Cannot update group %s because no valid name, description, add_volumes, or remove_volumes were provided.", id)
	case changes && g.status != statusAvailable:
		return nil, refuse(http.StatusBadRequest, "Invalid Group: Group status must be available.")
	case changes:
		g.status = statusUpdating
	default:
		g.status = statusAvailable
	}
	if texts["name"] != nil {
		g.name = texts["name"]
	}
	if texts["description"] != nil {
		g.description = texts["description"]
	}
	if len(add)+len(remove) > 0 {
		broken := q.broken
		c.laterService(now, c.options.SnapshotDelay, func(now time.Time) {
			if g.status != statusUpdating {
				return
			}
			g.status = statusAvailable
			for i, v := range slices.Concat(add, remove) {
				switch {
				case broken:
					v.status, g.status = statusError, statusError
				case i < len(add):
					v.groupID = g.id
				default:
					v.groupID = ""
				}
				v.changed(now)
			}
		})
	}
	return accepted(), nil
}

func listOf(text *string) []string {
	trimmed := strings.Trim(stringOf(text), ",")
	if trimmed == "" {
		return nil
	}
	return strings.Split(trimmed, ",")
}

// groupChange finds the volumes that are to join or leave a group, and checks whether they
// may.
func (c *cloud) groupChange(q *call, g *group, adding, removing []string) (add, remove []*volume, err error) {
	invalid := func(format string, arguments ...any) error {
		return refuse(http.StatusBadRequest, "Invalid volume: "+format, arguments...)
	}
	for _, id := range adding {
		v := c.volumes[id]
		switch {
		case v == nil || !q.admin && v.project != q.project:
			return nil, nil, invalid("Cannot add volume %s to group %s because volume cannot be found.", id, g.id)
		case v.groupID == g.id:
			continue
		case v.groupID != "":
			return nil, nil, invalid("Cannot add volume %s to group %s because it is already in group %s.", id, g.id, v.groupID)
		case !slices.Contains(g.types, v.kind):
			return nil, nil, invalid("Cannot add volume %s to group %s because volume type %s is not supported by the group.", id, g.id, v.kind.ID)
		case v.status != statusAvailable && v.status != statusInUse:
			return nil, nil, invalid("Cannot add volume %s to group %s because volume is in an invalid state: %s. Valid states are: ('available', 'in-use').", id, g.id, v.status)
		case v.kind.Backend != g.host:
			return nil, nil, invalid("Volume is not local to this node.")
		}
		add = append(add, v)
	}
	for _, id := range removing {
		v := c.volumes[id]
		switch {
		case v == nil || v.groupID != g.id:
			return nil, nil, invalid("Cannot remove volume %s from group %s because it is not in the group.", id, g.id)
		case !slices.Contains([]string{statusAvailable, statusInUse, statusError, statusErrorDeleting}, v.status):
			return nil, nil, invalid("Cannot remove volume %s from group %s because volume is in an invalid state: %s. Valid states are: ('available', 'in-use', 'error', 'error_deleting').", id, g.id, v.status)
		}
		remove = append(remove, v)
	}
	return add, remove, nil
}

func (c *cloud) deleteGroup(q *call, id string, now time.Time) (*reply, error) {
	if err := q.decode(); err != nil {
		return nil, err
	}
	options, _ := q.body["delete"].(map[string]any)
	withVolumes, err := fields.Boolean(options, "delete-volumes")
	if err != nil {
		return nil, err
	}
	g, err := c.findGroup(q, id)
	if err != nil {
		return nil, err
	}
	switch {
	case g.host == "":
		c.destroyGroup(g)
		return accepted(), nil
	case g.status != statusAvailable && g.status != statusError:
		return nil, refuse(http.StatusBadRequest, "Invalid Group: Group status must be available or error, but current status is: %s", g.status)
	case c.hasGroupSnapshots(g):
		return nil, refuse(http.StatusBadRequest, "Invalid Group: Group has existing snapshots.")
	case len(c.volumesIn(g)) > 0 && !withVolumes:
		return nil, refuse(http.StatusBadRequest, "Invalid Group: Group %s still contains volumes. The delete-volumes flag is required to delete it.", id)
	}
	g.status = statusDeleting
	broken := q.broken
	c.laterService(now, c.options.SnapshotDelay, func(time.Time) {
		if broken {
			g.status = statusError
			return
		}
		for _, v := range c.volumesIn(g) {
			c.destroy(v)
		}
		c.destroyGroup(g)
	})
	return accepted(), nil
}

func (c *cloud) destroyGroup(g *group) {
	if c.groups[g.id] == nil {
		return
	}
	delete(c.groups, g.id)
	c.usageOf(g.project).inUse["groups"]--
}

func (c *cloud) showGroupSnapshot(q *call, id string) (*reply, error) {
	g, err := c.findGroupSnapshot(q, id)
	if err != nil {
		return nil, err
	}
	return success(http.StatusOK, map[string]any{"group_snapshot": g.view()}), nil
}

func (c *cloud) listGroupSnapshots(q *call, detail bool) (*reply, error) {
	var found []listed
	for _, g := range c.groupSnapshots {
		if !q.shows(g.project, false, map[string]string{"status": g.status}) {
			continue
		}
		view := g.view
		if !detail {
			view = func() map[string]any { return map[string]any{"id": g.id, "name": g.name} }
		}
		found = append(found, listed{g.id, g.created, view})
	}
	return c.paged(q, collection{"group_snapshots", "group_snapshot_links", "group_snapshot"}, detail, found)
}

func (c *cloud) createGroupSnapshot(q *call, now time.Time) (*reply, error) {
	body, err := q.entity("group_snapshot")
	if err != nil {
		return nil, err
	}
	if err := fields.Only("group_snapshot", body, "group_id", "name", "description"); err != nil {
		return nil, err
	}
	id, err := fields.UUID(body, "group_id")
	if err != nil {
		return nil, err
	}
	taken := &groupSnapshot{id: c.ids.UUID(), project: q.project, status: statusCreating, created: now}
	taken.name = fields.Read(&err, fields.Name, body, "name")
	taken.description = fields.Read(&err, fields.Name, body, "description")
	if err != nil {
		return nil, err
	}
	if taken.group, err = c.findGroup(q, id); err != nil {
		return nil, err
	}
	volumes := c.volumesIn(taken.group)
	for i, v := range volumes {
		if v.status == statusError {
			return nil, refuse(http.StatusBadRequest, "Invalid volume: The snapshot cannot be created when the volume is in error status.")
		}
		if err := c.admitSnapshot(q.project, v.kind, v.size); err != nil {
			for _, before := range volumes[:i] { // the quota is reserved for all at once
				c.chargeSnapshot(q.project, before.kind, -1, before.size)
			}
			return nil, err
		}
		c.chargeSnapshot(q.project, v.kind, 1, v.size)
	}
	c.groupSnapshots[taken.id] = taken
	for _, v := range volumes {
		s := &snapshot{
			id: c.ids.UUID(), project: q.project, user: q.user, name: taken.name, description: taken.description, volumeID: v.id, kind: v.kind, size: v.size,
			status: statusCreating, progress: "0%", metadata: map[string]string{}, created: now, groupSnapshotID: taken.id,
		}
		c.snapshots[s.id] = s
		v.snapshots++
	}
	broken := q.broken
	c.laterService(now, c.options.SnapshotDelay, func(now time.Time) {
		taken.status = statusAvailable
		if broken {
			taken.status = statusError
		}
		for _, s := range c.snapshotsIn(taken) {
			s.status, s.progress, s.updated = taken.status, "100%", now
		}
	})
	return success(http.StatusAccepted, map[string]any{"group_snapshot": map[string]any{"id": taken.id, "name": taken.name, "group_type_id": taken.group.kind.ID}}), nil
}

func (c *cloud) deleteGroupSnapshot(q *call, id string, now time.Time) (*reply, error) {
	g, err := c.findGroupSnapshot(q, id)
	if err != nil {
		return nil, err
	}
	if g.status != statusAvailable && g.status != statusError {
		return nil, refuse(http.StatusBadRequest, "Invalid GroupSnapshot: GroupSnapshot status must be available or error, and no Group can be currently using it as source for its creation.")
	}
	g.status = statusDeleting
	for _, s := range c.snapshotsIn(g) {
		s.status, s.updated = statusDeleting, now
	}
	broken := q.broken
	c.laterService(now, c.options.SnapshotDelay, func(now time.Time) {
		if broken {
			g.status = statusError
		}
		for _, s := range c.snapshotsIn(g) {
			if broken {
				s.status, s.updated = statusError, now
			} else {
				c.destroySnapshot(s)
			}
		}
		if !broken {
			delete(c.groupSnapshots, g.id)
		}
	})
	return accepted(), nil
}
