package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestSplitBrain makes two replicas believe that they lead: one is paused, or
// loses the API server or Cinder, or its requests arrive after another has
// taken over. The networks of each replica record who did what, and when.
//
//tier:matrix
func TestSplitBrain(t *testing.T) {
	scenarios := []scenario{
		{"leader is paused and resumed", patient, func(b *brain) {
			leaderIsPausedAndResumed(b, stepCreate, stepReserve, stepInitialize, stepSecret, stepRecord, stepAttach)
		}},
		{"leader is paused and resumed, attachments", patient.by("attachment"), func(b *brain) {
			leaderIsPausedAndResumed(b, stepCreate, stepOpen, stepSecret, stepRecord, stepComplete)
		}},
		{"leader is paused and resumed, again and again", patient, leadersArePausedInTurn},
		{"volume changes hands while nobody leads", siteOptions{cinder: quick}, volumeChangesHands},
		{"leader is stopped with a request under way", patient, leaderIsStoppedWithARequestUnderWay},
		{"claim is deleted before its PersistentVolume is seen", patient, persistentVolumeIsNotSeenYet},
		{"record of a volume to be retained comes when all was undone", siteOptions{
			cinder: quick, requestTimeout: patient.requestTimeout, apiPatience: patient.apiPatience, arguments: patient.arguments, retain: true,
		}, recordComesWhenAllWasUndone},
		{"volume is attached twice, administrator", siteOptions{cinder: quick}, volumeIsAttachedTwice},
		{"volume is attached twice, member", siteOptions{cinder: quick, keystone: true}, volumeIsAttachedTwice},
		{"volume is attached twice, attachments", siteOptions{cinder: quick, keystone: true, workflow: "attachment"}, volumeIsAttachedTwice},
	}
	for _, way := range []struct {
		name string
		lose func(*faultproxy.Proxy)
	}{{"stalled", (*faultproxy.Proxy).Stall}, {"cut", (*faultproxy.Proxy).Cut}} {
		scenarios = append(scenarios,
			scenario{"API server lost by the leader, " + way.name, patient, func(b *brain) { leaderLosesTheAPIServer(b, way.lose) }},
			scenario{"API server lost by all, " + way.name, patient, func(b *brain) { allLoseTheAPIServer(b, way.lose) }},
			scenario{"Cinder lost by the leader, " + way.name, siteOptions{cinder: quick, arguments: []string{}}, func(b *brain) { leaderLosesCinder(b, way.lose) }},
		)
	}
	for _, what := range []string{stepCreate, stepReserve, stepInitialize, stepSecret, stepRecord, stepAttach} {
		scenarios = append(scenarios, scenario{"overdue/" + what, patient, func(b *brain) { requestIsOverdue(b, what, false) }})
	}
	for _, what := range []string{stepTerminate, stepDetach, stepDelete, stepDeleteSecret} {
		scenarios = append(scenarios, scenario{"overdue/" + what, patient, func(b *brain) { requestIsOverdue(b, what, true) }})
	}
	for _, what := range []string{stepOpen, stepComplete, stepClose} {
		scenarios = append(scenarios, scenario{"overdue/" + what, patient.by("attachment"), func(b *brain) { requestIsOverdue(b, what, what == stepClose) }})
	}

	for _, what := range []string{stepCreate, stepReserve, stepInitialize, stepSecret, stepRecord, stepAttach, stepTerminate, stepDetach, stepDelete, stepDeleteSecret} {
		scenarios = append(scenarios, scenario{"outlives its sender/" + what, mortal, func(b *brain) { requestOutlivesItsSender(b, what, isOfDeletions(what)) }})
	}
	for _, what := range []string{stepOpen, stepComplete, stepClose} {
		scenarios = append(scenarios, scenario{"outlives its sender/" + what, mortal.by("attachment"), func(b *brain) { requestOutlivesItsSender(b, what, isOfDeletions(what)) }})
	}

	// Most of a scenario is waiting for a lease to run out.
	const atOnce = 8
	var group sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i, c := range scenarios {
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			t.Run(c.name, func(t *testing.T) { c.run(newBrain(t, fmt.Sprintf("split-%d", i), c.options)) })
		})
	}
	group.Wait()
}

