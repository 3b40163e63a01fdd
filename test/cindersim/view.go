package cindersim

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"
)

// view is the form in which a volume is shown: it depends on the caller and the
// request.
type view struct {
	base, urlProject string
	minor            int // the highest microversion not above the request's that changes the view
	admin            bool
}

// Microversions that add fields to a volume's view (cinder/api/v3/views/volumes.py).
const (
	minorGroupID        = 13
	minorProviderID     = 21
	minorSharedTargets  = 48
	minorClusterName    = 61
	minorVolumeTypeID   = 63
	minorConsumesQuota  = 65
	minorSharedTristate = 69
)

func (q *call) view() view {
	v := view{base: q.base, urlProject: q.urlProject, admin: q.admin}
	for _, minor := range [...]int{
		minorGroupID, minorProviderID, minorSharedTargets, minorClusterName,
		minorVolumeTypeID, minorConsumesQuota, minorSharedTristate,
	} {
		if q.minor >= minor {
			v.minor = minor
		}
	}
	return v
}

// appendVolume writes the detailed view of a volume. Views are kept until the
// volume changes, so that long listings, which clients poll, stay cheap.
func (c *cloud) appendVolume(out []byte, q *call, v *volume, as view) []byte {
	if v.rendered == nil || v.renderedFor != as {
		v.rendered, v.renderedFor = c.renderVolume(v.rendered[:0], q, v, true), as
	}
	return append(out, v.rendered...)
}

// volumeReply returns the answer that shows one volume.
func (c *cloud) volumeReply(status int, q *call, v *volume, stored bool) *reply {
	out := append(make([]byte, 0, 1536), `{"volume":`...)
	if stored {
		out = c.appendVolume(out, q, v, q.view())
	} else {
		out = c.renderVolume(out, q, v, false)
	}
	return &reply{status: status, body: append(out, '}')}
}

// renderVolume writes the view. The answer to a create or an update is not read
// back from the database: it lacks the fields of extensions, and its creation
// time still has microseconds.
func (c *cloud) renderVolume(out []byte, q *call, v *volume, stored bool) []byte {
	status := v.status
	out = appendField(append(out, '{'), "id", v.id)
	out = appendField(out, "status", status)
	out = appendRaw(out, "size", strconv.Itoa(v.size))
	out = appendField(out, "availability_zone", v.zone)
	if stored {
		out = appendField(out, "created_at", stamp(v.created))
	} else {
		out = appendField(out, "created_at", v.created.UTC().Format(timeLayout))
	}
	if v.updated.IsZero() {
		out = appendRaw(out, "updated_at", "null")
	} else {
		out = appendField(out, "updated_at", stamp(v.updated))
	}
	out = appendNullable(out, "name", v.name)
	out = appendNullable(out, "description", v.description)
	out = appendField(out, "volume_type", v.kind.Name)
	out = appendOptional(out, "snapshot_id", v.snapshotID)
	out = appendOptional(out, "source_volid", v.sourceID)
	out = appendName(out, "metadata")
	out = appendMap(out, v.visibleMetadata())
	out = append(out, ',')
	out = appendName(out, "links")
	out = append(appendLinks(out, q, v.id), ',')
	out = appendField(out, "user_id", v.user)
	out = appendField(out, "bootable", "false")
	out = appendRaw(out, "encrypted", strconv.FormatBool(isEncrypted(v.kind)))
	out = appendRaw(out, "replication_status", "null")
	out = appendRaw(out, "consistencygroup_id", "null")
	out = appendRaw(out, "multiattach", strconv.FormatBool(v.kind.Multiattach))
	out = appendName(out, "attachments")
	out = append(v.appendAttachments(append(out, '['), q.admin), ']', ',')
	if q.admin {
		out = appendOptional(out, "migration_status", v.migration)
	}
	if q.minor >= minorGroupID {
		out = appendOptional(out, "group_id", v.groupID)
	}
	if q.admin && q.minor >= minorProviderID {
		out = appendRaw(out, "provider_id", "null")
	}
	if q.minor >= minorSharedTargets {
		// Until a backend has reported whether its targets are shared, they may
		// be.
		shared := "true"
		if v.serviceID != "" {
			shared = "false"
		} else if q.minor >= minorSharedTristate {
			shared = "null"
		}
		out = appendRaw(out, "shared_targets", shared)
		out = appendOptional(out, "service_uuid", v.serviceID)
	}
	if q.admin && q.minor >= minorClusterName {
		out = appendRaw(out, "cluster_name", "null")
	}
	if q.minor >= minorVolumeTypeID {
		out = appendField(out, "volume_type_id", v.kind.ID)
	}
	if q.minor >= minorConsumesQuota {
		out = appendRaw(out, "consumes_quota", strconv.FormatBool(!v.temporary))
	}
	if stored {
		out = appendField(out, "os-vol-tenant-attr:tenant_id", v.project)
	}
	if stored && q.admin {
		out = appendOptional(out, "os-vol-mig-status-attr:migstat", v.migration)
		out = appendRaw(out, "os-vol-mig-status-attr:name_id", "null")
		out = appendOptional(out, "os-vol-host-attr:host", v.host)
	}
	out[len(out)-1] = '}'
	return out
}

