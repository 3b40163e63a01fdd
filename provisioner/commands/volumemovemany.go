package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/move"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/swap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/retype"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// oneMove is the volume of a claim that is to be moved.
type oneMove struct {
	namespace, claim, pv, backend string
	volume                        cinder.Volume
	// state is one of the states below, and why says more.
	state moveState
	why   string
}

// moveState is what became of a volume. Tables show those first that need a person.
type moveState int

const (
	moveRefused moveState = iota
	moveBusy              // in use, or Cinder is doing something else with it
	moveFormer            // of a claim that keeps the former volume of a move
	moveReady
	moved
)

func (s moveState) String() string {
	return [...]string{"refused", "busy", "former", "ready", "moved"}[s]
}

// lookAgain is how often the command looks whether volumes in use are free.
const lookAgain = 15 * time.Second

// moves moves one volume at a time, if apply is set, and says what is to be heeded.
type moves interface {
	move(ctx context.Context, one *oneMove, apply bool) (why string, err error)
	// target says where volumes go.
	target() string
}

// typeMoves has Cinder move volumes to another type.
type typeMoves struct {
	retyper  *retype.Retyper
	from, to string
}

func (m typeMoves) target() string { return fmt.Sprintf("type %q", m.to) }

func (m typeMoves) move(ctx context.Context, one *oneMove, apply bool) (string, error) {
	plan, err := m.retyper.Plan(ctx, retype.Request{Namespace: one.namespace, Claim: one.claim, Type: m.to, Migrate: true})
	// The list may be hours old.
	switch {
	case err != nil:
		return "", err
	case plan.PersistentVolume != one.pv || plan.Volume.ID != one.volume.ID:
		return "", fmt.Errorf("the claim has another volume by now, %s of PersistentVolume %s", plan.Volume.ID, plan.PersistentVolume)
	case !plan.Done && m.from != "" && plan.Volume.Type != m.from:
		return "", fmt.Errorf("the volume has the type %q by now", plan.Volume.Type)
	case apply:
		_, err = m.retyper.Apply(ctx, plan)
	}
	return strings.Join(plan.Warnings, "; "), err
}

// runMany moves the volumes of a type, a few at once. What is refused, in use or fails
// stops no other. Run again, it continues.
func (f *moveFlags) runMany(ctx context.Context, stdout, stderr io.Writer) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	opened, err := f.open(ctx, f.apply)
	var all []*oneMove
	if err == nil {
		all, err = f.candidates(ctx, opened, func(why string) { fmt.Fprintln(stderr, "not considered: "+statusreport.OneLine(why)) })
	}
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	var moves moves = typeMoves{opened.retyper(f.ProvisionerName), f.from, f.request.Type}
	if f.toBackend != "" {
		if moves, err = f.copies(ctx, opened, stderr); err != nil {
			return policycli.Exit(policycli.ExitUsage, err)
		}
	}
	waitUntil := time.Now().Add(f.wait)
	f.moveSome(ctx, moves, slices.DeleteFunc(slices.Clone(all), func(one *oneMove) bool { return one.state == moveFormer }), len(all), stderr)
	for f.apply && ctx.Err() == nil && time.Until(waitUntil) > 0 {
		busy := slices.DeleteFunc(slices.Clone(all), func(one *oneMove) bool { return one.state != moveBusy })
		if len(busy) == 0 {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(lookAgain, time.Until(waitUntil))):
			f.moveSome(ctx, moves, detached(ctx, opened.client, busy), len(all), stderr)
		}
	}
	if err := writeMoves(stdout, all); err != nil {
		return policycli.Exit(policycli.ExitFailed, err)
	}
	return f.conclude(ctx, stdout, moves, all)
}

