package backends

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/history"
)

// memoryCinder simulates Cinder's volumes behind the interface Cinder, with the
// state machine as observed on Cinder 21.3.1 (Zed). The table in
// test/cindercontract holds it to that.
type memoryCinder struct {
	noGroups
	mu      sync.Mutex
	volumes map[string]*memoryVolume
	ids     int
	clock   time.Time
	ahead   time.Duration // of the clock, as Date headers show it
	log     []string      // every call, as "operation id"

	// member makes the account an ordinary one: attachments have no host, and
	// force-delete is forbidden.
	member bool
	// looks is how often a volume must be read before an asynchronous change of
	// its state ends.
	looks int
	// fault decides about every call before it is made.
	fault func(operation, id string) mishap
	// created is the status after a create; the default is available.
	created func(name string) cinder.Status
	// asked is called for every call, without the lock; may be nil.
	asked func(ctx context.Context, operation string)
	// before is called, without the lock, at the beginning of every call.
	before func(operation string)
	// delayed contains effects to come, with the number of calls until then;
	// delay is the number of calls for the next one.
	delayed map[*delayedEffect]int
	delay   func() int
	// workflow says how new volumes are connected.
	workflow cinder.Workflow
	// shared allows several hosts to attach a volume (multiattach).
	shared bool
	// noAttachments takes away the attachments API.
	noAttachments bool
	// open contains attachments of the attachments API, by ID.
	open map[string]*memoryAttachment
	// place is where the volumes are.
	place cinder.Place
	// ignoreFilter answers a filtered list with every volume or snapshot.
	ignoreFilter bool

	snapshots map[string]*memorySnapshot
	backups   map[string]*memoryBackup
	// slowBackups means that neither a backup nor a restore ends.
	slowBackups bool
	// snapshotDeleted is the status after the deletion of a snapshot; empty: gone.
	snapshotDeleted cinder.Status
	// extended is the status after an extension that fails; empty: none fails.
	extended cinder.Status
	// lag is how old the state is that reads show; then changes of it end at once.
	lag     time.Duration
	history *history.History[moment]
	// unchangeable is a type that no volume can get in place, unreachable one that none can
	// be migrated to.
	unchangeable, unreachable string
}

// noGroups is a Cinder too old for groups. groups_test.go has another.
type noGroups struct{ groupRequests }

func (noGroups) ListGroups(context.Context, cinder.Query, func([]cinder.Group) bool) error {
	return &cinder.Error{Backend: "gold", Operation: "group.list", Kind: cinder.KindInvalid, Message: "Cinder is too old"}
}

// memoryClient is a client of a memoryCinder.
type memoryClient struct {
	*memoryCinder
	admission turns.Admission
}

func (m *memoryCinder) client() memoryClient { return memoryClient{memoryCinder: m} }

func (m memoryClient) With(admission turns.Admission) Cinder { return m.with(admission) }

func (m memoryClient) with(admission turns.Admission) memoryClient {
	return memoryClient{m.memoryCinder, admission}
}

// sharedType is a volume type for volumes that several hosts may attach.
const sharedType = "shared"

// failingType is a volume type whose volumes end in error.
const failingType = "fail"

type memoryVolume struct {
	cinder.Volume
	left    int           // reads until the change ends
	end     cinder.Status // status after the change; empty: gone
	growsTo int64         // size after an extension
	becomes string        // type after a retype
	deleted cinder.Status // status after a deletion; empty: gone
	backup  string        // whose content it gets
	number  int           // order of creation
}

type memoryAttachment struct {
	volume, status string
	host           string // of the connector; empty: that of all nodes
	readOnly       bool
	unconnected    bool // without a connection, whatever the status
}

type delayedEffect struct{ effect func() error }

// moment is a state.
type moment struct {
	volumes   map[string]*memoryVolume
	open      map[string]*memoryAttachment
	snapshots map[string]*memorySnapshot
}

// past returns the states that reads show; before the first call, they show the one at
// that time.
func (m *memoryCinder) past() *history.History[moment] {
	if m.history == nil {
		m.history = history.New(m.lag, m.copy)
	}
	return m.history
}

