package provisioner

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/copies"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

const (
	populatedUID = "0f6c2d3e-8a41-4c5b-9d7e-1234567890ab"
	otherUID     = "1f6c2d3e-8a41-4c5b-9d7e-1234567890ab"
)

// fromImage makes a claim ask for content that a populator has.
func fromImage(c *corev1.PersistentVolumeClaim) {
	group := "example.org"
	c.UID = populatedUID
	c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "Image", Name: "debian"}
}

// withPopulators puts the test policy in force with a populator's namespace, whose name a
// pattern of tenant a would match.
func (f *fixture) withPopulators() {
	f.t.Helper()
	f.current.Store(parsePolicy(f.t, strings.Replace(testPolicy, "namespaces: [team-a]", "namespaces: [team-a, \"populators-*\"]", 1)+
		"populators: [{namespace: populators-1}, {namespace: populators-2}]\n"))
}

// prime returns the claim of a populator.
func (f *fixture) prime(namespace, name string) *corev1.PersistentVolumeClaim {
	return f.claim(func(c *corev1.PersistentVolumeClaim) {
		c.Namespace, c.Name, c.UID = namespace, name, types.UID(strings.Replace(namespace, "populators", "uid-of", 1))
	})
}

func TestClaimForAPopulatorIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"plain":                   nil,
		"that asks for an import": asks,
		"that no rule admits": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Ti")
		},
		"of a stranger":               func(c *corev1.PersistentVolumeClaim) { c.Namespace = "stranger" },
		"with a selector":             func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} },
		"of a class that is gone":     func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("gone") },
		"with a data source, as well": func(c *corev1.PersistentVolumeClaim) { c.Annotations[admission.CloneAnnotation] = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.count()
			left := f.leaves()
			claim := f.claim(func(c *corev1.PersistentVolumeClaim) {
				fromImage(c)
				if change != nil {
					change(c)
				}
			})
			for range 3 {
				if f.admits(claim) {
					t.Fatal("admitted")
				}
			}
			if events := f.newEvents(); len(events) > 0 || len(*left) > 0 {
				t.Errorf("events %q, left to an import %v", events, *left)
			}
			if _, counts := f.ledger.PositionOf(claim.UID); counts {
				t.Error("room is reserved")
			}
			if groups := f.PendingClaims(); len(groups) > 0 {
				t.Errorf("it counts as pending: %+v", groups)
			}
			report := f.ReportClaims(Selected{Limit: 1})
			const want = "the claim waits for a volume populator of example.org/Image, which has its volume made for a claim of its own"
			if len(report.Pending) != 1 || report.Pending[0].State != "left" || report.Pending[0].Reason != "AwaitsPopulator" || report.Pending[0].Message != want || report.Pending[0].Since.IsZero() {
				t.Fatalf("reported as %+v", report.Pending)
			}
			f.PolicyChanged()
			f.publish(parking.Namespace, claim.Namespace)
			f.publish(parking.Class, "one")
			f.board.Publish(parking.PopulatedClaim(claim.UID))
			f.wantRequeued()

			f.parkedClaims.Forget(claim.UID)
			if report := f.ReportClaims(Selected{Limit: 1}); report.Total != 0 {
				t.Errorf("still reported: %+v", report.Pending)
			}
		})
	}
}

// TestClaimForAPopulatorWaitsForNoNode: the populator picks the node up from the claim.
func TestClaimForAPopulatorWaitsForNoNode(t *testing.T) {
	f := newFixture(t)
	waits := storagev1.VolumeBindingWaitForFirstConsumer
	f.class.VolumeBindingMode = &waits
	f.admits(f.claim(fromImage))
	if report := f.ReportClaims(Selected{Limit: 1}); report.Total != 1 {
		t.Error("it is not reported")
	}
}

func TestClaimThatAPopulatorServedIsNoLongerReported(t *testing.T) {
	f := newFixture(t)
	before := f.claim(fromImage)
	f.admits(before)
	after := before.DeepCopy()
	after.Spec.VolumeName = objects.PVNameFor("uid-of-the-populators-claim")
	f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Update(after))
	f.followup.ClaimChanged(before, after)
	f.must(f.claimGone(t.Context(), before.UID))
	if report := f.ReportClaims(Selected{Limit: 1}); report.Total != 0 {
		t.Errorf("still reported: %+v", report.Pending)
	}
}

