package cindersim

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/python"
)

// Microversions of the attachments API.
const (
	minorAttachmentComplete = 44
	minorAttachmentMode     = 54
)

func attachmentNotFound(id string) error {
	return refuse(http.StatusNotFound, "Volume attachment could not be found with filter: attachment_id = %s.", id)
}

func (c *cloud) findAttachment(q *call, id string) (*attachment, error) {
	a := c.attachments[id]
	if a == nil || !q.admin && a.project != q.project {
		return nil, attachmentNotFound(id)
	}
	return a, nil
}

func (a *attachment) summary() map[string]any {
	view := map[string]any{"id": a.id, "status": a.status, "instance": nil, "volume_id": a.volumeID}
	if a.instance != "" {
		view["instance"] = a.instance
	}
	return view
}

// detail returns the full view. Unset fields appear as an empty time and as the
// mode "null", a string; only an attachment whose create failed has no mode.
func (a *attachment) detail() map[string]any {
	view := a.summary()
	view["attached_at"], view["detached_at"], view["attach_mode"] = "", "", a.mode
	if !a.attached.IsZero() {
		view["attached_at"] = stamp(a.attached)
	}
	if a.mode == "" {
		view["attach_mode"] = nil
	}
	if a.connection == nil {
		view["connection_info"] = nil
	} else {
		view["connection_info"] = a.connection
	}
	return view
}

// createAttachment reserves a volume and, with a connector, connects it. The
// answer shows the attachment as it was when reserved.
func (c *cloud) createAttachment(q *call, now time.Time) (*reply, error) {
	body, err := q.entity("attachment")
	if err != nil {
		return nil, err
	}
	if _, given := body["volume_uuid"]; !given {
		return nil, fields.Invalid("attachment", body, "'volume_uuid' is a required property")
	}
	known := []string{"volume_uuid", "instance_uuid", "connector"}
	if q.minor >= minorAttachmentMode {
		known = append(known, "mode")
	}
	if err := fields.Only("attachment", body, known...); err != nil {
		return nil, err
	}
	volumeID := fields.Read(&err, fields.UUID, body, "volume_uuid")
	instance := fields.Read(&err, fields.UUID, body, "instance_uuid")
	mode := fields.Read(&err, fields.Mode, body, "mode")
	if err != nil {
		return nil, err
	}
	connector, isObject := body["connector"].(map[string]any)
	if !isObject && body["connector"] != nil {
		return nil, fields.Invalid("connector", body["connector"], "%s is not of type 'object', 'null'", python.Repr(body["connector"]))
	}
	v, err := c.find(q, volumeID)
	if err != nil {
		return nil, err
	}
	a, err := c.reserveAttachment(v, instance, now)
	if err != nil {
		return nil, err
	}
	shown := *a
	shown.connection = map[string]any{}
	if len(connector) > 0 {
		if c.stopped {
			return c.hang(func(now time.Time) {
				if !v.gone && c.attachments[a.id] != nil {
					_, _ = c.connectAttachment(q, v, a, maps.Clone(connector), now)
				}
			})
		}
		connection, err := c.connectAttachment(q, v, a, maps.Clone(connector), now)
		if err != nil {
			return nil, refuse(http.StatusInternalServerError, "Unable to create attachment for volume (%s).", err)
		}
		shown.connection = connection
	}
	switch {
	case v.adminMetadata["readonly"] != "":
		// Even the string "False" counts: a normal volume that os-attach once
		// attached gets attachments with the mode ro.
		a.mode = "ro"
	case mode != "":
		a.mode = mode
	default:
		a.mode = "null"
	}
	a.connection, shown.mode = shown.connection, a.mode
	return success(http.StatusOK, map[string]any{"attachment": shown.detail()}), nil
}

// reserveAttachment reserves a volume. It allows a second attachment of the
// same server, as for a live migration.
func (c *cloud) reserveAttachment(v *volume, instance string, now time.Time) (*attachment, error) {
	if strings.Contains(v.status, "error") {
		return nil, refuse(http.StatusBadRequest, "Invalid volume: Volume attachments can not be created if the volume is in an "+
			"error state. The Volume %s currently has a status of: %s ", v.id, v.status)
	}
	expected := "available or downloading"
	allowed := v.status == statusAvailable || v.status == "downloading"
	if v.kind.Multiattach {
		expected, allowed = "available or in-use or downloading", allowed || v.status == statusInUse
	}
	if allowed {
		v.status = statusReserved
		v.changed(now)
	} else if instance == "" || v.status != statusInUse && v.status != statusReserved ||
		!slices.ContainsFunc(v.attachments, func(a *attachment) bool { return a.instance == instance }) {
		return nil, refuse(http.StatusBadRequest, "Invalid volume: Volume %s status must be %s to reserve, but the current "+
			"status is %s.", v.id, expected, v.status)
	}
	a := &attachment{
		id: c.ids.UUID(), volumeID: v.id, project: v.project, status: "reserved", instance: instance, created: now,
	}
	c.attach(v, a)
	return a, nil
}