type scenario struct {
	name    string
	options siteOptions
	run     func(*brain)
}

var (
	// quick is a Cinder whose every state can be seen.
	quick = cindersim.Options{CreateDelay: 300 * time.Millisecond, DeleteDelay: 200 * time.Millisecond}
	// patient is for scenarios that hold requests for longer than a lease lasts
	// without a timeout. The lease is long enough not to be lost on a busy
	// machine, which would look like the failure under test.
	patient = siteOptions{
		cinder: quick, requestTimeout: time.Minute, apiPatience: time.Minute,
		arguments: []string{"--lease-duration=5s", "--renew-deadline=4s", "--retry-period=500ms"},
	}
)

// mortal is for scenarios whose leader is known to be dead long before its lease expires.
var mortal = siteOptions{cinder: quick, requestTimeout: time.Minute, apiPatience: time.Minute, arguments: longLease}

// isOfDeletions reports whether a step is one of those that remove a volume.
func isOfDeletions(what string) bool {
	return slices.Contains([]string{stepTerminate, stepDetach, stepDelete, stepDeleteSecret, stepClose}, what)
}

// by returns the options with another workflow.
func (o siteOptions) by(workflow string) siteOptions {
	o.workflow = workflow
	return o
}

// brain is the site of one scenario.
type brain struct {
	*testing.T
	*site
	ctx context.Context
}

// newBrain makes a site with a leader and a follower. When the test ends, it
// closes the site, and prints what happened if the test failed.
func newBrain(t *testing.T, name string, options siteOptions) *brain {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), worldTime)
	t.Cleanup(cancel)
	s, err := newSite(ctx, name, options)
	if err != nil {
		t.Fatal(err)
	}
	b := &brain{T: t, site: s, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.news())
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		_, err := s.start(ctx)
		b.must(err)
	}
	b.begin()
	return b
}

func (b *brain) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// leads waits for a leader, and returns the other replica too.
func (b *brain) leads() (leader, follower *node) {
	b.Helper()
	leader, err := b.leader(b.ctx)
	b.must(err)
	for _, n := range b.living() {
		if n != leader {
			follower = n
		}
	}
	return leader, follower
}

// held returns the lease's holder, and how often it has changed.
func (b *brain) held() string {
	b.Helper()
	lease, err := suite.Client.CoordinationV1().Leases(harness.Namespace).Get(b.ctx, strings.ReplaceAll(b.provisioner, "/", "-"), metav1.GetOptions{})
	b.must(err)
	holder, transitions := "nobody", int32(0)
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	if lease.Spec.LeaseTransitions != nil {
		transitions = *lease.Spec.LeaseTransitions
	}
	return fmt.Sprintf("%s, for the %d. time", holder, transitions)
}

// resume resumes a replica that was paused while another took the lease. It
// must neither take the lease back nor release a lease that it no longer holds.
// It returns the time after which the replica has no reason to make requests.
func (b *brain) resume(paused, next *node) time.Time {
	b.Helper()
	before := b.held()
	resumed := time.Now()
	b.must(paused.Signal(syscall.SIGCONT))
	b.leadsInstead(next, paused)
	b.must(pause(b.ctx, 2*time.Second))
	if after := b.held(); after != before {
		b.Errorf("before %s was resumed, the lease was held by %s; after that, by %s", paused.name, before, after)
	}
	return resumed
}

// soonEnough is how long a replica may continue to claim that it leads, without
// standing for election, after it can know that it does not.
const soonEnough = 10 * time.Second

// leadsInstead waits until a replica leads and the other reports that it does
// not.
func (b *brain) leadsInstead(leader, former *node) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, soonEnough)
	defer cancel()
	err := harness.Eventually(ctx, func() (string, error) {
		if !leader.Leads(b.ctx) {
			return leader.name + " does not lead", nil
		}
		if !former.killed && former.Leads(b.ctx) {
			return former.name + " still says that it leads", nil
		}
		return "", nil
	})
	if err != nil {
		b.Error(err)
	}
}

