package move

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/swap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

var errKilled = errors.New("killed")

// stepped are the volumes of a command that is stopped at a request to Cinder, until another
// command has ended; and maybe killed then.
type stepped struct {
	*world
	step, at int
	after    bool
	meantime func()
	kill     bool
	dead     bool
}

func (s *stepped) do(request func() error) error {
	if s.dead {
		return errKilled
	}
	s.step++
	here := s.step == s.at
	if here && !s.after {
		s.meantime()
		if s.dead = s.kill; s.dead {
			return errKilled
		}
	}
	err := request()
	if here && s.after {
		s.meantime()
		if s.dead = s.kill; s.dead {
			return errKilled
		}
	}
	return err
}

func (s *stepped) Volume(ctx context.Context, id string) (v cinder.Volume, place cinder.Place, err error) {
	err = s.do(func() (err error) { v, place, err = s.world.Volume(ctx, id); return err })
	return v, place, err
}

func conflict(id string) error {
	return &cinder.Error{Kind: cinder.KindConflict, Message: "volume " + id}
}

func (s *stepped) Begin(ctx context.Context, id, with string) error {
	return s.do(func() error {
		v, _, _ := s.world.Volume(ctx, id)
		switch mark := v.Metadata[stamps.KeySwap]; {
		case mark != "" && mark != with:
			return conflict(id)
		case mark == with && v.Status == cinder.StatusAttaching:
			return nil
		case v.Status != cinder.StatusAvailable:
			return conflict(id)
		}
		return s.world.Begin(ctx, id, with)
	})
}

func (s *stepped) Restamp(ctx context.Context, id string, stamp stamps.Volume, pvUID string) error {
	return s.do(func() error {
		if v, _, _ := s.world.Volume(ctx, id); v.Metadata[stamps.KeySwap] != stamp.PV || v.Status != cinder.StatusAttaching {
			return conflict(id)
		}
		return s.world.Restamp(ctx, id, stamp, pvUID)
	})
}

func (s *stepped) End(ctx context.Context, id, with string) error {
	return s.do(func() error { return s.world.End(ctx, id, with) })
}

func (s *stepped) Attachments(ctx context.Context, pv string) (found []nodeuse.Attachment, err error) {
	err = s.do(func() (err error) { found, err = s.world.Attachments(ctx, pv); return err })
	return found, err
}

func (w *world) moveStepped(s *stepped, backend string) error {
	s.world = w
	m := w.mover()
	m.Swapper.Nodes = s
	m.Swapper.Volumes = func(string) (swap.Volumes, error) { return s, nil }
	plan, err := m.Plan(w.t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: backend, StorageClass: backend})
	if err == nil {
		_, err = m.Apply(w.t.Context(), plan, silent)
	}
	return err
}

// Another command runs, from its beginning to its end, at each request of one to Cinder.
func TestAnotherCommandAtEachStep(t *testing.T) {
	swapped := func(w *world, back bool) error {
		r := w.swapper()
		s := &stepped{world: w}
		r.Volumes = func(string) (swap.Volumes, error) { return s, nil }
		plan, err := r.Plan(w.t.Context(), swap.Request{Namespace: "team-a", Claims: [2]string{"data", "data-former"}, Back: back})
		if err == nil {
			err = r.Apply(w.t.Context(), plan)
		}
		return err
	}
	for name, other := range map[string]func(w *world) error{
		"the same":        func(w *world) error { return w.moveStepped(&stepped{}, "silver") },
		"another backend": func(w *world) error { return w.moveStepped(&stepped{}, "bronze") },
		"nothing to do":   func(w *world) error { return w.moveStepped(&stepped{}, "gold") },
		"by hand":         func(w *world) error { return swapped(w, false) },
		"back":            func(w *world) error { return swapped(w, true) },
		"the same, killed in the middle of its swap": func(w *world) error {
			s := &stepped{meantime: func() {}, kill: true}
			s.world = w
			m := w.mover()
			m.Swapper.Volumes = func(string) (swap.Volumes, error) { return s, nil }
			plan, err := m.Plan(w.t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: "silver", StorageClass: "silver"})
			if err == nil {
				_, err = m.Apply(w.t.Context(), plan, func(text string) {
					if strings.HasPrefix(text, "copied and compared") {
						s.at = s.step + 10
					}
				})
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, way := range []struct{ kill, after bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
				for at := 1; ; at += 4 { // others differ by little
					w := newWorld(t)
					w.claim("data", "gold")
					w.strict()
					first := w.volumeOf("data")
					var otherErr error
					s := &stepped{at: at, after: way.after, kill: way.kill, meantime: func() { otherErr = other(w) }}
					err := w.moveStepped(s, "silver")
					if s.step < at {
						break
					}
					w.soundAfter(fmt.Sprintf("after %t, at %d, then killed %t: the first: %v; the other: %v", way.after, at, way.kill, err, otherErr), first)
				}
			}
		})
	}
}

