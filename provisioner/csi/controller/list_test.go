package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

func (e *engine) List(ctx context.Context, fresh bool) ([]Listed, error) {
	return slices.Clone(e.listed), e.work(ctx, fmt.Sprintf("list, fresh %t", fresh))
}

func (e *engine) Listed(ctx context.Context, volume wire.Handle) (Listed, error) {
	err := e.work(ctx, "look at "+volume.String())
	for _, v := range e.listed {
		if v.Volume == volume {
			return v, err
		}
	}
	return Listed{}, &Failure{Kind: "NotFound", Message: "no " + volume.String()}
}

func listedAs(id string, nodes ...string) Listed {
	backend, volume, _ := strings.Cut(id, "/")
	return Listed{Volume: wire.Handle{Backend: backend, ID: volume}, Bytes: 1 << 30, NodeIDs: nodes}
}

// TestListsAreReadInPages: a token stays valid while volumes come and go, including the
// last one of its page. Only the first page requests a new list.
func TestListsAreReadInPages(t *testing.T) {
	e := &engine{listed: []Listed{listedAs("gold/c"), listedAs("gold/a", "v1 n1"), listedAs("slow/b"), listedAs("gold/e")}}
	s := newServer(e)
	var pages []string
	page := func(token string) string {
		t.Helper()
		response, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		check(t, err, codes.OK, "")
		var shown []string
		for _, entry := range response.GetEntries() {
			shown = append(shown, entry.GetVolume().GetVolumeId()+fmt.Sprint(entry.GetStatus().GetPublishedNodeIds()))
		}
		pages = append(pages, strings.Join(shown, " "))
		return response.GetNextToken()
	}
	token := page("")
	e.listed = []Listed{listedAs("slow/b"), listedAs("gold/b"), listedAs("gold/d"), listedAs("gold/e")}
	if token = page(token); page(token) != "" {
		t.Error("there is a page after the last")
	}
	if want := []string{"gold/a[v1 n1] gold/c[]", "gold/d[] gold/e[]", "slow/b[]"}; !slices.Equal(pages, want) {
		t.Errorf("pages %q, want %q", pages, want)
	}
	if want := []string{"list, fresh true", "list, fresh false", "list, fresh false"}; !slices.Equal(e.asked, want) {
		t.Errorf("asked %q, want %q", e.asked, want)
	}
}

// TestAListOfManyVolumesFitsIntoAnswers: gRPC clients take 4 MiB at most, and
// external-attacher asks for no limit.
func TestAListOfManyVolumesFitsIntoAnswers(t *testing.T) {
	const many = 20_000
	e := &engine{}
	node := "v1 " + strings.Repeat("n", 200) + " i=iqn.2026-01.example:node"
	for i := range many {
		volume := listedAs(fmt.Sprintf("gold/%036d", i))
		volume.NodeIDs = []string{node}
		e.listed = append(e.listed, volume)
		e.snapshots = append(e.snapshots, snapshotAs(fmt.Sprintf("%036d", i)))
	}
	s := newServer(e)
	volumes, snapshots := 0, 0
	for token := ""; ; {
		response, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: token, MaxEntries: 5000})
		check(t, err, codes.OK, "")
		if size := proto.Size(response); size > 4<<20 {
			t.Fatalf("an answer has %d bytes", size)
		}
		volumes += len(response.GetEntries())
		if token = response.GetNextToken(); token == "" {
			break
		}
	}
	for token := ""; ; {
		response, err := s.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: token})
		check(t, err, codes.OK, "")
		if size := proto.Size(response); size > 4<<20 {
			t.Fatalf("an answer has %d bytes", size)
		}
		snapshots += len(response.GetEntries())
		if token = response.GetNextToken(); token == "" {
			break
		}
	}
	if volumes != many || snapshots != many {
		t.Errorf("listed %d volumes and %d snapshots", volumes, snapshots)
	}
}

// TestAnotherLeaderContinuesNoList: its own list may be older than the first page.
func TestAnotherLeaderContinuesNoList(t *testing.T) {
	former, e := newServer(&engine{listed: []Listed{listedAs("gold/a"), listedAs("gold/b")}, snapshots: []Snapshot{snapshotAs("s1"), snapshotAs("s2")}}), &engine{}
	volumes, err := former.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 1})
	check(t, err, codes.OK, "")
	_, err = newServer(e).ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: volumes.GetNextToken()})
	check(t, err, codes.Aborted, fmt.Sprintf("starting_token %q is not from this leader; list from the beginning", former.term+":gold/a"))
	snapshots, err := former.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{MaxEntries: 1})
	check(t, err, codes.OK, "")
	_, err = newServer(e).ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: snapshots.GetNextToken()})
	check(t, err, codes.Aborted, fmt.Sprintf("starting_token %q is not from this leader; list from the beginning", former.term+":gold/s1"))
	if len(e.asked) > 0 {
		t.Errorf("asked %q", e.asked)
	}
}

func TestListRequests(t *testing.T) {
	for name, test := range map[string]struct {
		request *csi.ListVolumesRequest
		err     error
		code    codes.Code
		message string
	}{
		"everything":      {request: &csi.ListVolumesRequest{}},
		"another's token": {request: &csi.ListVolumesRequest{StartingToken: "17"}, code: codes.Aborted, message: `starting_token "17" is not from this leader; list from the beginning`},
		"fewer than none": {request: &csi.ListVolumesRequest{MaxEntries: -1}, code: codes.InvalidArgument, message: "max_entries is negative"},
		"incomplete":      {request: &csi.ListVolumesRequest{}, err: &Failure{Kind: "Unavailable", Message: "a part is missing"}, code: codes.Unavailable, message: "a part is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newServer(&engine{err: test.err}).ListVolumes(t.Context(), test.request)
			check(t, err, test.code, test.message)
		})
	}
}

func TestGetVolume(t *testing.T) {
	s := newServer(&engine{listed: []Listed{listedAs("gold/a", "v1 n1")}})
	response, err := s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "gold/a"})
	check(t, err, codes.OK, "")
	if v := response.GetVolume(); v.GetVolumeId() != "gold/a" || v.GetCapacityBytes() != 1<<30 || !slices.Equal(response.GetStatus().GetPublishedNodeIds(), []string{"v1 n1"}) {
		t.Errorf("the volume is %v", response)
	}
	_, err = s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{})
	check(t, err, codes.InvalidArgument, "the request has no volume_id")
	_, err = s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "vol-1"})
	check(t, err, codes.NotFound, `handle "vol-1" is not <backend>/<ID at Cinder>`)
	_, err = s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "gold/b"})
	check(t, err, codes.NotFound, "no gold/b")
}
