package cindersim

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/python"
)

// The actions in this file overwrite flags and statuses.

func updateReadonly(v *volume, parameters map[string]any, now time.Time) (*reply, error) {
	if _, given := parameters["readonly"]; !given {
		return nil, fields.Invalid("os-update_readonly_flag", parameters, "'readonly' is a required property")
	}
	readonly, err := fields.Boolean(parameters, "readonly")
	if err != nil {
		return nil, err
	}
	if v.status != statusAvailable {
		return nil, refuse(http.StatusBadRequest, "Invalid volume: Volume %s status must be available to update readonly flag, "+
			"but current status is: %s.", v.id, v.status)
	}
	if v.adminMetadata == nil {
		v.adminMetadata = make(map[string]string)
	}
	v.adminMetadata["readonly"] = python.Repr(readonly)
	v.changed(now)
	v.index()
	return accepted(), nil
}

// volumeStatuses are those that os-reset_status accepts.
func volumeStatuses() []any {
	return []any{
		"creating", "available", "deleting", "error", "error_deleting", "error_managing", "managing", "attaching", "in-use",
		"detaching", "maintenance", "restoring-backup", "error_restoring", "reserved", "awaiting-transfer", "backing-up",
		"error_backing-up", "error_extending", "downloading", "uploading", "retyping", "extending",
	}
}

func readReset(parameters map[string]any) (status, attachStatus string, err error) {
	for field, target := range map[string]*string{"status": &status, "attach_status": &attachStatus} {
		text, err := fields.Text(parameters, field)
		if err != nil {
			return "", "", err
		}
		if text != nil {
			*target = strings.ToLower(*text)
		}
	}
	migration, err := fields.Text(parameters, "migration_status")
	if err != nil {
		return "", "", err
	}
	switch {
	case status == "" && attachStatus == "" && (migration == nil || *migration == ""):
		err = refuse(http.StatusBadRequest, "Must specify 'status', 'attach_status' or 'migration_status' for update.")
	case status != "" && !slices.Contains(volumeStatuses(), any(status)):
		valid := strings.Trim(python.Repr(volumeStatuses()), "[]")
		err = refuse(http.StatusBadRequest, "Volume status: %s is invalid, valid statuses are: (%s).", status, valid)
	case attachStatus != "" && attachStatus != attachStatusAttached && attachStatus != attachStatusDetached:
		err = refuse(http.StatusBadRequest, "Volume attach status: %s is invalid, valid statuses are: ['attached', 'detached'].", attachStatus)
	}
	return status, attachStatus, err
}

// resetStatus overwrites a volume's statuses; detached also forgets all its
// attachments.
func (c *cloud) resetStatus(v *volume, status, attachStatus string, now time.Time) (*reply, error) {
	if status == statusDeleting {
		return nil, refuse(http.StatusBadRequest, "Cannot reset-state to %s", status)
	}
	if status == statusInUse && len(v.attachments) == 0 {
		return nil, refuse(http.StatusBadRequest, "Cannot reset-state to in-use because volume does not have any attachments.")
	}
	if status != "" {
		v.status = status
	}
	if attachStatus != "" {
		v.attachStatus = attachStatus
	}
	if attachStatus == attachStatusDetached {
		for len(v.attachments) > 0 {
			c.detach(v, v.attachments[0].id, now)
		}
		delete(v.adminMetadata, "attached_mode")
		v.index()
		if status != "" {
			v.status = status
		}
	}
	v.changed(now)
	return accepted(), nil
}