// copy ends all changes of state, and copies the state.
func (m *memoryCinder) copy() moment {
	now := moment{map[string]*memoryVolume{}, map[string]*memoryAttachment{}, map[string]*memorySnapshot{}}
	for id, v := range m.volumes {
		v.left = 0
		if _, there := m.look(v); !there {
			continue
		}
		kept := *v
		kept.Metadata, kept.Attachments = maps.Clone(v.Metadata), slices.Clone(v.Attachments)
		now.volumes[id] = &kept
	}
	for id, a := range m.open {
		kept := *a
		now.open[id] = &kept
	}
	for id, s := range m.snapshots {
		s.left = 0
		if _, there := m.lookAtSnapshot(s); !there {
			continue
		}
		kept := *s
		kept.Metadata = maps.Clone(s.Metadata)
		now.snapshots[id] = &kept
	}
	return now
}

// asBefore makes a read of the state that lagging reads show.
func (m *memoryCinder) asBefore(read func() error) error {
	volumes, open, snapshots := m.volumes, m.open, m.snapshots
	defer func() { m.volumes, m.open, m.snapshots = volumes, open, snapshots }()
	shown := m.past().Before(time.Now())
	m.volumes, m.open, m.snapshots = shown.volumes, shown.open, shown.snapshots
	return read()
}

// deliver applies the delayed effects that are due.
func (m *memoryCinder) deliver(all bool) {
	for d := range m.delayed {
		if m.delayed[d]--; all || m.delayed[d] <= 0 {
			delete(m.delayed, d)
			_ = d.effect()
		}
	}
}

// deliverAll applies all delayed effects.
func (m *memoryCinder) deliverAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deliver(true)
}

// mishap is what happens to one call.
type mishap int

const (
	noFault      mishap = iota
	refused             // 503 before any effect
	lost                // the effect, but no answer
	unsent              // no connection
	rateLimited         // 429
	unauthorized        // 401
	late                // no answer, and the effect some calls later
	twice               // the effect twice, and the second answer
	mishaps
)

func newMemoryCinder() *memoryCinder {
	return &memoryCinder{volumes: map[string]*memoryVolume{}, snapshots: map[string]*memorySnapshot{}, backups: map[string]*memoryBackup{}, delayed: map[*delayedEffect]int{}, workflow: cinder.WorkflowReserve, open: map[string]*memoryAttachment{}, delay: func() int { return 3 }, place: memoryPlace, clock: time.Date(2026, 11, 20, 15, 0, 0, 0, time.UTC), looks: 2}
}

// add adds a volume, with defaults for empty fields.
func (m *memoryCinder) add(v cinder.Volume) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put(v).ID
}

func (m *memoryCinder) put(v cinder.Volume) *memoryVolume {
	m.ids++
	if v.ID == "" {
		v.ID = fmt.Sprintf("volume-%d", m.ids)
	}
	v.SizeGiB = max(v.SizeGiB, 1)
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	if v.CreatedAt.IsZero() {
		// Two per second: Cinder's clock does not distinguish them.
		v.CreatedAt = m.clock.Add(time.Duration(m.ids/2) * time.Second)
	}
	stored := &memoryVolume{Volume: v, number: m.ids}
	switch v.Status {
	case cinder.StatusCreating:
		stored.change(m.looks, cinder.StatusAvailable)
	case cinder.StatusDeleting:
		stored.change(m.looks, "")
	}
	m.volumes[v.ID] = stored
	return stored
}

func (v *memoryVolume) change(looks int, end cinder.Status) { v.left, v.end = looks, end }

