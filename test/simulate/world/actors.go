package world

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/apiserver"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/gate"
)

// act is one thing that somebody does, and how often compared with others.
type act struct {
	weight int
	do     func(*World)
}

func acts() []act {
	return []act{
		{20, (*World).createClaim}, {12, (*World).deleteClaim}, {5, (*World).growClaim}, {4, (*World).cloneClaim}, {3, (*World).keepVolume}, {2, (*World).removeVolume}, {6, (*World).moveVolume},
		{6, (*World).takeSnapshot}, {4, (*World).deleteSnapshot}, {3, (*World).restoreSnapshot}, {6, (*World).takeGroup}, {4, (*World).deleteGroup},
		{8, (*World).startPods}, {20, (*World).movePod}, {3, (*World).endPods}, {4, (*World).killPlugin}, {2, (*World).restartKubelet}, {6, (*World).loseMachine},
		{2, (*World).killReplica}, {2, (*World).stopReplica}, {2, (*World).cutOff}, {2, (*World).withholdEvents}, {1, (*World).restartServer},
		{4, (*World).disturbCinder}, {3, (*World).disturbKubernetes}, {3, (*World).failBackend}, {1, func(w *World) { w.note("all tokens expire"); w.sim.ExpireTokens() }},
		{1, func(w *World) { w.reload(w.random.IntN(variants)) }}, {1, (*World).reuse},
	}
}

// act does something.
func (w *World) act() {
	all := acts()
	sum := 0
	for _, a := range all {
		sum += a.weight
	}
	draw := w.random.IntN(sum)
	for _, a := range all {
		if draw -= a.weight; draw < 0 {
			a.do(w)
			return
		}
	}
}

func pick[T any](w *World, from []T) (picked T, ok bool) {
	if len(from) == 0 {
		return picked, false
	}
	return from[w.random.IntN(len(from))], true
}

func (w *World) soon(longest time.Duration) time.Time {
	return time.Now().Add(time.Duration(w.random.Int64N(int64(longest))))
}

func (w *World) createClaim() {
	tenant, _ := pick(w, []string{"a", "b", "c", "d", "e"})
	class, _ := pick(w, []string{"fast", "fast", "dual", "dual", "kept"})
	switch {
	case isMover(tenant):
		class = "moved"
	case class == "kept" && (tenant == "c" || w.random.IntN(3) > 0):
		class = "dual"
	}
	size := 1 + w.random.IntN(4)
	if w.random.IntN(15) == 0 {
		size = 12
	}
	// Few names, so that they are used again.
	w.makeClaim(tenant, fmt.Sprintf("data-%d", w.random.IntN(15)), class, size)
}

func (w *World) deleteClaim() {
	all := apiserver.Objects[*corev1.PersistentVolumeClaim](w.api)
	if claim, ok := pick(w, slices.DeleteFunc(all, func(c *corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp != nil })); ok {
		w.removeClaim(claim)
	}
}

func (w *World) removeClaim(claim *corev1.PersistentVolumeClaim) {
	w.note("tenant %s deletes claim %s (%s)", claim.Namespace, claim.Name, claim.UID)
	w.claims.RecordDeletionRequest(claim.UID)
	if err := w.api.Delete(claim); err != nil {
		w.note("claim %s cannot be deleted: %s", claim.Name, err)
	}
}

// reuse deletes a claim and creates another of the same name as soon as it is gone.
func (w *World) reuse() {
	all := w.nativeClaims()
	if claim, ok := pick(w, slices.DeleteFunc(all, func(c *corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp != nil })); ok {
		w.removeClaim(claim)
		w.gate.Run(w.soon(2 * time.Second))
		if made, err := w.api.Create(claimOf(claim.Namespace, claim.Name, *claim.Spec.StorageClassName, 1)); err == nil {
			w.note("tenant %s creates claim %s (%s) again", claim.Namespace, claim.Name, made.GetUID())
			w.claims.NoteMade(made.GetUID())
		}
	}
}

// growClaim asks for a larger volume of a bound claim.
func (w *World) growClaim() {
	claim, ok := pick(w, slices.DeleteFunc(w.nativeClaims(), func(c *corev1.PersistentVolumeClaim) bool {
		return c.DeletionTimestamp != nil || c.Status.Phase != corev1.ClaimBound
	}))
	if !ok {
		return
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	size.Add(resource.MustParse(fmt.Sprintf("%dGi", 1+w.random.IntN(3))))
	w.note("claim %s (%s) asks for %s", claim.Name, claim.UID, size.String())
	_, _ = change(w, claim, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: size}
	})
}

