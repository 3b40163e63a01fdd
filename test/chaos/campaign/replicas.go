package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// slot is the place of one of the replicas: its processes come and go, its
// network stays.
type slot struct {
	world  *world
	number int
	// server and lab are the links to the API server and to the noauth backend.
	server, lab *faultproxy.Proxy
	// attacher is the csi-attacher beside its processes; nil without CSI.
	attacher *harness.Sidecar

	mu      sync.Mutex
	present *replica
	past    []*replica
	// upgraded is whether the previous program is over.
	upgraded bool
	// wholeSince is since when no request to lab was delayed; zero while one is.
	wholeSince time.Time
}

// replica is a process in a slot.
type replica struct {
	*harness.Replica
	name string
	// identity is the process's name in the lease.
	identity string
	// previous is whether it runs the previous program.
	previous bool
	// dismissed is closed when the process is meant to exit.
	dismissed chan struct{}
}

// Times of the replicas. The lease is short, so that a campaign has many terms.
const (
	drainTimeout = 6 * time.Second
	// maxToStop is how long a replica may take to hand over: the drain, the
	// release of the lease, and the extra time when the API server is away.
	maxToStop = 40 * time.Second
	// patience is how long the network to the API server keeps a client waiting
	// for an answer to a request that it has swallowed; the client itself would
	// wait forever.
	patience = 8 * time.Second
)

func newSlot(ctx context.Context, w *world, number int) (*slot, error) {
	transport, err := w.suite.APIServerTransport()
	if err != nil {
		return nil, err
	}
	s := &slot{world: w, number: number}
	if s.server, err = faultproxy.Start(faultproxy.Options{Target: w.suite.Config.Host, Transport: transport, TLS: true, Patience: patience}); err != nil {
		return nil, err
	}
	if s.lab, err = faultproxy.Start(faultproxy.Options{Target: strings.TrimSuffix(w.sim.NoauthEndpoint(), "/v3")}); err != nil {
		s.server.Close()
		return nil, err
	}
	if w.options.CSI {
		if s.attacher, err = w.suite.Attacher(ctx, w.names.provisioner())(s.socket()); err != nil {
			s.close()
			return nil, err
		}
	}
	s.wholeSince = time.Now()
	s.lab.Judge(s.witness(nil))
	return s, nil
}

// link returns the proxy of one of the slot's links.
func (s *slot) link(to string) *faultproxy.Proxy {
	if to == plan.Server {
		return s.server
	}
	return s.lab
}

// running returns the slot's process, nil if there is none.
func (s *slot) running() *replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.present == nil {
		return nil
	}
	select {
	case <-s.present.Exited():
		return nil
	default:
		return s.present
	}
}

// start starts a process in the slot, whose configuration is up to date when it
// returns. The API server may be away for a while.
func (s *slot) start(ctx context.Context) error {
	w := s.world
	s.mu.Lock()
	name := fmt.Sprintf("replica %d.%d", s.number, len(s.past)+1)
	program, previous := w.options.Program, w.options.Previous != "" && !s.upgraded && len(s.past)%2 == 0
	s.mu.Unlock()
	if previous {
		program = w.options.Previous
	}
	before := w.configuration()
	lease := plan.LeaseDuration
	arguments := []string{
		"--lease-duration=" + lease.String(), "--renew-deadline=" + (lease * 2 / 3).String(), "--retry-period=" + (lease / 6).String(),
		"--drain-timeout=" + drainTimeout.String(), "--cinder-read-lag=" + w.options.Lag.String(),
	}
	if w.options.CSI {
		arguments = append(arguments, "--csi-endpoint=unix://"+s.socket())
	}
	started, err := w.suite.StartReplica(ctx, harness.ReplicaOptions{
		Policy:      before.policy,
		Clouds:      before.clouds,
		Provisioner: w.names.provisioner(),
		Program:     program,
		// Clients never use a proxy for loopback addresses.
		Environment: append(memorySettings(), "HTTP_PROXY="+s.lab.URL(), "NO_PROXY=", "no_proxy="),
		APIServer:   s.server.URL(),

		APIServerAuthority: s.server.Authority(),
		Arguments:          arguments,
	})
	if err != nil {
		return err
	}
	r := &replica{Replica: started, name: name, identity: identityIn(started.Log()), previous: previous, dismissed: make(chan struct{})}
	s.mu.Lock()
	s.present = r
	s.past = append(s.past, r)
	s.mu.Unlock()
	go w.notice(r)
	w.timeline.Note("%s is ready, process %d, program %q", name, r.PID(), program)
	w.configuring.Lock()
	defer w.configuring.Unlock()
	if now := w.configuration(); now != before {
		return r.configure(now)
	}
	return nil
}

