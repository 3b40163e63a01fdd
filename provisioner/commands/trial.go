package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// A trial is a volume that only shows that it can be made. Its stamp belongs to no
// cluster, because neither a clusterID nor a UID contains a blank. So no running
// program lists, counts, reports or removes it; only this command does.
const (
	trialCluster = "policy check"
	trialPrefix  = "policy-check-"
	// trialHost replaces the cluster's ID in names that are derived from it.
	trialHost = "policy-check"
	trialGiB  = 1
)

// A trial and its removal together end before leftoverAge, so a volume of that age
// belongs to no running command and may be removed.
const (
	maxTrialTime   = 20 * time.Minute
	maxRemovalTime = 30 * time.Minute
	leftoverAge    = time.Hour
	removalTries   = 3
	// maxTrialLag is how old the state may be that reads show.
	maxTrialLag = 5 * time.Second
)

// trialStamp returns the stamp of a trial's volume. The running program never uses such
// a PersistentVolume name.
func trialStamp(uid string) stamps.Volume {
	return stamps.Volume{Cluster: trialCluster, ClaimUID: uid, PV: trialPrefix + uid}
}

// trialPlan is one volume to make, for all rules that ask for the same one.
type trialPlan struct {
	policycli.Trial
	tenant string
	// encrypts means that nodes encrypt the rules' volumes.
	encrypts bool
}

// plan lists the different volumes that the rules may ask a backend for, each in every
// zone that the backend maps to nodes, unless the rule fixes one.
func (b *liveBackend) plan() []trialPlan {
	var plans []trialPlan
	for _, tenant := range b.run.policy.Tenants {
		for _, class := range tenant.Classes {
			if !slices.Contains(b.run.usableBackends(class), b) {
				continue
			}
			zones := []string{class.AvailabilityZone}
			if class.AvailabilityZone == "" && len(b.Zones) > 0 {
				zones = nil
				for _, zone := range b.Zones {
					zones = append(zones, zone.Name)
				}
			}
			mode := class.ModeOn(*b.Backend)
			if mode == policy.ModeNative {
				mode = ""
			}
			for _, zone := range zones {
				plans = addPlan(plans, trialPlan{tenant: tenant.Name, encrypts: class.Encrypt != nil, Trial: policycli.Trial{
					Backend: b.Name, Rules: []string{class.Path()}, VolumeType: class.VolumeType, AvailabilityZone: zone, FSType: cmp.Or(class.FSType, policy.DefaultFSType), Mode: mode,
				}})
			}
		}
	}
	return plans
}

// addPlan adds a volume, or adds its rules to an equal volume.
func addPlan(plans []trialPlan, plan trialPlan) []trialPlan {
	for i := range plans {
		if same := &plans[i]; same.VolumeType == plan.VolumeType && same.AvailabilityZone == plan.AvailabilityZone && same.FSType == plan.FSType && same.Mode == plan.Mode && same.encrypts == plan.encrypts {
			same.Rules = append(same.Rules, plan.Rules...)
			return plans
		}
	}
	return append(plans, plan)
}

// tryVolumes makes the trials of all backends concurrently, but one at a time on each.
func (r *liveRun) tryVolumes(ctx context.Context) (trials []policycli.Trial, findings []policycli.Finding) {
	registry, err := mappers.New(mappers.Options{SecretNamespace: defaultMapNamespace, Protocols: r.protocols})
	if err != nil {
		// New fails only for incomplete options.
		panic(err)
	}
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		r.options.Tell(fmt.Sprintf("interrupted; volumes that were made are being removed, which takes up to %s", maxRemovalTime))
	})
	defer func() {
		if !stop() {
			<-told
		}
	}()
	// Removal goes on even after the command was interrupted.
	term, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var benches []*trialBench
	places := map[cinder.Place]bool{}
	for _, b := range r.backends {
		if plans := b.plan(); len(plans) > 0 {
			bench := b.newTrialBench(term, registry)
			bench.plans, bench.cleans = plans, !places[b.client.Place()]
			places[b.client.Place()] = true
			benches = append(benches, bench)
		}
	}
	// Remove leftovers before any trial begins: two backends may lead to one place,
	// where the trial of one would look like a leftover to the other.
	together(benches, func(b *trialBench) { b.removeLeftovers(ctx) })
	together(benches, func(b *trialBench) {
		for _, plan := range b.plans {
			b.trials = append(b.trials, b.try(ctx, plan))
		}
	})
	for _, b := range benches {
		if lag := b.lifecycle.ReadLag(); lag > 0 {
			b.note(b.path, true, fmt.Sprintf("backend %s: %s after Cinder had acknowledged it, a volume was not shown yet: Cinder does not read its own writes. The program copes with that, but slowly, and a new leader only up to the lag that --cinder-read-lag names; "+
				"let Cinder's database wait for its own writes, with Galera by wsrep_sync_wait", b.Name, lag.Round(time.Millisecond)))
		}
	}
	if ctx.Err() != nil {
		findings = append(findings, policycli.Finding{Path: "backends", Message: "the command was interrupted; not every volume was tried"})
	}
	for _, b := range benches {
		trials, findings = append(trials, b.trials...), append(findings, b.found...)
	}
	return trials, findings
}