func TestPopulatorsClaimIsServedOnBehalfOfTheOther(t *testing.T) {
	for name, of := range map[string]string{"prime": "prime-" + populatedUID, "the UID alone": populatedUID, "another prefix": "vs-prime-" + populatedUID} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.withPopulators()
			f.count()
			target := f.claim(fromImage)
			prime := f.prime("populators-1", of)
			if !f.admits(prime) {
				t.Fatalf("not admitted: %q", f.newEvents())
			}
			pv, err := f.provision(prime)
			f.must(err)
			if pv.Annotations[objects.AnnotationTenant] != "a" || pv.Annotations[objects.AnnotationRule] != "tenants[0].classes[1]" {
				t.Errorf("the PersistentVolume records %v", pv.Annotations)
			}
			stamp := f.backends["gold"].specs[0].Stamp
			want := stamps.Volume{Cluster: "cluster-1", ClusterUID: "kube-system-uid", Namespace: prime.Namespace, Claim: prime.Name, ClaimUID: string(prime.UID), PV: "pvc-" + string(prime.UID), Tenant: "a", StorageClass: "one"}
			if stamp != want {
				t.Errorf("stamped %+v, want %+v", stamp, want)
			}
			if position, counts := f.ledger.PositionOf(prime.UID); !counts || position.Tenant != "a" {
				t.Errorf("counts for tenant %q", position.Tenant)
			}
			if _, counts := f.ledger.PositionOf(target.UID); counts {
				t.Error("the claim that is to be filled counts, too")
			}
		})
	}
}

// TestEscapePopulatorsClaimNeedsOneThatWaits: the populator's namespace matches a pattern
// of tenant a, which gives its claims nothing.
func TestEscapePopulatorsClaimNeedsOneThatWaits(t *testing.T) {
	const start = "Warning NoPopulatedClaim namespace populators-1 is a populator's (populators[0]) and belongs to no tenant: its claims get volumes only on behalf of claims that wait to be filled; "
	const target = "claim team-a/data with the UID " + populatedUID
	for name, c := range map[string]struct {
		prime  string
		target func(*corev1.PersistentVolumeClaim)
		want   string
	}{
		"without a UID":            {"prime-data", fromImage, "the name of claim prime-data does not end in the UID of another"},
		"the UID not at the end":   {"prime-" + populatedUID + "-0", fromImage, "the name of claim prime-" + populatedUID + "-0 does not end in the UID of another"},
		"the UID of none":          {"prime-" + otherUID, fromImage, "no claim has the UID " + otherUID},
		"the UID as an annotation": {"prime-" + otherUID, func(c *corev1.PersistentVolumeClaim) { fromImage(c); c.Annotations["uid"] = otherUID }, "no claim has the UID " + otherUID},
		"being deleted":            {"prime-" + populatedUID, func(c *corev1.PersistentVolumeClaim) { fromImage(c); c.DeletionTimestamp = &metav1.Time{} }, target + " is being deleted"},
		"with a volume":            {"prime-" + populatedUID, func(c *corev1.PersistentVolumeClaim) { fromImage(c); c.Spec.VolumeName = "any" }, target + " has PersistentVolume any already"},
		"for an empty volume":      {"prime-" + populatedUID, func(c *corev1.PersistentVolumeClaim) { c.UID = populatedUID }, target + " does not ask for the content of an object that populators serve (spec.dataSourceRef)"},
		"for a clone": {"prime-" + populatedUID, func(c *corev1.PersistentVolumeClaim) {
			fromImage(c)
			*c.Spec.DataSourceRef = corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "x"}
		}, target + " does not ask for the content of an object that populators serve (spec.dataSourceRef)"},
		"of another populator":      {"prime-" + populatedUID, func(c *corev1.PersistentVolumeClaim) { fromImage(c); c.Namespace = "populators-2" }, "namespace populators-2 of claim data is a populator's, too"},
		"of the populator's itself": {"prime-" + populatedUID, func(c *corev1.PersistentVolumeClaim) { fromImage(c); c.Namespace = "populators-1" }, "namespace populators-1 of claim data is a populator's, too"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.withPopulators()
			f.count()
			f.claim(c.target)
			prime := f.prime("populators-1", c.prime)
			for range 3 {
				if f.admits(prime) {
					t.Fatal("admitted")
				}
			}
			if events := f.newEvents(); !slices.Equal(events, []string{start + c.want}) {
				t.Errorf("events %q\nwant %q once", events, start+c.want)
			}
			if pv, err := f.provision(prime); pv != nil || !isIgnored(err) {
				t.Errorf("provisioned %v, %v", pv, err)
			}
			wantCalls(t, f.backends["gold"])
		})
	}
}

