// Package routes says which operation a request to Cinder's API is, from its
// method and path.
package routes

import (
	"regexp"
	"strings"
)

// Microversions that brought operations. Below them they do not exist.
const (
	minorMessages       = 3
	minorBackupUpdate   = 9
	minorAttachments    = 27
	minorGroupTypes     = 11
	minorGroups         = 13
	minorGroupSnapshots = 14
)

var projectPattern = regexp.MustCompile(`^[0-9a-f-]+$`)

// Route is a request that Cinder's URL map knows.
type Route struct {
	// Operation is a stable name, such as volume.create. The name of an action is
	// in the body: these are "action" and "attachment.action" here.
	Operation string
	// Minor is the microversion that brought the operation, 3.Minor.
	Minor int
	// Project is the project in the path, if there is one.
	Project string
	// Collection is the collection in the path, such as volumes; ID the ID in it,
	// if there is one, and Key the key of a metadata entry.
	Collection, ID, Key string
	// Detail means that a list shows more than names.
	Detail bool
}

// Find returns the route of a path, which is what follows /v3/.
func Find(method, path string) (Route, bool) {
	project, segments, ok := split(path)
	if !ok || segments[len(segments)-1] == "" {
		return Route{}, false
	}
	r := Route{Project: project, Collection: segments[0]}
	key := method + " " + segments[0]
	switch len(segments) {
	case 1:
		r.Operation, r.Minor = ofCollection(key)
	case 2:
		if r.Operation, r.Minor = ofDetail(key, segments[1]); r.Operation != "" {
			r.Detail = true
			break
		}
		r.ID = segments[1]
		r.Operation, r.Minor = ofMember(key, r.ID)
	case 3:
		r.ID = segments[1]
		r.Operation = ofNested(key + " " + segments[2])
	case 4:
		if segments[2] == "metadata" {
			r.ID, r.Key = segments[1], segments[3]
			r.Operation = ofMetadataKey(key)
		}
	}
	return r, r.Operation != ""
}

// split splits a path: an optional project, which must look like a hexadecimal
// ID, and the resource.
func split(path string) (project string, segments []string, ok bool) {
	segments = strings.Split(strings.TrimPrefix(path, "/"), "/")
	if isCollection(segments[0]) {
		return "", segments, true
	}
	if len(segments) < 2 || !projectPattern.MatchString(segments[0]) || !isCollection(segments[1]) {
		return "", nil, false
	}
	return segments[0], segments[1:], true
}

// isCollection distinguishes the collections of the API from project IDs.
func isCollection(segment string) bool {
	switch segment {
	case "volumes", "snapshots", "backups", "attachments", "messages", "types", "groups", "group_snapshots", "group_types", "limits", "os-quota-sets", "os-availability-zone",
		"os-services", "scheduler-stats":
		return true
	}
	return false
}

func ofCollection(key string) (operation string, minor int) {
	switch key {
	case "GET volumes":
		return "volume.list", 0
	case "POST volumes":
		return "volume.create", 0
	case "GET snapshots":
		return "snapshot.list", 0
	case "POST snapshots":
		return "snapshot.create", 0
	case "GET backups":
		return "backup.list", 0
	case "POST backups":
		return "backup.create", 0
	case "GET attachments":
		return "attachment.list", minorAttachments
	case "POST attachments":
		return "attachment.create", minorAttachments
	case "GET group_types":
		return "group_type.list", minorGroupTypes
	case "GET groups":
		return "group.list", minorGroups
	case "POST groups":
		return "group.create", minorGroups
	case "GET group_snapshots":
		return "group_snapshot.list", minorGroupSnapshots
	case "POST group_snapshots":
		return "group_snapshot.create", minorGroupSnapshots
	case "GET messages":
		return "message.list", minorMessages
	case "GET types":
		return "type.list", 0
	case "GET limits":
		return "limits.get", 0
	case "GET os-availability-zone":
		return "zone.list", 0
	case "GET os-services":
		return "service.list", 0
	}
	return "", 0
}

// ofDetail names the lists that also have a detailed form.
func ofDetail(key, segment string) (operation string, minor int) {
	if segment != "detail" {
		return "", 0
	}
	switch key {
	case "GET volumes", "GET snapshots", "GET backups", "GET attachments", "GET groups", "GET group_snapshots":
		return ofCollection(key)
	}
	return "", 0
}

func ofMember(key, id string) (operation string, minor int) {
	switch key {
	case "GET volumes":
		return "volume.get", 0
	case "PUT volumes":
		return "volume.update", 0
	case "DELETE volumes":
		return "volume.delete", 0
	case "GET snapshots":
		return "snapshot.get", 0
	case "DELETE snapshots":
		return "snapshot.delete", 0
	case "GET backups":
		return "backup.get", 0
	case "PUT backups":
		return "backup.update", minorBackupUpdate
	case "DELETE backups":
		return "backup.delete", 0
	case "GET attachments":
		return "attachment.get", minorAttachments
	case "PUT attachments":
		return "attachment.update", minorAttachments
	case "DELETE attachments":
		return "attachment.delete", minorAttachments
	case "GET groups":
		return "group.get", minorGroups
	case "PUT groups":
		return "group.update", minorGroups
	case "GET group_snapshots":
		return "group_snapshot.get", minorGroupSnapshots
	case "DELETE group_snapshots":
		return "group_snapshot.delete", minorGroupSnapshots
	case "GET messages":
		return "message.get", minorMessages
	case "GET types":
		return "type.get", 0
	case "GET os-quota-sets":
		return "quota.get", 0
	case "PUT os-quota-sets":
		return "quota.update", 0
	case "DELETE os-quota-sets":
		return "quota.delete", 0
	case "GET scheduler-stats":
		if id == "get_pools" {
			return "pool.list", 0
		}
	}
	return "", 0
}

func ofNested(key string) string {
	switch key {
	case "POST volumes action":
		return "action"
	case "POST groups action":
		return "group.action"
	case "POST attachments action":
		return "attachment.action"
	case "GET volumes encryption":
		return "volume.encryption"
	case "GET volumes metadata":
		return "metadata.list"
	case "POST volumes metadata":
		return "metadata.update"
	case "PUT volumes metadata":
		return "metadata.replace"
	case "POST snapshots metadata":
		return "snapshot.metadata.update"
	case "GET os-quota-sets defaults":
		return "quota.defaults"
	}
	return ""
}

func ofMetadataKey(key string) string {
	switch key {
	case "GET volumes":
		return "metadata.get"
	case "PUT volumes":
		return "metadata.set"
	case "DELETE volumes":
		return "metadata.delete"
	}
	return ""
}