// together calls a function for all benches concurrently.
func together(benches []*trialBench, call func(*trialBench)) {
	var group sync.WaitGroup
	for _, b := range benches {
		group.Go(func() { call(b) })
	}
	group.Wait()
}

// trialBench makes the trials of one backend.
type trialBench struct {
	*liveBackend
	lifecycle *backends.Lifecycle
	registry  *mappers.Registry
	plans     []trialPlan
	// cleans means that this bench removes the leftovers at its place.
	cleans bool

	trials []policycli.Trial
	found  []policycli.Finding
}

func (b *trialBench) note(path string, isWarning bool, message string) {
	b.found = append(b.found, policycli.Finding{Path: path, Warning: isWarning, Message: message})
}

func (b *liveBackend) newTrialBench(term context.Context, registry *mappers.Registry) *trialBench {
	return &trialBench{liveBackend: b, registry: registry, lifecycle: backends.NewLifecycle(backends.LifecycleOptions{
		Config:  b.config,
		Pool:    b.run.pool,
		Cluster: trialCluster,
		Fence:   func() error { return nil },
		Term:    term,
		Logger:  slog.New(slog.DiscardHandler),
		Metrics: b.run.metrics,
		ReadLag: maxTrialLag,
		Changed: time.Unix(0, 0), // whatever it was, it is shown
	})}
}

// try makes one volume, connects it, maps the connection, and removes the volume in any
// case.
func (b *trialBench) try(ctx context.Context, plan trialPlan) policycli.Trial {
	trial := plan.Trial
	if why := b.untried(ctx, trial); why != "" {
		trial.Step, trial.Error = policycli.StepBegin, why
		return trial
	}
	uid := string(uuid.NewUUID())
	stamp, lost := trialStamp(uid), b.lifecycle.LastUncertain()
	bounded, cancel := context.WithTimeout(ctx, maxTrialTime)
	defer cancel()
	connected, err := b.lifecycle.Connect(bounded, backends.Spec{
		Name: stamp.PV, SizeGiB: trialGiB, Type: trial.VolumeType, Zone: trial.AvailabilityZone, Stamp: stamp, Connector: b.config.Connector,
	})
	trial.Volume = cmp.Or(connected.Volume.ID, b.lifecycle.KnownVolumeOf(stamp))
	if err != nil {
		trial.Step = stepOf(err)
	} else if zone := connected.Volume.Zone; len(b.Zones) > 0 && zone != trial.AvailabilityZone {
		trial.Step = policycli.StepCreate
		err = fmt.Errorf("volume %s was made in availability zone %q, not in %q; look at allow_availability_zone_fallback in cinder.conf", trial.Volume, zone, trial.AvailabilityZone)
	} else if err = b.mapConnection(bounded, &trial, plan, uid, connected); err != nil {
		trial.Step = policycli.StepMap
	}
	if err != nil {
		trial.Error = err.Error()
		b.note(trial.Rules[0], false, fmt.Sprintf("a trial failed at step %s: %s", trial.Step, err))
	}
	if trial.Left = b.remove(ctx, stamp, trial.Volume, b.lifecycle.LastUncertain().After(lost)); trial.Left != "" {
		b.run.options.Tell(trial.Left)
		b.note(b.path, false, trial.Left)
	}
	return trial
}

