package cindersim

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/python"
)

// actionName returns the single key of an action's body.
func actionName(raw []byte) (string, error) {
	value, err := decodeJSON(raw)
	body, ok := value.(map[string]any)
	if err != nil || !ok || len(body) != 1 {
		return "", refuse(http.StatusBadRequest, "Malformed request body")
	}
	for name := range body {
		return name, nil
	}
	return "", nil
}

func unknownAction(name string) error {
	return refuse(http.StatusBadRequest, "There is no such action: %s. Verify the request body and Content-Type header and try again.", name)
}

// act performs an action on a volume.
func (c *cloud) act(q *call, id, name string, now time.Time) (*reply, error) {
	if err := q.decode(); err != nil {
		return nil, err
	}
	parameters, isObject := q.body[name].(map[string]any)
	if !isObject {
		switch name {
		case "os-initialize_connection", "os-terminate_connection", "os-attach", "os-extend", "os-retype", "os-update_readonly_flag", "os-reset_status",
			"os-force_detach":
			return nil, fields.Invalid(name, q.body[name], "%s is not of type 'object'", python.Repr(q.body[name]))
		case "os-detach":
			// The schema allows null, which Cinder then uses like an object.
			if q.body[name] == nil {
				return nil, refuse(http.StatusInternalServerError, messageBroken)
			}
			return nil, fields.Invalid(name, q.body[name], "%s is not of type 'object', 'null'", python.Repr(q.body[name]))
		}
	}
	// The body is checked before the volume is looked up.
	var perform func(v *volume) (*reply, error)
	switch name {
	case "os-reserve":
		perform = func(v *volume) (*reply, error) { return reserveVolume(v, now) }
	case "os-unreserve":
		perform = func(v *volume) (*reply, error) { unreserve(v, now); return accepted(), nil }
	case "os-begin_detaching":
		perform = func(v *volume) (*reply, error) { return beginDetaching(v, now) }
	case "os-roll_detaching":
		perform = func(v *volume) (*reply, error) { return rollDetaching(v, now) }
	case "os-initialize_connection":
		connector, err := fields.Connector(name, parameters, false)
		if err != nil {
			return nil, err
		}
		perform = func(v *volume) (*reply, error) { return c.initializeConnection(q, v, connector, now) }
	case "os-terminate_connection":
		connector, err := fields.Connector(name, parameters, true)
		if err != nil {
			return nil, err
		}
		perform = func(v *volume) (*reply, error) { return c.terminateConnection(q, v, connector, now) }
	case "os-attach":
		request, err := readAttach(parameters)
		if err != nil {
			return nil, err
		}
		perform = func(v *volume) (*reply, error) { return c.attachVolume(q, v, request, now) }
	case "os-detach":
		attachment, err := fields.OptionalUUID(parameters, "attachment_id")
		if err != nil {
			return nil, err
		}
		perform = func(v *volume) (*reply, error) { return c.detachVolume(v, attachment, now) }
	case "os-extend":
		perform = func(v *volume) (*reply, error) { return c.extendVolume(q, v, parameters, now) }
	case "os-retype":
		kind, mayMigrate, err := readRetype(parameters)
		if err != nil {
			return nil, err
		}
		perform = func(v *volume) (*reply, error) { return c.retypeVolume(q, v, kind, mayMigrate, now) }
	case "os-update_readonly_flag":
		perform = func(v *volume) (*reply, error) { return updateReadonly(v, parameters, now) }
	case "os-force_delete":
		perform = c.administrator(q, "force_delete", func(v *volume) (*reply, error) {
			return accepted(), c.remove(v, now, true, false, q.broken)
		})
	case "os-reset_status":
		status, attachStatus, err := readReset(parameters)
		if err != nil {
			return nil, err
		}
		perform = c.administrator(q, "reset_status", func(v *volume) (*reply, error) {
			return c.resetStatus(v, status, attachStatus, now)
		})
	case "os-force_detach":
		perform = c.administrator(q, "force_detach", func(v *volume) (*reply, error) {
			attachment, _ := parameters["attachment_id"].(string)
			connector, _ := parameters["connector"].(map[string]any)
			if answer, err := c.terminateConnection(q, v, connector, now); err != nil || answer.wait > 0 {
				return answer, err
			}
			return c.detachVolume(v, attachment, now)
		})
	default:
		return nil, unknownAction(name)
	}
	v, err := c.find(q, id)
	if err != nil {
		return nil, err
	}
	return perform(v)
}

