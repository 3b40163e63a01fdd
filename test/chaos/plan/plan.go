// Package plan draws at random what a campaign does, and when. A plan follows
// from its seed alone: every actor has its own random stream, so that neither
// the course of the campaign nor another actor changes its steps, and a longer
// plan begins like a shorter one of the same seed.
package plan

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// What a campaign always has.
const (
	// Slots is how many replicas run.
	Slots = 3
	// LeaseDuration is the replicas' lease duration; pauses last longer.
	LeaseDuration = 3 * time.Second
)

// TenantNames returns the tenants that create and delete claims; each has one
// namespace.
func TenantNames() []string { return []string{"a", "b", "c"} }

// The backends: two behind Keystone, two noauth.
const (
	Gold   = "gold"
	Silver = "silver"
	Lab    = "lab"
	// Pods is another project of the noauth Cinder, for volumes in mode csi alone, of pods
	// and of movers.
	Pods = "pods"
)

// Options size a plan.
type Options struct {
	// Duration is how long faults are injected.
	Duration time.Duration
	// ClaimEvery is the mean time between two claims of one tenant.
	ClaimEvery time.Duration
	// Hostile makes servers lie for a while, and Snapshots makes tenants take
	// snapshots.
	Hostile, Snapshots bool
	// OnlySingle leaves out backups and groups, which earlier programs do not know.
	OnlySingle bool
	// CSI makes pods use volumes in mode csi, machines stage some, and movers move some.
	CSI bool
	// Calm leaves out what happens to replicas, servers and network, and pods on no machine.
	Calm bool
}

// Plan is everything random about a campaign.
type Plan struct {
	Seed     uint64
	Duration time.Duration
	// Attachments makes the policy connect new volumes on Lab with Cinder's
	// attachments API.
	Attachments bool

	// Claims are the steps of each tenant, by tenant.
	Claims map[string][]ClaimStep
	// Snapshots are their steps on VolumeSnapshots.
	Snapshots map[string][]SnapshotStep
	// Grows are their requests for larger volumes.
	Grows         map[string][]GrowStep
	Processes     []ProcessStep
	Server        []ServerStep
	Cinder        []CinderStep
	Links         []Link
	Administrator []AdministratorStep
	Volumes       []VolumeStep
	Nodes         []NodeStep
	Places        []PlaceStep
	Hostile       []HostileStep
	Pods          []PodStep
	Movers        []MoverStep
	// Machines are the steps of each machine, and Workloads the pods that they run.
	Machines  [][]MachineStep
	Workloads []WorkloadStep
}

// Make draws the plan of a seed.
func Make(seed uint64, options Options) Plan {
	p := Plan{
		Seed:          seed,
		Duration:      options.Duration,
		Attachments:   stream(seed, "policy").chance(0.5),
		Claims:        map[string][]ClaimStep{},
		Snapshots:     map[string][]SnapshotStep{},
		Grows:         map[string][]GrowStep{},
		Processes:     processSteps(stream(seed, "processes"), options.Duration),
		Server:        serverSteps(stream(seed, "server"), options.Duration),
		Cinder:        cinderSteps(stream(seed, "cinder"), options.Duration),
		Links:         links(seed, options.Duration),
		Administrator: administratorSteps(stream(seed, "administrator"), options.Duration),
		Volumes:       volumeSteps(stream(seed, "volumes"), options.Duration),
		Nodes:         nodeSteps(stream(seed, "nodes"), options.Duration),
		Places:        placeSteps(stream(seed, "places"), options.Duration),
		Movers:        moverSteps(stream(seed, "movers"), options.Duration),
	}
	if options.Hostile {
		p.Hostile = hostileSteps(stream(seed, "hostile"), options.Duration)
	}
	if options.CSI {
		p.Pods = podSteps(stream(seed, "pods"), options.Duration)
		for machine := range Machines {
			p.Machines = append(p.Machines, machineSteps(stream(seed, fmt.Sprintf("machine %d", machine)), machine, options.Duration))
		}
		p.Workloads = workloadSteps(stream(seed, "workloads"), options.Duration)
	} else {
		for i := range p.Movers {
			p.Movers[i].OnNodes = false
		}
	}
	for _, tenant := range TenantNames() {
		p.Claims[tenant] = claimSteps(stream(seed, "tenant "+tenant), options)
	}
	p.addBursts(stream(seed, "bursts"))
	for _, tenant := range TenantNames() {
		addCopies(stream(seed, "copies "+tenant), p.Claims[tenant])
		p.Grows[tenant] = growSteps(stream(seed, "growth "+tenant), p.Claims[tenant], options.Duration)
		if options.Snapshots {
			p.Snapshots[tenant] = snapshotSteps(stream(seed, "snapshots "+tenant), p.Claims[tenant], options)
		}
	}
	if options.Calm {
		p.Processes, p.Server, p.Cinder, p.Links, p.Hostile, p.Places, p.Pods = nil, nil, nil, nil, nil, nil, nil
	}
	return p
}

// KeptAtTheEnd decides which of the claims that remain after the faults stay,
// and which are deleted.
func (p Plan) KeptAtTheEnd(namespace, claim string) bool {
	return stream(p.Seed, "ending "+namespace+"/"+claim).chance(0.5)
}

// draws is one actor's random stream.
type draws struct{ *rand.Rand }

func stream(seed uint64, actor string) draws {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(actor)) // never fails
	return draws{rand.New(rand.NewPCG(seed, hash.Sum64()))}
}

func (d draws) chance(probability float64) bool { return d.Float64() < probability }

// between draws a time, to the millisecond, so that it reads well.
func (d draws) between(from, to time.Duration) time.Duration {
	return (from + time.Duration(d.Float64()*float64(to-from))).Round(time.Millisecond)
}

// series draws the steps of an actor, one after the other. The times between them are from
// least to most, and longer if a step lasts.
func series[S any](d draws, start, least, most, end time.Duration, draw func(i int, at time.Duration) (step S, lasts time.Duration)) []S {
	var steps []S
	at := start + d.between(least, most)
	for at < end {
		step, lasts := draw(len(steps), at)
		steps = append(steps, step)
		at += lasts + d.between(least, most)
	}
	return steps
}

// within draws a probability, to the percent.
func (d draws) within(from, to float64) float64 {
	return float64(int(100*(from+d.Float64()*(to-from)))) / 100
}

// choice is one of several things, drawn in proportion to its weight.
type choice[T any] struct {
	weight int
	thing  T
}

func choose[T any](d draws, choices []choice[T]) T {
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	drawn := d.IntN(total)
	for _, c := range choices {
		if drawn < c.weight {
			return c.thing
		}
		drawn -= c.weight
	}
	panic("not reached: the weights add up to the total")
}

func oneOf[T any](d draws, things ...T) T { return things[d.IntN(len(things))] }