// connectAttachment does the volume service's part of creating with a connector
// and of an update: it connects the volume and sets both to attaching.
func (c *cloud) connectAttachment(q *call, v *volume, a *attachment, connector map[string]any, now time.Time) (map[string]any, error) {
	mode, _ := connector["mode"].(string)
	mode = cmp.Or(mode, "rw")
	if a.mode != "null" {
		// A create stores its mode only when this is done, so here it is none yet.
		mode = a.mode
	}
	document, err := c.connect(q, v, connector, now)
	if err != nil {
		return nil, err
	}
	flat := make(map[string]any)
	if data, ok := document["data"].(map[string]any); ok {
		maps.Copy(flat, data)
	}
	for key, value := range document {
		if key != "data" {
			flat[key] = value
		}
	}
	flat["attachment_id"] = a.id
	a.status, a.connector, a.mode, a.attached = statusAttaching, connector, mode, now
	a.host, _ = connector["host"].(string)
	a.mountpoint, _ = connector["mountpoint"].(string)
	a.mountpoint = cmp.Or(a.mountpoint, "na")
	v.status, v.attachStatus = statusAttaching, statusAttaching
	v.changed(now)
	return flat, nil
}

// updateAttachment gives a connector to a reserved attachment. The answer shows
// the attachment as it was before.
func (c *cloud) updateAttachment(q *call, id string, now time.Time) (*reply, error) {
	body, err := q.entity("attachment")
	if err != nil {
		return nil, err
	}
	value, given := body["connector"]
	if !given {
		return nil, fields.Invalid("attachment", body, "'connector' is a required property")
	}
	connector, ok := value.(map[string]any)
	if !ok {
		return nil, fields.Invalid("connector", value, "%s is not of type 'object'", python.Repr(value))
	}
	if len(connector) == 0 {
		return nil, fields.Invalid("connector", value, "{} does not have enough properties")
	}
	a, err := c.findAttachment(q, id)
	if err != nil {
		return nil, err
	}
	if _, given := connector["host"]; !given {
		return nil, refuse(http.StatusInternalServerError, "Unable to update the attachment.")
	}
	v := c.volumes[a.volumeID]
	if strings.Contains(v.status, "error") {
		return nil, refuse(http.StatusInternalServerError, "Unable to update attachment.(Invalid volume: Volume attachments can not "+
			"be updated if the volume is in an error state. The Volume %s currently has a status of: %s ).", v.id, v.status)
	}
	if len(v.attachments) > 1 && !v.kind.Multiattach &&
		slices.ContainsFunc(v.attachments, func(a *attachment) bool { return len(a.connection) > 0 }) {
		return nil, refuse(http.StatusInternalServerError, "Unable to update attachment.(Invalid volume: duplicate connectors detected "+
			"on volume %s).", v.id)
	}
	if c.stopped {
		return c.hang(func(now time.Time) {
			if !v.gone && c.attachments[id] != nil {
				_, _ = c.connectAttachment(q, v, a, maps.Clone(connector), now)
			}
		})
	}
	shown := *a
	connection, err := c.connectAttachment(q, v, a, maps.Clone(connector), now)
	if err != nil {
		return nil, refuse(http.StatusInternalServerError, "Unable to update attachment.(%s).", err)
	}
	a.connection, shown.connection = connection, connection
	return success(http.StatusOK, map[string]any{"attachment": shown.detail()}), nil
}

// completeAttachment marks an attachment and its volume as attached.
func (c *cloud) completeAttachment(q *call, id string, now time.Time) (*reply, error) {
	a, err := c.findAttachment(q, id)
	if err != nil {
		return nil, err
	}
	v := c.volumes[a.volumeID]
	a.status = attachStatusAttached
	v.status, v.attachStatus = statusInUse, attachStatusAttached
	v.changed(now)
	return &reply{status: http.StatusNoContent}, nil
}

func (c *cloud) showAttachment(q *call, id string) (*reply, error) {
	a, err := c.findAttachment(q, id)
	if err != nil {
		return nil, err
	}
	return success(http.StatusOK, map[string]any{"attachment": a.detail()}), nil
}

func (c *cloud) listAttachments(q *call, detail bool) (*reply, error) {
	allTenants, err := q.flag("all_tenants")
	if err != nil {
		return nil, err
	}
	var found []listed
	for _, a := range c.attachments {
		if q.shows(a.project, allTenants, map[string]string{"volume_id": a.volumeID, "attach_status": a.status, "instance_id": a.instance}) {
			view := a.summary
			if detail {
				view = a.detail
			}
			found = append(found, listed{a.id, a.created, view})
		}
	}
	return c.paged(q, collection{name: "attachments"}, detail, found)
}

// deleteAttachment disconnects and removes an attachment, and answers with the
// remaining ones. The export is removed only if the attachment had a connector.
func (c *cloud) deleteAttachment(q *call, id string, now time.Time) (*reply, error) {
	a, err := c.findAttachment(q, id)
	if err != nil {
		return nil, err
	}
	v := c.volumes[a.volumeID]
	if err := c.detachAllowed(v, id); err != nil {
		return nil, err
	}
	finish := func(now time.Time) {
		if len(a.connector) > 0 {
			v.disconnect(a.connector)
			v.removeExport()
		}
		c.detach(v, id, now)
	}
	if a.status != "reserved" {
		if c.stopped {
			return c.hang(nil)
		}
		if q.broken {
			return nil, refuse(http.StatusInternalServerError, messageBroken)
		}
	}
	finish(now)
	views := []map[string]any{}
	for _, other := range v.attachments {
		views = append(views, other.summary())
	}
	return success(http.StatusOK, map[string]any{"attachments": views}), nil
}