// file makes claims.
func (b *brain) file(prefix string, count int) []*corev1.PersistentVolumeClaim {
	b.Helper()
	var claims []*corev1.PersistentVolumeClaim
	for i := range count {
		claim, err := b.claim(b.ctx, fmt.Sprintf("%s-%d", prefix, i))
		b.must(err)
		claims = append(claims, claim)
	}
	return claims
}

// unfile deletes claims, all at once.
func (b *brain) unfile(claims []*corev1.PersistentVolumeClaim) {
	b.Helper()
	for _, claim := range claims {
		b.must(suite.Client.CoreV1().PersistentVolumeClaims(b.namespace).Delete(b.ctx, claim.Name, metav1.DeleteOptions{}))
	}
}

// mustBeServed waits until exactly what the claims need is there.
func (b *brain) mustBeServed(claims ...[]*corev1.PersistentVolumeClaim) {
	b.Helper()
	b.must(b.served(b.ctx, slices.Concat(claims...)...))
}

func (b *brain) mustBeGone() {
	b.Helper()
	b.must(b.gone(b.ctx))
}

// changedBy returns the changes that a replica has requested since.
func (b *brain) changedBy(n *node, since time.Time) []exchange {
	return b.exchanges(func(e *exchange) bool { return e.node == n.name && e.changes() && e.at.After(since) })
}

// mustNotChange fails the test for every change that a replica requested since.
func (b *brain) mustNotChange(n *node, since time.Time, when string) {
	b.Helper()
	for _, e := range b.changedBy(n, since) {
		b.Errorf("%s, %s asked for a change: %s", when, n.name, &e)
	}
}

// mustHaveStoppedFor fails the test if a replica requested a change after its
// successor's first.
func (b *brain) mustHaveStoppedFor(successor, former *node) {
	b.Helper()
	taken := b.changedBy(successor, time.Time{})
	if len(taken) == 0 {
		b.Fatalf("%s had nothing to do; this test proves nothing", successor.name)
	}
	b.mustNotChange(former, taken[0].at, "after "+successor.name+" had taken over")
}

// mustHaveMade fails the test if more volumes were made than claims.
func (b *brain) mustHaveMade(claims int) {
	b.Helper()
	if n := b.creates(); n > claims {
		b.Errorf("%d volumes were made for %d claims", n, claims)
	}
}

func (b *brain) mustBeReady(n *node) {
	b.Helper()
	if status, _, err := n.Get(b.ctx, "/readyz"); err != nil || status != 200 {
		b.Errorf("%s answers /readyz with %d, %v", n.name, status, err)
	}
}

// leaderIsPausedAndResumed lets answers of every step arrive at a process that
// was paused for longer than its lease. It must not take the next step,
// although it cannot know yet that another replica leads.
func leaderIsPausedAndResumed(b *brain, steps ...string) {
	paused, next := b.leads()
	var held []*trap
	for _, what := range steps {
		for nth := range 2 {
			held = append(held, b.set(step{what, nth + 1}, faultproxy.LateAnswer))
		}
	}
	claims := b.file("held", len(held))
	for _, trap := range held {
		b.must(wait(b.ctx, trap.done))
	}
	claims = append(claims, b.file("more", 12)...)
	b.must(paused.Signal(syscall.SIGSTOP))
	b.mustBeServed(claims)
	// No replica would now remove anything that the paused leader made for
	// these claims.
	var kept, dropped []*corev1.PersistentVolumeClaim
	for i, claim := range claims {
		if i%2 == 0 {
			kept = append(kept, claim)
		} else {
			dropped = append(dropped, claim)
		}
	}
	b.unfile(dropped)
	b.mustBeServed(kept)

	b.release()
	b.must(pause(b.ctx, 500*time.Millisecond)) // the answers are in the paused process's sockets
	resumed := b.resume(paused, next)
	b.mustNotChange(paused, resumed, "after it was resumed")
	b.mustHaveMade(len(claims))
	b.mustBeServed(kept)

	// It is a follower like any other.
	b.mustBeReady(paused)
	b.kill(next)
	late := b.file("late", 2)
	b.mustBeServed(kept, late)
	b.leadsInstead(paused, next)
	b.unfile(kept)
	b.unfile(late)
	b.mustBeGone()
}