// TestEscapeUIDOfAnothersClaimCountsForThem: a UID names a tenant, and nothing that the
// author of a claim writes takes it to another.
func TestEscapeUIDOfAnothersClaimCountsForThem(t *testing.T) {
	f := newFixture(t)
	f.withPopulators()
	f.current.Store(parsePolicy(t, strings.Replace(testPolicy, "tenants:\n", "tenants:\n  - name: b\n    namespaces: [team-b]\n    quota: {volumes: 0}\n    classes: [{storageClasses: [one], backends: [gold]}]\n", 1)+
		"populators: [{namespace: populators-1}]\n"))
	f.count()
	f.claim(fromImage)
	f.claim(func(c *corev1.PersistentVolumeClaim) {
		fromImage(c)
		// Its name and its content claim to be those of the other.
		c.Namespace, c.Name, c.UID, c.Annotations["uid"] = "team-b", "prime-"+populatedUID, otherUID, populatedUID
	})
	if f.admits(f.prime("populators-1", populatedUID+"-"+otherUID)) {
		t.Fatal("tenant b got the volume of tenant a")
	}
	f.wantEvent("Warning QuotaExceeded tenant b would use 1 of 0 volumes (tenants[0].quota.volumes)")
	// In the namespace of a tenant, such a name means nothing.
	ordinary := f.claim(func(c *corev1.PersistentVolumeClaim) {
		c.Namespace, c.Name, c.UID = "team-b", "prime-x-"+populatedUID, "uid-b"
	})
	if f.admits(ordinary) {
		t.Fatal("a claim of tenant b was served on behalf of tenant a")
	}
	f.wantEvent("Warning QuotaExceeded tenant b would use 1 of 0 volumes (tenants[0].quota.volumes)")
}

// TestTwoPopulatorsClaimsForOneCountTwice: each volume counts for the tenant, so its quota
// bounds what populators make on its behalf.
func TestTwoPopulatorsClaimsForOneCountTwice(t *testing.T) {
	f := newFixture(t)
	f.current.Store(parsePolicy(t, strings.Replace(testPolicy, "volumeSize: {max: 10Gi}", "quota: {volumes: 1}", 1)+"populators: [{namespace: populators-1}, {namespace: populators-2}]\n"))
	f.count()
	f.claim(fromImage)
	if !f.admits(f.prime("populators-1", "prime-"+populatedUID)) {
		t.Fatal("the first is not admitted")
	}
	if f.admits(f.prime("populators-2", "prime-"+populatedUID)) {
		t.Fatal("the second is admitted, beyond the quota")
	}
	f.wantEvent("Warning QuotaExceeded tenant a would use 2 of 1 volumes (tenants[0].quota.volumes)")
}

func TestPopulatorsClaimComesBack(t *testing.T) {
	t.Run("when the other appears", func(t *testing.T) {
		f := newFixture(t)
		f.withPopulators()
		prime := f.prime("populators-1", "prime-"+populatedUID)
		f.admits(prime)
		f.board.Publish(parking.PopulatedClaim(otherUID))
		f.wantRequeued()
		target := f.claim(fromImage)
		f.board.Publish(parking.PopulatedClaim(target.UID))
		f.wantRequeued(prime.Name)
		f.count()
		if !f.admits(prime) {
			t.Errorf("not admitted: %q", f.newEvents())
		}
	})
	t.Run("when the other appears while the policy decides", func(t *testing.T) {
		f := newFixture(t)
		f.withPopulators()
		prime := f.prime("populators-1", "prime-"+populatedUID)
		turn := f.turn(prime)
		decision := f.decide(prime, f.class, f.askerOf(prime))
		f.board.Publish(parking.PopulatedClaim(f.claim(fromImage).UID))
		f.deny(turn, prime, f.denialOf(prime, f.class, decision))
		f.wantRequeued(prime.Name)
	})
	t.Run("when the other's namespace changes", func(t *testing.T) {
		f := newFixture(t)
		f.withPopulators()
		f.claim(func(c *corev1.PersistentVolumeClaim) { fromImage(c); c.Namespace = "stranger" })
		prime := f.prime("populators-1", "prime-"+populatedUID)
		f.admits(prime)
		f.wantEvent("Warning NoMatchingTenant namespace stranger belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels")
		f.publish(parking.Namespace, "stranger")
		f.wantRequeued(prime.Name)
	})
}

