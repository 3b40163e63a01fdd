package cindersim

import (
	"net/http"
	"strings"
	"time"
)

// route is a request that Cinder's URL map knows: the name of its operation and
// the function that performs it.
type route struct {
	operation string
	volume    string // the volume's id, where the URL has one
	minor     int    // the microversion that brought it; below it is a 404
	perform   func(c *cloud, q *call, now time.Time) (*reply, error)
}

// isCollection distinguishes the collections of the API from project IDs.
func isCollection(segment string) bool {
	switch segment {
	case "volumes", "snapshots", "attachments", "messages", "types", "limits", "os-quota-sets", "os-availability-zone",
		"os-services", "scheduler-stats":
		return true
	}
	return false
}

// splitPath splits the path after /v3: an optional project, which must look
// like a hexadecimal ID, and the resource.
func splitPath(path string) (project string, segments []string, ok bool) {
	segments = strings.Split(strings.TrimPrefix(path, "/"), "/")
	if isCollection(segments[0]) {
		return "", segments, true
	}
	if len(segments) < 2 || !projectPattern.MatchString(segments[0]) || !isCollection(segments[1]) {
		return "", nil, false
	}
	return segments[0], segments[1:], true
}

// findRoute maps a method and the segments after the project. The body
// determines the action.
func findRoute(method string, segments []string, body []byte) (route, bool) {
	if segments[len(segments)-1] == "" {
		return route{}, false
	}
	key := method + " " + segments[0]
	switch len(segments) {
	case 1:
		return collectionRoute(key)
	case 2:
		return memberRoute(key, segments[1])
	case 3:
		return nestedRoute(key+" "+segments[2], segments[1], body)
	case 4:
		if segments[2] == "metadata" {
			return metadataKeyRoute(key, segments[1], segments[3])
		}
	}
	return route{}, false
}

func collectionRoute(key string) (route, bool) {
	switch key {
	case "GET volumes":
		return route{operation: "volume.list", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.listVolumes(q, false)
		}}, true
	case "POST volumes":
		return route{operation: "volume.create", perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.createVolume(q, now)
		}}, true
	case "GET snapshots":
		return route{operation: "snapshot.list", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.listSnapshots(q, false)
		}}, true
	case "POST snapshots":
		return route{operation: "snapshot.create", perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.createSnapshot(q, now)
		}}, true
	case "GET attachments":
		return route{operation: "attachment.list", minor: minorAttachments, perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.listAttachments(q, false)
		}}, true
	case "POST attachments":
		return route{operation: "attachment.create", minor: minorAttachments, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.createAttachment(q, now)
		}}, true
	case "GET messages":
		return route{operation: "message.list", minor: minorMessages, perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.listMessages(q)
		}}, true
	case "GET types":
		return route{operation: "type.list", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) { return c.listTypes(q) }}, true
	case "GET limits":
		return route{operation: "limits.get", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) { return c.showLimits(q) }}, true
	case "GET os-availability-zone":
		return route{operation: "zone.list", perform: func(c *cloud, _ *call, _ time.Time) (*reply, error) { return c.listZones() }}, true
	case "GET os-services":
		return route{operation: "service.list", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) { return c.listServices(q) }}, true
	}
	return route{}, false
}