// administrator guards an admin action.
func (c *cloud) administrator(q *call, rule string, perform func(*volume) (*reply, error)) func(*volume) (*reply, error) {
	return func(v *volume) (*reply, error) {
		if !q.admin {
			return nil, forbidden("volume_extension:volume_admin_actions:" + rule)
		}
		return perform(v)
	}
}

func reserveVolume(v *volume, now time.Time) (*reply, error) {
	allowed := v.status == statusAvailable || v.kind.Multiattach && v.status == statusInUse
	if !allowed {
		expected := "available"
		if v.kind.Multiattach {
			expected = "available or in-use"
		}
		return nil, refuse(http.StatusBadRequest, "Invalid volume: Volume status must be %s to reserve, but the status is %s.", expected, v.status)
	}
	v.status = statusAttaching
	v.changed(now)
	return accepted(), nil
}

// unreserve ends a reservation; in any other status it does nothing.
func unreserve(v *volume, now time.Time) {
	if v.status != statusAttaching {
		return
	}
	v.status = statusAvailable
	if len(v.attachments) > 0 {
		v.status = statusInUse
	}
	v.changed(now)
}

func beginDetaching(v *volume, now time.Time) (*reply, error) {
	if v.status != statusInUse || v.attachStatus != attachStatusAttached {
		return nil, refuse(http.StatusBadRequest, "Invalid volume: Unable to detach volume. Volume status must be 'in-use' "+
			"and attach_status must be 'attached' to detach.")
	}
	v.status = statusDetaching
	v.changed(now)
	return accepted(), nil
}

func rollDetaching(v *volume, now time.Time) (*reply, error) {
	if v.status == statusDetaching {
		v.status = statusInUse
		v.changed(now)
	}
	return accepted(), nil
}

// hang returns the answer to a synchronous call while the volume services are
// stopped. Its effect happens when they run again.
func (c *cloud) hang(late func(now time.Time)) (*reply, error) {
	if late != nil {
		c.backlog = append(c.backlog, late)
	}
	answer := refuse(http.StatusInternalServerError, messageBroken).reply()
	answer.wait = c.options.RPCTimeout
	return answer, nil
}

func noBackend() error {
	return refuse(http.StatusInternalServerError, "Unable to fetch connection information from backend.")
}

// initializeConnection exports the volume and returns its connection. It
// changes no status and may be repeated, also for another host.
func (c *cloud) initializeConnection(q *call, v *volume, connector map[string]any, now time.Time) (*reply, error) {
	if v.host == "" {
		return nil, noBackend()
	}
	if c.stopped {
		return c.hang(func(now time.Time) {
			if !v.gone {
				c.export(v, now)
			}
		})
	}
	document, err := c.connect(q, v, connector, now)
	if err != nil {
		if missing := new(refusal); errors.As(err, &missing) && missing.status == http.StatusBadRequest {
			return nil, missing
		}
		return nil, noBackend()
	}
	return success(http.StatusOK, map[string]any{"connection_info": document}), nil
}

// connect does the driver's part of both attachment workflows. A driver that
// fails removes the export it just made.
func (c *cloud) connect(q *call, v *volume, connector map[string]any, now time.Time) (map[string]any, error) {
	if initiator, _ := connector["initiator"].(string); v.kind.RequiresInitiator && initiator == "" {
		return nil, refuse(http.StatusBadRequest, "Invalid input received: Connector doesn't have required information: initiator")
	}
	c.export(v, now)
	if q.broken {
		v.removeExport()
		return nil, refuse(http.StatusInternalServerError, "Bad or unexpected response from the storage volume backend API: "+
			"Driver initialize connection failed (error: injected).")
	}
	document, err := v.kind.Connection(drivers.ConnectionRequest{
		VolumeID: v.id, SizeGiB: v.size, Connector: connector, Username: v.username, Password: v.password,
	})
	if err != nil {
		v.removeExport()
		return nil, refuse(http.StatusInternalServerError, "Bad or unexpected response from the storage volume backend API: "+
			"Driver initialize connection failed (error: %v).", err)
	}
	if v.connected == nil {
		v.connected = make(map[string]bool)
	}
	if host, _ := connector["host"].(string); host != "" {
		v.connected[host] = true
	}
	document = maps.Clone(document)
	if data, ok := document["data"].(map[string]any); ok {
		document["data"] = v.decorate(data, q.admin)
	}
	return document, nil
}

