package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/sample"
)

// The crash matrix lets everything happen that can, at every step of a claim's
// life: the leader dies before the step's effect and after it, the request or
// its answer is lost, the answer or the request itself comes too late, the
// request is performed twice; and the claim is deleted in the middle of it. The
// steps are taken from a run in which nothing goes wrong, so that a new one is
// covered without anybody having to think of it. Whatever happens, in the end
// there is exactly one volume, in use once, one PersistentVolume that is bound
// to the claim, and one Secret; and once the claim is gone, nothing.

// phase is a part of a claim's life.
type phase string

const (
	// taking over: a replica that never led becomes the leader, and finds a claim.
	takingOver phase = "taking over"
	// provisioning: a claim is made.
	provisioning phase = "provisioning"
	// deleting: the claim of a volume in use is deleted.
	deleting phase = "deleting"
	// undoing: a claim is deleted when all but its PersistentVolume is there.
	undoing phase = "undoing"
	// cloning: a claim is made that wants the content of another. Only the steps
	// that provisioning does not have, and the create, are cases.
	cloning phase = "cloning"
)

var phases = []phase{takingOver, provisioning, deleting, undoing, cloning}

// mishap is what happens to a step.
type mishap struct {
	name    string
	verdict faultproxy.Verdict
	// kill ends the replica that made the request, abandon deletes the claim;
	// both while the request, or its answer, is held.
	kill, abandon bool
}

var mishaps = []mishap{
	{name: "killed before", verdict: faultproxy.HoldBefore, kill: true},
	{name: "killed after", verdict: faultproxy.HoldAfter, kill: true},
	{name: "request lost", verdict: faultproxy.LoseBefore},
	{name: "answer lost", verdict: faultproxy.LoseAfter},
	{name: "answer delayed past the time-out", verdict: faultproxy.HoldAfter},
	{name: "late", verdict: faultproxy.Late},
	{name: "late, killed", verdict: faultproxy.Late, kill: true},
	{name: "twice", verdict: faultproxy.Twice},
	{name: "claim deleted, killed before", verdict: faultproxy.HoldBefore, kill: true, abandon: true},
	{name: "claim deleted, killed after", verdict: faultproxy.HoldAfter, kill: true, abandon: true},
	{name: "claim deleted, answer delayed past the time-out", verdict: faultproxy.HoldAfter, abandon: true},
	{name: "claim deleted, late", verdict: faultproxy.Late, abandon: true},
	{name: "claim deleted, late, killed", verdict: faultproxy.Late, kill: true, abandon: true},
}

// befalls reports whether a mishap makes sense for a step.
func (m mishap) befalls(in phase, at step) bool {
	if m.abandon && in != provisioning && in != cloning {
		return false
	}
	if !at.reads() {
		return true
	}
	// It matters only to the sender whether, when and how often a read was
	// performed.
	switch m.verdict {
	case faultproxy.LoseAfter, faultproxy.Late, faultproxy.Twice:
		return false
	case faultproxy.HoldAfter:
		return !m.kill
	}
	return true
}

// crash is one cell of the matrix.
type crash struct {
	workflow string

	phase  phase
	step   step
	mishap mishap
	// again is a step of the replica that takes over, which is killed too; none
	// if it is zero.
	again       step
	againMishap mishap
	// certain means that every undisturbed run takes the step.
	certain bool
}

func (c crash) String() string {
	name := fmt.Sprintf("%s/%s/%s/%s", c.workflow, c.phase, c.step, c.mishap.name)
	if c.again != (step{}) {
		name += fmt.Sprintf("/then %s/%s", c.again, c.againMishap.name)
	}
	return name
}

// mustHave are steps that every working recording has; without them the matrix
// proves nothing.
var mustHave = map[string]map[phase][]string{
	"reserve": {
		provisioning: {stepCreate, stepReserve, stepInitialize, stepSecret, stepRecord, stepAttach},
		deleting:     {stepTerminate, stepDetach, stepDelete, stepDeleteSecret, stepDeleteRecord, stepLetGo},
		undoing:      {stepTerminate, stepUnreserve, stepDelete, stepDeleteSecret},
		cloning:      {stepProtect, stepCreate},
	},
	"attachment": {
		provisioning: {stepCreate, stepOpen, stepSecret, stepRecord, stepComplete},
		deleting:     {stepClose, stepDelete, stepDeleteSecret, stepDeleteRecord, stepLetGo},
		undoing:      {stepClose, stepDelete, stepDeleteSecret},
		cloning:      {stepProtect, stepCreate},
	},
}

