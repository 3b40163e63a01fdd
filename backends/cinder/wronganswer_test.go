package cinder

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestListingThatDoesNotTellWhoseAVolumeIsProvesNothing: the odd volume may be the
// one whose absence a caller wants proven.
func TestListingThatDoesNotTellWhoseAVolumeIsProvesNothing(t *testing.T) {
	for name, odd := range map[string]string{
		"no metadata":                    `"id": "v1"`,
		"metadata null":                  `"id": "v1", "metadata": null`,
		"metadata a list":                `"id": "v1", "metadata": [1]`,
		"a number in metadata of ours":   `"id": "v1", "metadata": {"ours/uid": 7}`,
		"an id that cannot be requested": `"id": "../limits", "metadata": {}`,
	} {
		cloud := cindertest.NewCloud(t)
		client := logIn(t, cloud)
		cloud.Set(func() { cloud.Cinder = fixed(http.StatusOK, `{"volumes": [{"status": "available", `+odd+`}]}`) })
		query := Query{Keep: func(key string) bool { return strings.HasPrefix(key, "ours/") }}
		if err := client.ListVolumes(t.Context(), query, func([]Volume) bool { return true }); !IsKind(err, KindInternal) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAnswerAboutSomethingElseIsAnError: the program would use, connect or delete
// what the answer names.
func TestAnswerAboutSomethingElseIsAnError(t *testing.T) {
	const volume = `{"volume": {"id": %q, "name": %q, "status": "creating", "metadata": {"uid": %q}}}`
	const attachment = `{"attachment": {"id": %q, "volume_id": %q, "status": "attaching", "connection_info": {"driver_volume_type": "iscsi"}}}`
	create := func(ctx context.Context, c *Client) error {
		_, err := c.CreateVolume(ctx, NewVolume{Name: "pvc-1", SizeGiB: 1, Metadata: map[string]string{"uid": "u1"}})
		return err
	}
	get := func(ctx context.Context, c *Client) error {
		_, err := c.Volume(ctx, "v1")
		return err
	}
	attach := func(ctx context.Context, c *Client) error {
		_, _, err := c.CreateAttachment(ctx, "v1", Connector{}, false)
		return err
	}
	document := func(ctx context.Context, c *Client) error {
		_, err := c.AttachmentDocument(ctx, "a1")
		return err
	}
	list := func(ctx context.Context, c *Client) error {
		_, err := c.Attachments(ctx, "v1")
		return err
	}
	for name, test := range map[string]struct {
		call    func(ctx context.Context, c *Client) error
		status  int
		answer  string
		refused bool
	}{
		"the new volume":                       {create, 202, fmt.Sprintf(volume, "v1", "pvc-1", "u1"), false},
		"a new volume of another name":         {create, 202, fmt.Sprintf(volume, "v1", "pvc-2", "u1"), true},
		"a new volume of another claim":        {create, 202, fmt.Sprintf(volume, "v1", "pvc-1", "u2"), true},
		"a new volume without a usable id":     {create, 202, fmt.Sprintf(volume, "../v1", "pvc-1", "u1"), true},
		"the volume":                           {get, 200, fmt.Sprintf(volume, "v1", "pvc-1", "u1"), false},
		"another volume":                       {get, 200, fmt.Sprintf(volume, "v2", "pvc-1", "u1"), true},
		"the new attachment":                   {attach, 200, fmt.Sprintf(attachment, "a1", "v1"), false},
		"a new attachment of another volume":   {attach, 200, fmt.Sprintf(attachment, "a1", "v2"), true},
		"a new attachment without a usable id": {attach, 200, fmt.Sprintf(attachment, "a/1", "v1"), true},
		"the attachment":                       {document, 200, fmt.Sprintf(attachment, "a1", "v1"), false},
		"another attachment":                   {document, 200, fmt.Sprintf(attachment, "a2", "v1"), true},
		"attachments":                          {list, 200, `{"attachments": [{"id": "a1", "volume_id": "v1", "status": "attached"}]}`, false},
		"an attachment without a status":       {list, 200, `{"attachments": [{"id": "a1", "volume_id": "v1"}]}`, true},
		"an attachment without an id":          {list, 200, `{"attachments": [{"volume_id": "v1", "status": "attached"}]}`, true},
	} {
		cloud := cindertest.NewCloud(t)
		client := logIn(t, cloud)
		cloud.Set(func() { cloud.Cinder = fixed(test.status, test.answer) })
		err := test.call(t.Context(), client)
		if test.refused != IsKind(err, KindInternal) || !test.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if changes := test.status == 202 || strings.Contains(name, "new attachment"); test.refused && changes && !effectUnknown(err) {
			t.Errorf("%s: the effect counts as known: %v", name, err)
		}
	}
}

// TestVersionsWithoutVersionThreeAreAskedForAgain: if it were remembered, one
// broken answer would decide how volumes are connected for as long as the client
// lives.
func TestVersionsWithoutVersionThreeAreAskedForAgain(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	client := logIn(t, cloud)
	cloud.Set(func() { cloud.Cinder = fixed(http.StatusOK, `{"versions": []}`) })
	if _, err := client.MaxMicroversion(t.Context()); !IsKind(err, KindInternal) {
		t.Errorf("an empty list: %v", err)
	}
	client.mu.Lock()
	client.microversion.at = time.Now().Add(-failedDiscoveryAge)
	client.mu.Unlock()
	cloud.Set(func() { cloud.Cinder = fixed(http.StatusOK, `{"versions": [{"id": "v3.0", "version": "3.70"}]}`) })
	newest, err := client.MaxMicroversion(t.Context())
	if newest != 70 || err != nil {
		t.Errorf("after it: %d, %v", newest, err)
	}
}

// TestOneWrongDateDoesNotMoveTheClock: a volume that is stamped with a wrong time
// looks like a restored backup and is never removed.
func TestOneWrongDateDoesNotMoveTheClock(t *testing.T) {
	ahead := time.Duration(0)
	cloud := cindertest.NewCloud(t)
	client := logIn(t, cloud)
	cloud.Set(func() {
		cloud.Cinder = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
			cindertest.Answer(w, http.StatusOK, `{"volumes": []}`)
		}
	})
	for _, ahead = range []time.Duration{0, 0, 0, -20 * time.Hour, 20 * time.Hour} {
		if err := client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return true }); err != nil {
			t.Fatal(err)
		}
		if off := time.Until(client.Now()).Abs(); off > time.Minute {
			t.Errorf("after a Date header of %s the clock is off by %s", ahead, off)
		}
	}
}