// decorate adds to the driver's data what Cinder's volume manager adds. The
// access mode is right only in an administrator's context: for a project member
// the manager cannot see how the volume is attached.
func (v *volume) decorate(data map[string]any, admin bool) map[string]any {
	decorated := maps.Clone(data)
	decorated["qos_specs"] = nil
	if len(v.kind.QoS) > 0 {
		decorated["qos_specs"] = v.kind.QoS
	}
	mode := "rw"
	switch {
	case !admin:
	case v.adminMetadata["attached_mode"] != "":
		mode = v.adminMetadata["attached_mode"]
	case v.adminMetadata["readonly"] == "True":
		mode = "ro"
	}
	decorated["access_mode"] = mode
	if isEncrypted(v.kind) {
		decorated["encrypted"] = true
	} else if decorated["encrypted"] == nil {
		decorated["encrypted"] = false
	}
	cacheable, _ := decorated["cacheable"].(bool)
	_, given := decorated["cacheable"]
	decorated["cacheable"] = v.kind.ExtraSpecs["cacheable"] == "<is> True" && (cacheable || !given)
	return decorated
}

// terminateConnection ends a host's connection and, as a trap, the reservation
// of a volume that was never attached.
func (c *cloud) terminateConnection(q *call, v *volume, connector map[string]any, now time.Time) (*reply, error) {
	if err := c.detachAllowed(v, ""); err != nil {
		return nil, err
	}
	if c.stopped && v.host != "" {
		return c.hang(nil)
	}
	if q.broken {
		return nil, refuse(http.StatusInternalServerError, "Unable to terminate volume connection from backend.")
	}
	v.disconnect(connector)
	unreserve(v, now)
	return accepted(), nil
}

func (v *volume) disconnect(connector map[string]any) {
	if v.kind.Disconnect != nil {
		v.kind.Disconnect(v.id, connector)
	}
	if host, _ := connector["host"].(string); host != "" {
		delete(v.connected, host)
		return
	}
	clear(v.connected)
}

type attachRequest struct{ instance, host, mountpoint, mode string }

func readAttach(parameters map[string]any) (attachRequest, error) {
	var request attachRequest
	_, hasInstance := parameters["instance_uuid"]
	_, hasHost := parameters["host_name"]
	if _, given := parameters["mountpoint"]; !given {
		return request, fields.Invalid("os-attach", parameters, "'mountpoint' is a required property")
	}
	if !hasInstance && !hasHost {
		return request, fields.Invalid("os-attach", parameters, "%s is not valid under any of the given schemas", python.Repr(parameters))
	}
	if err := fields.Only("os-attach", parameters, "instance_uuid", "host_name", "mountpoint", "mode"); err != nil {
		return request, err
	}
	var err error
	if request.mountpoint, err = fields.Bounded(parameters, "mountpoint", 1); err != nil {
		return request, err
	}
	if request.mode, err = fields.Mode(parameters, "mode"); err != nil {
		return request, err
	}
	request.mode = cmp.Or(request.mode, "rw")
	if request.host, err = fields.Bounded(parameters, "host_name", 0); err != nil {
		return request, err
	}
	request.instance, err = fields.UUID(parameters, "instance_uuid")
	return request, err
}

// remoteTrace follows the first line of an error that passed through Cinder's
// RPC, since the API includes the remote traceback.
const remoteTrace = "\nTraceback (most recent call last):\n\n" +
	"  File \"/usr/lib/python3/dist-packages/oslo_messaging/rpc/server.py\", line 165, in _process_incoming\n" +
	"    res = self.dispatcher.dispatch(message)\n" +
	"          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n\n" +
	"cinder.exception.InvalidVolume: "

func refuseRemotely(text string) error {
	return refuse(http.StatusBadRequest, "%s%s%s\n", text, remoteTrace, text)
}