// mustHaveCSI is the same for mode csi. An attachment is left when the claim of its
// volume is deleted.
var mustHaveCSI = map[phase][]string{
	provisioning: {stepCreate, stepSecret, stepRecord, stepMark},
	deleting:     {stepClose, stepDelete, stepDeleteNodes, stepDeleteRecord, stepLetGo},
	undoing:      {stepDelete, stepDeleteNodes},
	cloning:      {stepProtect, stepCreate},
}

const (
	// lanes is how many cases run at once. Most of a case is waiting.
	lanes = 12
	// matrixTime bounds the whole matrix, caseTime every wait of one case. What a
	// late request left is noticed 15 s or 90 s after a term begins; a slow machine
	// is no finding.
	matrixTime = 20 * time.Minute
	caseTime   = 150 * time.Second
	// attempts is how often a case is begun if its step is not reached: not
	// every run takes every step.
	attempts = 3
)

//tier:matrix
func TestCrashMatrix(t *testing.T) {
	first := crashMatrix(t, &matrix{name: "crash", options: siteOptions{workflow: "reserve"}})
	// The other workflow differs by its own steps.
	crashMatrix(t, &matrix{name: "crash-attachment", options: siteOptions{workflow: "attachment"}, only: func(c crash) bool {
		return !slices.ContainsFunc(first, func(known crash) bool { return known.phase == c.phase && known.step.what == c.step.what })
	}})
}

// TestCrashMatrixOfAMember repeats the part of the matrix where it matters who
// asks: a member of a project is shown less of an attachment than the
// administrator that noauth makes of everybody, and a repeated os-attach is
// answered differently. Logging in is a step, too.
//
//tier:matrix
func TestCrashMatrixOfAMember(t *testing.T) {
	for _, workflow := range []string{"reserve", "attachment"} {
		crashMatrix(t, &matrix{name: "member-" + workflow, options: siteOptions{workflow: workflow, keystone: true}, only: func(c crash) bool {
			switch {
			case strings.HasPrefix(c.step.what, "keystone "):
				return workflow == "reserve"
			case c.mishap.abandon || c.phase == undoing || !strings.HasPrefix(c.step.what, "cinder ") || c.step.reads():
				return false
			case workflow == "attachment" && !strings.Contains(c.step.what, "attachments"):
				return false
			}
			return c.mishap.verdict == faultproxy.HoldAfter || c.mishap.verdict == faultproxy.LoseAfter || c.mishap.verdict == faultproxy.Twice
		}})
	}
}