// soundAfter checks what must always be so, ends what was begun, and checks once more.
func (w *world) soundAfter(what, first string) {
	w.t.Helper()
	for _, copied := range w.copied {
		if strings.HasSuffix(copied, " to "+first) {
			w.t.Errorf("%s: a pod copies %s", what, copied)
		}
	}
	check := func(when string) {
		w.t.Helper()
		has := map[string]string{}
		claims, err := w.client.CoreV1().PersistentVolumeClaims("team-a").List(w.t.Context(), metav1.ListOptions{})
		must(w.t, err)
		for i := range claims.Items {
			claim := &claims.Items[i]
			pv := w.pvOf(claim.Name)
			at := w.volumeOf(claim.Name)
			if has[at] != "" {
				w.t.Errorf("%s: %s: claims %s and %s have %s", what, when, has[at], claim.Name, at)
			}
			has[at] = claim.Name
			if intent := pv.Annotations[swap.AnnotationIntent]; strings.Contains(intent, `"committed":true`) && w.reserved() != 2 && when == "then" {
				w.t.Logf("%s: %s: claim %s: committed, and %d reserved", what, when, claim.Name, w.reserved())
			}
			if when == "in the end" {
				if pv.Annotations[swap.AnnotationIntent] != "" {
					w.t.Errorf("%s: %s: claim %s has an intent", what, when, claim.Name)
				}
				if label := claim.Labels[objects.LabelCopy]; label == objects.CopyPartial && at == first {
					w.t.Errorf("%s: %s: claim %s has %s, and the label %s", what, when, claim.Name, at, label)
				}
				if v := w.volumes[strings.Split(at, "/")[1]]; stamps.Of(*v).PV != pv.Name {
					w.t.Errorf("%s: %s: %s is stamped for %s, and claim %s has it", what, when, at, stamps.Of(*v).PV, claim.Name)
				}
			}
		}
	}
	check("then")
	// Pods that were left do nothing any more.
	pods, err := w.client.CoreV1().Pods("team-a").List(w.t.Context(), metav1.ListOptions{})
	must(w.t, err)
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodRunning {
			w.t.Errorf("%s: pod %s runs", what, pod.Name)
		}
	}
	var again error
	for range 2 {
		again = w.moveStepped(&stepped{}, "silver")
	}
	if at := w.volumeOf("data"); !strings.HasPrefix(at, "silver/") && again == nil {
		w.t.Errorf("%s: in the end, the claim has %s", what, at)
	}
	if again != nil {
		w.t.Logf("%s: in the end: %v", what, again)
	}
	if n := w.reserved(); n > 0 {
		w.t.Errorf("%s: in the end, %d volumes are reserved (%v)", what, n, again)
	}
	check("in the end")
}

// One command is slow while it reserves the volumes. Another takes that back, and is interrupted.
// The slow one reserves them all the same, and cannot commit. Then a move must go on from there.
func TestAReservationWithoutAnIntentDoesNotLastForGood(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.strict()
	interrupted := func() {
		ctx, interrupt := context.WithCancel(t.Context())
		m := w.mover()
		plan, err := m.Plan(ctx, Request{Namespace: "team-a", Claim: "data", Backend: "silver", StorageClass: "silver"})
		must(t, err)
		if plan.begun == nil {
			t.Fatal("nothing was begun")
		}
		must(t, m.swapper(nil).EndEarlier(ctx, plan.begun)) // and then
		interrupt()
	}
	begun := false
	s := &stepped{}
	s.meantime = interrupted
	m := w.mover()
	m.Swapper.Volumes = func(string) (swap.Volumes, error) {
		if strings.Contains(w.pvOf("data").Annotations[swap.AnnotationIntent], "with") && !begun {
			begun = true
			s.at = s.step + 1
		}
		return s, nil
	}
	s.world = w
	plan, err := m.Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: "silver", StorageClass: "silver"})
	must(t, err)
	_, err = m.Apply(t.Context(), plan, silent)
	claim, getErr := w.client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), "data-former", metav1.GetOptions{})
	must(t, getErr)
	t.Logf("the slow command: %v; %d volumes are reserved, the label is %s", err, w.reserved(), claim.Labels[objects.LabelCopy])
	var again error
	for range 3 {
		again = w.move(t.Context(), "silver", silent)
	}
	if again != nil || w.reserved() > 0 {
		gone := w.pvOf("data-former")
		t.Errorf("however often it runs, the command says: %v; %d volumes stay reserved, so no pod gets claim data", again, w.reserved())
		// It says that one may give up by that.
		must(t, w.client.Tracker().Delete(claimsResource, "team-a", "data-former"))
		must(t, w.client.Tracker().Delete(pvsResource, "", gone.Name))
		t.Logf("after claim data-former was deleted: %v; %d reserved", w.move(t.Context(), "silver", silent), w.reserved())
	}
}
