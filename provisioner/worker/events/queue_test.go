package events

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

func about(lane, name, reason, message string) event {
	return event{about: corev1.ObjectReference{Kind: "Claim", Namespace: lane, Name: name}, lane: lane, reason: reason, matter: reason, message: message}
}

// told takes all events out, each as "lane/name reason message".
func told(q *queue) []string {
	var all []string
	for e, ok := q.next(); ok; e, ok = q.next() {
		all = append(all, e.lane+"/"+e.about.Name+" "+e.reason+" "+e.message)
	}
	return all
}

func TestOrderOfEvents(t *testing.T) {
	for _, c := range []struct {
		name    string
		limits  limits
		add     []event
		want    string
		dropped int
	}{
		{
			name: "namespaces take turns", limits: limits{9, 9},
			add:  []event{about("a", "1", "R", ""), about("a", "2", "R", ""), about("a", "3", "R", ""), about("b", "1", "R", "")},
			want: "a/1 R , b/1 R , a/2 R , a/3 R ",
		},
		{
			name: "only the newest event of an object and reason is kept, in the object's place", limits: limits{9, 9},
			add:  []event{about("a", "1", "R", "old"), about("a", "2", "R", ""), about("a", "1", "R", "new")},
			want: "a/1 R new, a/2 R ",
		},
		{
			name: "an object's events keep their order", limits: limits{9, 9},
			add:  []event{about("a", "1", "R", "old"), about("a", "1", "S", ""), about("a", "1", "R", "new")},
			want: "a/1 S , a/1 R new",
		},
		{
			name: "an object with many events does not delay others", limits: limits{9, 9},
			add:  []event{about("a", "1", "R", ""), about("a", "1", "S", ""), about("a", "2", "R", "")},
			want: "a/1 R , a/2 R , a/1 S ",
		},
		{
			name: "a namespace has its own limit", limits: limits{9, 2},
			add:  []event{about("b", "1", "R", ""), about("a", "1", "R", ""), about("a", "2", "R", ""), about("a", "3", "R", "")},
			want: "b/1 R , a/2 R , a/3 R ", dropped: 1,
		},
		{
			name: "when there are too many, the longest lane loses its oldest", limits: limits{3, 9},
			add:  []event{about("a", "1", "R", ""), about("a", "2", "R", ""), about("a", "3", "R", ""), about("b", "1", "R", "")},
			want: "a/2 R , b/1 R , a/3 R ", dropped: 1,
		},
		{
			name: "what is replaced takes no room", limits: limits{1, 1},
			add:  []event{about("a", "1", "R", "old"), about("a", "1", "R", "new")},
			want: "a/1 R new",
		},
	} {
		q, dropped := newQueue(c.limits), 0
		for _, e := range c.add {
			dropped += q.add(e)
		}
		if got := strings.Join(told(q), ", "); got != c.want || dropped != c.dropped {
			t.Errorf("%s: passed on %q and dropped %d, want %q and %d", c.name, got, dropped, c.want, c.dropped)
		}
		if len(q.lanes) != 0 || q.waiting != 0 {
			t.Errorf("%s: %d lanes and %d events remain in an empty queue", c.name, len(q.lanes), q.waiting)
		}
	}
}

func TestFloodOfOneNamespaceDelaysNoOther(t *testing.T) {
	q := newQueue(limits{overall: maxWaiting, lane: maxWaitingOfNamespace})
	dropped := 0
	for i := range 30_000 {
		dropped += q.add(about("flood", fmt.Sprint(i), "QuotaExceeded", ""))
	}
	dropped += q.add(about("quiet", "one", "QuotaExceeded", ""))
	if dropped != 30_000-maxWaitingOfNamespace || q.waiting != maxWaitingOfNamespace+1 {
		t.Errorf("%d are dropped, %d wait", dropped, q.waiting)
	}
	var first []string
	for range 2 {
		e, _ := q.next()
		first = append(first, e.lane)
	}
	if !slices.Contains(first, "quiet") {
		t.Errorf("the next round is %v", first)
	}
}

// TestQueueKeepsItsPromises adds and takes random events.
func TestQueueKeepsItsPromises(t *testing.T) {
	type told struct {
		identity
		reason string
	}
	rapid.Check(t, func(t *rapid.T) {
		l := limits{overall: rapid.IntRange(1, 12).Draw(t, "overall"), lane: rapid.IntRange(1, 6).Draw(t, "lane")}
		q := newQueue(l)
		// A simpler model of what waits, and the number of each event.
		waiting, number := map[told]int{}, map[string]int{}
		latest := map[identity]int{}
		last := 0
		take := func() {
			before := map[string]int{}
			for key := range waiting {
				before[key.namespace]++
			}
			e, ok := q.next()
			if ok != (len(waiting) > 0) {
				t.Fatalf("%d events wait, and next says %t", len(waiting), ok)
			}
			if !ok {
				return
			}
			key, n := told{e.identity(), e.reason}, number[e.message]
			if waiting[key] != n {
				t.Fatalf("%v is passed on as number %d, the last was %d", key, n, waiting[key])
			}
			delete(waiting, key)
			if n < latest[key.identity] {
				t.Fatalf("%v is passed on as number %d after number %d", key, n, latest[key.identity])
			}
			latest[key.identity] = n
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				last++
				e := about(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace"), rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "name"),
					rapid.SampledFrom([]string{"R", "S"}).Draw(t, "reason"), fmt.Sprint(last))
				number[e.message] = last
				waiting[told{e.identity(), e.reason}] = last
				for range q.add(e) {
					// Find the dropped event: it must be from the longest lane, or from one
					// that is over its limit.
					gone := lost(q, waiting, func(k told) (identity, string) { return k.identity, k.reason })
					delete(waiting, gone)
				}
			},
			"take": func(*rapid.T) { take() },
			"": func(t *rapid.T) {
				if q.waiting != len(waiting) || q.waiting > l.overall {
					t.Fatalf("%d wait, by account %d, of at most %d", q.waiting, len(waiting), l.overall)
				}
				for name, lane := range q.lanes {
					if lane.waiting > l.lane || lane.waiting == 0 {
						t.Fatalf("%d wait in lane %s, of at most %d", lane.waiting, name, l.lane)
					}
				}
			},
		})
		for len(waiting) > 0 {
			take()
		}
	})
}

// lost finds the event that the model has and the queue lacks.
func lost[K comparable](q *queue, waiting map[K]int, of func(K) (identity, string)) K {
	for key := range waiting {
		id, reason := of(key)
		l := q.lanes[id.namespace]
		if l == nil || l.objects[id] == nil ||
			!slices.ContainsFunc(l.objects[id].Value.(*saying).events, func(e event) bool { return e.matter == reason }) {
			return key
		}
	}
	panic("nothing is lost")
}
