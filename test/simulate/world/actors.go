package world

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

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
		{20, (*World).createClaim}, {12, (*World).deleteClaim}, {2, (*World).retain},
		{2, (*World).killReplica}, {1, (*World).stopReplica}, {2, (*World).cutOff}, {2, (*World).withholdEvents}, {1, (*World).restartServer},
		{4, (*World).disturbCinder}, {3, (*World).disturbKubernetes}, {3, (*World).failBackend}, {1, func(w *World) { w.note("all tokens expire"); w.sim.ExpireTokens() }},
		{1, func(w *World) { w.reload(w.random.IntN(3)) }}, {1, (*World).reuse},
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
	tenant, _ := pick(w, []string{"a", "b", "c"})
	class, _ := pick(w, []string{"fast", "fast", "dual", "dual", "kept"})
	if class == "kept" && (tenant == "c" || w.random.IntN(3) > 0) {
		class = "dual"
	}
	size := 1 + w.random.IntN(4)
	if w.random.IntN(15) == 0 {
		size = 12
	}
	// Few names, so that they are used again.
	claim, err := w.api.Create(claimOf(tenant, fmt.Sprintf("data-%d", w.random.IntN(15)), class, size))
	if err == nil {
		w.note("tenant %s creates claim %s (%s): %d GiB of %s", tenant, claim.GetName(), claim.GetUID(), size, class)
		w.claims.NoteMade(claim.GetUID())
	}
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
	all := apiserver.Objects[*corev1.PersistentVolumeClaim](w.api)
	if claim, ok := pick(w, slices.DeleteFunc(all, func(c *corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp != nil })); ok {
		w.removeClaim(claim)
		w.gate.Run(w.soon(2 * time.Second))
		if made, err := w.api.Create(claimOf(claim.Namespace, claim.Name, *claim.Spec.StorageClassName, 1)); err == nil {
			w.note("tenant %s creates claim %s (%s) again", claim.Namespace, claim.Name, made.GetUID())
			w.claims.NoteMade(made.GetUID())
		}
	}
}

// retain makes a PersistentVolume keep its volume.
func (w *World) retain() {
	pv, ok := pick(w, w.pvs())
	if !ok || !w.fates.Choose(pv.Name) {
		return
	}
	w.fates.NoteKeeping(pv.Name, true)
	now, err := w.api.Change(pv, "", func(o apiserver.Object) {
		o.(*corev1.PersistentVolume).Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	})
	if err == nil {
		w.note("%s is to be kept", pv.Name)
		w.fates.NoteKept(checker.PVOf(now.(*corev1.PersistentVolume)))
	}
}

func (w *World) killReplica() {
	slot := w.random.IntN(len(w.slots))
	if s := &w.slots[slot]; s.replica != nil {
		w.note("%s is killed", s.replica.name)
		s.replica.kill()
		w.dead = append(w.dead, s.replica)
		s.replica, s.again = nil, w.soon(20*time.Second)
	}
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
	// Only an administrator can delete a volume again that could not be deleted.
	lab := func(r cindersim.Request) bool { return operation != "volume.delete" || r.Endpoint == cindersim.Noauth }
	w.note("the backend fails at %s, %d times", operation, times)
	w.faults = append(w.faults, w.sim.Inject(cindersim.Fault{Kind: cindersim.FailBackend, Operation: operation, Match: lab, Times: times}))
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

// calm ends all troubles.
func (w *World) calm() {
	w.note("calm")
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