// attachVolume performs os-attach, Cinder's record of an attachment. It
// requires neither a reservation nor a connection, and checks the status that
// the volume had when the request arrived: parallel calls from several hosts
// all succeed, while a later one from another host is rejected. A repetition
// for the same host succeeds for an administrator and is a 500 for a project
// member.
func (c *cloud) attachVolume(q *call, v *volume, request attachRequest, now time.Time) (*reply, error) {
	if v.adminMetadata == nil {
		v.adminMetadata = make(map[string]string)
	}
	if _, known := v.adminMetadata["readonly"]; !known {
		v.adminMetadata["readonly"] = "False"
		v.index()
	}
	if v.adminMetadata["readonly"] == "True" && request.mode != "ro" {
		return nil, refuse(http.StatusBadRequest, "Invalid attaching mode '%s' for volume %s.", request.mode, v.id)
	}
	if v.host == "" {
		return nil, refuse(http.StatusInternalServerError, messageBroken)
	}
	status := v.status
	if q.observed != "" {
		status = q.observed
	}
	finish := func(now time.Time) error {
		if mode := v.adminMetadata["attached_mode"]; status == statusAttaching && mode != "" && mode != request.mode {
			return refuseRemotely("Invalid volume: being attached by different mode")
		}
		for _, a := range v.attachments {
			if request.instance != "" && a.instance == request.instance || request.instance == "" && a.host == request.host {
				if !q.admin {
					// Saving the unchanged attachment fails without an
					// administrator's context.
					return refuse(http.StatusInternalServerError, messageBroken)
				}
				v.status = statusInUse
				v.changed(now)
				return nil
			}
		}
		if status == statusInUse && !v.kind.Multiattach {
			return refuseRemotely("Invalid volume: volume is already attached and multiple attachments are not enabled")
		}
		v.adminMetadata["attached_mode"] = request.mode
		v.index()
		c.attach(v, &attachment{
			id: c.ids.UUID(), volumeID: v.id, project: v.project, status: attachStatusAttached, instance: request.instance,
			host: request.host, mountpoint: request.mountpoint, mode: request.mode, attached: now, created: now,
		})
		v.status, v.attachStatus = statusInUse, attachStatusAttached
		v.changed(now)
		return nil
	}
	if c.stopped {
		return c.hang(func(now time.Time) {
			if !v.gone {
				// The result no longer matters to any caller.
				_ = finish(now)
			}
		})
	}
	if err := finish(now); err != nil {
		return nil, err
	}
	return accepted(), nil
}

// detachAllowed is Cinder's guard since CVE-2023-2088: without an attachment id
// there may be at most one attachment, an id must exist, and a server's live
// attachment can be removed only by Nova, which does not exist here.
func (c *cloud) detachAllowed(v *volume, id string) error {
	conflict := refuse(http.StatusConflict, "ConflictNovaUsingAttachment: Detach volume from instance  using the Compute API")
	var found *attachment
	switch {
	case id != "":
		if found = c.attachments[id]; found == nil {
			return conflict
		}
		if found.volumeID != v.id {
			return refuse(http.StatusBadRequest, "Invalid input received: Mismatched volume and attachment")
		}
	case len(v.attachments) == 1:
		found = v.attachments[0]
	case len(v.attachments) > 1:
		return conflict
	}
	if found != nil && found.instance != "" && len(found.connection) > 0 {
		return refuse(http.StatusInternalServerError, messageBroken)
	}
	return nil
}

// detachVolume removes an attachment and the volume's export. On a volume
// without attachments it makes the status available, whatever that was.
func (c *cloud) detachVolume(v *volume, id string, now time.Time) (*reply, error) {
	if err := c.detachAllowed(v, id); err != nil {
		return nil, err
	}
	finish := func(now time.Time) {
		if id == "" && len(v.attachments) == 0 {
			v.status, v.attachStatus = statusAvailable, attachStatusDetached
			v.changed(now)
			return
		}
		target := id
		if target == "" {
			target = v.attachments[0].id
		}
		v.removeExport()
		c.detach(v, target, now)
	}
	if c.stopped && v.host != "" {
		return c.hang(func(now time.Time) {
			if !v.gone && (id != "" || len(v.attachments) < 2) {
				finish(now)
			}
		})
	}
	finish(now)
	return accepted(), nil
}
