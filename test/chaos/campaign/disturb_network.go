package campaign

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
)

// disturbLink carries out the steps of one link. When it returns, the network
// is intact and no delayed request is still to come.
func (w *world) disturbLink(trouble context.Context, link plan.Link) {
	s := w.slots[link.Slot]
	proxy := s.link(link.To)
	for _, step := range link.Steps {
		if !w.until(trouble, step.At) {
			return
		}
		w.timeline.Note("%s: %s", link, step)
		switch step.Kind {
		case plan.Cut, plan.Stall:
			s.setWhole(link.To, time.Time{})
			if step.Kind == plan.Cut {
				proxy.Cut()
			} else {
				proxy.Stall()
			}
			w.change(func(c *Counts) { c.Cuts++ })
			sleep(trouble, step.For)
			proxy.Heal()
			s.setWhole(link.To, time.Now())
		case plan.Meddle:
			w.meddle(trouble, s, link, step)
		case plan.Blind:
			w.blind(trouble, proxy, step)
		}
	}
}

// meddle makes some requests fail for a while.
func (w *world) meddle(trouble context.Context, s *slot, link plan.Link, step plan.LinkStep) {
	proxy := s.link(link.To)
	random := &lockedRandom{random: rand.New(rand.NewPCG(step.Seed, 0))}
	judge := func(r faultproxy.Request) faultproxy.Verdict {
		if r.Method == http.MethodGet || random.float() >= step.Probability {
			return faultproxy.Pass
		}
		w.change(func(c *Counts) { c.Cuts++ })
		if step.Verdict == faultproxy.Late {
			w.noteLate(r)
		}
		w.timeline.Note("%s: %s %s %s", link, step.Verdict, r.Method, r.Path)
		return step.Verdict
	}
	if link.To == plan.Lab {
		judge = s.witness(judge)
	}
	proxy.Judge(judge)
	sleep(trouble, step.For)
	judge = nil
	if link.To == plan.Lab {
		judge = s.witness(nil)
	}
	proxy.Judge(judge)
	if step.Verdict == faultproxy.Late || step.Verdict == faultproxy.LateAnswer {
		sleep(trouble, step.Late)
		proxy.Release()
		w.timeline.Note("%s: late requests arrive", link)
	}
}

// settled is how long after a network is intact again the arrival of a request
// shows when it was sent: delayed requests arrive before.
const settled = time.Second

func (s *slot) setWhole(to string, since time.Time) {
	if to == plan.Lab {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wholeSince = since
	}
}

// witness checks every change on its way to the noauth backend: it must come
// from the leader. If there is another judge, that one decides about the
// change.
func (s *slot) witness(judge func(faultproxy.Request) faultproxy.Verdict) func(faultproxy.Request) faultproxy.Verdict {
	return func(r faultproxy.Request) faultproxy.Verdict {
		if r.Method != http.MethodGet {
			go s.checkLeads(r, time.Now())
		}
		if judge == nil {
			return faultproxy.Pass
		}
		return judge(r)
	}
}

func (s *slot) checkLeads(r faultproxy.Request, at time.Time) {
	s.mu.Lock()
	by, whole := s.present, !s.wholeSince.IsZero() && at.Sub(s.wholeSince) > settled
	s.mu.Unlock()
	if by == nil || by.identity == "" || !whole {
		return
	}
	holder, since := s.world.watch.term()
	if !checker.IsStale(by.identity, at, holder, since) {
		return
	}
	// The watched state may be old: the replica may have taken the lease a moment
	// ago. A replica that holds it now, since before the request, held it then.
	asking, cancel := context.WithTimeout(context.Background(), try)
	defer cancel()
	if holder, since, err := s.world.watch.termNow(asking); err == nil && checker.IsStale(by.identity, at, holder, since) {
		s.world.found(checker.Finding{
			Kind: checker.Stale, Object: by.name, VolumeID: path.Base(strings.TrimSuffix(r.Path, "/action")),
			Text: fmt.Sprintf("%s %s at %s, although %s has held the lease since %s", r.Method, r.Path,
				at.Format("15:04:05.000"), holder, since.Format("15:04:05.000")),
		})
	}
}

// blind keeps a replica from re-establishing its watch of one kind of objects
// after all watches were cut.
func (w *world) blind(trouble context.Context, proxy *faultproxy.Proxy, step plan.LinkStep) {
	proxy.Judge(func(r faultproxy.Request) faultproxy.Verdict {
		if r.Method == http.MethodGet && strings.HasSuffix(r.Path, "/"+step.Resource) {
			return faultproxy.HoldBefore
		}
		return faultproxy.Pass
	})
	proxy.Cut()
	w.change(func(c *Counts) { c.Cuts++ })
	proxy.Heal()
	sleep(trouble, step.For)
	proxy.Judge(nil)
}

// noteLate records which claim's volume a delayed request creates.
func (w *world) noteLate(r faultproxy.Request) {
	var create struct {
		Volume struct {
			Metadata map[string]string `json:"metadata"`
		} `json:"volume"`
	}
	if json.Unmarshal(r.Body, &create) == nil && create.Volume.Metadata[checker.StampClaimUID] != "" {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.late[create.Volume.Metadata[checker.StampClaimUID]] = true
	}
}

// lockedRandom serves several goroutines.
type lockedRandom struct {
	mu     sync.Mutex
	random *rand.Rand
}

func (l *lockedRandom) float() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.random.Float64()
}
