package provisioner

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
)

var claimsResource = schema.GroupResource{Resource: "persistentvolumeclaims"}

// delayed is a fixture with zones, whose StorageClass waits for the claim's pod. asked
// holds the patches of claims; the API server answers them with failure.
type delayed struct {
	*fixture
	asked   []string
	failure error
}

func newDelayed(t *testing.T) *delayed {
	t.Helper()
	d := &delayed{fixture: zoned(t)}
	d.noteEarlier()
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	d.class.VolumeBindingMode = &mode
	d.client.PrependReactor("patch", claimsResource.Resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		d.asked = append(d.asked, string(action.(clienttesting.PatchAction).GetPatch()))
		return true, &corev1.PersistentVolumeClaim{}, d.failure
	})
	return d
}

const (
	removesTheNode = `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":null},"resourceVersion":"11","uid":"uid-1"}}`
	notReached     = "the claim's pod was scheduled to node node-c, but backend gold exports volumes only to nodes with the labels rack=a,site=north (zone az1), or rack=b,site=north (zone az2) (backends[0].zones); give StorageClass one allowedTopologies with these labels, so that no pod is scheduled elsewhere"
	asksForAnother = "Warning RescheduleRequested asked the scheduler to select a node other than node-c: " + notReached
)

func TestSchedulerIsAskedForAnotherNodeThanAnUnreachedOne(t *testing.T) {
	for name, act := range map[string]func(*delayed, *corev1.PersistentVolumeClaim) bool{
		"by an attempt": func(d *delayed, claim *corev1.PersistentVolumeClaim) bool {
			_, err := d.provision(claim)
			return isIgnored(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelayed(t)
			claim := d.onNode("node-c")
			if !act(d, claim) {
				t.Error("the claim is provisioned, or tried again")
			}
			if got := strings.Join(d.asked, "\n"); got != removesTheNode {
				t.Errorf("patches %s\nwant %s", got, removesTheNode)
			}
			d.wantEvent(asksForAnother)
			if parked := d.parkedClaims.lot.List(); len(parked) > 0 {
				t.Errorf("the claim waits for more than the scheduler: %+v", parked)
			}
			if _, counts := d.ledger.PositionOf(claim.UID); counts {
				t.Error("the claim counts against a quota")
			}
			wantCalls(t, d.backends["gold"])
		})
	}
}

func TestNodeIsKept(t *testing.T) {
	for name, change := range map[string]func(*delayed, *corev1.PersistentVolumeClaim){
		"if the scheduler has no part in it": func(d *delayed, _ *corev1.PersistentVolumeClaim) {
			mode := storagev1.VolumeBindingImmediate
			d.class.VolumeBindingMode = &mode
		},
		"if no other one helps": func(d *delayed, _ *corev1.PersistentVolumeClaim) {
			d.inForce("{storageClasses: [one], backends: [gold]}", "{storageClasses: [one], backends: [gold], volumeSize: {max: 1Gi}}")
		},
		"if the claim names a PersistentVolume": func(_ *delayed, claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = "other" },
		"while an earlier leader may have made a volume": func(d *delayed, claim *corev1.PersistentVolumeClaim) {
			d.noteEarlier(claim)
			d.placement.Recount("gold")
		},
		"while this term may have made a volume": func(d *delayed, _ *corev1.PersistentVolumeClaim) {
			d.backends["gold"].touched = map[string]bool{"uid-1": true}
		},
		"if the claim was replaced": func(d *delayed, claim *corev1.PersistentVolumeClaim) {
			other := claim.DeepCopy()
			other.UID = "uid-2"
			d.must(d.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Update(other))
		},
		"if the scheduler has selected another one": func(d *delayed, claim *corev1.PersistentVolumeClaim) {
			other := claim.DeepCopy()
			other.Annotations[admission.SelectedNodeAnnotation] = "node-a"
			d.must(d.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Update(other))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelayed(t)
			claim := d.onNode("node-c")
			change(d, claim)
			if d.admits(claim) {
				t.Error("the claim is provisioned")
			}
			if len(d.asked) > 0 {
				t.Errorf("patches %s", d.asked)
			}
			if events := d.newEvents(); len(events) > 1 || strings.Contains(strings.Join(events, ""), "RescheduleRequested") {
				t.Errorf("events %q, want at most one of a denial", events)
			}
		})
	}
}