func memberRoute(key, id string) (route, bool) {
	switch key {
	case "GET volumes":
		if id == "detail" {
			return route{operation: "volume.list", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
				return c.listVolumes(q, true)
			}}, true
		}
		return route{operation: "volume.get", volume: id, perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.showVolume(q, id)
		}}, true
	case "PUT volumes":
		return route{operation: "volume.update", volume: id, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.updateVolume(q, id, now)
		}}, true
	case "DELETE volumes":
		return route{operation: "volume.delete", volume: id, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.deleteVolume(q, id, now)
		}}, true
	case "GET snapshots":
		if id == "detail" {
			return route{operation: "snapshot.list", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
				return c.listSnapshots(q, true)
			}}, true
		}
		return route{operation: "snapshot.get", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.showSnapshot(q, id)
		}}, true
	case "DELETE snapshots":
		return route{operation: "snapshot.delete", perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.deleteSnapshot(q, id, now)
		}}, true
	case "GET attachments":
		if id == "detail" {
			return route{operation: "attachment.list", minor: minorAttachments, perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
				return c.listAttachments(q, true)
			}}, true
		}
		return route{operation: "attachment.get", minor: minorAttachments, perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.showAttachment(q, id)
		}}, true
	case "PUT attachments":
		return route{operation: "attachment.update", minor: minorAttachments, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.updateAttachment(q, id, now)
		}}, true
	case "DELETE attachments":
		return route{operation: "attachment.delete", minor: minorAttachments, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.deleteAttachment(q, id, now)
		}}, true
	case "GET messages":
		return route{operation: "message.get", minor: minorMessages, perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.showMessage(q, id)
		}}, true
	case "GET types":
		return route{operation: "type.get", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) { return c.showType(q, id) }}, true
	case "GET os-quota-sets":
		return route{operation: "quota.get", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) { return c.showQuota(q, id) }}, true
	case "PUT os-quota-sets":
		return route{operation: "quota.update", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) { return c.updateQuota(q, id) }}, true
	case "DELETE os-quota-sets":
		return route{operation: "quota.delete", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) { return c.deleteQuota(q, id) }}, true
	case "GET scheduler-stats":
		if id == "get_pools" {
			return route{operation: "pool.list", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) { return c.listPools(q) }}, true
		}
	}
	return route{}, false
}

func nestedRoute(key, id string, body []byte) (route, bool) {
	switch key {
	case "POST volumes action":
		name, err := actionName(body)
		if err != nil {
			return route{operation: "action", volume: id, perform: func(*cloud, *call, time.Time) (*reply, error) { return nil, err }}, true
		}
		return route{operation: "action." + name, volume: id, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.act(q, id, name, now)
		}}, true
	case "POST attachments action":
		name, err := actionName(body)
		if err == nil && name != "os-complete" {
			err = unknownAction(name)
		}
		if err != nil {
			return route{operation: "attachment.action", perform: func(*cloud, *call, time.Time) (*reply, error) { return nil, err }}, true
		}
		return route{operation: "attachment.complete", minor: minorAttachmentComplete, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.completeAttachment(q, id, now)
		}}, true
	case "GET volumes metadata":
		return route{operation: "metadata.list", volume: id, perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.showMetadata(q, id)
		}}, true
	case "POST volumes metadata":
		return route{operation: "metadata.update", volume: id, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.writeMetadata(q, id, false, now)
		}}, true
	case "PUT volumes metadata":
		return route{operation: "metadata.replace", volume: id, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.writeMetadata(q, id, true, now)
		}}, true
	case "POST snapshots metadata":
		return route{operation: "snapshot.metadata.update", perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.mergeSnapshotMetadata(q, id, now)
		}}, true
	case "GET os-quota-sets defaults":
		return route{operation: "quota.defaults", perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.defaultQuota(q, id)
		}}, true
	}
	return route{}, false
}

func metadataKeyRoute(key, id, name string) (route, bool) {
	switch key {
	case http.MethodGet + " volumes":
		return route{operation: "metadata.get", volume: id, perform: func(c *cloud, q *call, _ time.Time) (*reply, error) {
			return c.showMetadataKey(q, id, name)
		}}, true
	case http.MethodPut + " volumes":
		return route{operation: "metadata.set", volume: id, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.writeMetadataKey(q, id, name, now)
		}}, true
	case http.MethodDelete + " volumes":
		return route{operation: "metadata.delete", volume: id, perform: func(c *cloud, q *call, now time.Time) (*reply, error) {
			return c.deleteMetadataKey(q, id, name, now)
		}}, true
	}
	return route{}, false
}