// detached leaves out the volumes that nodes have. To find out what else keeps a single one
// takes several lists; of hundreds that wait for their pods for hours, only one.
func detached(ctx context.Context, client kubernetes.Interface, busy []*oneMove) []*oneMove {
	attached := map[string]bool{}
	_, err := paging.List(ctx, "VolumeAttachments", client.StorageV1().VolumeAttachments().List, func(page *storagev1.VolumeAttachmentList) []struct{} {
		for i := range page.Items {
			if pv := page.Items[i].Spec.Source.PersistentVolumeName; pv != nil {
				attached[*pv] = true
			}
		}
		return nil
	})
	if err != nil {
		return busy // each of them says why it cannot be moved
	}
	return slices.DeleteFunc(busy, func(one *oneMove) bool { return attached[one.pv] })
}

// moveSome moves volumes, a few at once, and says what becomes of each.
func (f *moveFlags) moveSome(ctx context.Context, moves moves, some []*oneMove, of int, stderr io.Writer) {
	var speaking sync.Mutex
	said := of - len(some)
	var group errgroup.Group
	group.SetLimit(f.atOnce)
	for _, one := range some {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			began := time.Now()
			news := f.moveOne(ctx, moves, one)
			speaking.Lock()
			defer speaking.Unlock()
			said++
			if news && f.apply {
				fmt.Fprintf(stderr, "[%*d/%d] %s/%s (%d GiB): %s after %s%s\n", len(fmt.Sprint(of)), said, of, one.namespace, one.claim, one.volume.SizeGiB, one.state, time.Since(began).Round(time.Second),
					statusreport.OneLine(strings.TrimSuffix(": "+one.why, ": ")))
			}
			return nil
		})
	}
	_ = group.Wait()
}

// candidates returns the volumes of claims that have the type, or are at the backend, in the order of the claims.
func (f *moveFlags) candidates(ctx context.Context, opened *volumeRun, skip func(why string)) ([]*oneMove, error) {
	listed := map[string]map[string]cinder.Volume{} // by backend and ID
	for i, lifecycle := range opened.lifecycles {
		volumes, err := lifecycle.Volumes(ctx)
		if err != nil {
			return nil, err
		}
		ofBackend := map[string]cinder.Volume{}
		for _, v := range volumes {
			ofBackend[v.ID] = v
		}
		listed[opened.imports[i].Backend.Name] = ofBackend
	}
	former := map[types.UID]bool{} // claims that keep a former volume, which stays where it is
	if f.toBackend != "" {
		labeled, err := opened.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{LabelSelector: objects.LabelCopy})
		if err != nil {
			return nil, fmt.Errorf("cannot list claims: %w", err)
		}
		for i := range labeled.Items {
			former[labeled.Items[i].UID] = true
		}
	}
	pvs, err := paging.List(ctx, "PersistentVolumes", opened.client.CoreV1().PersistentVolumes().List, func(page *corev1.PersistentVolumeList) []corev1.PersistentVolume { return page.Items })
	if err != nil {
		return nil, err
	}
	var all []*oneMove
	begun := map[string]*oneMove{} // by claim
	for i := range pvs {
		pv := &pvs[i]
		if pv.Annotations[objects.AnnotationProvisionedBy] != f.ProvisionerName {
			continue
		}
		if ref := pv.Spec.ClaimRef; f.toBackend != "" && ref != nil && pv.Annotations[swap.AnnotationIntent] != "" && (f.namespace == "" || f.namespace == ref.Namespace) {
			claim := move.ClaimOf(ref.Name)
			begun[ref.Namespace+"/"+claim] = &oneMove{namespace: ref.Namespace, claim: claim, backend: f.fromBackend, state: moveReady}
		}
		volume := listed[pv.Annotations[objects.AnnotationBackend]][pv.Annotations[objects.AnnotationVolume]]
		if volume.ID == "" || f.from != "" && volume.Type != f.from || f.fromBackend != "" && pv.Annotations[objects.AnnotationBackend] != f.fromBackend {
			continue
		}
		if pv.Status.Phase != corev1.VolumeBound || pv.Spec.ClaimRef == nil {
			if f.namespace == "" {
				skip(fmt.Sprintf("PersistentVolume %s with volume %s: it is %s", pv.Name, volume.ID, pv.Status.Phase))
			}
			continue
		}
		one := &oneMove{namespace: pv.Spec.ClaimRef.Namespace, claim: pv.Spec.ClaimRef.Name, pv: pv.Name, backend: pv.Annotations[objects.AnnotationBackend], volume: volume, state: moveReady}
		if former[pv.Spec.ClaimRef.UID] {
			one.state, one.why = moveFormer, "it has the copy of a move, or the former volume; delete it when the copy is trusted"
		}
		if f.namespace == "" || f.namespace == one.namespace {
			all = append(all, one)
		}
	}
	// A claim whose swap is not complete may have its new volume already.
	for _, one := range all {
		delete(begun, one.namespace+"/"+one.claim)
	}
	all = slices.AppendSeq(all, maps.Values(begun))
	slices.SortFunc(all, func(x, y *oneMove) int {
		return cmp.Or(strings.Compare(x.namespace, y.namespace), strings.Compare(x.claim, y.claim))
	})
	return all, nil
}