// TestVolumeIsUndoneBeforeTheSchedulerIsAsked: a claim's node may be replaced by one
// that no zone reaches, or the zones may change.
func TestVolumeIsUndoneBeforeTheSchedulerIsAsked(t *testing.T) {
	d := newDelayed(t)
	d.backends["gold"].err = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "gold", Message: "down", EffectUnknown: true}
	d.backends["gold"].hasVolumeOf = map[string]bool{"uid-1": true}
	claim := d.onNode("node-a")
	if _, err := d.provision(claim); err == nil {
		t.Fatal("the attempt succeeded")
	}
	d.newEvents()
	claim = d.onNode("node-c")
	d.backends["gold"].err = nil
	d.backends["gold"].onCall = func() {
		if len(d.asked) > 0 {
			t.Errorf("before the volume was undone: %s", d.asked)
		}
	}
	if _, err := d.provision(claim); !isIgnored(err) {
		t.Errorf("error %v", err)
	}
	wantCalls(t, d.backends["gold"], "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
	if got := strings.Join(d.asked, "\n"); got != removesTheNode {
		t.Errorf("patches %s\nwant %s", got, removesTheNode)
	}
}

// TestSchedulerIsAskedLessAndLessOften: the scheduler selects the same node every time.
func TestSchedulerIsAskedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDelayed(t)
		claim := d.onNode("node-c")
		begin := time.Now()
		var at []string
		for range 1000 {
			before := len(d.asked)
			if d.admits(claim) {
				t.Fatal("the claim is provisioned")
			}
			if len(d.asked) > before {
				at = append(at, fmt.Sprint(time.Since(begin)))
			}
			d.newEvents()
			time.Sleep(time.Second)
		}
		if got := strings.Join(at, " "); got != "0s 10s 30s 1m10s 2m30s 5m10s 10m10s 15m10s" {
			t.Errorf("asked after %s", got)
		}
		// Another claim of the same name starts over.
		d.forgetClaim(claim)
		d.must(d.claimGone(t.Context(), claim.UID))
		d.asked = nil
		d.admits(d.onNode("node-c"))
		if len(d.asked) != 1 {
			t.Error("what is gone is remembered")
		}
	})
}

// TestDeniedClaimComesBackForAnotherNode: nothing else brings it back.
func TestDeniedClaimComesBackForAnotherNode(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*delayed, *corev1.PersistentVolumeClaim)
		ask    func(*delayed, *corev1.PersistentVolumeClaim)
	}{
		"after the pause": {
			change: func(d *delayed, claim *corev1.PersistentVolumeClaim) { d.admits(claim) },
			ask:    func(*delayed, *corev1.PersistentVolumeClaim) {},
		},
		"after the backend was listed": {
			change: func(d *delayed, claim *corev1.PersistentVolumeClaim) {
				d.noteEarlier(claim)
				d.placement.Recount("gold")
			},
			ask: func(d *delayed, _ *corev1.PersistentVolumeClaim) { d.count() },
		},
		"after the API server refused": {
			change: func(d *delayed, _ *corev1.PersistentVolumeClaim) {
				d.failure = apierrors.NewForbidden(claimsResource, "data", nil)
			},
			ask: func(d *delayed, _ *corev1.PersistentVolumeClaim) { d.failure = nil },
		},
		"after the claim had changed": {
			change: func(d *delayed, _ *corev1.PersistentVolumeClaim) {
				d.failure = apierrors.NewConflict(claimsResource, "data", nil)
			},
			ask: func(d *delayed, _ *corev1.PersistentVolumeClaim) { d.failure = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDelayed(t)
				claim := d.onNode("node-c")
				c.change(d, claim)
				d.newEvents()
				for range 2 {
					if d.admits(claim) {
						t.Fatal("the claim is provisioned")
					}
				}
				d.wantEvent("Warning NodeNotReached " + notReached)
				time.Sleep(9 * time.Second)
				synctest.Wait()
				d.wantRequeued()
				c.ask(d, claim)
				d.asked = nil
				time.Sleep(2 * time.Second)
				synctest.Wait()
				d.wantRequeued("data")
				if d.admits(claim) {
					t.Fatal("the claim is provisioned")
				}
				if got := strings.Join(d.asked, "\n"); got != removesTheNode {
					t.Errorf("patches %s\nwant %s", got, removesTheNode)
				}
				d.wantEvent(asksForAnother)
			})
		})
	}
}

