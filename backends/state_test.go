package backends

import "testing"

// everyStatus is the list of cinder/objects/fields.py, VolumeStatus, and the
// older states that Cinder's code still sets, with the next step towards a
// connection and towards the volume's absence.
var everyStatus = map[Status]struct{ connected, gone step }{
	"":                        {stepCreate, stepNone},
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

func TestNextStepForEveryStatus(t *testing.T) {
	for status, want := range everyStatus {
		if got := towardsConnected(status); got != want.connected {
			t.Errorf("towards a connection from %q: %s, want %s", status, got, want.connected)
		}
		if got := towardsGone(status); got != want.gone {
			t.Errorf("towards absence from %q: %s, want %s", status, got, want.gone)
		}
	}
}