// TestEscapePopulatedClaimIsReadFromTheServer: the caches still show a claim that waits.
func TestEscapePopulatedClaimIsReadFromTheServer(t *testing.T) {
	for name, change := range map[string]func(f *fixture, target *corev1.PersistentVolumeClaim){
		"it is gone": func(*fixture, *corev1.PersistentVolumeClaim) {},
		"it is another of the same name": func(f *fixture, target *corev1.PersistentVolumeClaim) {
			target.UID = otherUID
			f.must(f.client.Tracker().Add(target))
		},
		"it is being deleted": func(f *fixture, target *corev1.PersistentVolumeClaim) {
			target.DeletionTimestamp = &metav1.Time{}
			f.must(f.client.Tracker().Add(target))
		},
		"it has a volume": func(f *fixture, target *corev1.PersistentVolumeClaim) {
			target.Spec.VolumeName = "pvc-of-another-populator"
			f.must(f.client.Tracker().Add(target))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.withPopulators()
			f.count()
			target := f.claim(fromImage)
			prime := f.prime("populators-1", "prime-"+populatedUID)
			if !f.admits(prime) {
				t.Fatal("not admitted")
			}
			f.goneAtTheServer(target)
			change(f, target.DeepCopy())
			if pv, err := f.provision(prime); pv != nil || !errors.Is(err, copies.ErrPopulatedChanged) {
				t.Fatalf("provisioned %v, %v", pv, err)
			}
			wantCalls(t, f.backends["gold"])

			// The caches catch up.
			f.forgetClaim(target)
			if pv, err := f.provision(prime); pv != nil || !isIgnored(err) {
				t.Fatalf("provisioned %v, %v", pv, err)
			}
			if _, counts := f.ledger.PositionOf(prime.UID); counts {
				t.Error("room stays reserved")
			}
			if events := f.newEvents(); len(events) != 2 || !strings.HasPrefix(events[1], "Warning NoPopulatedClaim ") {
				t.Errorf("events %q", events)
			}
		})
	}
}

// TestVolumeForAPopulatorIsUndoneWithTheOtherClaim: the claim that was to be filled is
// deleted between two attempts, of which the first has made a volume.
func TestVolumeForAPopulatorIsUndoneWithTheOtherClaim(t *testing.T) {
	f := newFixture(t)
	f.withPopulators()
	f.count()
	target := f.claim(fromImage)
	prime := f.prime("populators-1", "prime-"+populatedUID)
	gold := f.backends["gold"]
	gold.err = &cinder.Error{Kind: cinder.KindInvalid, Backend: "gold", Message: "try again"}
	gold.touched = map[string]bool{string(prime.UID): true}
	if _, err := f.provision(prime); err == nil {
		t.Fatal("no error")
	}
	gold.err = nil
	f.forgetClaim(target)
	if pv, err := f.provision(prime); pv != nil || !isIgnored(err) {
		t.Fatalf("provisioned %v, %v", pv, err)
	}
	pvName := "pvc-" + string(prime.UID)
	wantCalls(t, gold, "connect "+pvName+" 2 GiB", "abandon "+pvName)
	if events := f.newEvents(); !strings.HasPrefix(events[len(events)-1], "Warning NoPopulatedClaim ") {
		t.Errorf("events %q", events)
	}
}

// TestEscapeLabelsOfThePopulatedNamespaceAreReadFromTheServer: the cache shows that the
// namespace is still tenant a's.
func TestEscapeLabelsOfThePopulatedNamespaceAreReadFromTheServer(t *testing.T) {
	f := newEscape(t)
	f.current.Store(parsePolicy(t, escapePolicy+"populators: [{namespace: populators-1}]\n"))
	f.count()
	f.claim(fromImage)
	prime := f.prime("populators-1", "prime-"+populatedUID)
	if !f.admits(prime) {
		t.Fatalf("not admitted: %q", f.newEvents())
	}
	f.label(map[string]string{})
	if pv, err := f.provision(prime); pv != nil || !isIgnored(err) {
		t.Fatalf("provisioned %v, %v", pv, err)
	}
	wantCalls(t, f.backends["gold"])
	wantCalls(t, f.backends["silver"])
	f.wantEvent("Warning NoMatchingTenant namespace team-a belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels")
}

// TestEscapeLabelsOfThePopulatorsNamespaceDecideNothing: a label there would select tenant
// b, even if the policy changes in the middle.
func TestEscapeLabelsOfThePopulatorsNamespaceDecideNothing(t *testing.T) {
	f := newEscape(t)
	with, without := parsePolicy(t, escapePolicy+"populators: [{namespace: populators-1}]\n"), parsePolicy(t, escapePolicy)
	f.must(f.factory.Core().V1().Namespaces().Informer().GetStore().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "populators-1", Labels: ofB}}))
	f.claim(fromImage)
	prime := f.prime("populators-1", "prime-"+populatedUID)
	f.current.Store(with)
	by := f.askerOf(prime)
	if d := f.decide(prime, f.class, by); d.Tenant != "a" {
		t.Errorf("tenant %q", d.Tenant)
	}
	f.current.Store(without)
	if d := f.decide(prime, f.class, by); d.Denial == nil {
		t.Errorf("labels of the claim's namespace gave the populator's tenant %q", d.Tenant)
	}
	ordinary := f.askerOf(prime)
	f.current.Store(with)
	if d := f.decide(prime, f.class, ordinary); d.Denial == nil || d.Denial.Reason != "NoPopulatedClaim" {
		t.Errorf("tenant %q, %+v", d.Tenant, d.Denial)
	}
}

