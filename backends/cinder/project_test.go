package cinder

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/catalog"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

func TestQuotaOfTheProject(t *testing.T) {
	const real = `{"limits": {"rate": [], "absolute": {"maxTotalVolumes": 9, "maxTotalSnapshots": 1, "maxTotalVolumeGigabytes": -1, "totalVolumesUsed": 1, "totalGigabytesUsed": 2, "totalSnapshotsUsed": 1}}}`
	tests := map[string]struct {
		answer string
		want   ProjectQuota
		err    string
	}{
		"as recorded":         {real, ProjectQuota{MaxVolumes: 9, MaxGigabytes: -1, Volumes: 1, Gigabytes: 2}, ""},
		"no use":              {strings.Replace(real, `"totalVolumesUsed": 1, `, "", 1), ProjectQuota{}, notDescribed},
		"null":                {strings.Replace(real, `"maxTotalVolumes": 9`, `"maxTotalVolumes": null`, 1), ProjectQuota{}, notDescribed},
		"a fraction":          {strings.Replace(real, `"maxTotalVolumes": 9`, `"maxTotalVolumes": 9.5`, 1), ProjectQuota{}, notDescribed},
		"more than a number":  {strings.Replace(real, `"maxTotalVolumes": 9`, `"maxTotalVolumes": 99999999999999999999`, 1), ProjectQuota{}, notDescribed},
		"a list":              {`{"limits": []}`, ProjectQuota{}, notDescribed},
		"something different": {`{"volumes": []}`, ProjectQuota{}, notDescribed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			client := logIn(t, cloud)
			cloud.Set(func() { cloud.Cinder = fixed(http.StatusOK, test.answer) })
			got, err := client.Quota(t.Context())
			if test.err != "" {
				if !IsKind(err, KindInternal) || !strings.Contains(err.Error(), "limits.get: "+test.err) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			equal(t, got, test.want)
		})
	}
}

func TestZones(t *testing.T) {
	for answer, want := range map[string][]Zone{
		`{"availabilityZoneInfo": [{"zoneName": "nova", "zoneState": {"available": true}}, {"zoneName": "b", "zoneState": {"available": false}}]}`: {{"nova", true}, {"b", false}},
		`{"availabilityZoneInfo": []}`:                                     nil,
		`{"availabilityZoneInfo": [{"zoneName": 7}]}`:                      nil,
		`{"availabilityZoneInfo": [{"zoneState": {"available": true}}]}`:   nil,
		`{"availabilityZoneInfo": [{"zoneName": "a", "zoneState": "up"}]}`: nil,
		`{"availabilityZoneInfo": {"zoneName": "a"}}`:                      nil,
		`{}`: nil,
	} {
		cloud := cindertest.NewCloud(t)
		client := logIn(t, cloud)
		cloud.Set(func() { cloud.Cinder = fixed(http.StatusOK, answer) })
		got, err := client.Zones(t.Context())
		if failed := want == nil && !strings.HasSuffix(answer, "[]}"); failed != IsKind(err, KindInternal) || failed != (err != nil) {
			t.Errorf("%s: %v", answer, err)
		}
		if want != nil {
			equal(t, got, want)
		}
	}
}

func TestDefaultVolumeType(t *testing.T) {
	for _, test := range []struct {
		status int
		answer string
		want   VolumeType
		kind   Kind
	}{
		{http.StatusOK, `{"volume_type": {"id": "t1", "name": "__DEFAULT__", "extra_specs": {}}}`, VolumeType{"t1", "__DEFAULT__"}, ""},
		{http.StatusNotFound, `{"itemNotFound": {"code": 404, "message": "Default volume type can not be found."}}`, VolumeType{}, KindNotFound},
		{http.StatusOK, `{"volume_type": {"name": "x"}}`, VolumeType{}, KindInternal},
		{http.StatusOK, `{"volume_type": {"id": 7}}`, VolumeType{}, KindInternal},
	} {
		cloud := cindertest.NewCloud(t)
		client := logIn(t, cloud)
		cloud.Set(func() { cloud.Cinder = fixed(test.status, test.answer) })
		got, err := client.DefaultVolumeType(t.Context())
		equal(t, got, test.want)
		equal(t, KindOf(err), test.kind)
		got, err = client.VolumeType(t.Context(), "t1")
		equal(t, got, test.want)
		equal(t, KindOf(err), test.kind)
		_, err = client.VolumeType(t.Context(), "t2")
		equal(t, err != nil, true)
		_, err = client.VolumeType(t.Context(), "../t1")
		equal(t, KindOf(err), KindInvalid)
	}
}