// leadersArePausedInTurn looks at the lease alone: it belongs to one replica at a
// time, and a replica that lost it does not give it away.
func leadersArePausedInTurn(b *brain) {
	leader, follower := b.leads()
	for range 3 {
		b.must(leader.Signal(syscall.SIGSTOP))
		b.must(harness.Eventually(b.ctx, func() (string, error) {
			if !follower.Leads(b.ctx) {
				return follower.name + " does not take over", nil
			}
			return "", nil
		}))
		b.resume(leader, follower)
		if b.Failed() {
			return
		}
		leader, follower = follower, leader
	}
}

// volumeChangesHands marks a volume as another cluster's after its deletion has
// begun. The next leader finds a PersistentVolume that names it, but no proof
// that it belongs to this cluster.
func volumeChangesHands(b *brain) {
	leader, _ := b.leads()
	claims := b.file("data", 1)
	b.mustBeServed(claims)
	b.begin()
	begun := b.set(step{stepTerminate, 1}, faultproxy.HoldBefore)
	b.unfile(claims)
	b.must(wait(b.ctx, begun.sprung))
	b.kill(leader)
	volume := b.ours()[0]
	theirs := maps.Clone(volume.Metadata)
	theirs[annotation("cluster")] = "another"
	b.must(b.sim.SetVolumeMetadata(volume.ID, theirs))
	before := b.ours()[0]
	b.must(harness.Eventually(b.ctx, func() (string, error) {
		events, err := suite.Client.CoreV1().Events("default").List(b.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pvName(claims[0])})
		if err != nil {
			return "", err
		}
		for _, event := range events.Items {
			if strings.Contains(event.Message, `is stamped cluster "another"`) {
				return "", nil
			}
		}
		return "no event says that the volume is another's", nil
	}))
	if after := b.ours(); len(after) != 1 || !reflect.DeepEqual(after[0], before) {
		b.Errorf("a volume that became another's was changed\nfrom %+v\nto   %+v", before, after)
	}
	b.must(b.sim.SetVolumeMetadata(volume.ID, volume.Metadata))
	// Rejected deletions are retried rarely; a new leader retries at once.
	next, err := b.leader(b.ctx)
	b.must(err)
	b.kill(next)
	_, err = b.start(b.ctx)
	b.must(err)
	b.mustBeGone()
}

// leaderLosesTheAPIServer cuts off only the leader, with many claims under way.
func leaderLosesTheAPIServer(b *brain, lose func(*faultproxy.Proxy)) {
	blind, next := b.leads()
	halfway := b.set(step{stepReserve, 5}, faultproxy.Pass)
	// A request that no server gets, and that its sender repeats if it may.
	overdue := b.set(step{stepRecord, 2}, faultproxy.HoldBefore)
	before := b.file("before", 10)
	b.must(wait(b.ctx, halfway.done))
	b.must(wait(b.ctx, overdue.sprung))
	lose(blind.api)
	after := b.file("after", 10)
	b.mustBeServed(before, after)
	b.mustHaveStoppedFor(next, blind)

	healed := time.Now()
	blind.api.Heal()
	b.leadsInstead(next, blind)
	b.must(pause(b.ctx, 3*time.Second))
	b.mustNotChange(blind, healed, "after it saw the API server again")
	b.mustHaveMade(20)
	b.mustBeReady(blind)
	b.kill(next)
	b.unfile(before)
	late := b.file("late", 2)
	b.mustBeServed(after, late)
	b.leadsInstead(blind, next)
	b.unfile(after)
	b.unfile(late)
	b.mustBeGone()
}

