// Package gate lets what a program does to the world, and what it learns, happen one after
// the other, in an order that a seed decides. It is meant for a synctest bubble: whatever
// arrives waits until all goroutines of the bubble are idle, so the order in which they
// happened to run does not matter.
package gate

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"
)

// Kind is what waits at the gate.
type Kind string

// The kinds.
const (
	Request Kind = "request" // before its effect
	Answer  Kind = "answer"  // after the effect
	Event   Kind = "event"   // one event for one watch
)

// Passage is what waits.
type Passage struct {
	Kind Kind
	// Client is who sent the request, or gets answer and event, and Server the other.
	Client, Server string
	// What describes it: what is the same for two passages is in the same order.
	What string
}

// Verdict is what happens to a passage.
type Verdict string

// The verdicts. A failed one is answered with an error; a lost one is not answered.
const (
	Passes Verdict = "passes"
	Fails  Verdict = "fails"
	Lost   Verdict = "lost"
)

// Weather is how the network is for a passage.
type Weather struct {
	// Delay is the usual longest delay; one in ten takes up to ten times as long.
	Delay time.Duration
	// Until is when it goes at the earliest.
	Until time.Time
	// Lost and Failed are probabilities.
	Lost, Failed float64
}

// Options configure a gate.
type Options struct {
	Seed uint64
	// Weather is asked once for each passage.
	Weather func(Passage) Weather
	// Passed is called when a passage was let go and everything is idle again.
	Passed func(Passage, Verdict, time.Time)
}

// Gate lets passages go. One goroutine calls Run, any call Wait.
type Gate struct {
	options Options
	random  *rand.Rand
	// waiting are sorted by when they go.
	waiting []*turn

	mu      sync.Mutex
	arrived []*turn
	closed  bool
	kick    chan struct{}
}

type turn struct {
	Passage
	sent, due time.Time
	verdict   Verdict
	pass      chan Verdict
}

// New makes a gate. It must be called in the bubble.
func New(options Options) *Gate {
	return &Gate{options: options, random: rand.New(rand.NewPCG(options.Seed, 1)), kick: make(chan struct{}, 1)}
}

// Wait waits for a passage's turn.
func (g *Gate) Wait(p Passage) Verdict {
	t := &turn{Passage: p, sent: time.Now(), pass: make(chan Verdict, 1)}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return Lost
	}
	g.arrived = append(g.arrived, t)
	g.mu.Unlock()
	select {
	case g.kick <- struct{}{}:
	default:
	}
	return <-t.pass
}

// Close loses all passages from now on.
func (g *Gate) Close() {
	g.mu.Lock()
	g.closed = true
	lost := append(g.arrived, g.waiting...)
	g.mu.Unlock()
	for _, t := range lost {
		t.pass <- Lost
	}
}

// Run lets passages go until a time.
func (g *Gate) Run(until time.Time) {
	for {
		synctest.Wait()
		g.admit()
		now := time.Now()
		if len(g.waiting) > 0 && !g.waiting[0].due.After(now) {
			t := g.waiting[0]
			g.waiting = g.waiting[1:]
			t.pass <- t.verdict
			synctest.Wait()
			g.options.Passed(t.Passage, t.verdict, t.sent)
			continue
		}
		if !now.Before(until) {
			return
		}
		next := until
		if len(g.waiting) > 0 && g.waiting[0].due.Before(until) {
			next = g.waiting[0].due
		}
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-timer.C:
		case <-g.kick:
		}
		timer.Stop()
	}
}

// admit draws when those go that have arrived since. What is drawn does not depend on the
// order in which they arrived.
func (g *Gate) admit() {
	g.mu.Lock()
	arrived := g.arrived
	g.arrived = nil
	g.mu.Unlock()
	slices.SortStableFunc(arrived, func(a, b *turn) int { return a.compare(b) })
	for _, t := range arrived {
		t.draw(g.options.Weather(t.Passage), g.random)
		at, _ := slices.BinarySearchFunc(g.waiting, t, func(other, t *turn) int {
			if c := other.due.Compare(t.due); c != 0 {
				return c
			}
			return -1
		})
		g.waiting = slices.Insert(g.waiting, at, t)
	}
}

func (p Passage) compare(other *turn) int {
	return cmp.Or(strings.Compare(string(p.Kind), string(other.Kind)), strings.Compare(p.Client, other.Client), strings.Compare(p.Server, other.Server), strings.Compare(p.What, other.What))
}

func (t *turn) draw(w Weather, random *rand.Rand) {
	longest := w.Delay
	if random.IntN(10) == 0 {
		longest *= 10
	}
	t.due, t.verdict = t.sent.Add(time.Duration(random.Int64N(int64(longest)+1))), Passes
	if t.due.Before(w.Until) {
		t.due = w.Until
	}
	switch chance := random.Float64(); {
	case chance < w.Lost:
		t.verdict = Lost
	case chance < w.Lost+w.Failed:
		t.verdict = Fails
	}
}
