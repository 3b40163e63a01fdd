package steps

import (
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// everyStatus is the list in cinder/objects/fields.py, VolumeStatus, and the
// older states that Cinder's code still sets, with the next step towards a
// connection and towards the volume's absence.
var everyStatus = map[cinder.Status]struct{ connected, gone Step }{
	"":                        {Blocked, Blocked},
	"unreadable":              {Blocked, Blocked},
	"creating":                {AwaitCreated, AwaitCreated},
	"downloading":             {AwaitCreated, AwaitCreated},
	"available":               {Reserve, Delete},
	"attaching":               {Connect, Release},
	"in-use":                  {Connect, Disconnect},
	"reserved":                {Blocked, Release},
	"detaching":               {Blocked, Disconnect},
	"deleting":                {AwaitGone, AwaitGone},
	"error":                   {Discard, Delete},
	"error_deleting":          {Discard, ForceDelete},
	"error_extending":         {Blocked, Delete},
	"error_restoring":         {Discard, Delete},
	"error_managing":          {Blocked, Delete},
	"error_backing-up":        {Blocked, Delete},
	"managing":                {Blocked, Blocked},
	"error_managing_deleting": {Blocked, Blocked},
	"maintenance":             {Blocked, Blocked},
	"restoring-backup":        {Blocked, Blocked},
	"backing-up":              {Blocked, Blocked},
	"extending":               {Blocked, Blocked},
	"retyping":                {Blocked, Blocked},
	"uploading":               {Blocked, Blocked},
	"awaiting-transfer":       {Blocked, Blocked},
	"a later Cinder's":        {Blocked, Blocked},
}

func TestNextStepFromAbsence(t *testing.T) {
	if got := StepToConnect(cinder.Volume{}, cinder.WorkflowReserve); got != Create {
		t.Errorf("towards a connection: %s, want %s", got, Create)
	}
	if got := StepToDelete(cinder.Volume{}, cinder.WorkflowReserve); got != None {
		t.Errorf("towards absence: %s, want %s", got, None)
	}
}

func TestNextStepForEveryStatus(t *testing.T) {
	for status, want := range everyStatus {
		v := cinder.Volume{ID: "v1", Status: status}
		if got := StepToConnect(v, cinder.WorkflowReserve); got != want.connected {
			t.Errorf("towards a connection from %q: %s, want %s", status, got, want.connected)
		}
		if got := StepToDelete(v, cinder.WorkflowReserve); got != want.gone {
			t.Errorf("towards absence from %q: %s, want %s", status, got, want.gone)
		}
	}
}

// TestNextStepByTheAttachmentsAPI: the step differs only in the states that an
// attachment leads to.
func TestNextStepByTheAttachmentsAPI(t *testing.T) {
	differs := map[cinder.Status]struct{ connected, gone Step }{
		"available": {Attach, Delete},
		"reserved":  {Attach, DetachAll},
		"attaching": {Attach, DetachAll},
		"in-use":    {Attach, DetachAll},
		"detaching": {Blocked, DetachAll},
	}
	for status, want := range everyStatus {
		if other, ok := differs[status]; ok {
			want = other
		}
		v := cinder.Volume{ID: "v1", Status: status}
		if got := StepToConnect(v, cinder.WorkflowAttachment); got != want.connected {
			t.Errorf("towards a connection from %q: %s, want %s", status, got, want.connected)
		}
		if got := StepToDelete(v, cinder.WorkflowAttachment); got != want.gone {
			t.Errorf("towards absence from %q: %s, want %s", status, got, want.gone)
		}
	}
}

// TestNextStepOfAVolumeForTheCSIDriver: nothing is left to do once the volume exists,
// whoever has it.
func TestNextStepOfAVolumeForTheCSIDriver(t *testing.T) {
	if got := StepToAttachable(cinder.Volume{}); got != Create {
		t.Errorf("from absence: %s, want %s", got, Create)
	}
	made := map[cinder.Status]bool{"available": true, "reserved": true, "attaching": true, "in-use": true, "detaching": true}
	for status, native := range everyStatus {
		want := native.connected
		if made[status] {
			want = None
		}
		if got := StepToAttachable(cinder.Volume{ID: "v1", Status: status}); got != want {
			t.Errorf("from %q: %s, want %s", status, got, want)
		}
	}
}
