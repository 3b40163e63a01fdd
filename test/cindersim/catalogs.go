package cindersim

import (
	"net/http"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
)

// The lists in this file describe the cloud itself: volume types, zones,
// services, pools and user messages.

func typeView(k *drivers.VolumeType, admin bool) map[string]any {
	view := map[string]any{
		"id": k.ID, "name": k.Name, "is_public": true, "description": nil, "os-volume-type-access:is_public": true,
	}
	if k.Description != "" {
		view["description"] = k.Description
	}
	specs := map[string]string{}
	for key, value := range k.ExtraSpecs {
		// A member sees only the extra specs that concern users.
		if admin || slices.Contains([]string{"RESKEY:availability_zones", "multiattach", "replication_enabled"}, key) {
			specs[key] = value
		}
	}
	view["extra_specs"] = specs
	if admin {
		view["qos_specs_id"] = nil
	}
	return view
}

// listTypes gives a page, and a link to the next if this one is full.
func (c *cloud) listTypes(q *call) (*reply, error) {
	limit, offset, err := c.pageLimits(q)
	if err != nil {
		return nil, err
	}
	kinds := c.types
	if marker, given := q.param("marker"); given {
		at := slices.IndexFunc(kinds, func(kind *drivers.VolumeType) bool { return kind.ID == marker })
		if at < 0 {
			return nil, refuse(http.StatusNotFound, "Volume type %s could not be found.", marker)
		}
		kinds = kinds[at+1:]
	}
	kinds = kinds[min(offset, len(kinds)):]
	page := kinds[:min(limit, len(kinds))]
	views := []map[string]any{}
	for _, kind := range page {
		views = append(views, typeView(kind, q.admin))
	}
	answer := map[string]any{"volume_types": views}
	if len(page) > 0 && len(page) == limit {
		answer["volume_type_links"] = []map[string]string{{"rel": "next", "href": q.href("types") + "?" + nextQuery(q.rawQuery, page[len(page)-1].ID)}}
	}
	return success(http.StatusOK, answer), nil
}

func (c *cloud) showType(q *call, id string) (*reply, error) {
	kind := c.typeIndex[id]
	if id == "default" {
		kind = c.typeIndex[c.options.DefaultType]
	}
	if kind == nil || kind.ID != id && id != "default" {
		return nil, refuse(http.StatusNotFound, "Volume type %s could not be found.", id)
	}
	return success(http.StatusOK, map[string]any{"volume_type": typeView(kind, q.admin)}), nil
}

func (c *cloud) listZones() (*reply, error) {
	zones := []map[string]any{}
	for _, zone := range c.options.Zones {
		zones = append(zones, map[string]any{"zoneName": zone, "zoneState": map[string]bool{"available": true}})
	}
	return success(http.StatusOK, map[string]any{"availabilityZoneInfo": zones}), nil
}

// backends returns the types that stand for the distinct backends.
func (c *cloud) backends() []*drivers.VolumeType {
	var distinct []*drivers.VolumeType
	for _, kind := range c.types {
		if !slices.ContainsFunc(distinct, func(other *drivers.VolumeType) bool { return other.Backend == kind.Backend }) {
			distinct = append(distinct, kind)
		}
	}
	return distinct
}

func (c *cloud) listServices(q *call) (*reply, error) {
	if !q.admin {
		return nil, forbidden("volume_extension:services:index")
	}
	now, state := stamp(c.options.Now()), "up"
	if c.stopped {
		state = "down"
	}
	services := []map[string]any{{
		"binary": "cinder-scheduler", "host": "cinder", "zone": c.options.Zones[0], "status": "enabled", "state": "up",
		"updated_at": now, "disabled_reason": nil,
	}}
	for _, kind := range c.backends() {
		services = append(services, map[string]any{
			"binary": "cinder-volume", "host": "cinder@" + kind.Backend, "zone": c.options.Zones[0], "status": "enabled",
			"state": state, "updated_at": now, "disabled_reason": nil, "replication_status": "disabled",
			"active_backend_id": nil, "frozen": false,
		})
	}
	if binary, given := q.param("binary"); given {
		services = slices.DeleteFunc(services, func(service map[string]any) bool { return service["binary"] != binary })
	}
	return success(http.StatusOK, map[string]any{"services": services}), nil
}

func (c *cloud) listPools(q *call) (*reply, error) {
	if !q.admin {
		return nil, forbidden("scheduler_extension:scheduler_stats:get_pools")
	}
	detail, err := q.flag("detail")
	if err != nil {
		return nil, err
	}
	pools := []map[string]any{}
	for _, kind := range c.backends() {
		pool := map[string]any{"name": "cinder@" + kind.Backend + "#" + kind.Backend}
		if detail {
			volumes, gigabytes := 0, 0
			for _, v := range c.order {
				if v.kind.Backend == kind.Backend && v.host != "" {
					volumes++
					gigabytes += v.size
				}
			}
			pool["capabilities"] = map[string]any{
				"pool_name": kind.Backend, "volume_backend_name": kind.Backend, "storage_protocol": kind.StorageProtocol,
				"vendor_name": "simulated", "driver_version": "1.0.0", "total_capacity_gb": kind.CapacityGiB,
				"free_capacity_gb": kind.CapacityGiB - gigabytes, "allocated_capacity_gb": gigabytes,
				"provisioned_capacity_gb": gigabytes, "total_volumes": volumes, "reserved_percentage": 0,
				"max_over_subscription_ratio": 1.0, "thin_provisioning_support": true, "thick_provisioning_support": false,
				"multiattach": kind.Multiattach, "QoS_support": false, "filter_function": nil, "goodness_function": nil,
				"backend_state": "up", "timestamp": c.options.Now().UTC().Format(timeLayout),
			}
		}
		pools = append(pools, pool)
	}
	return success(http.StatusOK, map[string]any{"pools": pools}), nil
}

func (m *message) view(q *call) map[string]any {
	return map[string]any{
		"id": m.id, "event_id": m.event, "user_message": m.text, "message_level": "ERROR", "created_at": stamp(m.created),
		"guaranteed_until": stamp(m.created.AddDate(0, 0, 30)), "request_id": m.request, "links": q.links("messages", m.id),
		"resource_type": m.resourceType, "resource_uuid": m.resource,
	}
}

func (c *cloud) showMessage(q *call, id string) (*reply, error) {
	for _, m := range c.messages {
		if m.id == id && (q.admin || m.project == q.project) {
			return success(http.StatusOK, map[string]any{"message": m.view(q)}), nil
		}
	}
	return nil, refuse(http.StatusNotFound, "Message %s could not be found.", id)
}

func (c *cloud) listMessages(q *call) (*reply, error) {
	var found []listed
	for _, m := range c.messages {
		if q.shows(m.project, true, map[string]string{"resource_uuid": m.resource, "resource_type": m.resourceType, "event_id": m.event}) {
			found = append(found, listed{m.id, m.created, func() map[string]any { return m.view(q) }})
		}
	}
	return c.paged(q, collection{name: "messages"}, false, found)
}
