package integration

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// crowdPolicy gives three tenants tight quotas on three backends.
const crowdPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: cluster-crowd
backends:
  - {name: gold, auth: {cloud: team-a}, limits: {volumes: 30}}
  - {name: silver, auth: {cloud: team-b}, limits: {gigabytes: 50}}
  - {name: lab, auth: {noauth: {endpoint: "NOAUTH", project: PROJECT}}, limits: {volumes: 25, gigabytes: 60}}
tenants:
  - name: a
    namespaces: [crowd-a]
    quota: {volumes: 40, gigabytes: 70}
    classes:
      - {storageClasses: [crowd-fast], backends: [gold, silver], quota: {gigabytes: 40}}
      - {storageClasses: [crowd-slow], backends: [silver, lab]}
  - name: b
    namespaces: [crowd-b]
    quota: {volumes: 25}
    volumeSize: {max: 3Gi}
    classes:
      - {storageClasses: ["crowd-*"], backends: [lab, gold]}
  - name: c
    namespaces: [crowd-c]
    quota: {gigabytes: 45}
    classes:
      - {storageClasses: [crowd-fast], backends: [silver]}
      - {storageClasses: [crowd-slow], backends: [gold, lab], quota: {volumes: 12}}
`

// TestThousandClaimsKeepToEveryQuota files a thousand random claims of three
// tenants, deletes some of them, and kills the leader in the middle, while every
// limit is compared with what Cinder has.
//
//tier:matrix
func TestThousandClaimsKeepToEveryQuota(t *testing.T) {
	const claims = 1000
	w := newWorld(t, "crowd", cindersim.Options{CreateDelay: 200 * time.Millisecond, DeleteDelay: 100 * time.Millisecond})
	w.policy = strings.NewReplacer("NOAUTH", w.sim.NoauthEndpoint(), "PROJECT", cindersim.DefaultNoauthProject).Replace(crowdPolicy)
	inForce, err := policy.Parse([]byte(w.policy), "policy.yaml", mappers.BuiltIn().Describe())
	w.must(err)
	w.must(suite.CreateNamespace(w.ctx, "crowd-c", nil))
	for _, class := range []string{"fast", "slow"} {
		w.must(suite.CreateClass(w.ctx, "crowd-"+class, w.provisioner, func(class *storagev1.StorageClass) {
			class.Parameters = map[string]string{"type": "iscsi"}
		}))
	}
	replicas := w.startThree(shortLease...)
	leader := w.leader(replicas)
	watch := w.watchQuotas(inForce)

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var filing sync.WaitGroup
	free := make(chan struct{}, 16)
	for i := range claims {
		namespace := string("abc"[random.IntN(3)])
		class := []string{"fast", "slow"}[random.IntN(2)]
		size := fmt.Sprintf("%dMi", 500+random.IntN(3500))
		gone := random.IntN(10) == 0
		free <- struct{}{}
		filing.Go(func() {
			defer func() { <-free }()
			claim, err := suite.CreateClaim(w.ctx, harness.Claim("crowd-"+namespace, fmt.Sprintf("data-%d", i), "crowd-"+class, size, nil))
			if err != nil {
				t.Error(err)
				return
			}
			if gone {
				if err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(w.ctx, claim.Name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
		if i == claims/2 {
			leader.Kill()
		}
	}
	filing.Wait()
	w.settled(inForce)
	w.explained()

	// Waiting claims use the room that becomes free.
	for _, claim := range w.crowd() {
		if claim.Status.Phase == corev1.ClaimBound && random.IntN(3) == 0 {
			w.must(suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(w.ctx, claim.Name, metav1.DeleteOptions{}))
		}
	}
	w.settled(inForce)
	exceeded, samples := watch()
	if exceeded != "" {
		t.Errorf("a limit was exceeded: %s", exceeded)
	}
	t.Logf("%d volumes for %d claims; %d samples", len(w.sim.Volumes()), len(w.crowd()), samples)
	for _, namespace := range []string{"a", "b", "c"} {
		w.must(suite.DeleteClaims(w.ctx, "crowd-"+namespace))
	}
	w.noResidue()
}

// crowd returns every claim of the three tenants.
func (w *world) crowd() []corev1.PersistentVolumeClaim {
	w.Helper()
	var all []corev1.PersistentVolumeClaim
	for _, namespace := range []string{"a", "b", "c"} {
		list, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-"+namespace).List(w.ctx, metav1.ListOptions{})
		w.must(err)
		all = append(all, list.Items...)
	}
	return all
}

// usage sums up what Cinder has, by tenant, class rule and backend.
func (w *world) usage(inForce *policy.Policy) map[string]policy.Usage {
	const stamp = policy.StampPrefix
	backendOf := map[string]string{
		w.sim.ProjectID("team-a"):      "gold",
		w.sim.ProjectID("team-b"):      "silver",
		cindersim.DefaultNoauthProject: "lab",
	}
	sums := map[string]policy.Usage{}
	for _, v := range w.sim.Volumes() {
		for _, s := range inForce.QuotaScopes(v.Metadata[stamp+"tenant"], v.Metadata[stamp+"storage-class"], backendOf[v.Project]) {
			key := string(s.Kind) + " " + s.Name
			sums[key] = sums[key].Add(policy.Usage{Volumes: 1, Gigabytes: int64(v.SizeGiB)})
		}
	}
	return sums
}

// watchQuotas compares every limit with the volumes at Cinder until it is
// stopped, and then returns the exceeded limits and the number of checks.
func (w *world) watchQuotas(inForce *policy.Policy) (stop func() (exceeded string, samples int)) {
	limits := map[string]policy.QuotaScope{}
	for _, tenant := range inForce.Tenants {
		for _, class := range []string{"crowd-fast", "crowd-slow"} {
			for _, backend := range inForce.Backends {
				for _, s := range inForce.QuotaScopes(tenant.Name, class, backend.Name) {
					limits[string(s.Kind)+" "+s.Name] = s
				}
			}
		}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	exceeded, samples := "", 0
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(5 * time.Millisecond):
			}
			samples++
			for key, used := range w.usage(inForce) {
				if denial := limits[key].Check(policy.Usage{}, used); denial != nil {
					exceeded = denial.Message
				}
			}
		}
	}()
	return func() (string, int) {
		close(end)
		<-ended
		return exceeded, samples
	}
}

// settled waits until no pending claim would fit.
func (w *world) settled(inForce *policy.Policy) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		used := w.usage(inForce)
		bound := map[string]bool{}
		for _, claim := range w.crowd() {
			if claim.Status.Phase == corev1.ClaimBound {
				bound[string(claim.UID)] = true
				continue
			}
			size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
			decision := inForce.Decide(policy.Request{
				Namespace: claim.Namespace, StorageClass: *claim.Spec.StorageClassName,
				Parameters: map[string]string{"type": "iscsi"}, Bytes: policy.Bytes(size),
			})
			room := decision.Room(func(s policy.QuotaScope) policy.Usage { return used[string(s.Kind)+" "+s.Name] })
			if room.Denial == nil {
				return fmt.Sprintf("claim %s/%s of %s is pending although there is room on %v", claim.Namespace, claim.Name, size.String(), room.Backends), nil
			}
		}
		volumes := w.sim.Volumes()
		for _, v := range volumes {
			if !bound[v.Metadata[policy.StampPrefix+"claim-uid"]] {
				return fmt.Sprintf("volume %s (%s) of claim %s is for no bound claim", v.Name, v.Status, v.Metadata[policy.StampPrefix+"claim"]), nil
			}
		}
		if len(volumes) != len(bound) {
			return fmt.Sprintf("%d volumes for %d bound claims", len(volumes), len(bound)), nil
		}
		return "", nil
	}))
}

// explained waits until every pending claim has an event that explains why.
func (w *world) explained() {
	w.Helper()
	reasons := map[string]int{}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		told := map[string]string{}
		for _, namespace := range []string{"a", "b", "c"} {
			events, err := suite.Client.CoreV1().Events(w.name+"-"+namespace).List(w.ctx, metav1.ListOptions{FieldSelector: "type=Warning"})
			if err != nil {
				return "", err
			}
			// The last event of a claim counts: a replica that loses the lease says that
			// provisioning failed, and the next one says why.
			slices.SortFunc(events.Items, func(a, b corev1.Event) int {
				return cmp.Or(cmp.Compare(len(a.ResourceVersion), len(b.ResourceVersion)), cmp.Compare(a.ResourceVersion, b.ResourceVersion))
			})
			for _, event := range events.Items {
				told[string(event.InvolvedObject.UID)] = event.Reason
			}
		}
		clear(reasons)
		for _, claim := range w.crowd() {
			if claim.Status.Phase == corev1.ClaimBound {
				continue
			}
			reason, ok := told[string(claim.UID)]
			if !ok {
				return fmt.Sprintf("claim %s/%s is pending and has no event", claim.Namespace, claim.Name), nil
			}
			reasons[reason]++
		}
		return "", nil
	}))
	w.Logf("pending for these reasons: %v", reasons)
	for reason := range reasons {
		if reason != string(policy.QuotaExceeded) && reason != string(policy.VolumeTooLarge) {
			w.Errorf("a claim was told %s", reason)
		}
	}
}
