package events

import (
	"container/list"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// event is an event waiting to be passed on.
type event struct {
	about corev1.ObjectReference
	// lane is the one that the event waits in.
	lane                       string
	annotations                map[string]string
	eventType, reason, message string
	// matter is the subject of the event. A later event with the same object and matter
	// replaces this one.
	matter string
}

// identity distinguishes objects. A changed object keeps its identity.
type identity struct {
	kind, namespace, name string
	uid                   types.UID
}

func (e event) identity() identity {
	return identity{e.about.Kind, e.about.Namespace, e.about.Name, e.about.UID}
}

// limits bound how many events wait.
type limits struct{ overall, lane int }

// queue keeps events until the recorder takes them. Lanes take turns, as do the objects
// in a lane. An object's events keep their order, and only the newest of each matter is
// kept. When there are too many events, the longest lane loses its oldest. A queue is not
// safe for concurrent use.
type queue struct {
	limits  limits
	waiting int
	lanes   map[string]*lane
	turns   *list.List // of *lane, each with waiting events
}

type lane struct {
	name    string
	waiting int
	turn    *list.Element
	objects map[identity]*list.Element
	order   *list.List // of *saying
}

// saying holds the events that wait for one object, oldest first.
type saying struct{ events []event }

func newQueue(limits limits) *queue {
	return &queue{limits: limits, lanes: map[string]*lane{}, turns: list.New()}
}

// add inserts an event, and returns how many were dropped to make room.
func (q *queue) add(e event) (dropped int) {
	l := q.lane(e.lane)
	at, ok := l.objects[e.identity()]
	if !ok {
		at = l.order.PushBack(&saying{})
		l.objects[e.identity()] = at
	}
	about := at.Value.(*saying)
	for i := range about.events {
		if about.events[i].matter == e.matter {
			about.events = append(about.events[:i], about.events[i+1:]...)
			l.waiting--
			q.waiting--
			break
		}
	}
	about.events = append(about.events, e)
	l.waiting++
	q.waiting++
	switch {
	case l.waiting > q.limits.lane:
		q.take(l)
		return 1
	case q.waiting > q.limits.overall:
		q.take(q.longest())
		return 1
	}
	return 0
}

func (q *queue) lane(name string) *lane {
	if l, ok := q.lanes[name]; ok {
		return l
	}
	l := &lane{name: name, objects: map[identity]*list.Element{}, order: list.New()}
	l.turn = q.turns.PushBack(l)
	q.lanes[name] = l
	return l
}

func (q *queue) longest() *lane {
	var longest *lane
	for at := q.turns.Front(); at != nil; at = at.Next() {
		if l := at.Value.(*lane); longest == nil || l.waiting > longest.waiting {
			longest = l
		}
	}
	return longest
}

// next removes and returns the event whose turn it is.
func (q *queue) next() (event, bool) {
	at := q.turns.Front()
	if at == nil {
		return event{}, false
	}
	q.turns.MoveToBack(at)
	return q.take(at.Value.(*lane)), true
}

// take removes the first event of a lane's first object. That object's next event then
// waits behind the lane's other objects.
func (q *queue) take(l *lane) event {
	at := l.order.Front()
	about := at.Value.(*saying)
	e := about.events[0]
	about.events = about.events[1:]
	l.waiting--
	q.waiting--
	if len(about.events) > 0 {
		l.order.MoveToBack(at)
		return e
	}
	l.order.Remove(at)
	delete(l.objects, e.identity())
	if l.waiting == 0 {
		q.turns.Remove(l.turn)
		delete(q.lanes, l.name)
	}
	return e
}