// startUntilReady starts a process in an empty slot and retries while the
// context lasts: without an API server none becomes ready.
func (s *slot) startUntilReady(ctx context.Context) {
	for ctx.Err() == nil && s.running() == nil {
		err := s.start(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		s.world.timeline.Say("a replica does not start: %s", firstLine(err.Error()))
		if strings.Contains(err.Error(), "ended: ") {
			s.world.found(checker.Finding{Kind: checker.Crashed, Object: fmt.Sprintf("replica %d", s.number), Text: err.Error()})
			return
		}
		sleep(ctx, time.Second)
	}
}

// notice reports a process that exits without a request.
func (w *world) notice(r *replica) {
	select {
	case <-r.dismissed:
		return
	case <-r.Exited():
	}
	select {
	case <-r.dismissed:
	default:
		w.timeline.Say("%s exited by itself", r.name)
		w.found(checker.Finding{Kind: checker.Crashed, Object: r.name, Text: "it exited by itself; its last output:\n" + tail(r.Log(), 40)})
	}
}

// dismiss records that a process is meant to exit.
func (r *replica) dismiss() {
	select {
	case <-r.dismissed:
	default:
		close(r.dismissed)
	}
}

// kill ends the slot's process at once.
func (s *slot) kill() {
	if r := s.running(); r != nil {
		s.world.timeline.Note("kill %s", r.name)
		r.dismiss()
		r.Kill()
		if s.number%2 == 0 {
			go s.world.report(r)
		}
	}
}

// report shows the end of a process, as a kubelet does unless its node is lost.
func (w *world) report(r *replica) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := w.suite.ReportPod(ctx, w.names.provisioner(), r.identity, harness.Ended(r.identity)); err == nil {
		w.timeline.Note("the end of %s is reported", r.name)
	}
}

// stop makes the slot's process hand over and exit.
func (s *slot) stop(ctx context.Context) {
	r := s.running()
	if r == nil {
		return
	}
	s.world.timeline.Note("stop %s", r.name)
	r.dismiss()
	bounded, cancel := context.WithTimeout(ctx, maxToStop)
	defer cancel()
	began := time.Now()
	err := r.Stop(bounded)
	s.world.timeline.Note("%s exited after %.1f s", r.name, time.Since(began).Seconds())
	if err != nil && ctx.Err() == nil {
		s.world.found(checker.Finding{Kind: checker.Crashed, Object: r.name,
			Text: firstLine(err.Error()) + "; its last output:\n" + tail(r.Log(), 40)})
	}
}

// upgrade ends the previous program in the slot, if that is what runs.
func (s *slot) upgrade(ctx context.Context) {
	s.mu.Lock()
	s.upgraded = true
	s.mu.Unlock()
	if r := s.running(); r != nil && r.previous {
		s.stop(ctx)
	}
}

// pause suspends the slot's process for a while.
func (s *slot) pause(ctx context.Context, duration time.Duration) {
	r := s.running()
	if r == nil {
		return
	}
	s.world.timeline.Note("pause %s for %s", r.name, duration)
	if err := r.Signal(syscall.SIGSTOP); err != nil {
		return
	}
	sleep(ctx, duration)
	_ = r.Signal(syscall.SIGCONT)
	s.world.timeline.Note("%s is resumed", r.name)
}

func (s *slot) close() {
	s.kill()
	if s.attacher != nil {
		s.attacher.Stop()
	}
	s.server.Close()
	s.lab.Close()
}