// TestPopulatedNamespaceThatGoesAwayIsNotTheEnd: the populator's claim stays, so it must
// not keep its room without a retry.
func TestPopulatedNamespaceThatGoesAwayIsNotTheEnd(t *testing.T) {
	f := newEscape(t)
	f.current.Store(parsePolicy(t, escapePolicy+"populators: [{namespace: populators-1}]\n"))
	f.count()
	f.claim(fromImage)
	prime := f.prime("populators-1", "prime-"+populatedUID)
	f.must(f.client.CoreV1().Namespaces().Delete(t.Context(), "team-a", metav1.DeleteOptions{}))
	if _, err := f.provision(prime); !errors.Is(err, copies.ErrPopulatedChanged) || isIgnored(err) {
		t.Errorf("error %v, want one that is retried", err)
	}
	if report := f.ReportClaims(Selected{Limit: statusreport.DefaultLimit}); report.Total != 1 || report.Pending[0].State != string(parking.Failing) {
		t.Errorf("pending: %+v", report.Pending)
	}
	wantCalls(t, f.backends["gold"])
}

// TestReviewAgreesAboutPopulatorsClaims: what policy check says about a populator's claim
// is what happens.
func TestReviewAgreesAboutPopulatorsClaims(t *testing.T) {
	for name, target := range map[string]func(*corev1.PersistentVolumeClaim){
		"granted":        fromImage,
		"of a stranger":  func(c *corev1.PersistentVolumeClaim) { fromImage(c); c.Namespace = "stranger" },
		"gone":           func(c *corev1.PersistentVolumeClaim) { fromImage(c); c.UID = otherUID },
		"with a volume":  func(c *corev1.PersistentVolumeClaim) { fromImage(c); c.Spec.VolumeName = "any" },
		"an empty one's": func(c *corev1.PersistentVolumeClaim) { c.UID = populatedUID },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.withPopulators()
			claim, prime := f.claim(target), f.prime("populators-1", "prime-"+populatedUID)
			admitted := f.admits(prime)
			events := f.newEvents()

			existing, err := objects.ReadExisting(t.Context(), fake.NewClientset(claim, prime, f.class), "test")
			f.must(err)
			findings := review.Of(f.Policy(), existing).Findings
			i := slices.IndexFunc(findings, func(found review.Finding) bool { return found.Subject == "populators-1/"+prime.Name })
			if i < 0 || (findings[i].Kind == review.PendingGranted) != admitted {
				t.Fatalf("admitted: %t, but found %+v", admitted, findings)
			}
			if want := "Warning " + string(findings[i].Reason) + " " + findings[i].Message; !admitted && !slices.Equal(events, []string{want}) {
				t.Errorf("its events are %q, but is found %q", events, want)
			}
			left := slices.ContainsFunc(findings, func(found review.Finding) bool {
				return found.Kind == review.PendingLeft && found.Subject == claim.Namespace+"/data"
			})
			if left != (admission.PopulatorOf(claim) != "" && claim.Spec.VolumeName == "") {
				t.Errorf("the claim that is to be filled is found left: %t", left)
			}
		})
	}
}

func TestReviewReadsTheLabelsOfThePopulatedNamespace(t *testing.T) {
	f := newEscape(t)
	f.current.Store(parsePolicy(t, escapePolicy+"populators: [{namespace: populators-1}]\n"))
	claim, prime := f.claim(fromImage), f.prime("populators-1", "prime-"+populatedUID)
	namespaces := []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a", Labels: ofA}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "populators-1", Labels: ofB}},
	}
	existing, err := objects.ReadExisting(t.Context(), fake.NewClientset(append(namespaces, claim, prime, f.class)...), "test")
	f.must(err)
	for _, found := range review.Of(f.Policy(), existing).Findings {
		if found.Kind == review.PendingGranted && strings.Contains(found.Message, "for tenant a (") {
			return
		}
	}
	t.Errorf("the populator's claim does not get its volume for tenant a: %+v", review.Of(f.Policy(), existing).Findings)
}
