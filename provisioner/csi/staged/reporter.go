package staged

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"
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
	// Mounts returns the native volumes that kubelet has mounted; nil means that there are
	// none.
	Mounts func() ([]string, error)
	// Passphrases returns what was proven of the passphrases of staged volumes; nil means
	// nothing ever.
	Passphrases func() (map[string][]string, error)
	Logger      *slog.Logger
	// Pause is the time between two attempts to write a report that could not be written;
	// zero means 5 s.
	Pause time.Duration
	// Recheck is the time after which the report is written although nothing has changed,
	// since somebody may have deleted or changed it; zero means 5 min.
	Recheck time.Duration
	// Look is the time between two looks at Mounts, of which nobody tells the Reporter;
	// zero means 10 s.
	Look time.Duration
}

// Reporter keeps the report of one node true. A volume has a state file before it is in
// the report, and is in the report before anything of it is on the node, until nothing is.
// So whoever reads the state files after the Lease, and replaces just that Lease, loses
// no volume that another plugin of the node is about to stage.
type Reporter struct {
	ReporterOptions
	// late wakes Run: state files have changed.
	late chan struct{}

	// writing is held while a report is written.
	writing *semaphore.Weighted
	// lease is the last one that was read or written, and reported is what it says.
	lease    *coordinationv1.Lease
	reported Report
}

// NewReporter makes a Reporter.
func NewReporter(options ReporterOptions) *Reporter {
	options.Pause = cmp.Or(options.Pause, 5*time.Second)
	options.Recheck = cmp.Or(options.Recheck, 5*time.Minute)
	if options.Mounts == nil {
		options.Mounts = func() ([]string, error) { return nil, nil }
	}
	if options.Passphrases == nil {
		options.Passphrases = func() (map[string][]string, error) { return nil, nil }
	}
	options.Look = cmp.Or(options.Look, 10*time.Second)
	return &Reporter{ReporterOptions: options, late: make(chan struct{}, 1), writing: semaphore.NewWeighted(1)}
}

// Staging returns when the report names all volumes that have state files. A volume
// whose state file was just written must not be staged with the attachment if it fails.
func (r *Reporter) Staging(ctx context.Context, attachment string) error {
	err := r.writing.Acquire(ctx, 1)
	if err == nil {
		defer r.writing.Release(1)
		err = r.write(ctx)
	}
	if err != nil {
		return fmt.Errorf("nothing is staged, because the report of the staged volumes cannot be written: %w", err)
	}
	if attachment != "" && slices.Contains(r.reported.Ended, attachment) {
		return fmt.Errorf("nothing is staged, because attachment %s was ended while this node did not answer; the volume can be staged once Kubernetes has attached it again", attachment)
	}
	return nil
}

// Changed lets Run bring the report up to date after state files have changed.
func (r *Reporter) Changed() {
	select {
	case r.late <- struct{}{}:
	default:
	}
}

// Run brings the report up to date until the context ends.
func (r *Reporter) Run(ctx context.Context) {
	recheck := time.NewTicker(r.Recheck)
	defer recheck.Stop()
	for {
		err := r.update(ctx)
		pause := r.Look
		if err != nil && ctx.Err() == nil {
			r.Logger.Warn("the report of the staged volumes cannot be written, and will be written again", "error", err)
			pause = r.Pause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case <-recheck.C:
			if r.writing.Acquire(ctx, 1) == nil {
				r.lease = nil
				r.writing.Release(1)
			}
		case <-r.late:
		}
	}
}

// update writes the report if it is not up to date.
func (r *Reporter) update(ctx context.Context) error {
	if err := r.writing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.writing.Release(1)
	now, err := r.look()
	if err != nil || r.lease != nil && slices.Equal(now.Volumes, r.reported.Volumes) && slices.Equal(now.Mounts, r.reported.Mounts) && maps.EqualFunc(now.Passphrases, r.reported.Passphrases, slices.Equal) {
		return err
	}
	return r.write(ctx)
}

// look returns what the report must say. Mounts that cannot be read now stay in it: they
// are no reason to stage nothing.
func (r *Reporter) look() (Report, error) {
	volumes, err := r.Volumes()
	if err != nil {
		return Report{}, err
	}
	slices.Sort(volumes)
	mounts, err := r.Mounts()
	if err != nil {
		r.Logger.Warn("kubelet's mounts cannot be read, so the report keeps those that it has", "error", err)
		mounts = r.reported.Mounts
	}
	slices.Sort(mounts)
	// Nothing depends on them but new passphrases.
	proven, err := r.Passphrases()
	if err != nil {
		r.Logger.Warn("what was proven of passphrases cannot be read, and is not reported", "error", err)
		proven = nil
	}
	return Report{Machine: r.Machine, Volumes: volumes, Mounts: slices.Compact(mounts), Passphrases: proven, Ended: r.reported.Ended, Written: time.Now()}, nil
}

// write writes the report. It replaces nothing that another machine may have staged, and
// nothing that it has not read.
func (r *Reporter) write(ctx context.Context) error {
	for {
		if err := r.read(ctx); err != nil {
			return err
		}
		// After the Lease.
		now, err := r.look()
		if err != nil {
			return err
		}
		wanted := now.Lease(r.Namespace, r.Node)
		var written *coordinationv1.Lease
		if r.lease == nil {
			written, err = r.Leases.Create(ctx, wanted, metav1.CreateOptions{})
		} else {
			wanted.ResourceVersion = r.lease.ResourceVersion
			written, err = r.Leases.Update(ctx, wanted, metav1.UpdateOptions{})
		}
		r.lease, r.reported = written, now
		if err != nil {
			r.lease = nil // whatever became of it
		}
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
			continue
		}
		return err
	}
}

// read reads the Lease if that is not known, unless it is another machine's. There may be
// none.
func (r *Reporter) read(ctx context.Context) error {
	if r.lease != nil {
		return nil
	}
	present, err := r.Leases.Get(ctx, LeaseName(r.Node), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := Of(present).foreign(r.Machine, r.Node); err != nil {
		return err
	}
	r.lease, r.reported = present, Of(present)
	return nil
}