// allLoseTheAPIServer takes the API server from every replica for longer than a
// lease lasts, with claims coming and going.
func allLoseTheAPIServer(b *brain, lose func(*faultproxy.Proxy)) {
	leaving := b.file("leaving", 8)
	b.mustBeServed(leaving)
	b.begin()
	halfway := b.set(step{stepReserve, 4}, faultproxy.Pass)
	staying := b.file("staying", 8)
	b.must(wait(b.ctx, halfway.done))
	b.unfile(leaving)
	for _, n := range b.living() {
		lose(n.api)
	}
	staying = append(staying, b.file("meanwhile", 4)...)
	b.must(pause(b.ctx, 5*time.Second))
	dark := time.Now()
	b.must(pause(b.ctx, time.Second))
	for _, n := range b.living() {
		b.mustNotChange(n, dark, "without a lease that could be renewed")
	}
	for _, n := range b.living() {
		n.api.Heal()
	}
	b.mustBeServed(staying)
	b.mustHaveMade(len(leaving) + len(staying))
	for _, n := range b.living() {
		b.mustBeReady(n)
	}
	b.unfile(staying)
	b.mustBeGone()
}

// leaderLosesCinder makes claims and deletions wait; they continue when Cinder
// is back, or when another replica, which can reach it, takes over.
func leaderLosesCinder(b *brain, lose func(*faultproxy.Proxy)) {
	deaf, next := b.leads()
	leaving := b.file("leaving", 6)
	b.mustBeServed(leaving)
	lose(deaf.cinder)
	healed := b.file("healed", 6)
	b.mustBeToldToWait(healed)
	b.unfile(leaving[:3])
	deaf.cinder.Heal()
	b.mustBeServed(healed, leaving[3:])

	lose(deaf.cinder)
	taken := b.file("taken", 6)
	b.mustBeToldToWait(taken)
	b.unfile(leaving[3:])
	stopping, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	b.must(deaf.Stop(stopping))
	b.kill(deaf)
	b.mustBeServed(healed, taken)
	b.leadsInstead(next, deaf)
	b.mustHaveMade(len(leaving) + len(healed) + len(taken))
	b.unfile(healed)
	b.unfile(taken)
	b.mustBeGone()
}

// mustBeToldToWait waits until every claim has an event about its backend.
func (b *brain) mustBeToldToWait(claims []*corev1.PersistentVolumeClaim) {
	b.Helper()
	for _, claim := range claims {
		_, err := suite.WaitEvent(b.ctx, b.namespace, claim.Name, "BackendUnavailable", "backend gold: ")
		b.must(err)
	}
}

// requestIsOverdue lets a change that a leader requested arrive after another
// leader has finished the claim, and the first, which was paused, is running
// again.
func requestIsOverdue(b *brain, what string, deleting bool) {
	paused, next := b.leads()
	var claims []*corev1.PersistentVolumeClaim
	if deleting {
		claims = b.file("data", 1)
		b.mustBeServed(claims)
		b.begin()
	}
	overdue := b.set(step{what, 1}, faultproxy.Late)
	if deleting {
		b.unfile(claims)
		claims = nil
	} else {
		claims = b.file("data", 1)
	}
	settled := func() {
		b.Helper()
		if deleting {
			b.mustBeGone()
		} else {
			b.mustBeServed(claims)
		}
	}
	b.must(wait(b.ctx, overdue.sprung))
	b.must(paused.Signal(syscall.SIGSTOP))
	settled()
	resumed := b.resume(paused, next)
	b.release()
	b.must(wait(b.ctx, overdue.done))
	settled()
	b.must(pause(b.ctx, time.Second))
	b.mustNotChange(paused, resumed, "after it was resumed")
	b.unfile(claims)
	b.mustBeGone()
}