// TestTokenWithoutAProjectIsRefused: volumes would seem to be at another place.
func TestTokenWithoutAProjectIsRefused(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	cloud.Keystone = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Subject-Token", "token-1")
		cindertest.Answer(w, http.StatusCreated, `{"token": {"catalog": [`+
			`{"type": "volumev3", "endpoints": [{"interface": "public", "region": "RegionOne", "url": "`+cloud.URL+`/volume/v3/0123"}]}]}}`)
	}
	_, err := logInFrom(t, cloud.Clouds(cindertest.PasswordCloud), auth.Config{Source: auth.Source{Cloud: "gold"}})
	if !IsKind(err, KindConfig) {
		t.Errorf("got %v", err)
	}
}

// TestMetadataIsReadTheSameHoweverLongItIs: a volume's usual metadata is read at once,
// and longer one key by key.
func TestMetadataIsReadTheSameHoweverLongItIs(t *testing.T) {
	ours := func(key string) bool { return strings.HasPrefix(key, "ours/") }
	for name, c := range map[string]struct {
		part string
		keep func(string) bool
		want map[string]string // nil means that it cannot be read
	}{
		"nothing":                       {``, nil, nil},
		"null":                          {`null`, nil, nil},
		"a list":                        {`["x"]`, nil, nil},
		"a text":                        {`"x"`, nil, nil},
		"none":                          {`{PAD}`, nil, map[string]string{}},
		"all":                           {`{"a":"1","ours/b":"2"PAD2}`, nil, map[string]string{"a": "1", "ours/b": "2"}},
		"ours":                          {`{"a":"1","ours/b":"2"PAD2}`, ours, map[string]string{"ours/b": "2"}},
		"escapes":                       {`{"ours/\u0062":"\"\u00e9\n"PAD2}`, ours, map[string]string{"ours/b": "\"é\n"}},
		"null is an empty text":         {`{"ours/b":null PAD2}`, ours, map[string]string{"ours/b": ""}},
		"the last of one key counts":    {`{"ours/b":"1","ours/b":"2"PAD2}`, ours, map[string]string{"ours/b": "2"}},
		"a number of ours":              {`{"ours/b":2 PAD2}`, ours, nil},
		"a number of others":            {`{"a":2,"ours/b":"2"PAD2}`, ours, map[string]string{"ours/b": "2"}},
		"an object of others":           {`{"a":{"ours/c":"3"},"ours/b":"2"PAD2}`, ours, map[string]string{"ours/b": "2"}},
		"a number where all are wanted": {`{"a":2 PAD2}`, nil, map[string]string{"a": ""}},
	} {
		blanks := strings.Repeat(" ", 16<<10)
		for _, padding := range []string{"", blanks} {
			part := strings.NewReplacer("PAD2", padding, "PAD", padding).Replace(c.part)
			got, err := readMetadata(json.RawMessage(part), c.keep)
			if (err != nil) != (c.want == nil) || err == nil && !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s, %d bytes: %v, %v; want %v", name, len(part), got, err, c.want)
			}
		}
	}
}