// appendAttachments writes the complete attachments. Only an administrator sees
// their hosts.
func (v *volume) appendAttachments(out []byte, admin bool) []byte {
	first := true
	for _, a := range v.attachments {
		if a.status != attachStatusAttached {
			continue
		}
		if !first {
			out = append(out, ',')
		}
		first = false
		out = appendField(append(out, '{'), "id", a.volumeID)
		out = appendField(out, "attachment_id", a.id)
		out = appendField(out, "volume_id", a.volumeID)
		out = appendOptional(out, "server_id", a.instance)
		if admin {
			out = appendOptional(out, "host_name", a.host)
		} else {
			out = appendRaw(out, "host_name", "null")
		}
		out = appendOptional(out, "device", a.mountpoint)
		out = appendField(out, "attached_at", stamp(a.attached))
		out[len(out)-1] = '}'
	}
	return out
}

// appendSummary writes the view of a short list.
func appendSummary(out []byte, q *call, v *volume) []byte {
	out = appendField(append(out, '{'), "id", v.id)
	out = appendNullable(out, "name", v.name)
	out = appendName(out, "links")
	return append(appendLinks(out, q, v.id), '}')
}

func appendLinks(out []byte, q *call, id string) []byte {
	project := ""
	if q.urlProject != "" {
		project = "/" + q.urlProject
	}
	out = append(out, `[{"rel":"self","href":`...)
	out = appendString(out, q.base+"/v3"+project+"/volumes/"+id)
	out = append(out, `},{"rel":"bookmark","href":`...)
	out = appendString(out, q.base+project+"/volumes/"+id)
	return append(out, `}]`...)
}

func appendName(out []byte, name string) []byte {
	return append(append(append(out, '"'), name...), '"', ':')
}

func appendRaw(out []byte, name, value string) []byte {
	return append(append(appendName(out, name), value...), ',')
}

func appendField(out []byte, name, value string) []byte {
	return append(appendString(appendName(out, name), value), ',')
}

func appendNullable(out []byte, name string, value *string) []byte {
	if value == nil {
		return appendRaw(out, name, "null")
	}
	return appendField(out, name, *value)
}

func appendOptional(out []byte, name, value string) []byte {
	if value == "" {
		return appendRaw(out, name, "null")
	}
	return appendField(out, name, value)
}

func appendMap(out []byte, entries map[string]string) []byte {
	out = append(out, '{')
	for i, key := range slices.Sorted(maps.Keys(entries)) {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendString(out, key), ':')
		out = appendString(out, entries[key])
	}
	return append(out, '}')
}

func appendString(out []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] == '"' || s[i] == '\\' || s[i] >= utf8.RuneSelf {
			// Encoding a string cannot fail.
			quoted, _ := json.Marshal(s)
			return append(out, quoted...)
		}
	}
	return append(append(append(out, '"'), s...), '"')
}
