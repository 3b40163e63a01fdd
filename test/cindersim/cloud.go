package cindersim

import (
	"container/heap"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/collation"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/history"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/random"
)

// Statuses that the state machine sets or checks.
const (
	statusCreating       = "creating"
	statusAvailable      = "available"
	statusReserved       = "reserved"
	statusAttaching      = "attaching"
	statusInUse          = "in-use"
	statusDetaching      = "detaching"
	statusExtending      = "extending"
	statusDeleting       = "deleting"
	statusError          = "error"
	statusErrorDeleting  = "error_deleting"
	statusErrorExtending = "error_extending"
	statusRetyping       = "retyping"
	statusBackingUp      = "backing-up"
	statusRestoring      = "restoring"
	statusErrorRestoring = "error_restoring"

	attachStatusAttached = "attached"
	attachStatusDetached = "detached"
)

// cloud is Cinder's database, scheduler and volume services.
type cloud struct {
	options Options
	ids     *random.Source

	mu             sync.Mutex
	types          []*drivers.VolumeType
	typeIndex      map[string]*drivers.VolumeType
	volumes        map[string]*volume
	order          []*volume // ascending by creation second, then id
	snapshots      map[string]*snapshot
	backups        map[string]*backup
	groups         map[string]*group
	groupSnapshots map[string]*groupSnapshot
	attachments    map[string]*attachment
	messages       []*message // oldest first
	quotas         map[string]map[string]int
	usage          map[string]*usage
	services       map[string]string // ids of the volume services by backend
	fullZones      map[string]bool

	events   eventHeap
	sequence uint64
	// While the volume services are stopped, their work waits here.
	stopped bool
	backlog []func(now time.Time)

	// history has the states that lagging reads show; nil without Options.Lag.
	history *history.History[*cloud]
}

type volume struct {
	id, project, user string
	name, description *string
	size              int
	zone              string
	kind              *drivers.VolumeType
	keyID             string
	status            string
	previousStatus    string
	attachStatus      string
	host              string
	metadata          map[string]string
	adminMetadata     map[string]string
	created, updated  time.Time
	snapshotID        string
	sourceID          string
	backupID          string
	groupID           string
	serviceID         string
	migration         string        // its state; empty if there was none
	temporary         bool          // made for a migration, outside the quotas
	attachments       []*attachment // all that are not detached, by id
	snapshots         int
	// The export's credentials survive the export.
	exported           bool
	username, password string
	connected          map[string]bool // hosts with an initialized connection
	gone               bool

	nameKey      string
	metadataKeys map[string]string
	rendered     []byte
	renderedFor  view
}

type attachment struct {
	id, volumeID string
	status       string // reserved, attaching, attached
	instance     string
	host         string
	mountpoint   string
	mode         string
	attached     time.Time
	connector    map[string]any
	connection   map[string]any // flat; nil when made by os-attach
	created      time.Time
	project      string
}

type snapshot struct {
	id, project, user string
	name, description *string
	volumeID          string
	groupSnapshotID   string
	kind              *drivers.VolumeType
	size              int
	status            string
	progress          string
	metadata          map[string]string
	created, updated  time.Time
	gone              bool
}

type message struct {
	id, project, event, text, resource, resourceType, request string
	created                                                   time.Time
}

func newCloud(options Options, ids *random.Source) (*cloud, error) {
	c := &cloud{
		options:        options,
		ids:            ids,
		volumes:        make(map[string]*volume),
		snapshots:      make(map[string]*snapshot),
		backups:        make(map[string]*backup),
		groups:         make(map[string]*group),
		groupSnapshots: make(map[string]*groupSnapshot),
		attachments:    make(map[string]*attachment),
		quotas:         make(map[string]map[string]int),
		usage:          make(map[string]*usage),
		services:       make(map[string]string),
		fullZones:      make(map[string]bool),
	}
	var err error
	c.types, c.typeIndex, err = drivers.Complete(options.Types, ids.UUID)
	if options.Lag > 0 {
		c.history = history.New(options.Lag, c.copy)
	}
	return c, err
}

// lock takes the state and brings it up to date; it returns the current time.
func (c *cloud) lock() time.Time {
	c.mu.Lock()
	now := c.options.Now().UTC()
	c.settle(now)
	return now
}