// TestVolumeTypesOfManyPages serves types in pages, and the way servers do that
// ignore the page or never end.
func TestVolumeTypesOfManyPages(t *testing.T) {
	const all = 1234
	serve := func(from, to int) string {
		var types []string
		for i := from; i < to; i++ {
			types = append(types, fmt.Sprintf(`{"id": "t%d", "name": "type %d", "extra_specs": {"a": "b"}}`, i, i))
		}
		return `{"volume_types": [` + strings.Join(types, ",") + `]}`
	}
	after := func(r *http.Request) int {
		n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Query().Get("marker"), "t"))
		if err != nil {
			return 0
		}
		return n + 1
	}
	tests := map[string]struct {
		answer func(r *http.Request) string
		want   int
		err    string
	}{
		"pages of 1,000 at most": {func(r *http.Request) string {
			limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
			return serve(after(r), min(all, after(r)+min(limit, 1000)))
		}, all, ""},
		"all at once":    {func(*http.Request) string { return serve(0, all) }, all, ""},
		"none":           {func(*http.Request) string { return serve(0, 0) }, 0, ""},
		"never an end":   {func(r *http.Request) string { return serve(after(r), after(r)+1) }, 0, "the list of volume types does not end"},
		"far too many":   {func(r *http.Request) string { return serve(after(r), after(r)+2000) }, 0, notDescribed},
		"one without id": {func(*http.Request) string { return `{"volume_types": [{"name": "a"}]}` }, 0, notDescribed},
		"no list":        {func(*http.Request) string { return `{"volume_types": null}` }, 0, notDescribed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			client := logIn(t, cloud)
			cloud.Set(func() {
				cloud.Cinder = func(w http.ResponseWriter, r *http.Request) { cindertest.Answer(w, http.StatusOK, test.answer(r)) }
			})
			got, err := client.VolumeTypes(t.Context())
			if test.err != "" {
				if !IsKind(err, KindInternal) || !strings.Contains(err.Error(), "type.list: "+test.err) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || len(got) != test.want {
				t.Fatalf("%d types, %v", len(got), err)
			}
			if test.want > 0 && !slices.Contains(got, VolumeType{"t1233", "type 1233"}) {
				t.Error("the last type is missing")
			}
			if first := cloud.Paths()[0]; !strings.Contains(first, "is_public=None") {
				t.Errorf("%s does not ask for private types", first)
			}
		})
	}
}

// TestWhereAClientLeads compares both kinds of login.
func TestWhereAClientLeads(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	cloud.Set(func() {
		cloud.Catalog = []any{cindertest.Entry("volumev3", "RegionOne", strings.Replace(cloud.URL, "://", "://admin:hidden@", 1)+"/volume/v3/abc")}
	})
	client := logIn(t, cloud)
	equal(t, client.CatalogEntry(), catalog.Entry{Region: "RegionOne", Interface: "public"})
	equal(t, client.Address(), cloud.URL+"/volume/v3/abc/")

	cloud = cindertest.NewCloud(t)
	client, err := logInNoauth(t, auth.Noauth{Endpoint: cloud.URL + "/v3", Project: "abc"})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, client.CatalogEntry(), catalog.Entry{})
	equal(t, client.Address(), cloud.URL+"/v3/abc/")
}

// TestClockAhead: an implausible date is not used as a clock, and yet a check
// must show it.
func TestClockAhead(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 72 * time.Hour} {
		cloud := cindertest.NewCloud(t)
		client := logIn(t, cloud)
		if _, known := client.ClockAhead(); known {
			t.Error("a login alone tells a clock")
		}
		cloud.Set(func() {
			cloud.Cinder = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
				cindertest.Answer(w, http.StatusOK, `{"volumes": []}`)
			}
		})
		if err := client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return true }); err != nil {
			t.Fatal(err)
		}
		if got, known := client.ClockAhead(); !known || (got-ahead).Abs() > time.Minute {
			t.Errorf("%s, %t, want %s", got, known, ahead)
		}
	}
}

func TestReadingEndsWithTheContext(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	client := logIn(t, cloud)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{
		func() error { _, err := client.VolumeTypes(ctx); return err }(),
		func() error { _, err := client.Zones(ctx); return err }(),
		func() error { _, err := client.Quota(ctx); return err }(),
	} {
		if KindOf(err) != KindUnavailable {
			t.Errorf("%v", err)
		}
	}
}
