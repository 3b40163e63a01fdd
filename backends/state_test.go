package backends

import (
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// everyStatus is the list in cinder/objects/fields.py, VolumeStatus, and the
// older states that Cinder's code still sets, with the next step towards a
// connection and towards the volume's absence.
var everyStatus = map[cinder.Status]struct{ connected, gone step }{
	"":                        {stepBlocked, stepBlocked},
	"unreadable":              {stepBlocked, stepBlocked},
	"creating":                {stepAwaitCreated, stepAwaitCreated},
	"downloading":             {stepAwaitCreated, stepAwaitCreated},
	"available":               {stepReserve, stepDelete},
	"attaching":               {stepConnect, stepRelease},
	"in-use":                  {stepConnect, stepDisconnect},
	"reserved":                {stepBlocked, stepRelease},
	"detaching":               {stepBlocked, stepDisconnect},
	"deleting":                {stepAwaitGone, stepAwaitGone},
	"error":                   {stepDiscard, stepDelete},
	"error_deleting":          {stepDiscard, stepForceDelete},
	"error_extending":         {stepBlocked, stepDelete},
	"error_restoring":         {stepBlocked, stepDelete},
	"error_managing":          {stepBlocked, stepDelete},
	"error_backing-up":        {stepBlocked, stepDelete},
	"managing":                {stepBlocked, stepBlocked},
	"error_managing_deleting": {stepBlocked, stepBlocked},
	"maintenance":             {stepBlocked, stepBlocked},
	"restoring-backup":        {stepBlocked, stepBlocked},
	"backing-up":              {stepBlocked, stepBlocked},
	"extending":               {stepBlocked, stepBlocked},
	"retyping":                {stepBlocked, stepBlocked},
	"uploading":               {stepBlocked, stepBlocked},
	"awaiting-transfer":       {stepBlocked, stepBlocked},
	"a later Cinder's":        {stepBlocked, stepBlocked},
}

func TestNextStepFromAbsence(t *testing.T) {
	if got := towardsConnected(cinder.Volume{}); got != stepCreate {
		t.Errorf("towards a connection: %s, want %s", got, stepCreate)
	}
	if got := towardsGone(cinder.Volume{}); got != stepNone {
		t.Errorf("towards absence: %s, want %s", got, stepNone)
	}
}

func TestNextStepForEveryStatus(t *testing.T) {
	for status, want := range everyStatus {
		v := cinder.Volume{ID: "v1", Status: status}
		if got := towardsConnected(v); got != want.connected {
			t.Errorf("towards a connection from %q: %s, want %s", status, got, want.connected)
		}
		if got := towardsGone(v); got != want.gone {
			t.Errorf("towards absence from %q: %s, want %s", status, got, want.gone)
		}
	}
}

// TestNextStepByTheAttachmentsAPI: it differs only in the states that an
// attachment leads to.
func TestNextStepByTheAttachmentsAPI(t *testing.T) {
	differs := map[cinder.Status]struct{ connected, gone step }{
		"available": {stepAttach, stepDelete},
		"reserved":  {stepAttach, stepDetachAll},
		"attaching": {stepAttach, stepDetachAll},
		"in-use":    {stepAttach, stepDetachAll},
		"detaching": {stepBlocked, stepDetachAll},
	}
	for status, want := range everyStatus {
		if other, ok := differs[status]; ok {
			want = other
		}
		v := cinder.Volume{ID: "v1", Status: status, Metadata: map[string]string{stampWorkflow: "attachment"}}
		if got := towardsConnected(v); got != want.connected {
			t.Errorf("towards a connection from %q: %s, want %s", status, got, want.connected)
		}
		if got := towardsGone(v); got != want.gone {
			t.Errorf("towards absence from %q: %s, want %s", status, got, want.gone)
		}
	}
}