// startReplicas fills all empty slots.
func (w *world) startReplicas(ctx context.Context) error {
	var starting sync.WaitGroup
	for _, s := range w.slots {
		starting.Go(func() { s.startUntilReady(ctx) })
	}
	starting.Wait()
	return ctx.Err()
}

// leader finds the slot that leads, and waits for one for a while. If there is
// no leader, it returns any slot.
func (w *world) leader(ctx context.Context, otherwise int) *slot {
	const most = 5 * time.Second
	for deadline := time.Now().Add(most); time.Now().Before(deadline); {
		for _, s := range w.slots {
			if r := s.running(); r != nil {
				asking, cancel := context.WithTimeout(ctx, time.Second)
				leads := r.Leads(asking)
				cancel()
				if leads {
					return s
				}
			}
		}
		if !sleep(ctx, 100*time.Millisecond) {
			break
		}
	}
	return w.slots[otherwise%len(w.slots)]
}

// follower picks one of the slots that do not lead.
func (w *world) follower(ctx context.Context, pick int) *slot {
	leader := w.leader(ctx, pick)
	for i := range w.slots {
		if s := w.slots[(pick+i)%len(w.slots)]; s != leader {
			return s
		}
	}
	return leader
}

// identityIn reads the log line that names the replica as the lease does.
func identityIn(log string) string {
	for line := range strings.Lines(log) {
		var entry struct {
			Message  string `json:"msg"`
			Identity string `json:"identity"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "Ready" {
			return entry.Identity
		}
	}
	return ""
}

// everyReplica runs something for all running processes, concurrently.
func (w *world) everyReplica(do func(*replica) error) error {
	var all sync.WaitGroup
	failed := make([]error, len(w.slots))
	for i, s := range w.slots {
		if r := s.running(); r != nil {
			all.Go(func() { failed[i] = do(r) })
		}
	}
	all.Wait()
	return errors.Join(failed...)
}

// configuration is the replicas' configuration.
type configuration struct{ policy, clouds string }

// configuration returns the configuration that the replicas should have now.
func (w *world) configuration() configuration {
	w.mu.Lock()
	variant, lead := w.variant, w.places
	w.mu.Unlock()
	return configuration{w.policyText(variant, lead), lead.clouds(w.sim.CloudsYAML())}
}

// policyText returns the policy of a variant, without what a previous program may not know.
func (w *world) policyText(variant int, lead places) string {
	text := policyText(w.plan, w.names, variant, lead)
	if w.options.Previous != "" {
		text = strings.ReplaceAll(text, ", groups: true, backups: true", "")
	}
	return text
}

func (r *replica) configure(c configuration) error {
	if err := r.WritePolicy(c.policy); err != nil {
		return err
	}
	return r.WriteClouds(c.clouds)
}

// allow applies the limits of a variant from now on.
func (w *world) allow(variant int) error {
	parsed, err := policy.Parse([]byte(w.policyText(variant, nil)), "policy.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		return fmt.Errorf("policy of the campaign: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quotas.Allow(parsed)
	return nil
}

func firstLine(text string) string { return strings.SplitN(text, "\n", 2)[0] }

// tail returns the end of a log.
func tail(log string, lines int) string {
	all := strings.Split(strings.TrimRight(log, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// maxMemory is what the Deployment gives a replica
// (deploy/base/deployment.yaml).
const maxMemory = 512 << 20

func memorySettings() []string { return []string{"GOGC=50", "GOMEMLIMIT=240MiB"} }

// lookAtMemory notes the most that each running replica has taken. A container
// that takes more than its limit is killed.
func (w *world) lookAtMemory() {
	for _, s := range w.slots {
		r := s.running()
		if r == nil {
			continue
		}
		peak := peakMemory(r.PID())
		w.change(func(c *Counts) { c.PeakMemory = max(c.PeakMemory, peak) })
		if peak > maxMemory {
			w.course.Note(checker.Finding{Kind: checker.Crashed, Object: r.name,
				Text: fmt.Sprintf("it takes %d MiB of memory and may take %d", peak>>20, maxMemory>>20)})
		}
	}
}

// peakMemory returns the largest resident set of a process so far; 0 where /proc
// does not tell.
func peakMemory(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kilobytes, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return kilobytes << 10
}