// requestOutlivesItsSender lets a change that a leader requested arrive after it was
// killed, and the next one, which learned that at once, has finished the claim.
func requestOutlivesItsSender(b *brain, what string, deleting bool) {
	dead, next := b.leads()
	var claims []*corev1.PersistentVolumeClaim
	if deleting {
		claims = b.file("data", 1)
		b.mustBeServed(claims)
		b.begin()
	}
	overdue := b.set(step{what, 1}, faultproxy.Late)
	if deleting {
		b.unfile(claims)
		claims = nil
	} else {
		claims = b.file("data", 1)
	}
	b.must(wait(b.ctx, overdue.sprung))
	identity, err := suite.Leader(b.ctx, b.provisioner)
	b.must(err)
	b.kill(dead)
	b.must(suite.ReportPod(b.ctx, b.provisioner, identity, harness.Ended(identity)))
	settled := func() {
		b.Helper()
		if deleting {
			b.mustBeGone()
		} else {
			b.mustBeServed(claims)
		}
	}
	settled()
	b.leadsInstead(next, dead)
	b.release()
	b.must(wait(b.ctx, overdue.done))
	settled()
	b.unfile(claims)
	b.mustBeGone()
}

// recordComesWhenAllWasUndone saves a PersistentVolume for a claim that has gone
// by then, and whose volume the next leader has removed. Its reclaim policy
// would keep it forever.
func recordComesWhenAllWasUndone(b *brain) {
	paused, next := b.leads()
	overdue := b.set(step{stepRecord, 1}, faultproxy.Late)
	claims := b.file("data", 1)
	b.must(wait(b.ctx, overdue.sprung))
	b.must(paused.Signal(syscall.SIGSTOP))
	b.unfile(claims)
	b.mustBeGone()
	if made := b.exchanges(func(e *exchange) bool { return e.node == next.name && e.what == stepDelete }); len(made) == 0 {
		b.Error("the next leader undid nothing; this test proves nothing")
	}
	b.release()
	b.must(wait(b.ctx, overdue.done))
	b.mustBeGone()
	if removed := b.exchanges(func(e *exchange) bool { return e.node == next.name && e.what == stepDeleteRecord }); len(removed) == 0 {
		b.Error("nobody removed the PersistentVolume; this test proves nothing")
	}
}

// volumeIsAttachedTwice covers what Cinder makes of two os-attach at once: two
// attachments, which it neither terminates nor detaches together.
func volumeIsAttachedTwice(b *brain) {
	first, _ := b.leads()
	claims := b.file("data", 1)
	b.mustBeServed(claims)
	volume := b.ours()[0]
	twice := volume
	twice.Attachments = append(slices.Clone(volume.Attachments), volume.Attachments[0])
	twice.Attachments[1].ID = ""
	b.must(b.sim.RemoveVolume(volume.ID))
	_, err := b.sim.AddVolume(twice)
	b.must(err)
	if n := len(b.ours()[0].Attachments); n != 2 {
		b.Fatalf("the volume has %d attachments; this test would prove nothing", n)
	}
	// A leader that has not seen the volume reads it, and leaves it alone.
	b.kill(first)
	more := b.file("more", 1)
	b.must(harness.Eventually(b.ctx, func() (string, error) {
		if volumes := b.ours(); len(volumes) != 2 || volumes[1].Status != "in-use" {
			return describe(volumes), nil
		}
		return "", nil
	}))
	if i := slices.IndexFunc(b.ours(), func(v cindersim.Volume) bool { return v.ID == volume.ID }); i < 0 || b.ours()[i].Status != "in-use" {
		b.Errorf("the volume in use was changed: %s", describe(b.ours()))
	}
	b.unfile(claims)
	b.unfile(more)
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	b.must(b.gone(ctx))
}

