package evidence

import (
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

func TestJournalLinesSayWhatWentWrong(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	for _, c := range []struct {
		entry cindersim.Entry
		want  string
	}{
		{cindersim.Entry{Number: 1, Time: at, Status: 202, Duration: 12 * time.Millisecond, Performed: true, Done: true,
			Request: cindersim.Request{Endpoint: cindersim.Noauth, Operation: "volume.create", VolumeID: "v1", VolumeName: "pvc-1"}},
			"03:04:05.006 #1 noauth volume.create volume v1 pvc-1 -> 202 after 12ms"},
		{cindersim.Entry{Number: 2, Time: at, Fault: "hang-before", Request: cindersim.Request{Endpoint: cindersim.Cinder, Operation: "volume.get", VolumeID: "v1"}},
			"03:04:05.006 #2 cinder volume.get volume v1  -> 0 after 0s, fault hang-before, without effect, under way"},
	} {
		if got := journalLine(c.entry); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
