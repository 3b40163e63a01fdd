// Command chaos runs three replicas of the program that serve hundreds of
// claims while replicas are killed and paused, the API server goes away, the
// network is cut and Cinder fails. Then it checks whether anything was leaked,
// lost, duplicated or wrongly deleted. What it does follows from a seed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/campaign"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/report"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

type options struct {
	campaign.Options
	seed     uint64
	seeds    int
	race     bool
	evidence string
	showPlan bool
}

// errFound means that a campaign found something; it was already reported.
var errFound = errors.New("something is wrong; see above")

func main() {
	o := options{}
	flag.DurationVar(&o.Duration, "duration", 90*time.Second, "how long faults are injected, for each seed")
	flag.DurationVar(&o.ClaimEvery, "claim-every", 700*time.Millisecond, "mean time between two claims of each of the three tenants")
	flag.DurationVar(&o.Settle, "settle", 2*time.Minute, "how long it may take afterwards until nothing is left to do")
	flag.BoolVar(&o.Hostile, "hostile", true, "make servers answer like broken and malicious ones for a while")
	flag.BoolVar(&o.Snapshots, "snapshots", true, "make tenants take snapshots, beside the real snapshot-controller")
	flag.BoolVar(&o.CSI, "csi", true, "make pods use volumes in mode csi, beside the real csi-attacher, some of them on machines that run the real node plugin and are lost")
	flag.BoolVar(&o.Calm, "calm", false, "leave out what happens to replicas, servers and network, so that machines stage more")
	flag.DurationVar(&o.Lag, "lag", 0, "how old the state is that Cinder's reads show, as behind a Galera cluster")
	flag.Uint64Var(&o.seed, "seed", 0, "the source of all randomness; 0 picks a seed and prints it")
	flag.IntVar(&o.seeds, "seeds", 1, "how many seeds, one after the other, starting with the first")
	flag.StringVar(&o.Program, "replicas-program", "", "run this `file` as replicas instead of building the checkout")
	flag.StringVar(&o.Previous, "previous", "", "upgrade from this `file`: replicas start with it, and run it in turns with the checkout's build")
	flag.BoolVar(&o.race, "race", false, "build the program with the race detector")
	flag.StringVar(&o.evidence, "evidence", "", "write all logs, requests and the timeline of failed seeds into this `directory`")
	flag.BoolVar(&o.showPlan, "plan", false, "print what the seed does and when, and run nothing")
	flag.Parse()
	if flag.NArg() > 0 || o.seeds < 1 || o.Duration <= 0 || o.ClaimEvery <= 0 || o.Settle <= 0 || o.Lag < 0 {
		fmt.Fprintln(os.Stderr, "chaos: times and numbers must be positive, and there are no arguments besides the flags")
		flag.Usage()
		os.Exit(2)
	}
	if o.seed == 0 {
		// Short enough to type.
		o.seed = uint64(rand.Uint32N(1_000_000) + 1)
	}
	o.Log = os.Stderr
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.showPlan {
		printPlan(os.Stdout, o)
		return
	}
	// A second interrupt ends the command at once; its processes end with it.
	context.AfterFunc(ctx, stop)
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	for _, program := range []*string{&o.Program, &o.Previous} {
		if *program == "" {
			continue
		}
		if *program, err = filepath.Abs(*program); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "seed %d, %d of them, faults for %s each, then up to %s to settle, twice\n", o.seed, o.seeds, o.Duration, o.Settle)
	suite, err := harness.StartSuite(ctx, harness.SuiteOptions{Race: o.race, Snapshots: o.Snapshots, Attacher: o.CSI, Log: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, suite.Stop()) }()
	if o.Snapshots {
		if err := suite.InstallSnapshots(ctx); err != nil {
			return err
		}
	}
	var results []campaign.Result
	failed := false
	for i := range o.seeds {
		seed := o.seed + uint64(i)
		result, err := campaign.Run(ctx, suite, o.Options, seed)
		if err != nil {
			if len(results) > 0 {
				report.Table(out, results)
			}
			return err
		}
		results = append(results, result)
		if result.Failed() {
			failed = true
			report.Failure(out, result, replay(o, seed))
			if err := keepEvidence(o, result); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(out)
	report.Table(out, results)
	if failed {
		return errFound
	}
	return nil
}

// replay returns the command that runs one seed again.
func replay(o options, seed uint64) string {
	arguments := []string{"-seed", strconv.FormatUint(seed, 10), "-duration", o.Duration.String(), "-claim-every", o.ClaimEvery.String()}
	if o.Program != "" {
		arguments = append(arguments, "-replicas-program", o.Program)
	}
	if o.Previous != "" {
		arguments = append(arguments, "-previous", o.Previous)
	}
	if !o.Hostile {
		arguments = append(arguments, "-hostile=false")
	}
	if !o.Snapshots {
		arguments = append(arguments, "-snapshots=false")
	}
	if !o.CSI {
		arguments = append(arguments, "-csi=false")
	}
	if o.Calm {
		arguments = append(arguments, "-calm")
	}
	if o.Lag > 0 {
		arguments = append(arguments, "-lag", o.Lag.String())
	}
	if o.race {
		arguments = append(arguments, "-race")
	}
	return fmt.Sprintf("make chaos CHAOS='%s'", strings.Join(arguments, " "))
}

func keepEvidence(o options, result campaign.Result) error {
	if o.evidence == "" {
		return nil
	}
	return result.Evidence.Write(filepath.Join(o.evidence, fmt.Sprintf("seed-%d", result.Seed)))
}

// printPlan shows a plan, actor by actor.
func printPlan(out io.Writer, o options) {
	p := o.Plan(o.seed)
	printSteps(out, "processes", p.Processes, func(s plan.ProcessStep) time.Duration { return s.At })
	printSteps(out, "API server", p.Server, func(s plan.ServerStep) time.Duration { return s.At })
	printSteps(out, "Cinder", p.Cinder, func(s plan.CinderStep) time.Duration { return s.At })
	for _, link := range p.Links {
		printSteps(out, link.String(), link.Steps, func(s plan.LinkStep) time.Duration { return s.At })
	}
	printSteps(out, "administrator", p.Administrator, func(s plan.AdministratorStep) time.Duration { return s.At })
	printSteps(out, "places", p.Places, func(s plan.PlaceStep) time.Duration { return s.At })
	printSteps(out, "hostile", p.Hostile, func(s plan.HostileStep) time.Duration { return s.At })
	printSteps(out, "volumes", p.Volumes, func(s plan.VolumeStep) time.Duration { return s.At })
	printSteps(out, "nodes", p.Nodes, func(s plan.NodeStep) time.Duration { return s.At })
	printSteps(out, "pods", p.Pods, func(s plan.PodStep) time.Duration { return s.At })
	printSteps(out, "machines", slices.Concat(p.Machines...), func(s plan.MachineStep) time.Duration { return s.At })
	printSteps(out, "workloads", p.Workloads, func(s plan.WorkloadStep) time.Duration { return s.At })
	printSteps(out, "movers", p.Movers, func(s plan.MoverStep) time.Duration { return s.At })
	for _, tenant := range plan.TenantNames() {
		printSteps(out, "tenant "+tenant, p.Claims[tenant], func(s plan.ClaimStep) time.Duration { return s.At })
		printSteps(out, "tenant "+tenant, p.Grows[tenant], func(s plan.GrowStep) time.Duration { return s.At })
		printSteps(out, "tenant "+tenant, p.Snapshots[tenant], func(s plan.SnapshotStep) time.Duration { return s.At })
	}
}

func printSteps[S fmt.Stringer](out io.Writer, actor string, steps []S, at func(S) time.Duration) {
	for _, s := range steps {
		fmt.Fprintf(out, "%8.3fs  %s: %s\n", at(s).Seconds(), actor, s)
	}
}