// nativeClaims returns the claims but for those of pods.
func (w *World) nativeClaims() []*corev1.PersistentVolumeClaim {
	return slices.DeleteFunc(apiserver.Objects[*corev1.PersistentVolumeClaim](w.api), func(c *corev1.PersistentVolumeClaim) bool { return c.Namespace == stager })
}

// cloneClaim creates a claim for the content of another, which may go meanwhile.
func (w *World) cloneClaim() {
	source, ok := pick(w, w.nativeClaims())
	if !ok {
		return
	}
	w.clone(source)
	if w.random.IntN(3) == 0 && source.DeletionTimestamp == nil {
		w.removeClaim(source)
	}
}

// clone creates a claim for the content of another.
func (w *World) clone(source *corev1.PersistentVolumeClaim) {
	size := source.Spec.Resources.Requests[corev1.ResourceStorage]
	clone := claimOf(source.Namespace, fmt.Sprintf("clone-%d", w.random.IntN(5)), *source.Spec.StorageClassName, int(size.Value()>>30))
	clone.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source.Name}
	if made, err := w.api.Create(clone); err == nil {
		w.note("tenant %s creates claim %s (%s), a clone of %s", made.GetNamespace(), made.GetName(), made.GetUID(), source.Name)
		w.claims.NoteMade(made.GetUID())
	}
}

// keepVolume makes a PersistentVolume keep its volume, perhaps only for a while.
func (w *World) keepVolume() {
	pv, ok := w.choose(func(*corev1.PersistentVolume) bool { return true })
	if !ok {
		return
	}
	if pv, ok = w.retain(pv); !ok || w.random.IntN(2) == 0 {
		return
	}
	w.later(w.soon(20*time.Second), func() {
		w.note("%s is not to be kept any more", pv.Name)
		w.fates.NoteFreed(checker.PVOf(pv))
		_, _ = change(w, pv, func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		})
	})
}

// removeVolume deletes a bound PersistentVolume by hand, and its claim later. The volume
// stays if the object is to keep it, or loses the program's finalizer.
func (w *World) removeVolume() {
	pv, ok := w.choose(func(pv *corev1.PersistentVolume) bool { return pv.Status.Phase == corev1.VolumeBound })
	strip := w.random.IntN(2) == 0
	if ok && !strip {
		pv, ok = w.retain(pv)
	}
	if !ok {
		return
	}
	removed := checker.PVOf(pv)
	w.note("%s is deleted", pv.Name)
	w.fates.NoteRemoved(removed)
	if removed.Retain {
		w.fates.NoteKept(removed)
	}
	if err := w.api.Delete(pv); err != nil {
		w.note("%s cannot be deleted: %s", pv.Name, err)
	} else if strip {
		_, _ = change(w, pv, func(pv *corev1.PersistentVolume) { pv.Finalizers = nil })
		w.fates.NoteKept(removed)
	}
	w.later(w.soon(20*time.Second), func() { w.removeIfThere(pv.Spec.ClaimRef.UID) })
}

// isMover reports whether volumes of a tenant are given to other claims. It has no quota,
// which such a claim might exceed.
func isMover(tenant string) bool { return tenant == "d" || tenant == "e" }

// moveVolume gives a volume to another claim, as an administrator or a populator does.
func (w *World) moveVolume() {
	pv, ok := w.choose(func(pv *corev1.PersistentVolume) bool {
		return isMover(pv.Spec.ClaimRef.Namespace) && pv.Status.Phase == corev1.VolumeBound && !w.claims.DeletionRequested(pv.Spec.ClaimRef.UID)
	})
	if !ok {
		return
	}
	before, err := w.Claim(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
	if err != nil || before.Status.Phase != corev1.ClaimBound {
		return
	}
	tenant, _ := pick(w, []string{"d", "e"})
	size := before.Spec.Resources.Requests[corev1.ResourceStorage]
	next := claimOf(tenant, fmt.Sprintf("moved-%d", w.started*1000+w.steps), "moved", int(size.Value()>>30))
	if w.random.IntN(2) == 0 {
		w.populate(pv, before, next)
	} else {
		w.handOver(pv, before, next)
	}
}

// populate takes a PersistentVolume from its claim, for one that waits for its content.
func (w *World) populate(pv *corev1.PersistentVolume, before, next *corev1.PersistentVolumeClaim) {
	next.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: new(populators), Kind: "Content", Name: "content"}
	if !w.createFor(pv, next) {
		return
	}
	_, _ = change(w, pv, func(pv *corev1.PersistentVolume) {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: next.Namespace, Name: next.Name, UID: next.UID}
	})
	w.await(func() bool { return w.phaseOf(before) != corev1.ClaimBound }, func() { w.removeIfThere(before.UID) })
}

const populators = "populators.simulate.example"