// crashMatrix runs a matrix, or a sample of it, and returns all its cases.
func crashMatrix(t *testing.T, m *matrix) (cases []crash) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	m.ran = map[crash]bool{}
	// Short, but long enough for every state to be seen.
	m.options.cinder = cindersim.Options{CreateDelay: 250 * time.Millisecond, DeleteDelay: 150 * time.Millisecond}
	first, err := m.site(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cases, err = m.record(ctx, first)
	if err != nil {
		t.Fatal(errors.Join(err, first.close()))
	}
	required := mustHave[m.options.workflow]
	if m.options.csi {
		required = mustHaveCSI
	}
	for in, steps := range required {
		for _, what := range steps {
			if !slices.ContainsFunc(cases, func(c crash) bool { return c.phase == in && c.step.what == what && c.certain }) {
				t.Errorf("%s: the recorded runs have no step %q", in, what)
			}
		}
	}
	if m.only != nil {
		cases = slices.DeleteFunc(cases, func(c crash) bool { return !m.only(c) })
	}
	known := slices.Clone(cases)
	sampled := sample.New(t)
	cases = slices.DeleteFunc(cases, func(c crash) bool { return !sampled.Takes(string(c.phase) + " " + c.step.what) })
	m.idle = append(m.idle, first)
	m.runAll(ctx, t, cases)
	again := slices.DeleteFunc(m.crashedAgain(), func(c crash) bool { return !sampled.Takes("again " + c.again.what) })
	m.runAll(ctx, t, again)
	for _, s := range m.idle {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
	m.account(t, slices.Concat(cases, again))
	return known
}

// matrix makes the cases, and keeps track of them.
type matrix struct {
	name    string
	options siteOptions
	// only, if set, picks cases.
	only func(crash) bool

	mu     sync.Mutex
	sites  int
	idle   []*site
	ran    map[crash]bool
	missed []string
	// recoveries are the steps of replicas that took over from a killed one,
	// each with the case in which it was first seen.
	recoveries []crash
}

// runAll runs cases, as many at once as there are lanes.
func (m *matrix) runAll(ctx context.Context, t *testing.T, cases []crash) {
	queue := make(chan crash, len(cases))
	for _, c := range cases {
		queue <- c
	}
	close(queue)
	var group sync.WaitGroup
	for range lanes {
		group.Go(func() {
			for c := range queue {
				t.Run(c.String(), func(t *testing.T) { m.run(ctx, t, c) })
			}
		})
	}
	group.Wait()
}

// crashedAgain makes the cases in which the replica that takes over is killed as
// well, at every kind of step that any of them took.
func (m *matrix) crashedAgain() []crash {
	if m.only != nil {
		return nil
	}
	var cases []crash
	for _, c := range m.recoveries {
		for _, mishap := range mishaps {
			// For a read, before and after are the same.
			if mishap.kill && !mishap.abandon && (mishap.verdict == faultproxy.HoldAfter || mishap.verdict == faultproxy.HoldBefore && !c.again.reads()) {
				c.againMishap = mishap
				cases = append(cases, c)
			}
		}
	}
	return cases
}

// noteRecovery notes the steps that followed a kill.
func (m *matrix) noteRecovery(c crash, steps []step) {
	for _, at := range steps {
		if !slices.ContainsFunc(m.recoveries, func(known crash) bool { return known.again.what == at.what }) {
			c.again, c.certain = at, false
			m.recoveries = append(m.recoveries, c)
		}
	}
}

// site makes a site with a leader and a follower.
func (m *matrix) site(ctx context.Context) (*site, error) {
	m.mu.Lock()
	m.sites++
	name := fmt.Sprintf("%s-%d", m.name, m.sites)
	m.mu.Unlock()
	s, err := newSite(ctx, name, m.options)
	if err != nil {
		return nil, err
	}
	for range 2 {
		if _, err := s.start(ctx); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

// record lets every phase pass undisturbed, more than once, and makes the cases
// from the steps that were taken.
func (m *matrix) record(ctx context.Context, s *site) ([]crash, error) {
	const runs = 3
	var cases []crash
	provisioned := map[string]bool{}
	for _, in := range phases {
		var all []step
		taken := map[step]int{}
		for range runs {
			steps, err := s.undisturbed(ctx, in)
			if err != nil {
				return nil, fmt.Errorf("%s undisturbed: %w\n%s", in, err, s.news())
			}
			s.news()
			for _, at := range steps {
				if in == provisioning {
					provisioned[at.what] = true
				}
				if in == cloning && provisioned[at.what] && at.what != stepCreate {
					continue
				}
				if taken[at]++; taken[at] == 1 {
					all = append(all, at)
				}
			}
		}
		for _, at := range all {
			for _, mishap := range mishaps {
				if mishap.befalls(in, at) {
					cases = append(cases, crash{workflow: m.options.workflow, phase: in, step: at, mishap: mishap, certain: taken[at] == runs})
				}
			}
		}
	}
	return cases, nil
}

// borrow takes an unused site, or makes one.
func (m *matrix) borrow(ctx context.Context) (*site, error) {
	m.mu.Lock()
	if last := len(m.idle) - 1; last >= 0 {
		s := m.idle[last]
		m.idle = m.idle[:last]
		m.mu.Unlock()
		return s, nil
	}
	m.mu.Unlock()
	return m.site(ctx)
}

// run runs a case. The next case reuses the site unless this one failed.
func (m *matrix) run(ctx context.Context, t *testing.T, c crash) {
	began := time.Now()
	s, err := m.borrow(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var recovery []step
	for range attempts {
		if recovery, err = s.crash(ctx, c); !errors.Is(err, errNotReached) {
			break
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case errors.Is(err, errNotReached) && !c.certain:
		m.missed = append(m.missed, c.String())
	case err != nil:
		t.Errorf("after %s: %v\n%s", time.Since(began).Round(time.Millisecond), err, s.news())
		if err := s.close(); err != nil {
			t.Error(err)
		}
		return
	default:
		m.ran[c] = true
		m.noteRecovery(c, recovery)
	}
	s.news()
	m.idle = append(m.idle, s)
}

// account fails the test if anything that was recorded has a case that did not
// run.
func (m *matrix) account(t *testing.T, cases []crash) {
	if strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return // somebody picks cases
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	steps, kinds := map[string]bool{}, map[string]bool{}
	for c := range m.ran {
		kinds[c.step.what] = true
	}
	for _, c := range cases {
		steps[fmt.Sprintf("%s: %s", c.phase, c.step)] = true
		if t.Failed() {
			continue
		}
		if c.certain && !m.ran[c] {
			t.Errorf("%s did not run", c)
		}
		if !kinds[c.step.what] {
			t.Errorf("no case ran for %q, which was recorded while %s", c.step.what, c.phase)
		}
	}
	t.Logf("%d cases for %d steps", len(m.ran), len(steps))
	if len(m.missed) > 0 {
		t.Logf("not every run takes the steps of these cases, and theirs did not: %v", m.missed)
	}
}

// errNotReached means that a run did not take the step that was to fail.
var errNotReached = errors.New("the step was not reached")

// stage is a site at the beginning of a phase.
type stage struct {
	phase phase
	claim *corev1.PersistentVolumeClaim
	// source is the claim that the claim copies, if it does.
	source *corev1.PersistentVolumeClaim
	// leader is who leads; known only where it matters.
	leader *node
}

// prepare brings a site to the beginning of a phase, and begins a tape there.
func (s *site) prepare(ctx context.Context, in phase) (*stage, error) {
	at := &stage{phase: in}
	s.sim.ResetJournal()
	s.begin()
	var err error
	switch in {
	case takingOver:
		at.leader, err = s.leader(ctx)
	case deleting:
		if at.claim, err = s.claim(ctx, "data"); err == nil {
			err = s.served(ctx, at.claim)
		}
		if err == nil && s.options.csi {
			err = s.leaveAttachment(ctx)
		}
	case undoing:
		// The Secret is there, and the leader does not know it yet.
		held := s.set(step{stepSecret, 1}, faultproxy.LateAnswer)
		if at.claim, err = s.claim(ctx, "data"); err == nil {
			err = wait(ctx, held.done)
		}
	case cloning:
		if at.source, err = s.claim(ctx, "source"); err == nil {
			err = s.served(ctx, at.source)
		}
		s.sim.ResetJournal()
	}
	s.begin()
	return at, err
}

// enter begins the phase.
func (s *site) enter(ctx context.Context, at *stage) (err error) {
	switch at.phase {
	case takingOver:
		s.kill(at.leader)
		at.claim, err = s.claim(ctx, "data")
	case provisioning:
		at.claim, err = s.claim(ctx, "data")
	case cloning:
		at.claim, err = s.claimOf(ctx, "data", at.source.Name)
	case deleting, undoing:
		err = s.abandon(ctx, at)
	}
	return err
}

// abandon deletes the claim.
func (s *site) abandon(ctx context.Context, at *stage) error {
	at.claim = nil
	return s.deleteClaim(ctx, "data")
}

// goal waits for the one state that the phase may end in.
func (s *site) goal(ctx context.Context, at *stage) error {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	var claims []*corev1.PersistentVolumeClaim
	for _, claim := range []*corev1.PersistentVolumeClaim{at.claim, at.source} {
		if claim != nil {
			claims = append(claims, claim)
		}
	}
	if len(claims) == 0 {
		return s.gone(ctx)
	}
	if err := s.served(ctx, claims...); err != nil || at.source == nil {
		return err
	}
	return s.copied(ctx, at)
}

// copied waits until a clone has the content of its source, and nothing keeps the
// source any longer.
func (s *site) copied(ctx context.Context, at *stage) error {
	return s.eventually(ctx, func() (string, error) {
		source, err := suite.Client.CoreV1().PersistentVolumeClaims(s.namespace).Get(ctx, at.source.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if slices.Contains(source.Finalizers, annotation("content-is-copied")) {
			return "the source is still protected", nil
		}
		if at.claim == nil {
			return "", nil
		}
		copied, original := s.sim.VolumesNamed(pvName(at.claim)), s.sim.VolumesNamed(pvName(at.source))
		for _, v := range copied {
			for _, o := range original {
				if v.SourceID == o.ID {
					return "", nil
				}
			}
		}
		return fmt.Sprintf("none of %s is a copy of %s", describe(copied), describe(original)), nil
	})
}

// finish ends the life of a claim, and leaves the site as it was before.
func (s *site) finish(ctx context.Context, at *stage) error {
	if at.claim != nil {
		if err := s.abandon(ctx, at); err != nil {
			return err
		}
	}
	if err := s.goal(ctx, at); err != nil {
		return err
	}
	if at.source != nil {
		at.source = nil
		if err := s.deleteClaim(ctx, "source"); err != nil {
			return err
		}
		if err := s.goal(ctx, at); err != nil {
			return err
		}
	}
	s.begin()
	s.release()
	return s.removeDecoys()
}

// undisturbed lets a phase pass, and returns its steps.
func (s *site) undisturbed(ctx context.Context, in phase) ([]step, error) {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	at, err := s.prepare(ctx, in)
	if err != nil {
		return nil, err
	}
	if err := s.enter(ctx, at); err != nil {
		return nil, err
	}
	if err := s.replace(ctx); err != nil {
		return nil, err
	}
	if err := s.goal(ctx, at); err != nil {
		return nil, err
	}
	steps := s.steps()
	if in == takingOver {
		// The rest is provisioning.
		if i := slices.IndexFunc(steps, func(at step) bool { return at.what == stepCreate }); i >= 0 {
			steps = steps[:i]
		}
	}
	return steps, s.finish(ctx, at)
}

// crash runs one case, from an empty site to an empty site. It returns what was
// done after the first kill.
func (s *site) crash(ctx context.Context, c crash) (recovery []step, err error) {
	at, err := s.prepare(ctx, c.phase)
	if err != nil {
		return nil, fmt.Errorf("before anything went wrong: %w", err)
	}
	t := s.set(c.step, c.mishap.verdict)
	if err := s.enter(ctx, at); err != nil {
		return nil, err
	}
	reached, err := s.befall(ctx, at, c.mishap, t)
	taken := len(s.steps())
	reachedAgain := true
	if err == nil && reached && c.again != (step{}) {
		// The next leader must be running.
		again := s.set(c.again, c.againMishap.verdict)
		if err = s.replace(ctx); err == nil {
			reachedAgain, err = s.befall(ctx, at, c.againMishap, again)
		}
	}
	if err == nil {
		err = s.replace(ctx)
	}
	if err == nil {
		err = s.goal(ctx, at)
	}
	if steps := s.steps(); c.mishap.kill && reached && taken < len(steps) {
		recovery = steps[taken:]
	}
	// Also if nothing befell the next leader: a late request must not disturb the
	// next case.
	if err == nil && reached && c.mishap.verdict == faultproxy.Late {
		err = s.arriveLate(ctx, at, c.mishap, t)
	}
	if err == nil {
		err = s.madeOnce(c, reached)
	}
	if err == nil {
		err = s.finish(ctx, at)
	}
	if err == nil && !(reached && reachedAgain) {
		err = errNotReached
	}
	return recovery, err
}

// reaches waits until the trap has caught the step, and reports false if the
// phase passes without it.
func (s *site) reaches(ctx context.Context, t *trap, goal func(context.Context) error) (bool, error) {
	caught := t.caught()
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	passed := make(chan error, 1)
	go func() {
		err := goal(ctx)
		// The last step may come after the last change.
		_ = pause(ctx, time.Second)
		passed <- err
	}()
	select {
	case <-caught:
		cancel()
		<-passed
		return true, nil
	case err := <-passed:
		select {
		case <-caught:
			return true, nil
		default:
			return false, err
		}
	}
}

// befall waits for the step, and does what the network alone cannot; false means
// that the phase passed without the step.
func (s *site) befall(ctx context.Context, at *stage, m mishap, t *trap) (reached bool, err error) {
	if reached, err = s.reaches(ctx, t, func(ctx context.Context) error { return s.goal(ctx, at) }); !reached || err != nil {
		return reached, err
	}
	if m.abandon {
		if err := s.abandon(ctx, at); err != nil {
			return true, err
		}
	}
	if m.kill {
		by := t.by
		if by == nil { // the network is shared
			if by, err = s.leader(ctx); err != nil {
				return true, err
			}
		}
		s.kill(by)
	}
	return true, nil
}

// arriveLate lets a request through after everybody has gone on without it.
func (s *site) arriveLate(ctx context.Context, at *stage, m mishap, t *trap) error {
	if m.kill {
		// The next leader has looked around.
		if _, err := s.leader(ctx); err != nil {
			return err
		}
	} else if err := pause(ctx, max(s.options.requestTimeout, s.options.apiPatience)); err != nil {
		return err
	}
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	s.release()
	if err := wait(ctx, t.done); err != nil {
		return fmt.Errorf("the late request was not answered: %w", err)
	}
	if err := s.goal(ctx, at); err != nil {
		return fmt.Errorf("after the late request: %w", err)
	}
	return nil
}

// madeOnce counts the volumes that were made on the way: whatever an earlier
// attempt left is found and used, not replaced.
func (s *site) madeOnce(c crash, reached bool) error {
	most := 1
	if reached && c.step.what == stepCreate && (c.mishap.verdict == faultproxy.Late || c.mishap.verdict == faultproxy.Twice) {
		most = 2
	}
	if n := s.creates(); n > most {
		return fmt.Errorf("%d volumes were made, want no more than %d", n, most)
	}
	return nil
}

// replace sees to it that there are two replicas again.
func (s *site) replace(ctx context.Context) error {
	for len(s.living()) < 2 {
		if _, err := s.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for a channel.
func wait(ctx context.Context, until <-chan struct{}) error {
	select {
	case <-until:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pause waits for a while.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
