package backends

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// moving is a volume that two nodes want in turns, as Kubernetes asks for it, while
// Cinder's reads lag, requests fail and the leader changes.
type moving struct {
	*memoryCinder
	tb     testing.TB
	volume string
	leader *Lifecycle
	end    context.CancelFunc
	shared bool
	// wanted are the nodes with a VolumeAttachment, and told the attachments of which they
	// were told; ending are those whose VolumeAttachment is being deleted.
	wanted, ending map[string]bool
	told           map[string]string
	// owed are the nodes whose detachment was answered, but not done.
	owed  map[string]bool
	story []string
}

func (m *moving) say(format string, arguments ...any) {
	m.story = append(m.story, fmt.Sprintf(format, arguments...))
}

func (m *moving) nextTerm() {
	m.end()
	var term context.Context
	term, m.end = context.WithCancel(context.Background())
	m.leader = m.term(m.tb, func(o *LifecycleOptions) {
		o.Poll, o.ReadLag, o.Term, o.Changed = 200*time.Millisecond, m.lag, term, time.Now()
	})
	m.say("a new term")
}

func (m *moving) publish(node string) {
	to := toNode(node)
	to.Shared = m.shared
	to.Release = func(_ context.Context, other, _ string) (bool, error) {
		return !m.wanted[other] && !m.ending[other], nil
	}
	published, err := m.leader.Publish(context.Background(), claimTarget(1, m.volume), to)
	m.say("publish to %s: %s %v", node, published.AttachmentID, err)
	if err == nil {
		m.told[node], m.owed[node] = published.AttachmentID, false
	}
}

func (m *moving) unpublish(node string) {
	from := UnpublishRequest{Node: node, Key: "key-of-" + node, Attached: true}
	for other := range m.wanted {
		if other != node && m.told[other] != "" {
			from.Others = append(from.Others, "key-of-"+other)
		}
	}
	err := m.leader.Unpublish(context.Background(), claimTarget(1, m.volume), from)
	m.say("unpublish from %s: %v", node, err)
	if err == nil {
		m.ending[node], m.owed[node] = false, false
	}
}

// check fails if a node does not have what it was told that it has.
func (m *moving) check(t *rapid.T) {
	t.Helper()
	for node, id := range m.told {
		if open := m.open[id]; m.wanted[node] && id != "" && (open == nil || open.status != "attached") {
			t.Fatalf("node %s was told that it has attachment %s, which has ended\n%s\nrequests: %s", node, id, strings.Join(m.story, "\n"), strings.Join(m.log, "\n     "))
		}
	}
}

// TestNodesHaveWhatTheyWereTold: whatever is lost or refused, in whatever order nodes want
// the volume and let go of it, and however old the state is that reads show. In the end,
// nothing is left.
func TestNodesHaveWhatTheyWereTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(rt *rapid.T) {
			memory := newMemoryCinder()
			memory.lag = rapid.SampledFrom([]time.Duration{0, 300 * time.Millisecond, time.Second, 10 * time.Second}).Draw(rt, "lag")
			memory.member = rapid.Bool().Draw(rt, "member")
			v := forNodes()
			v.MultiAttach = rapid.Bool().Draw(rt, "multiattach")
			m := &moving{
				memoryCinder: memory, tb: t, volume: memory.add(v), end: func() {}, shared: v.MultiAttach,
				wanted: map[string]bool{}, ending: map[string]bool{}, told: map[string]string{}, owed: map[string]bool{},
			}
			mishaps := rapid.SliceOfN(rapid.SampledFrom([]mishap{noFault, noFault, noFault, noFault, refused, lost, unsent, rateLimited, unauthorized, twice}), 0, 80).Draw(rt, "mishaps")
			memory.fault = func(string, string) mishap {
				if len(mishaps) == 0 {
					return noFault
				}
				next := mishaps[0]
				mishaps = mishaps[1:]
				return next
			}
			m.nextTerm()
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				node := rapid.SampledFrom([]string{"n1", "n2"}).Draw(rt, "node")
				switch rapid.SampledFrom([]string{"want", "want", "want", "end", "end", "owe", "pay", "wait", "new term"}).Draw(rt, "step") {
				case "want":
					if !m.ending[node] {
						m.wanted[node] = true
						m.publish(node)
					}
				case "end":
					if m.wanted[node] {
						m.wanted[node], m.ending[node], m.told[node] = false, true, ""
					}
					if m.ending[node] {
						m.unpublish(node)
					}
				case "owe":
					if m.wanted[node] {
						m.wanted[node], m.owed[node], m.told[node] = false, true, ""
					}
				case "pay":
					if m.owed[node] && !m.wanted[node] {
						m.unpublish(node)
					}
				case "wait":
					time.Sleep(time.Duration(rapid.IntRange(0, 20).Draw(rt, "tenths of the lag")) * memory.lag / 10)
				case "new term":
					m.nextTerm()
				}
				m.check(rt)
				time.Sleep(time.Duration(rapid.IntRange(0, 200).Draw(rt, "pause")) * time.Millisecond)
			}
			mishaps = nil
			for _, node := range []string{"n1", "n2"} {
				m.ending[node] = m.ending[node] || m.wanted[node] || m.owed[node]
				m.wanted[node] = false
				for range 300 {
					if !m.ending[node] {
						break
					}
					m.unpublish(node)
					time.Sleep(2 * time.Second)
				}
			}
			if records := stamps.NodeRecordsOf(memory.volumes[m.volume].Volume); len(memory.open) > 0 || len(records) > 0 {
				rt.Fatalf("attachments %v and records %v are left\n%s\nrequests: %s", memory.open, records, strings.Join(m.story, "\n"), strings.Join(memory.log, "\n     "))
			}
			m.end()
			settled(t, m.leader)
		})
	})
}