// handOver keeps a volume, deletes its claim, and reserves the PersistentVolume for the next.
func (w *World) handOver(pv *corev1.PersistentVolume, before, next *corev1.PersistentVolumeClaim) {
	if _, ok := w.retain(pv); !ok {
		return
	}
	w.removeIfThere(before.UID)
	released := func() bool {
		now, err := w.PersistentVolume(pv.Name)
		return err != nil || now.Status.Phase == corev1.VolumeReleased
	}
	w.await(released, func() {
		next.Spec.VolumeName = pv.Name
		reserve := func() {
			_, _ = change(w, pv, func(pv *corev1.PersistentVolume) {
				pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: next.Namespace, Name: next.Name}
			})
		}
		claimFirst := w.random.IntN(2) == 0
		if !claimFirst {
			reserve()
		}
		if !w.createFor(pv, next) {
			return
		}
		if claimFirst {
			reserve()
		}
		w.await(func() bool { return w.phaseOf(next) != corev1.ClaimPending }, func() {
			if w.phaseOf(next) == corev1.ClaimBound && !w.claims.DeletionRequested(next.UID) {
				w.fates.Note(pv.Name, func(f *checker.Fate) { f.Freed = true })
				_, _ = change(w, pv, func(pv *corev1.PersistentVolume) {
					pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
				})
			}
		})
	})
}

// createFor creates the claim that gets a PersistentVolume.
func (w *World) createFor(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	made, err := w.api.Create(claim)
	if err != nil {
		w.note("claim %s cannot be created: %s", claim.Name, err)
		return false
	}
	*claim = *made.(*corev1.PersistentVolumeClaim)
	w.note("%s goes to claim %s/%s (%s)", pv.Name, claim.Namespace, claim.Name, claim.UID)
	w.claims.NoteMade(claim.UID)
	return true
}

// phaseOf returns a claim's phase; empty if it is gone.
func (w *World) phaseOf(claim *corev1.PersistentVolumeClaim) corev1.PersistentVolumeClaimPhase {
	now, err := w.Claim(claim.Namespace, claim.Name)
	if err != nil || now.UID != claim.UID {
		return ""
	}
	return now.Status.Phase
}

func (w *World) removeIfThere(uid types.UID) {
	for _, claim := range apiserver.Objects[*corev1.PersistentVolumeClaim](w.api) {
		if claim.UID == uid && claim.DeletionTimestamp == nil {
			w.removeClaim(claim)
		}
	}
}

// choose picks a PersistentVolume that nobody has chosen before.
func (w *World) choose(fits func(*corev1.PersistentVolume) bool) (*corev1.PersistentVolume, bool) {
	pv, ok := pick(w, slices.DeleteFunc(w.pvs(), func(pv *corev1.PersistentVolume) bool {
		return pv.Spec.ClaimRef == nil || pv.Spec.CSI != nil || !fits(pv)
	}))
	return pv, ok && w.fates.Choose(pv.Name)
}

// retain makes a PersistentVolume keep its volume.
func (w *World) retain(pv *corev1.PersistentVolume) (kept *corev1.PersistentVolume, ok bool) {
	w.fates.NoteKeeping(pv.Name, true)
	kept, err := change(w, pv, func(pv *corev1.PersistentVolume) {
		pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	})
	if err != nil {
		w.fates.NoteKeeping(pv.Name, false)
		return nil, false
	}
	w.note("%s is to be kept", pv.Name)
	w.fates.NoteKept(checker.PVOf(kept))
	return kept, true
}

// change changes an object at the API server.
func change[T apiserver.Object](w *World, object T, how func(T)) (T, error) {
	now, err := w.api.Change(object, "", func(o apiserver.Object) { how(o.(T)) })
	if err != nil {
		w.note("%s cannot be changed: %s", object.GetName(), err)
		return object, err
	}
	return now.(T), nil
}

func (w *World) killReplica() {
	slot := w.random.IntN(len(w.slots))
	if s := &w.slots[slot]; s.replica != nil {
		w.kill(s, w.soon(20*time.Second))
	}
}

// kill kills the replica of a slot, which starts again at some time.
func (w *World) kill(s *slot, again time.Time) {
	w.note("%s is killed", s.replica.name)
	s.replica.kill()
	// The dead process still runs here, so what it writes from now on must not count. A
	// kubelet that is lost reports nothing.
	if said, err := os.ReadFile(s.replica.terminationLog); err == nil && w.random.IntN(3) > 0 {
		name := s.replica.name
		w.later(w.soon(2*time.Second), func() { w.reportEnd(name, string(said)) })
	}
	w.dead = append(w.dead, s.replica)
	s.replica, s.again = nil, again
}

func (w *World) stopReplica() {
	slot := w.random.IntN(len(w.slots))
	if s := &w.slots[slot]; s.replica != nil {
		w.note("%s is stopped", s.replica.name)
		s.replica.stop()
		w.dead = append(w.dead, s.replica)
		s.replica, s.again = nil, w.soon(20*time.Second)
	}
}