// untried returns why a volume is not made at all; empty if it is made.
func (b *trialBench) untried(ctx context.Context, trial policycli.Trial) string {
	if ctx.Err() != nil {
		return "the command was interrupted"
	}
	for _, lacks := range append(b.lacksType(policy.Class{VolumeType: trial.VolumeType}), b.zoneFinding("", trial.AvailabilityZone)...) {
		if !lacks.Warning {
			// This is already a finding about each of the rules.
			return lacks.Message
		}
	}
	if len(b.Connector.NodeLabels) > 0 && len(b.Connector.WWPNs) == 0 {
		const unknown = "its connector's port names are annotations of nodes, which this command does not read; name them in connector.wwpns to try it"
		b.note(trial.Rules[0], true, fmt.Sprintf("no volume was made on backend %s: %s", b.Name, unknown))
		return unknown
	}
	return ""
}

// stepOf returns the step of Connect that failed.
func stepOf(err error) policycli.TrialStep {
	var failed *cinder.Error
	if errors.As(err, &failed) && (strings.HasPrefix(failed.Operation, "volume.os-") || strings.HasPrefix(failed.Operation, "attachment.")) {
		return policycli.StepConnect
	}
	return policycli.StepCreate
}

// mapConnection maps a connection as for a claim with ReadWriteOnce. The names are as
// long as those of claims, because Kubernetes limits the length of some of them.
func (b *trialBench) mapConnection(ctx context.Context, trial *policycli.Trial, plan trialPlan, uid string, connected backends.Connected) error {
	connection, err := mappers.ParseConnection(connected.Document)
	if err != nil {
		return err
	}
	if trial.Mode == policy.ModeCSI {
		return b.describeCSI(ctx, trial, plan.encrypts, uid, connection, connected)
	}
	request := objects.MapRequest(connection, objects.PVNameFor(uid), b.config.Connector)
	request.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	request.FSType = trial.FSType
	request.Encrypted = connected.Volume.Encrypted
	request.MultiAttach = connected.Volume.MultiAttach
	request.Backend = b.Name
	request.Mappings = b.Mapping
	request.Volume = mappers.Volume{
		ID: connected.Volume.ID, Name: objects.PVNameFor(uid), SizeGiB: connected.Volume.SizeGiB, Type: connected.Volume.Type, Zone: connected.Volume.Zone,
	}
	request.Claim = mappers.Claim{Namespace: trialHost, Name: trialHost, UID: uid}
	request.Tenant = plan.tenant
	result, err := b.registry.Map(request)
	if err != nil {
		return b.explain(err)
	}
	trial.Source, trial.Warnings = &result.Source, result.Warnings
	if result.Secret != nil {
		trial.Secret = result.Secret.String()
	}
	if b.run.policy.ClusterID == "" && b.Connector.Initiator == "" {
		trial.Warnings = append(trial.Warnings, "the policy has neither clusterID nor connector.initiator, so the running program derives another initiator name from the cluster than "+b.config.Connector.Initiator)
	}
	return nil
}

// explain says of a refusal what the claim's event would say.
func (b *trialBench) explain(err error) error {
	if refused := new(mappers.Refusal); errors.As(err, &refused) {
		return objects.RefusalError(b.Name, refused)
	}
	return err
}

// describeCSI describes the PersistentVolume of the CSI driver. The connection shows
// what nodes would get.
func (b *trialBench) describeCSI(ctx context.Context, trial *policycli.Trial, encrypts bool, uid string, connection mappers.Connection, connected backends.Connected) error {
	if protocol, has := connection.Protocol(), mappers.NodeProtocols(); !slices.Contains(has, protocol) {
		last := len(has) - 1
		return fmt.Errorf("backend %s: the CSI driver attaches volumes by %s or %s, and these are reached by %s; use mode native", b.Name, strings.Join(has[:last], ", "), has[last], protocol)
	}
	encryption, err := b.encryptionOf(ctx, connection, connected.Volume)
	switch {
	case err != nil:
	case encrypts && encryption != nil:
		err = mappers.EncryptedTwice(connected.Volume.Type)
	default:
		_, err = mappers.ForNode(connection, mappers.NodeRequest{Encrypted: connected.Volume.Encrypted, Encryption: encryption, CephUser: placeholderUser(b.CephSecret())})
	}
	if err != nil {
		return b.explain(err)
	}
	result, err := objects.MapCSI(objects.CSIVolume{
		PVName: objects.PVNameFor(uid), Backend: b.Name, VolumeID: connected.Volume.ID, SecretNamespace: defaultMapNamespace,
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, FSType: trial.FSType,
		MultiAttach: connected.Volume.MultiAttach,
	})
	if err != nil {
		return b.explain(err)
	}
	trial.Source, trial.Secret = &result.Source, result.Secret.String()
	return nil
}