// lockToChange does what lock does, for a caller that changes the state.
func (c *cloud) lockToChange() time.Time {
	now := c.lock()
	c.changes(now)
	return now
}

// changes notes for lagging reads that the state is about to change.
func (c *cloud) changes(at time.Time) {
	if c.history != nil {
		c.history.Settle(at)
		c.history.Change(at)
	}
}

// shown returns the state that reads show.
func (c *cloud) shown(now time.Time) *cloud {
	if c.history == nil {
		return c
	}
	return c.history.Before(now)
}

// copy returns a copy of the state, for reads alone.
func (c *cloud) copy() *cloud {
	kept := &cloud{
		options: c.options, types: c.types, typeIndex: c.typeIndex, services: c.services,
		volumes: make(map[string]*volume, len(c.volumes)), order: make([]*volume, len(c.order)),
		snapshots: make(map[string]*snapshot, len(c.snapshots)), backups: make(map[string]*backup, len(c.backups)), attachments: make(map[string]*attachment, len(c.attachments)),
		messages: slices.Clone(c.messages), quotas: maps.Clone(c.quotas), usage: make(map[string]*usage, len(c.usage)),
	}
	for id, a := range c.attachments {
		copied := *a
		kept.attachments[id] = &copied
	}
	for i, v := range c.order {
		copied := *v
		copied.rendered = nil // the memory is written to again
		copied.metadata, copied.adminMetadata = maps.Clone(v.metadata), maps.Clone(v.adminMetadata)
		copied.attachments = make([]*attachment, len(v.attachments))
		for i, a := range v.attachments {
			copied.attachments[i] = kept.attachments[a.id]
		}
		kept.order[i], kept.volumes[v.id] = &copied, &copied
	}
	for id, n := range c.snapshots {
		copied := *n
		copied.metadata = maps.Clone(n.metadata)
		kept.snapshots[id] = &copied
	}
	for id, b := range c.backups {
		copied := *b
		copied.metadata = maps.Clone(b.metadata)
		kept.backups[id] = &copied
	}
	kept.groups, kept.groupSnapshots = make(map[string]*group, len(c.groups)), make(map[string]*groupSnapshot, len(c.groupSnapshots))
	for id, g := range c.groups {
		copied := *g
		kept.groups[id] = &copied
	}
	for id, g := range c.groupSnapshots {
		copied := *g
		kept.groupSnapshots[id] = &copied
	}
	for project, u := range c.usage {
		kept.usage[project] = &usage{inUse: maps.Clone(u.inUse), reserved: maps.Clone(u.reserved)}
	}
	return kept
}

func (c *cloud) unlock() { c.mu.Unlock() }

// event is future work of a scheduler or volume service.
type event struct {
	at       time.Time
	sequence uint64
	service  bool // done by a volume service, which may be stopped
	run      func(now time.Time)
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].sequence < h[j].sequence
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = event{}
	*h = (*h)[:len(*h)-1]
	return last
}

// later schedules the scheduler's work, laterService that of a volume service.
func (c *cloud) later(now time.Time, delay time.Duration, run func(time.Time)) {
	c.sequence++
	heap.Push(&c.events, event{at: now.Add(delay), sequence: c.sequence, run: run})
}

func (c *cloud) laterService(now time.Time, delay time.Duration, run func(time.Time)) {
	c.sequence++
	heap.Push(&c.events, event{at: now.Add(delay), sequence: c.sequence, service: true, run: run})
}

// settle performs every event that is due, each at its own time.
func (c *cloud) settle(now time.Time) {
	for len(c.events) > 0 && !c.events[0].at.After(now) {
		due := heap.Pop(&c.events).(event)
		if due.service && c.stopped {
			c.backlog = append(c.backlog, due.run)
			continue
		}
		c.changes(due.at)
		due.run(due.at)
	}
}

// stopVolumeServices freezes all work of the volume services.
func (c *cloud) stopVolumeServices() {
	c.lock()
	defer c.unlock()
	c.stopped = true
}

// startVolumeServices resumes them, beginning with the waiting work.
func (c *cloud) startVolumeServices() {
	now := c.lockToChange()
	defer c.unlock()
	c.stopped = false
	backlog := c.backlog
	c.backlog = nil
	for _, run := range backlog {
		run(now)
	}
}