// cutOff holds all requests and answers of a replica for a while.
func (w *World) cutOff() {
	if s := w.slots[w.random.IntN(len(w.slots))]; s.replica != nil {
		w.cut[s.replica.name] = w.soon(40 * time.Second)
		w.note("%s is cut off until %s", s.replica.name, clock(w.cut[s.replica.name]))
	}
}

func (w *World) withholdEvents() {
	client := "controllers"
	if s := w.slots[w.random.IntN(len(w.slots))]; s.replica != nil && w.random.IntN(5) > 0 {
		client = s.replica.name
	}
	w.withheld[client] = w.soon(30 * time.Second)
	w.note("events for %s are withheld until %s", client, clock(w.withheld[client]))
}

func (w *World) restartServer() {
	w.note("the API server restarts")
	w.api.Restart()
}

func (w *World) disturbCinder() {
	w.cinder = trouble{until: w.soon(30 * time.Second), Weather: gate.Weather{
		Delay: time.Duration(w.random.Int64N(int64(600 * time.Millisecond))), Lost: w.random.Float64() * 0.3, Failed: w.random.Float64() * 0.3}}
	w.note("Cinder is in trouble until %s: %+v", clock(w.cinder.until), w.cinder.Weather)
}

func (w *World) disturbKubernetes() {
	w.kubernetes = trouble{until: w.soon(30 * time.Second), Weather: gate.Weather{
		Delay: time.Duration(w.random.Int64N(int64(300 * time.Millisecond))), Lost: w.random.Float64() * 0.2, Failed: w.random.Float64() * 0.2}}
	w.note("the API server is in trouble until %s: %+v", clock(w.kubernetes.until), w.kubernetes.Weather)
}

// failBackend makes the storage backend fail once or twice.
func (w *World) failBackend() {
	operation, _ := pick(w, []string{"volume.create", "volume.create", "volume.delete", "action.os-initialize_connection", "action.os-terminate_connection", "attachment.update", "attachment.delete"})
	times := 1 + w.random.IntN(2)
	match := func(r cindersim.Request) bool {
		switch operation {
		case "volume.delete":
			return r.Endpoint == cindersim.Noauth // only an administrator can delete such a volume again
		case "action.os-initialize_connection":
			// It would remove an export that is in use; but nobody uses a volume whose
			// PersistentVolume was deleted before its claim was bound.
			return w.seen[r.VolumeID].Status != "in-use"
		}
		return true
	}
	w.note("the backend fails at %s, %d times", operation, times)
	w.faults = append(w.faults, w.sim.Inject(cindersim.Fault{Kind: cindersim.FailBackend, Operation: operation, Match: match, Times: times}))
}

func (w *World) reload(variant int) {
	w.note("the policy becomes variant %d", variant)
	text := policyText(variant)
	p, err := policy.Parse([]byte(text), "policy.yaml", mappers.BuiltIn().Describe())
	if err == nil {
		w.policy = p
		w.quotas.Allow(p)
		err = writeFile(filepath.Join(w.dir, "policy.yaml"), text)
	}
	if err != nil {
		panic(err)
	}
}

// later has something done at a time, or when trouble ends.
func (w *World) later(at time.Time, do func()) { w.planned = append(w.planned, planned{at, do}) }

// await has something done once something is so.
func (w *World) await(is func() bool, do func()) {
	w.later(time.Now().Add(100*time.Millisecond), func() {
		if is() {
			do()
		} else {
			w.await(is, do)
		}
	})
}

// catchUp does what was planned for until now.
func (w *World) catchUp(now time.Time) {
	var due []planned
	w.planned = slices.DeleteFunc(w.planned, func(p planned) bool {
		if is := !p.at.After(now); is {
			due = append(due, p)
			return true
		}
		return false
	})
	for _, p := range due {
		p.do()
	}
}

// calm ends all troubles.
func (w *World) calm() {
	w.note("calm")
	w.catchUp(time.Now().Add(time.Hour))
	w.cinder, w.kubernetes = trouble{}, trouble{}
	clear(w.cut)
	clear(w.withheld)
	for _, fault := range w.faults {
		fault.Remove()
	}
	w.faults = nil
	for i := range w.slots {
		w.slots[i].again = time.Now()
	}
	w.reload(0)
}

// restart starts the replicas whose time has come.
func (w *World) restart() error {
	for i := range w.slots {
		if s := &w.slots[i]; s.replica == nil && !time.Now().Before(s.again) {
			r, err := w.start()
			if err != nil {
				return err
			}
			w.note("%s starts", r.name)
			s.replica = r
		}
	}
	return nil
}
