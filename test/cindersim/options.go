package cindersim

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
)

// DefaultNoauthProject is a project id that noauth Cinder accepts in a URL:
// current releases route only ids that match [0-9a-f\-]+.
const DefaultNoauthProject = "0123456789abcdef0123456789abcdef"

// Options configures a simulator. The zero value serves all three endpoints on
// free loopback ports, with the volume types of [drivers.DefaultVolumeTypes], the
// projects and users of [keystone.DefaultIdentity], no delays and no quotas.
type Options struct {
	// ListenHost is the address to listen on; the default is 127.0.0.1.
	ListenHost string
	// NoauthPort, CinderPort and KeystonePort are TCP ports; zero picks a free one.
	NoauthPort, CinderPort, KeystonePort int
	// TLSConfig, if set, makes all endpoints use https. It must contain the
	// server's certificate; it also determines how client certificates are
	// verified.
	TLSConfig *tls.Config

	// MaxMicroversion is the highest microversion offered; the default is "3.70".
	MaxMicroversion string
	// MaxLimit is the largest page of a list (osapi_max_limit); the default is 1000.
	MaxLimit int
	// Zones are the availability zones; the first is the default zone of new
	// volumes. The default is "nova" alone.
	Zones []string
	// Types are the volume types; the default is drivers.DefaultVolumeTypes().
	Types []drivers.VolumeType
	// GroupTypes are the group types; the default is DefaultGroupTypes().
	GroupTypes []GroupType
	// DefaultType names the type of volumes created without one; the default is
	// the first of Types.
	DefaultType string
	// Quota is limits by Cinder's resource names ("volumes", "gigabytes",
	// "snapshots", "per_volume_gigabytes", "volumes_<type>", ...) for every
	// project without its own. A missing name or -1 means unlimited.
	Quota map[string]int

	// PlacementDelay is the time between a create and the scheduler's choice of
	// a host; until then a DELETE removes the volume at once.
	PlacementDelay time.Duration
	// CreateDelay is the time between a create and the status available or
	// error.
	CreateDelay time.Duration
	// DeleteDelay is the time between an accepted DELETE and the volume's end.
	DeleteDelay time.Duration
	// ExtendDelay is the time between an accepted os-extend and the new size.
	ExtendDelay time.Duration
	// MigrationDelay is the time that the copy of a volume to another storage takes.
	MigrationDelay time.Duration
	// SnapshotDelay is the time until a snapshot is available, and until it is
	// gone; and of every step of a group or group snapshot.
	SnapshotDelay time.Duration
	// BackupDelay is the time until a backup is available, until it is gone, and until a
	// new volume has its content.
	BackupDelay time.Duration

	// Latency is added to every request, before its effect.
	Latency time.Duration
	// OperationLatency replaces Latency for the operations it names (see
	// [Request.Operation]); "action.*" names all operations of that prefix.
	OperationLatency map[string]time.Duration
	// Lag is how old the state is that reads show, as behind a database that answers
	// them from another server than the one that took the last change.
	Lag time.Duration
	// RPCTimeout is how long a synchronous call waits for a stopped volume
	// service before it answers 500 (rpc_response_timeout); the default is 60 s.
	RPCTimeout time.Duration

	// Identity is Keystone's content; without projects and users it has those of
	// keystone.DefaultIdentity().
	Identity keystone.Identity

	// Seed makes IDs, CHAP credentials and fault probabilities reproducible.
	// Zero picks one at random; [Simulator.Seed] returns it.
	Seed uint64
	// Front, if set, wraps the handler of an endpoint that Start serves.
	Front func(Endpoint, http.Handler) http.Handler
	// Now is the simulator's clock; the default is time.Now. Latencies are
	// always in real time.
	Now func() time.Time
}

var microversionPattern = regexp.MustCompile(`^([1-9]\d*)\.([1-9]\d*|0)$`)

// parseMicroversion reads "3.27" as (3, 27).
func parseMicroversion(text string) (major, minor int, ok bool) {
	parts := microversionPattern.FindStringSubmatch(text)
	if parts == nil {
		return 0, 0, false
	}
	major, errMajor := strconv.Atoi(parts[1])
	minor, errMinor := strconv.Atoi(parts[2])
	return major, minor, errMajor == nil && errMinor == nil
}

// withDefaults sets the defaults and rejects invalid options.
func (o Options) withDefaults() (Options, error) {
	o.ListenHost = cmp.Or(o.ListenHost, "127.0.0.1")
	o.MaxMicroversion = cmp.Or(o.MaxMicroversion, "3.70")
	if major, _, ok := parseMicroversion(o.MaxMicroversion); !ok || major != 3 {
		return o, fmt.Errorf("option MaxMicroversion: %q is not of the form 3.N", o.MaxMicroversion)
	}
	o.MaxLimit = cmp.Or(o.MaxLimit, 1000)
	if o.MaxLimit < 0 {
		return o, fmt.Errorf("option MaxLimit: %d is negative", o.MaxLimit)
	}
	if len(o.Zones) == 0 {
		o.Zones = []string{"nova"}
	}
	if o.Types == nil {
		o.Types = drivers.DefaultVolumeTypes()
	}
	if len(o.Types) == 0 {
		return o, fmt.Errorf("option Types: a Cinder has at least one volume type")
	}
	if o.GroupTypes == nil {
		o.GroupTypes = DefaultGroupTypes()
	}
	o.GroupTypes = slices.Clone(o.GroupTypes)
	for i := range o.GroupTypes {
		o.GroupTypes[i].ID = fmt.Sprintf("00000000-0000-4000-8000-%012d", i+1)
	}
	if o.DefaultType == "" {
		o.DefaultType = o.Types[0].Name
	}
	o.RPCTimeout = cmp.Or(o.RPCTimeout, time.Minute)
	if o.Front == nil {
		o.Front = func(_ Endpoint, handler http.Handler) http.Handler { return handler }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o, nil
}

// latency returns the configured latency of an operation: its own, that of the
// longest matching prefix, or the general one.
func (o *Options) latency(operation string) time.Duration {
	if own, ok := o.OperationLatency[operation]; ok {
		return own
	}
	found, longest := o.Latency, -1
	for pattern, latency := range o.OperationLatency {
		if strings.HasSuffix(pattern, "*") && len(pattern) > longest && matchOperation(pattern, operation) {
			found, longest = latency, len(pattern)
		}
	}
	return found
}

// matchOperation reports whether an operation matches a name, a prefix with a
// trailing "*", or the empty pattern that matches everything.
func matchOperation(pattern, operation string) bool {
	if pattern == "" {
		return true
	}
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(operation, prefix)
	}
	return pattern == operation
}