// TestSchedulerIsAskedForANodeOfAnotherZone: the zones of the node are full.
func TestSchedulerIsAskedForANodeOfAnotherZone(t *testing.T) {
	const full = "backend gold: volume volume-1 went to error and was removed: no host in az2"
	for name, c := range map[string]struct {
		class  string
		change func(*delayed)
		event  string // the last one
		err    string // of an attempt that is retried
	}{
		"another zone has other nodes": {class: "one", change: func(*delayed) {},
			event: "Warning RescheduleRequested asked the scheduler to select a node other than node-b: " + full},
		"all that the node reaches is full": {class: "both", change: func(d *delayed) { d.backends["silver"].full = map[string]bool{"": true} },
			event: "Warning RescheduleRequested asked the scheduler to select a node other than node-b: Cinder could not make the volume: backend gold, availability zone az2: no host in az2; backend silver: no host"},
		"no other zone": {class: "one", change: func(d *delayed) { d.withZones("      - {name: az1, nodeLabels: {rack: a}}\n", "") },
			event: "Normal BackendChosen tenant a, rule tenants[0].classes[1]: 2 GiB on backend gold, availability zone az2", err: full},
		"what is left can be reached from the node": {class: "both", change: func(d *delayed) {
			d.withZones("      - {name: az1, nodeLabels: {rack: a}}\n", "")
			d.backends["silver"].health = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "silver", Message: "down"}
		}, event: "Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend gold, availability zone az2", err: full},
		"its volume may exist": {class: "one", change: func(d *delayed) { d.backends["gold"].touched = map[string]bool{"uid-1": true} },
			event: "Normal BackendChosen tenant a, rule tenants[0].classes[1]: 2 GiB on backend gold, availability zone az2", err: full},
		"the class binds at once": {class: "one", change: func(d *delayed) { d.class.VolumeBindingMode = nil },
			event: "Normal BackendChosen tenant a, rule tenants[0].classes[1]: 2 GiB on backend gold, availability zone az2", err: full},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDelayed(t)
				d.class.Name = c.class
				d.backends["gold"].full = map[string]bool{"az2": true}
				c.change(d)
				claim := d.onNode("node-b")
				_, err := d.untilItWaits(claim)
				if events := d.newEvents(); len(events) == 0 || events[len(events)-1] != c.event {
					t.Errorf("events %q\nwant last %q", events, c.event)
				}
				if c.err != "" {
					if err == nil || err.Error() != c.err || len(d.asked) > 0 {
						t.Errorf("error %v, patches %s", err, d.asked)
					}
					return
				}
				if !isIgnored(err) || strings.Join(d.asked, "\n") != removesTheNode {
					t.Errorf("error %v, patches %s", err, d.asked)
				}
				// The scheduler selects the same node again, at once and after the
				// pause.
				if _, err := d.untilItWaits(claim); err == nil || isIgnored(err) || len(d.asked) != 1 {
					t.Errorf("error %v, %d patches", err, len(d.asked))
				}
				// It selects a node of the other zone, which has room.
				d.asked = nil
				time.Sleep(firstReschedulePause)
				if _, err := d.untilItWaits(claim); !isIgnored(err) || len(d.asked) != 1 || len(d.parkedClaims.lot.List()) > 0 {
					t.Errorf("error %v, %d patches, parked %v", err, len(d.asked), d.parkedClaims.lot.List())
				}
				_, err = d.untilItWaits(d.onNode("node-a"))
				d.must(err)
			})
		})
	}
}

// TestFullZonesOfBothNodesAreTriedAgain: there is no other node to ask for.
func TestFullZonesOfBothNodesAreTriedAgain(t *testing.T) {
	d := newDelayed(t)
	d.backends["gold"].full = map[string]bool{"az1": true, "az2": true}
	if _, err := d.untilItWaits(d.onNode("node-b")); !isIgnored(err) || len(d.asked) != 1 {
		t.Errorf("error %v, %d patches", err, len(d.asked))
	}
	_, err := d.untilItWaits(d.onNode("node-a"))
	want := "Cinder could not make the volume: backend gold, availability zone az2: no host in az2; backend gold, availability zone az1: no host in az1"
	if err == nil || err.Error() != want || len(d.asked) != 1 {
		t.Errorf("error %v, %d patches\nwant %s", err, len(d.asked), want)
	}
}

// TestClaimWithoutANodeTakesNothing: the library asks about the claim, but then does
// not provision it.
func TestClaimWithoutANodeTakesNothing(t *testing.T) {
	for name, before := range map[string]func(*delayed){
		"the scheduler was asked for another one": func(d *delayed) { d.admits(d.onNode("node-c")) },
		"it was invited to its turn": func(d *delayed) {
			free := d.occupy()
			d.admits(d.onNode("node-a"))
			free()
		},
		"it was denied": func(d *delayed) {
			d.limit("0")
			d.admits(d.onNode("node-a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelayed(t)
			d.count()
			before(d)
			d.newEvents()
			// The scheduler does not read this annotation.
			claim := d.claim(func(claim *corev1.PersistentVolumeClaim) {
				claim.Annotations[admission.AlphaSelectedNodeAnnotation] = "node-c"
			})
			if d.admits(claim) {
				t.Error("the claim is provisioned")
			}
			if position, counts := d.ledger.PositionOf(claim.UID); counts {
				t.Errorf("the claim counts: %+v", position)
			}
			if held, waiting := d.parkedClaims.loop.Turns.Count(); held+waiting > 0 {
				t.Errorf("the claim has %d turns, and waits for %d", held, waiting)
			}
			if parked := d.parkedClaims.lot.List(); len(parked) > 0 {
				t.Errorf("the claim waits for more than the scheduler: %+v", parked)
			}
			if events := d.newEvents(); len(events) > 0 {
				t.Errorf("events %q", events)
			}
		})
	}
}