// leaderIsStoppedWithARequestUnderWay stops a leader that waits for an answer.
// Until the answer arrives, no other replica may lead.
func leaderIsStoppedWithARequestUnderWay(b *brain) {
	stopped, next := b.leads()
	held := b.set(step{stepInitialize, 1}, faultproxy.LateAnswer)
	claims := b.file("data", 4)
	b.must(wait(b.ctx, held.done))
	b.must(stopped.Signal(syscall.SIGTERM))
	// Longer than a follower needs to notice a lease that was released or is no
	// longer renewed.
	b.must(pause(b.ctx, 5*time.Second))
	if next.Leads(b.ctx) {
		b.Error("another replica leads while a request of the last leader is under way")
	}
	if early := b.exchanges(func(e *exchange) bool { return e.node == next.name }); len(early) > 0 {
		b.Errorf("another replica works while a request of the last leader is under way: %s", &early[0])
	}
	b.release()
	select {
	case <-stopped.Exited():
	case <-b.ctx.Done():
		b.Fatal("the leader did not end")
	}
	b.kill(stopped)
	b.mustBeServed(claims)
	b.mustHaveStoppedFor(next, stopped)
	b.mustHaveMade(len(claims))
	b.unfile(claims)
	b.mustBeGone()
}

// persistentVolumeIsNotSeenYet deletes a claim whose PersistentVolume is
// recorded, while the leader's watch does not show it. The reclaim policy is
// Retain: undoing the claim would destroy data that the user wants to keep.
func persistentVolumeIsNotSeenYet(b *brain) {
	b.must(b.reclaim(corev1.PersistentVolumeReclaimRetain))
	leader, follower := b.leads()
	b.kill(follower)
	// Watches that begin from now on show nothing until they may.
	blind := make(chan struct{})
	see := sync.OnceFunc(func() { close(blind) })
	b.Cleanup(see)
	b.holdBack(leader, func(_ string, r faultproxy.Request) {
		if r.Method == "GET" && strings.HasSuffix(r.Path, "/persistentvolumes") {
			<-blind
		}
	})
	leader.api.Cut()
	leader.api.Heal()
	held := b.set(step{stepRecord, 1}, faultproxy.LateAnswer)
	claim := b.file("data", 1)[0]
	b.must(wait(b.ctx, held.done))
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(b.ctx, pvName(claim), metav1.GetOptions{})
	b.must(err)
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		b.Fatalf("the reclaim policy is %s", pv.Spec.PersistentVolumeReclaimPolicy)
	}
	deleted := time.Now()
	b.must(b.deleteClaim(b.ctx, claim.Name))
	// Long enough to undo it.
	b.must(pause(b.ctx, 3*time.Second))
	if volumes := b.ours(); len(volumes) != 1 || !volumes[0].Export.Present {
		b.Errorf("a volume that a PersistentVolume names was undone: %s", describe(volumes))
	}
	if secrets, err := b.secrets(b.ctx); err != nil || len(secrets) != 1 {
		b.Errorf("%d Secrets, %v, want the one that the PersistentVolume refers to", len(secrets), err)
	}
	b.mustNotChange(leader, deleted, "after the claim was deleted")
	see()
	b.release()
	// Users who no longer want it change the policy.
	b.must(b.reclaim(corev1.PersistentVolumeReclaimDelete))
	b.mustBeGone()
}

// reclaim gives the StorageClass, and the PersistentVolumes that were made by
// it, a reclaim policy.
func (b *brain) reclaim(policy corev1.PersistentVolumeReclaimPolicy) error {
	class, err := suite.Client.StorageV1().StorageClasses().Get(b.ctx, b.class, metav1.GetOptions{})
	if err != nil {
		return err
	}
	class.ReclaimPolicy = &policy
	class.ResourceVersion, class.UID = "", ""
	pvs, err := suite.PersistentVolumes(b.ctx, b.provisioner)
	if err != nil {
		return err
	}
	// The policy of a class cannot be changed, only the class replaced.
	failed := []error{suite.Client.StorageV1().StorageClasses().Delete(b.ctx, b.class, metav1.DeleteOptions{})}
	_, err = suite.Client.StorageV1().StorageClasses().Create(b.ctx, class, metav1.CreateOptions{})
	failed = append(failed, err)
	patch := fmt.Sprintf(`{"spec":{"persistentVolumeReclaimPolicy":%q}}`, policy)
	for _, pv := range pvs {
		_, err := suite.Client.CoreV1().PersistentVolumes().Patch(b.ctx, pv.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}
