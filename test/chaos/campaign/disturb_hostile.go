package campaign

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/hostile"
)

// hostility is a hostile phase of one backend or of Keystone.
type hostility struct {
	where       string
	probability float64
	random      *rand.Rand
}

// front puts a hostile server before one of the simulator's endpoints. The
// simulator still knows the truth, by which the campaign is judged.
func (w *world) front(endpoint cindersim.Endpoint, handler http.Handler) http.Handler {
	server := hostile.NewServer(handler, func(lie hostile.Lie) {
		effect := "in place of the effect"
		if lie.Performed {
			effect = "after the effect"
		}
		w.timeline.Note("hostile %s: %q to %s %s, %s", endpoint, lie.Attack, lie.Method, lie.Path, effect)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.attacks[lie.Attack]++
	})
	server.Judge(func(r *http.Request) (hostile.Attack, bool) { return w.attack(endpoint, r) })
	w.fronts = append(w.fronts, server)
	return server
}

// attack picks the attack of the phases under way on a request.
func (w *world) attack(endpoint cindersim.Endpoint, r *http.Request) (hostile.Attack, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.hostility {
		if w.concerns(h.where, endpoint, r.URL.Path) && h.random.Float64() < h.probability {
			return hostile.Draw(h.random, r), true
		}
	}
	return hostile.Attack{}, false
}

// concerns reports whether a request is to a backend or to Keystone.
func (w *world) concerns(where string, endpoint cindersim.Endpoint, path string) bool {
	switch where {
	case plan.Keystone:
		return endpoint == cindersim.Keystone
	case plan.Lab:
		return endpoint == cindersim.Noauth
	}
	return endpoint == cindersim.Cinder && strings.HasPrefix(path, "/v3/"+w.project(where)+"/")
}

// beHostile carries out one hostile phase. Phases overlap.
func (w *world) beHostile(trouble context.Context, step plan.HostileStep) {
	if !w.until(trouble, step.At) {
		return
	}
	w.timeline.Note("%s", step)
	phase := &hostility{step.Where, step.Probability, rand.New(rand.NewPCG(step.Seed, 0))}
	w.mu.Lock()
	w.hostility = append(w.hostility, phase)
	w.mu.Unlock()
	sleep(trouble, step.For)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hostility = slices.DeleteFunc(w.hostility, func(h *hostility) bool { return h == phase })
}