// look reads a volume, and brings its asynchronous change one read closer to
// its end.
func (m *memoryCinder) look(v *memoryVolume) (cinder.Volume, bool) {
	if v.Status == cinder.StatusCreating || v.Status == cinder.StatusDeleting || v.Status == cinder.StatusExtending || v.Status == cinder.StatusRetyping && v.becomes != "" {
		if v.left == 0 && v.Status == cinder.StatusRetyping {
			v.Type = v.becomes
		}
		if v.left == 0 && v.Status == cinder.StatusExtending {
			v.SizeGiB = v.growsTo
		}
		if v.left == 0 {
			if v.end == "" {
				delete(m.volumes, v.ID)
				maps.DeleteFunc(m.open, func(_ string, a *memoryAttachment) bool { return a.volume == v.ID })
				return cinder.Volume{}, false
			}
			v.Status = v.end
			m.restore(v)
		} else if v.left--; v.left == 0 {
			m.restore(v)
		}
	}
	shown := v.Volume
	shown.Metadata = maps.Clone(v.Metadata)
	shown.Attachments = slices.Clone(v.Attachments)
	if m.member {
		for i := range shown.Attachments {
			shown.Attachments[i].Host = ""
		}
	}
	return shown, true
}

// onCall makes every call begin with f; nil ends that.
func (m *memoryCinder) onCall(f func(operation string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = f
}

// call makes one call: the effect, unless a fault forbids it.
func (m memoryClient) call(ctx context.Context, operation, id string, effect func() error) error {
	m.mu.Lock()
	before := m.before
	m.mu.Unlock()
	if before != nil {
		before(operation)
	}
	if m.asked != nil {
		m.asked(ctx, operation)
	}
	// The transport does this when the request's turn has come.
	if m.admission.Fence != nil {
		if err := m.admission.Fence(); err != nil {
			return cinder.NotSent("gold", operation, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deliver(false)
	m.log = append(m.log, strings.TrimSpace(operation+" "+id))
	if ctx.Err() != nil {
		return cinder.NotSent("gold", operation, ctx.Err())
	}
	if m.lag > 0 {
		if isRead(operation) {
			return m.asBefore(effect)
		}
		m.past().Settle(time.Now())
		m.past().Change(time.Now())
	}
	what := noFault
	if m.fault != nil {
		what = m.fault(operation, id)
	}
	switch what {
	case refused:
		return &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindUnavailable, Status: 503, EffectUnknown: true, Message: "Cinder answered service unavailable"}
	case unsent:
		return &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindUnavailable, Message: "no connection to cinder: connection refused"}
	case rateLimited:
		return &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindRateLimited, Status: 429, Message: "Cinder asks for fewer requests"}
	case unauthorized:
		return &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindUnauthorized, Status: 401, Message: "the credentials were rejected"}
	case late:
		if !isRead(operation) {
			m.delayed[&delayedEffect{effect}] = m.delay()
		}
		return &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindUnavailable, EffectUnknown: true, Message: "no answer in time", Cause: context.DeadlineExceeded}
	case twice:
		if !isRead(operation) {
			_ = effect()
		}
		return effect()
	case lost:
		_ = effect()
		return &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindUnavailable, EffectUnknown: true, Message: "no answer in time", Cause: context.DeadlineExceeded}
	}
	return effect()
}

func notFound(operation, id string) error {
	return &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindNotFound, Status: 404, Message: "Volume " + id + " could not be found"}
}

func conflict(operation, message string) error {
	return &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindConflict, Status: 400, Message: "Invalid volume: " + message}
}

// action makes a call on a volume that must exist.
func (m memoryClient) action(ctx context.Context, operation, id string, effect func(v *memoryVolume) error) error {
	return m.actionOn(ctx, operation, id, "", effect)
}

func (m memoryClient) actionOn(ctx context.Context, operation, id, attachment string, effect func(v *memoryVolume) error) error {
	return m.call(ctx, operation, strings.TrimSpace(id+" "+attachment), func() error {
		v, ok := m.volumes[id]
		if !ok {
			return notFound(operation, id)
		}
		return effect(v)
	})
}