// moveOne plans a move and, with --apply, carries it out. It reports whether the state of
// the volume is news.
func (f *moveFlags) moveOne(ctx context.Context, moves moves, one *oneMove) (news bool) {
	before := one.state
	why, err := moves.move(ctx, one, f.apply)
	switch {
	case err == nil && f.apply:
		one.state, one.why = moved, why
	case err == nil:
		one.state, one.why = moveReady, why
	case ctx.Err() != nil:
	case isBusy(err):
		one.state, one.why = moveBusy, err.Error()
	default:
		one.state, one.why = moveRefused, err.Error()
	}
	return one.state != before
}

// isBusy reports whether a volume cannot be moved now, but later: once it is free, or once the
// request whose answer was lost has arrived.
func isBusy(err error) bool {
	var refused interface{ FailureKind() string }
	failed, ok := errors.AsType[*cinder.Error](err)
	return errors.As(err, &refused) && refused.FailureKind() == string(cinder.KindConflict) || ok && (failed.Kind == cinder.KindConflict || failed.EffectUnknown)
}

// writeMoves prints what became of each volume, those first that need a person.
func writeMoves(w io.Writer, all []*oneMove) error {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(x, y *oneMove) int { return cmp.Compare(x.state, y.state) })
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CLAIM\tFROM\tPERSISTENTVOLUME\tVOLUME\tGIB\tSTATE\tWHY")
	for _, one := range all {
		row(table, one.namespace+"/"+one.claim, one.backend, one.pv, one.volume.ID, fmt.Sprint(one.volume.SizeGiB), one.state.String(), one.why)
	}
	return table.Flush()
}

// conclude sums up, and returns an error unless every volume is moved or can be.
func (f *moveFlags) conclude(ctx context.Context, stdout io.Writer, moves moves, all []*oneMove) error {
	count, size := map[moveState]int{}, map[moveState]int64{}
	for _, one := range all {
		count[one.state]++
		size[one.state] += one.volume.SizeGiB
	}
	if f.apply {
		fmt.Fprintf(stdout, "%d volumes (%d GiB) were moved to %s\n", count[moved], size[moved], moves.target())
	} else {
		fmt.Fprintf(stdout, "nothing was changed; with --apply, the command would move %d volumes (%d GiB) to %s\n", count[moveReady], size[moveReady], moves.target())
	}
	var err error
	switch left := count[moveRefused] + count[moveBusy]; {
	case ctx.Err() != nil:
		err = errors.New("interrupted; run the command again to continue")
	case left > 0:
		err = fmt.Errorf("%d of %d volumes cannot be moved, and %d are busy; run the command again when they are free", count[moveRefused], len(all), count[moveBusy])
	}
	return policycli.Exit(policycli.ExitFailed, err)
}