// precedes orders volumes as the database does: by creation second, then id.
func (v *volume) precedes(created time.Time, id string) bool {
	mine, other := v.created.Unix(), created.Unix()
	if mine != other {
		return mine < other
	}
	return v.id < id
}

func (c *cloud) position(v *volume) int {
	return sort.Search(len(c.order), func(i int) bool { return !c.order[i].precedes(v.created, v.id) })
}

// insert adds a volume to the state and charges its project.
func (c *cloud) insert(v *volume) {
	v.index()
	c.volumes[v.id] = v
	c.order = slices.Insert(c.order, c.position(v), v)
	if !v.temporary {
		c.charge(v.project, v.kind, 1, v.size)
	}
}

// destroy removes a volume and everything that belongs to it.
func (c *cloud) destroy(v *volume) {
	if v.gone {
		return
	}
	v.gone = true
	v.disconnect(nil)
	delete(c.volumes, v.id)
	i := c.position(v)
	c.order = slices.Delete(c.order, i, i+1)
	for _, a := range v.attachments {
		delete(c.attachments, a.id)
	}
	if !v.temporary {
		c.charge(v.project, v.kind, -1, -v.size)
	}
}

// changed records the time of a volume's change.
func (v *volume) changed(now time.Time) {
	v.updated = now
	v.rendered = nil
}

// index renews the keys under which list filters compare.
func (v *volume) index() {
	v.nameKey = ""
	if v.name != nil {
		v.nameKey = collation.Key(*v.name)
	}
	v.metadataKeys = make(map[string]string, len(v.metadata)+len(v.adminMetadata))
	for _, source := range []map[string]string{v.metadata, v.adminMetadata} {
		for key, value := range source {
			v.metadataKeys[collation.Key(key)+"\x00"+collation.Key(value)] = key
		}
	}
	v.rendered = nil
}

// visibleMetadata returns the user's metadata overlaid with Cinder's own, as
// shown.
func (v *volume) visibleMetadata() map[string]string {
	merged := maps.Clone(v.metadata)
	if merged == nil {
		merged = make(map[string]string)
	}
	maps.Copy(merged, v.adminMetadata)
	return merged
}

// attach adds an attachment to a volume.
func (c *cloud) attach(v *volume, a *attachment) {
	c.attachments[a.id] = a
	i, _ := slices.BinarySearchFunc(v.attachments, a.id, func(a *attachment, id string) int {
		return strings.Compare(a.id, id)
	})
	v.attachments = slices.Insert(v.attachments, i, a)
}

// detach removes an attachment, if it exists, and derives the volume's statuses
// from the remaining ones: attached before attaching before reserved, otherwise
// available (_get_statuses_from_attachments in Cinder's database layer).
func (c *cloud) detach(v *volume, id string, now time.Time) {
	delete(c.attachments, id)
	v.attachments = slices.DeleteFunc(v.attachments, func(a *attachment) bool { return a.id == id })
	delete(v.adminMetadata, "attached_mode")
	v.attachStatus = attachStatusDetached
	for _, a := range v.attachments {
		if v.attachStatus == attachStatusDetached || a.status < v.attachStatus {
			v.attachStatus = a.status
		}
	}
	switch v.attachStatus {
	case attachStatusDetached:
		v.status = statusAvailable
	case attachStatusAttached:
		v.status = statusInUse
	default:
		v.status = v.attachStatus
	}
	v.changed(now)
	v.index()
}

// export makes the volume reachable, with the same credentials as before.
func (c *cloud) export(v *volume, now time.Time) {
	if v.username == "" {
		v.username, v.password = c.ids.Secret(20), c.ids.Secret(16)
	}
	if !v.exported {
		v.exported = true
		v.changed(now)
	}
}

func (v *volume) removeExport() {
	v.exported = false
	clear(v.connected)
}

// tell adds a user message about a resource.
func (c *cloud) tell(now time.Time, project, resourceType, resource, event, text string) {
	c.messages = append(c.messages, &message{
		id: c.ids.UUID(), project: project, event: event, text: text, resource: resource,
		resourceType: resourceType, request: "req-" + c.ids.UUID(), created: now,
	})
}