func (m memoryClient) CreateVolume(ctx context.Context, request cinder.NewVolume) (created cinder.Volume, err error) {
	err = m.call(ctx, strings.TrimSuffix("volume.create of "+request.BackupID, " of "), "", func() error {
		if err := m.copyable(request); err != nil {
			return err
		}
		v := m.put(cinder.Volume{Name: request.Name, Status: cinder.StatusCreating, SizeGiB: request.SizeGiB, Type: request.Type, Zone: request.Zone, Metadata: maps.Clone(request.Metadata), Description: request.Description,
			SourceVolumeID: request.SourceVolumeID, SnapshotID: request.SnapshotID, MultiAttach: request.Type == sharedType})
		if v.backup = request.BackupID; v.backup != "" {
			m.backups[v.backup].Status = cinder.StatusBackupRestoring
			if m.slowBackups {
				v.left = math.MaxInt
			}
		}
		if request.Type == failingType {
			v.end = cinder.StatusError
		}
		if m.created != nil {
			v.end = m.created(request.Name)
		}
		created = v.Volume
		created.Metadata = maps.Clone(v.Metadata)
		return nil
	})
	return created, err
}

// copyable checks the source of a new volume, if it has one.
func (m *memoryCinder) copyable(request cinder.NewVolume) error {
	var size int64
	if id := request.SourceVolumeID; id != "" {
		source, ok := m.volumes[id]
		if !ok {
			return notFound("volume.create", id)
		}
		size = source.SizeGiB
	}
	if id := request.SnapshotID; id != "" {
		source, ok := m.snapshots[id]
		if !ok {
			return snapshotNotFound("volume.create", id)
		}
		size = source.SizeGiB
	}
	if id := request.BackupID; id != "" {
		source, ok := m.backups[id]
		switch {
		case !ok:
			return backupNotFound("volume.create", id)
		case source.Status != cinder.StatusAvailable:
			return conflict("volume.create", "Originating backup status must be one of 'available' values")
		}
		size = source.SizeGiB
	}
	if request.SizeGiB < size {
		return &cinder.Error{Backend: "gold", Operation: "volume.create", Kind: cinder.KindInvalid, Status: 400, Message: "Volume size cannot be smaller than that of its source"}
	}
	return nil
}

func (m memoryClient) Volume(ctx context.Context, id string) (found cinder.Volume, err error) {
	err = m.action(ctx, "volume.get", id, func(v *memoryVolume) error {
		shown, ok := m.look(v)
		if !ok {
			return notFound("volume.get", id)
		}
		found = shown
		return nil
	})
	return found, err
}

