package staged

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// ReporterOptions configure a Reporter.
type ReporterOptions struct {
	// Leases are those of the program's namespace.
	Leases    coordinationclient.LeaseInterface
	Namespace string
	// Node is the name of the Node object.
	Node    string
	Machine Machine
	// Volumes returns the volumes that the node has state files of.
	Volumes func() ([]string, error)
	Logger  *slog.Logger
	// Pause is the time between two attempts to write a report that could not be written;
	// zero means 5 s.
	Pause time.Duration
}

// Reporter keeps the report of one node true. A volume is in the report before anything
// of it is on the node, and until nothing is.
type Reporter struct {
	ReporterOptions
	// late wakes Run: the report names volumes that are unstaged.
	late chan struct{}

	mu sync.Mutex // held while a report is written
	// lease is the last one that was read or written, and reported are the volumes in it.
	lease    *coordinationv1.Lease
	reported map[string]bool

	staging   sync.Mutex
	beginning map[string]bool // volumes that are to be staged, and may have no state file yet
}

// NewReporter makes a Reporter.
func NewReporter(options ReporterOptions) *Reporter {
	if options.Pause == 0 {
		options.Pause = 5 * time.Second
	}
	return &Reporter{ReporterOptions: options, late: make(chan struct{}, 1), beginning: map[string]bool{}}
}

// Staging returns when the report names a volume. The volume must not be staged if it
// fails. The caller calls Changed when the volume's state file exists, or when staging
// has failed without one.
func (r *Reporter) Staging(ctx context.Context, volume string) error {
	r.staging.Lock()
	r.beginning[volume] = true
	r.staging.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reported[volume] {
		return nil // another call's report names it, too
	}
	if err := r.write(ctx); err != nil {
		return fmt.Errorf("volume %s is not staged, because the report of the staged volumes cannot be written: %w", volume, err)
	}
	return nil
}

// Changed lets Run bring the report up to date after a volume's state file was written
// or removed.
func (r *Reporter) Changed(volume string) {
	r.staging.Lock()
	delete(r.beginning, volume)
	r.staging.Unlock()
	select {
	case r.late <- struct{}{}:
	default:
	}
}

// Run brings the report up to date until the context ends.
func (r *Reporter) Run(ctx context.Context) {
	for {
		err := r.update(ctx)
		var again <-chan time.Time
		if err != nil && ctx.Err() == nil {
			r.Logger.Warn("the report of the staged volumes cannot be written, and will be written again", "error", err)
			again = time.After(r.Pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-r.late:
		}
	}
}

// update writes the report if it is not up to date.
func (r *Reporter) update(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	volumes, err := r.volumes()
	if err != nil || r.lease != nil && maps.Equal(volumes, r.reported) {
		return err
	}
	return r.write(ctx)
}

// volumes returns the volumes that the report must name.
func (r *Reporter) volumes() (map[string]bool, error) {
	// In this order, since a volume gets its state file before it leaves beginning.
	r.staging.Lock()
	volumes := maps.Clone(r.beginning)
	r.staging.Unlock()
	files, err := r.Volumes()
	if err != nil {
		return nil, err
	}
	for _, volume := range files {
		volumes[volume] = true
	}
	return volumes, nil
}

// write writes the report. It replaces nothing that another machine may have staged, and
// nothing that it has not read.
func (r *Reporter) write(ctx context.Context) error {
	for {
		volumes, err := r.volumes()
		if err != nil {
			return err
		}
		report := Report{Machine: r.Machine, Volumes: slices.Sorted(maps.Keys(volumes)), Written: time.Now()}
		wanted := report.Lease(r.Namespace, r.Node)
		var written *coordinationv1.Lease
		if r.lease == nil {
			written, err = r.take(ctx, wanted)
		} else {
			wanted.ResourceVersion = r.lease.ResourceVersion
			written, err = r.Leases.Update(ctx, wanted, metav1.UpdateOptions{})
		}
		if r.lease != nil && (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) {
			r.lease, r.reported = nil, nil
			continue
		}
		if err != nil {
			// The effect is not known.
			r.lease, r.reported = nil, nil
			return err
		}
		r.lease, r.reported = written, volumes
		return nil
	}
}

// take writes the report over what the Lease says, unless that is another machine's.
func (r *Reporter) take(ctx context.Context, wanted *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	present, err := r.Leases.Get(ctx, wanted.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return r.Leases.Create(ctx, wanted, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, err
	}
	if err := Of(present).foreign(r.Machine, r.Node); err != nil {
		return nil, err
	}
	wanted.ResourceVersion = present.ResourceVersion
	return r.Leases.Update(ctx, wanted, metav1.UpdateOptions{})
}
