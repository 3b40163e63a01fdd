package cinder

import (
	"net/http"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestClockIsCinders sets Cinder's clock an hour ahead.
func TestClockIsCinders(t *testing.T) {
	at := time.Now().Add(time.Hour)
	cloud := cindertest.NewCloud(t)
	cloud.Cinder = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", at.UTC().Format(http.TimeFormat))
		cindertest.Answer(w, http.StatusOK, `{"volumes": []}`)
	}
	client := logIn(t, cloud)
	if err := client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if off := client.Now().Sub(at).Abs(); off > time.Minute {
		t.Errorf("the client's clock is %s from Cinder's", off)
	}
}