// encryptionOf returns how nodes open a volume; nil if it is not encrypted. It fails if they
// would not get the key.
func (b *trialBench) encryptionOf(ctx context.Context, connection mappers.Connection, v cinder.Volume) (*mappers.Encryption, error) {
	if encrypted, err := objects.IsEncrypted(connection, v); err != nil || !encrypted {
		return nil, err
	}
	of, _, err := b.lifecycle.Encryption(ctx, v.ID, objects.HasManagedKey)
	if err != nil {
		return nil, err
	}
	how, err := objects.EncryptionOf(of)
	if err == nil && how.LUKS != 0 && of.KeyID == objects.FixedKeyID && b.FixedKeySecret() == "" {
		err = fmt.Errorf("backend %s: the volume has the fixed key of Cinder's own key manager, but csi.encryption.fixedKeySecret of the backend names no Secret with it", b.Name)
	}
	return how, err
}

// placeholderUser stands for what the Secret of that name holds, which commands do not
// read.
func placeholderUser(secret string) *mappers.NodeCredentials {
	if secret == "" {
		return nil
	}
	return &mappers.NodeCredentials{}
}

// remove removes whatever a trial left, and returns what could not be removed. lost
// means that the answer to the request for the volume was lost.
func (b *trialBench) remove(ctx context.Context, stamp stamps.Volume, id string, lost bool) (left string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxRemovalTime)
	defer cancel()
	var err error
	if lost {
		// If the volume exists by now, it is removed below, and nothing is lost. If
		// that cannot be determined, Abandon reports it.
		exists, err := b.lifecycle.HasVolumeOf(ctx, stamp)
		lost = err != nil || !exists
	}
	for try := range removalTries {
		if try > 0 {
			time.Sleep(b.run.pause)
		}
		if err = b.lifecycle.Abandon(ctx, stamp, b.config.Connector, nil); err == nil {
			break
		}
	}
	id = cmp.Or(id, b.lifecycle.KnownVolumeOf(stamp))
	switch {
	case err != nil:
		return b.describeLeft(id, stamp.PV) + " is not removed: " + err.Error() + "; " + howToRemove(id, stamp.PV)
	case lost:
		return b.describeLeft(id, stamp.PV) + " may still appear, since the answer to the request for it was lost; " + howToRemove(id, stamp.PV)
	}
	return ""
}

func (b *trialBench) describeLeft(id, name string) string {
	if id != "" {
		name = id + " (" + name + ")"
	}
	return fmt.Sprintf("backend %s: volume %s at %s", b.Name, name, b.client.Place())
}

// howToRemove names both ways to remove a volume. A name also identifies a trial's
// volume.
func howToRemove(id, name string) string {
	id = cmp.Or(id, name)
	return fmt.Sprintf("the next check with --make-volume removes it when it is an hour old, and an administrator can do so at once: "+
		"openstack volume set --state available %s; openstack volume delete %s", id, id)
}

// removeLeftovers removes what killed commands left, as long as nobody has used it
// since.
func (b *trialBench) removeLeftovers(ctx context.Context) {
	if !b.cleans {
		return
	}
	volumes, err := b.lifecycle.Volumes(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		b.note(b.path, true, fmt.Sprintf("cannot tell what earlier checks left behind: %s", err))
		return
	}
	for _, v := range volumes {
		stamp, age := stamps.Of(v), b.client.Now().Sub(v.CreatedAt)
		if stamp != trialStamp(stamp.ClaimUID) {
			continue // Somebody has changed it.
		}
		left := b.describeLeft(v.ID, v.Name)
		if v.CreatedAt.IsZero() || age < leftoverAge {
			b.note(b.path, true, fmt.Sprintf("%s was made by another check %s ago, which may still be running; if none is, %s", left, age.Round(time.Second), howToRemove(v.ID, v.Name)))
			continue
		}
		left += ", which an earlier check left, is "
		err := b.lifecycle.RemoveUnrecorded(ctx, v.ID, stamp, b.config.Connector, nil)
		switch {
		case err == nil:
			b.run.options.Tell(left + "removed")
		case cinder.IsKind(err, backends.KindRecorded), cinder.IsKind(err, backends.KindInUse):
			b.note(b.path, true, left+"kept: it is "+string(v.Status)+", or was attached, so somebody uses it")
		default:
			b.note(b.path, false, left+"not removed: "+err.Error())
		}
	}
}
