package controller

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

func TestSnapshotRequests(t *testing.T) {
	for name, test := range map[string]struct {
		volume, name string
		err          error
		asked        string
		code         codes.Code
		message      string
	}{
		"a snapshot":                 {volume: "gold/v1", name: "snapshot-u1", asked: "snapshot gold/v1 as snapshot-u1, parameters map[]"},
		"no volume":                  {name: "snapshot-u1", code: codes.InvalidArgument, message: "the request has no source_volume_id"},
		"no name":                    {volume: "gold/v1", code: codes.InvalidArgument, message: "the request has no name"},
		"a volume of another driver": {volume: "vol-1", name: "snapshot-u1", code: codes.NotFound, message: `handle "vol-1" is not <backend>/<ID at Cinder>`},
		"a full quota": {volume: "gold/v1", name: "snapshot-u1", err: &Failure{Kind: NoRoom, Message: "full"}, asked: "snapshot gold/v1 as snapshot-u1, parameters map[]",
			code: codes.ResourceExhausted, message: "full"},
		"another source": {volume: "gold/v1", name: "snapshot-u1", err: &Failure{Kind: AlreadyExists, Message: "of another"}, asked: "snapshot gold/v1 as snapshot-u1, parameters map[]",
			code: codes.AlreadyExists, message: "of another"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{err: test.err}
			response, err := newServer(e).CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{SourceVolumeId: test.volume, Name: test.name})
			check(t, err, test.code, test.message)
			if asked := strings.Join(e.asked, "; "); asked != test.asked {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
			if s := response.GetSnapshot(); err == nil && (s.GetSnapshotId() != "gold/s1" || s.GetSourceVolumeId() != "gold/v1" || s.GetSizeBytes() != 2<<30 || !s.GetReadyToUse() || s.GetCreationTime().GetSeconds() != 1000) {
				t.Errorf("answered %v", response)
			}
		})
	}
}

func TestSnapshotDeletionRequests(t *testing.T) {
	for name, test := range map[string]struct {
		snapshot string
		err      error
		asked    string
		code     codes.Code
		message  string
	}{
		"a snapshot":                   {snapshot: "gold/s1", asked: "remove snapshot gold/s1"},
		"no snapshot":                  {code: codes.InvalidArgument, message: "the request has no snapshot_id"},
		"a snapshot of another driver": {snapshot: "snap-1"},
		"volumes depend on it": {snapshot: "gold/s1", err: &Failure{Kind: "InUse", Message: "volumes depend on it"}, asked: "remove snapshot gold/s1",
			code: codes.FailedPrecondition, message: "volumes depend on it"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{err: test.err}
			_, err := newServer(e).DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: test.snapshot})
			check(t, err, test.code, test.message)
			if asked := strings.Join(e.asked, "; "); asked != test.asked {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
		})
	}
}

func snapshotAs(id string) Snapshot {
	return Snapshot{Handle: wire.Handle{Backend: "gold", ID: id}, Volume: wire.Handle{Backend: "gold", ID: "v1"}}
}

func TestSnapshotsAreListedInPages(t *testing.T) {
	all := []Snapshot{snapshotAs("s3"), snapshotAs("s1"), snapshotAs("s2")}
	for name, test := range map[string]struct {
		request *csi.ListSnapshotsRequest
		err     error
		listed  string
		next    string
		asked   string
		code    codes.Code
		message string
	}{
		"all":                          {request: &csi.ListSnapshotsRequest{}, listed: "gold/s1 gold/s2 gold/s3", asked: "list snapshots of {/ / false}"},
		"a page":                       {request: &csi.ListSnapshotsRequest{MaxEntries: 2}, listed: "gold/s1 gold/s2", next: "term:gold/s2", asked: "list snapshots of {/ / false}"},
		"the last page":                {request: &csi.ListSnapshotsRequest{MaxEntries: 2, StartingToken: "term:gold/s2"}, listed: "gold/s3", asked: "list snapshots of {/ / true}"},
		"a page of just all":           {request: &csi.ListSnapshotsRequest{MaxEntries: 3}, listed: "gold/s1 gold/s2 gold/s3", asked: "list snapshots of {/ / false}"},
		"one":                          {request: &csi.ListSnapshotsRequest{SnapshotId: "gold/s1"}, listed: "gold/s1 gold/s2 gold/s3", asked: "list snapshots of {gold/s1 / false}"},
		"of a volume":                  {request: &csi.ListSnapshotsRequest{SourceVolumeId: "gold/v1"}, listed: "gold/s1 gold/s2 gold/s3", asked: "list snapshots of {/ gold/v1 false}"},
		"a snapshot of another driver": {request: &csi.ListSnapshotsRequest{SnapshotId: "snap-1"}},
		"a volume of another driver":   {request: &csi.ListSnapshotsRequest{SourceVolumeId: "vol-1"}},
		"a token of another driver":    {request: &csi.ListSnapshotsRequest{StartingToken: "7"}, code: codes.Aborted, message: `starting_token "7" is not from this leader; list from the beginning`},
		"a negative page":              {request: &csi.ListSnapshotsRequest{MaxEntries: -1}, code: codes.InvalidArgument, message: "max_entries is negative"},
		"no complete listing": {request: &csi.ListSnapshotsRequest{}, err: &Failure{Kind: "Unavailable", Message: "silent"}, asked: "list snapshots of {/ / false}",
			code: codes.Unavailable, message: "silent"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{err: test.err, snapshots: all}
			s := newServer(e)
			s.term = "term"
			response, err := s.ListSnapshots(t.Context(), test.request)
			check(t, err, test.code, test.message)
			var listed []string
			for _, entry := range response.GetEntries() {
				listed = append(listed, entry.GetSnapshot().GetSnapshotId())
			}
			if got := strings.Join(listed, " "); got != test.listed || response.GetNextToken() != test.next {
				t.Errorf("listed %q, next %q; want %q, %q", got, response.GetNextToken(), test.listed, test.next)
			}
			if asked := strings.Join(e.asked, "; "); asked != test.asked {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
		})
	}
}

// TestSnapshotsOfTrustedCallers: they are made and removed like those callers' volumes.
// The Snapshotter handles all others.
func TestSnapshotsOfTrustedCallers(t *testing.T) {
	m := &maker{}
	s := making(m)
	e := &engine{}
	s.Snapshots = e
	taken, err := s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{SourceVolumeId: "gold/v1", Name: "any name", Parameters: map[string]string{"trusted": "yes"}})
	check(t, err, codes.OK, "")
	if m.taken != "any name of gold/v1" || taken.GetSnapshot().GetSnapshotId() != "gold/s1" || !taken.GetSnapshot().GetReadyToUse() {
		t.Errorf("took %q, answered %v", m.taken, taken)
	}
	_, err = s.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "gold/trusted"})
	check(t, err, codes.OK, "")
	if len(e.asked) > 0 {
		t.Errorf("the engine was asked %q", e.asked)
	}
	m.err = &Failure{Kind: NoRoom, Message: "full"}
	_, err = s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{SourceVolumeId: "gold/v1", Name: "any name", Parameters: map[string]string{"trusted": "yes"}})
	check(t, err, codes.ResourceExhausted, "full")
	m.err = &Failure{Kind: "Conflict", Message: "later"}
	_, err = s.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "gold/s1"})
	check(t, err, codes.Aborted, "later")
}