func (m memoryClient) ListVolumes(ctx context.Context, query cinder.Query, yield func([]cinder.Volume) bool) error {
	size := query.PageSize
	if size == 0 {
		size = 1000
	}
	marker := int(^uint(0) >> 1)
	for {
		var page []cinder.Volume
		more := false
		err := m.call(ctx, "volume.list", string(query.Status), func() error {
			page, more = nil, false
			newest := slices.SortedFunc(maps.Values(m.volumes), func(a, b *memoryVolume) int { return b.number - a.number })
			for _, v := range newest {
				if v.number >= marker {
					continue
				}
				if query.Status != "" && v.Status != query.Status && !m.ignoreFilter {
					continue
				}
				if len(page) == size {
					more = true
					break
				}
				number := v.number
				if shown, ok := m.look(v); ok {
					page = append(page, shown)
					marker = number
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(page) == 0 || !yield(page) || !more {
			return nil
		}
	}
}

func (m memoryClient) DeleteVolume(ctx context.Context, id string) error {
	return m.action(ctx, "volume.delete", id, func(v *memoryVolume) error {
		switch v.Status {
		case cinder.StatusAvailable, cinder.StatusError, cinder.StatusErrorRestoring, cinder.StatusErrorExtending:
			if len(v.Attachments) > 0 {
				return conflict("volume.delete", "Volume must not be attached")
			}
			if len(m.snapshotsOf(v.ID)) > 0 {
				return conflict("volume.delete", "Volume must not have snapshots")
			}
			v.Status = cinder.StatusDeleting
			v.change(m.looks, v.deleted)
			return nil
		}
		return conflict("volume.delete", "Volume status must be available or error")
	})
}

func (m memoryClient) ForceDeleteVolume(ctx context.Context, id string) error {
	return m.action(ctx, "volume.force-delete", id, func(v *memoryVolume) error {
		switch {
		case m.member:
			return &cinder.Error{Backend: "gold", Operation: "volume.force-delete", Kind: cinder.KindForbidden, Status: 403, Message: "Policy doesn't allow it"}
		case len(v.Attachments) > 0:
			return conflict("volume.force-delete", "Volume must not be attached")
		}
		v.Status = cinder.StatusDeleting
		v.change(m.looks, "")
		return nil
	})
}

func (m memoryClient) Reserve(ctx context.Context, id string) error {
	return m.action(ctx, "volume.os-reserve", id, func(v *memoryVolume) error {
		if v.Status != cinder.StatusAvailable && !(m.shared && v.Status == cinder.StatusInUse) {
			return conflict("volume.os-reserve", "Volume status must be available to reserve, but the status is "+string(v.Status))
		}
		v.Status = cinder.StatusAttaching
		return nil
	})
}

func (m memoryClient) Unreserve(ctx context.Context, id string) error {
	return m.action(ctx, "volume.os-unreserve", id, func(v *memoryVolume) error {
		m.unreserve(v)
		return nil
	})
}

// unreserve ends a reservation; in any other status it does nothing.
func (m *memoryCinder) unreserve(v *memoryVolume) {
	if v.Status != cinder.StatusAttaching {
		return
	}
	v.Status = cinder.StatusAvailable
	if len(m.attachmentsOf(v)) > 0 {
		v.Status = cinder.StatusInUse
	}
}

// attachmentsOf returns all attachments of a volume: those in its document, and
// those of the attachments API that are not complete.
func (m *memoryCinder) attachmentsOf(v *memoryVolume) []cinder.Attachment {
	var all []cinder.Attachment
	for _, shown := range v.Attachments {
		all = append(all, cinder.Attachment{ID: shown.ID, Status: cinder.AttachmentAttached, ServerID: shown.ServerID})
	}
	for id, a := range m.open {
		if a.volume == v.ID && !slices.ContainsFunc(all, func(other cinder.Attachment) bool { return other.ID == id }) {
			all = append(all, cinder.Attachment{ID: id, Status: cinder.AttachmentStatus(a.status)})
		}
	}
	slices.SortFunc(all, func(a, b cinder.Attachment) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// end removes an attachment; the remaining ones determine the status.
func (m *memoryCinder) end(v *memoryVolume, attachment string) {
	delete(m.open, attachment)
	v.Attachments = slices.DeleteFunc(slices.Clone(v.Attachments), func(a cinder.Attachment) bool { return a.ID == attachment })
	v.Status = cinder.StatusAvailable
	most := 0
	for _, left := range m.attachmentsOf(v) {
		if rank := attachmentRank(left); rank > most {
			most, v.Status = rank, []cinder.Status{"", cinder.StatusReserved, cinder.StatusAttaching, cinder.StatusInUse}[rank]
		}
	}
	if len(v.Attachments) == 0 {
		v.Metadata = maps.Clone(v.Metadata)
		delete(v.Metadata, cinder.MetadataAttachedMode)
	}
}

func (m memoryClient) InitializeConnection(ctx context.Context, id string, connector cinder.Connector) (document []byte, err error) {
	err = m.action(ctx, "volume.os-initialize_connection", id, func(v *memoryVolume) error {
		if v.Status == cinder.StatusError {
			return &cinder.Error{Backend: "gold", Operation: "volume.os-initialize_connection", Kind: cinder.KindUnavailable, Status: 500, EffectUnknown: true, Message: "Unable to fetch connection information from backend"}
		}
		document = []byte(`{"driver_volume_type":"iscsi","data":{"volume_id":"` + id + `"}}`)
		return nil
	})
	return document, err
}

func (m memoryClient) TerminateConnection(ctx context.Context, id string, connector cinder.Connector) error {
	return m.action(ctx, "volume.os-terminate_connection", id, func(v *memoryVolume) error {
		if len(m.attachmentsOf(v)) > 1 {
			return conflict("volume.os-terminate_connection", "ConflictNovaUsingAttachment")
		}
		m.unreserve(v)
		return nil
	})
}

func (m memoryClient) Attach(ctx context.Context, id, host string, readOnly bool) error {
	return m.action(ctx, "volume.os-attach", id, func(v *memoryVolume) error {
		switch {
		case v.Status == cinder.StatusInUse && len(v.Attachments) > 0 && v.Attachments[0].Host == host && m.member:
			return &cinder.Error{Backend: "gold", Operation: "volume.os-attach", Kind: cinder.KindUnavailable, Status: 500, EffectUnknown: true, Message: "Cinder answered internal server error"}
		case v.Status == cinder.StatusInUse && len(v.Attachments) > 0 && v.Attachments[0].Host == host:
			return nil
		case v.Status == cinder.StatusAttaching && slices.ContainsFunc(v.Attachments, func(a cinder.Attachment) bool { return a.Host == host }):
			v.Status = cinder.StatusInUse
			return nil
		case v.Status != cinder.StatusAvailable && v.Status != cinder.StatusAttaching && !(m.shared && v.Status == cinder.StatusInUse):
			return conflict("volume.os-attach", "volume is already attached and multiple attachments are not enabled")
		}
		m.attach(v, host)
		return nil
	})
}

func (m *memoryCinder) attach(v *memoryVolume, host string) {
	v.Status = cinder.StatusInUse
	m.ids++
	v.Attachments = append(v.Attachments, cinder.Attachment{ID: fmt.Sprintf("attachment-%d", m.ids), Host: host})
	v.Metadata = maps.Clone(v.Metadata)
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	v.Metadata["readonly"], v.Metadata["attached_mode"] = "False", "rw"
}

func (m memoryClient) Detach(ctx context.Context, id, attachmentID string) error {
	return m.actionOn(ctx, "volume.os-detach", id, attachmentID, func(v *memoryVolume) error {
		all := m.attachmentsOf(v)
		switch {
		case attachmentID == "" && len(all) == 0:
			// This happens whatever the status was.
			v.Status = cinder.StatusAvailable
			return nil
		case attachmentID == "" && len(all) == 1:
			m.end(v, all[0].ID)
			return nil
		case slices.ContainsFunc(all, func(a cinder.Attachment) bool { return a.ID == attachmentID }):
			m.end(v, attachmentID)
			return nil
		}
		return conflict("volume.os-detach", "ConflictNovaUsingAttachment")
	})
}

func (m memoryClient) Place() cinder.Place { return m.place }

func (m memoryClient) Workflow(context.Context) (cinder.Workflow, error) { return m.workflow, nil }

// Now returns the time by the clock that stamps volumes.
func (m memoryClient) Now() time.Time { return m.clock.Add(m.ahead) }

func (m memoryClient) UpdateMetadata(ctx context.Context, id string, metadata map[string]string) error {
	return m.action(ctx, "metadata.update", id, func(v *memoryVolume) error {
		v.Metadata = maps.Clone(v.Metadata)
		maps.Copy(v.Metadata, metadata)
		return nil
	})
}

func (m memoryClient) DeleteMetadata(ctx context.Context, id, key string) error {
	return m.action(ctx, "metadata.delete", id, func(v *memoryVolume) error {
		if _, ok := v.Metadata[key]; !ok || strings.ContainsAny(key, "/.") {
			return &cinder.Error{Backend: "gold", Operation: "metadata.delete", Kind: cinder.KindNotFound, Message: "Metadata item was not found"}
		}
		v.Metadata = maps.Clone(v.Metadata)
		delete(v.Metadata, key)
		return nil
	})
}

func (m memoryClient) OffersAttachments(context.Context) error {
	if m.noAttachments {
		return &cinder.Error{Backend: "gold", Kind: cinder.KindConfig, Message: "no attachments API"}
	}
	return nil
}

func (m memoryClient) CreateAttachment(ctx context.Context, id string, connector cinder.Connector, readOnly bool) (attachment string, document []byte, err error) {
	err = m.action(ctx, "attachment.create", id, func(v *memoryVolume) error {
		if v.Status != cinder.StatusAvailable && !((m.shared || v.MultiAttach) && v.Status == cinder.StatusInUse) {
			return conflict("attachment.create", "Volume status must be available or downloading to reserve, but the current status is "+string(v.Status))
		}
		m.ids++
		attachment, document = fmt.Sprintf("attachment-%d", m.ids), []byte(`{"driver_volume_type":"iscsi"}`)
		m.open[attachment] = &memoryAttachment{volume: id, status: "attaching", host: connector.Host, readOnly: readOnly}
		v.Status = cinder.StatusAttaching
		return nil
	})
	return attachment, document, err
}

// onAttachment makes a call on an attachment that must exist, of either API.
func (m memoryClient) onAttachment(ctx context.Context, operation, id string, effect func(a *memoryAttachment, v *memoryVolume) error) error {
	return m.call(ctx, operation, id, func() error {
		if a, ok := m.open[id]; ok {
			return effect(a, m.volumes[a.volume])
		}
		for _, v := range m.volumes {
			if slices.ContainsFunc(v.Attachments, func(a cinder.Attachment) bool { return a.ID == id }) {
				return effect(&memoryAttachment{volume: v.ID, status: string(cinder.AttachmentAttached), unconnected: true}, v)
			}
		}
		return notFound(operation, id)
	})
}

func (m memoryClient) AttachmentDocument(ctx context.Context, id string) (document []byte, err error) {
	err = m.onAttachment(ctx, "attachment.get", id, func(a *memoryAttachment, _ *memoryVolume) error {
		if a.status != "reserved" && !a.unconnected {
			document = []byte(`{"driver_volume_type":"iscsi"}`)
		}
		return nil
	})
	return document, err
}

func (m memoryClient) Attachments(ctx context.Context, volume string) (found []cinder.Attachment, err error) {
	err = m.call(ctx, "attachment.list", volume, func() error {
		found = nil
		if v, ok := m.volumes[volume]; ok {
			found = m.attachmentsOf(v)
		}
		return nil
	})
	return found, err
}

func (m memoryClient) CompleteAttachment(ctx context.Context, id string) error {
	return m.onAttachment(ctx, "attachment.complete", id, func(a *memoryAttachment, v *memoryVolume) error {
		if a.status == "attached" {
			return nil
		}
		a.status, v.Status = "attached", cinder.StatusInUse
		v.Attachments = append(v.Attachments, cinder.Attachment{ID: id, Host: cmp.Or(a.host, testConnector.Host)})
		return nil
	})
}

func (m memoryClient) DeleteAttachment(ctx context.Context, id string) error {
	return m.onAttachment(ctx, "attachment.delete", id, func(_ *memoryAttachment, v *memoryVolume) error {
		m.end(v, id)
		return nil
	})
}

func (m memoryClient) FailureReason(ctx context.Context, id string) (reason string) {
	_ = m.action(ctx, "message.list", id, func(v *memoryVolume) error {
		if v.Status == cinder.StatusError {
			reason = "schedule allocate volume:Could not find any available weighted backend"
		}
		return nil
	})
	return reason
}

// count returns the number of calls of an operation.
func (m *memoryCinder) count(operation string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, line := range m.log {
		if line == operation || strings.HasPrefix(line, operation+" ") {
			n++
		}
	}
	return n
}

// changes lists the calls, without listings and reads.
func (m *memoryCinder) changes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var changes []string
	for _, line := range m.log {
		if !isRead(line) {
			changes = append(changes, line)
		}
	}
	return changes
}

func isRead(line string) bool {
	operation, _, _ := strings.Cut(line, " ")
	return operation == "volume.list" || operation == "volume.get" || operation == "message.list" || operation == "attachment.list" || operation == "attachment.get" ||
		operation == "snapshot.list" || operation == "snapshot.get" || operation == "backup.list" || operation == "backup.get"
}

func (m *memoryCinder) forgetLog() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = nil
}

// stamped lists the volumes with a claim's stamp, oldest first.
func (m *memoryCinder) stamped(stamp stamps.Volume) []cinder.Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []cinder.Volume
	for _, v := range m.volumes {
		if stamp.Owns(v.Volume) {
			found = append(found, v.Volume)
		}
	}
	slices.SortFunc(found, func(a, b cinder.Volume) int { return strings.Compare(a.ID, b.ID) })
	return found
}

// present returns every volume in its current state, by ID.
func (m *memoryCinder) present() map[string]cinder.Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]cinder.Volume{}
	for id, v := range m.volumes {
		copied := v.Volume
		copied.Metadata = maps.Clone(v.Metadata)
		copied.Attachments = slices.Clone(v.Attachments)
		all[id] = copied
	}
	return all
}

// memoryClients provides the one API.
type memoryClients struct {
	memory    Cinder
	mu        sync.Mutex
	forgotten int
}

func (m *memoryClients) client(context.Context, Config) (Cinder, error) { return m.memory, nil }
func (m *memoryClients) forget(Cinder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgotten++
}

// term makes the Lifecycle of a new term over the same Cinder.
func (m *memoryCinder) term(t testing.TB, change ...func(*LifecycleOptions)) *Lifecycle {
	options := LifecycleOptions{
		Config:  Config{Name: "gold"},
		Cluster: "cluster-1",
		Fence:   func() error { return nil },
		Term:    context.Background(),
		Logger:  discard(),
		Metrics: testMetrics(),
		Poll:    time.Millisecond,
		// Random faults may come in a row; the breaker has tests of its own.
		FailuresToOpen: math.MaxInt,
	}
	for _, f := range change {
		f(&options)
	}
	return newLifecycle(options, &memoryClients{memory: m.client()})
}

// memoryPlace is the place of a memoryCinder's volumes by default.
var memoryPlace = cinder.Place{Endpoint: "http://cinder:8776/v3", Project: "p1"}

var testConnector = cinder.Connector{Host: "k8s", Initiator: "iqn.2026-01.example:k8s"}

func claimStamp(n int) stamps.Volume {
	return stamps.Volume{Cluster: "cluster-1", Namespace: "team-a", Claim: fmt.Sprintf("data-%d", n), ClaimUID: fmt.Sprintf("uid-%d", n), PV: fmt.Sprintf("pvc-uid-%d", n),
		Tenant: "team-a", StorageClass: "fast"}
}

func claimSpec(n int) Spec {
	stamp := claimStamp(n)
	return Spec{Name: stamp.PV, SizeGiB: 1, Stamp: stamp, Connector: testConnector}
}

func claimTarget(n int, id string) Target {
	return Target{VolumeID: id, Stamp: claimStamp(n), Connector: testConnector, Place: memoryPlace}
}

// mine returns claim n's volume in a state.
func mine(n int, status cinder.Status) cinder.Volume {
	v := cinder.Volume{Name: claimStamp(n).PV, Status: status, Metadata: claimStamp(n).Metadata(nil)}
	if status == cinder.StatusInUse {
		v.Attachments = []cinder.Attachment{{ID: "attachment-0", Host: testConnector.Host}}
		v.Metadata["readonly"], v.Metadata["attached_mode"] = "False", "rw"
	}
	return v
}

// byAttachments returns claim n's volume, connected by the attachments API,
// with one attachment for each of the statuses.
func (m *memoryCinder) byAttachments(n int, status cinder.Status, attachments ...string) string {
	v := mine(n, status)
	v.Attachments = nil
	delete(v.Metadata, "readonly")
	delete(v.Metadata, "attached_mode")
	v.Metadata[stamps.KeyWorkflow] = "attachment"
	if status == cinder.StatusInUse {
		v.Metadata[stamps.KeyAttached] = "true"
		if len(attachments) == 0 {
			attachments = []string{"attached"}
		}
	}
	id := m.add(v)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range attachments {
		m.ids++
		name := fmt.Sprintf("attachment-%d", m.ids)
		m.open[name] = &memoryAttachment{volume: id, status: a}
		if a == "attached" {
			m.volumes[id].Attachments = append(m.volumes[id].Attachments, cinder.Attachment{ID: name, Host: testConnector.Host})
		}
	}
	return id
}

func discard() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
