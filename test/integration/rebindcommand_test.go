package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/rebind"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// rebindWorld makes a world whose tenant b may have the volumes of tenant a, too.
func rebindWorld(t *testing.T, name string) *world {
	w := newWorld(t, name, cindersim.Options{})
	w.policy += strings.ReplaceAll(`      - storageClasses: ["NAME-gold"]
        backends: [gold]
`, "NAME", name)
	return w
}

// rebound checks that a claim has a PersistentVolume, for Kubernetes and for the program.
func (w *world) rebound(pvName, namespace, name, tenant string, reclaim corev1.PersistentVolumeReclaimPolicy) {
	w.Helper()
	claim, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-"+namespace).Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pvName, metav1.GetOptions{})
	w.must(err)
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != pvName || pv.Status.Phase != corev1.VolumeBound || pv.Spec.ClaimRef.UID != claim.UID {
		w.Errorf("claim %s is %s, PersistentVolume %s is %s for %+v", claim.Name, claim.Status.Phase, pv.Name, pv.Status.Phase, pv.Spec.ClaimRef)
	}
	if pv.Annotations[annotation("rebound-to")] != string(claim.UID) || pv.Annotations[annotation("tenant")] != tenant ||
		pv.Spec.PersistentVolumeReclaimPolicy != reclaim || pv.Annotations[rebind.AnnotationReclaimPolicy] != "" {
		w.Errorf("PersistentVolume %s has the policy %s and %v", pv.Name, pv.Spec.PersistentVolumeReclaimPolicy, pv.Annotations)
	}
	v, _ := w.sim.Volume(pv.Annotations[annotation("volume-id")])
	if v.Metadata[annotation("rebound-to")] != string(claim.UID) || v.Metadata[annotation("tenant")] != tenant || v.Status != "in-use" {
		w.Errorf("the volume is %s with %v", v.Status, v.Metadata)
	}
}

// TestRebindAPersistentVolume: an operator renames a claim, gives its volume to another
// tenant, and deletes it there.
func TestRebindAPersistentVolume(t *testing.T) {
	t.Parallel()
	w := rebindWorld(t, "rebindcmd")
	leader := w.start()
	claim := w.served("a", "data", "gold", "1Gi", nil)
	pv := claim.Spec.VolumeName
	rebind := func(want int, said string, flags ...string) {
		t.Helper()
		if code, output := w.volumeCommand("rebind", append([]string{pv}, flags...)...); code != want || !strings.Contains(output, said) {
			t.Fatalf("%v: exit code %d:\n%s", flags, code, output)
		}
	}
	rebind(0, "3. delete claim rebindcmd-a/data, and wait until it is gone", "--to", "rebindcmd-a/renamed", "--delete-claim")
	w.stillHas(pv, claim)
	rebind(1, "NoMatchingTenant", "--to", "rebindcmd-stranger/data", "--delete-claim", "--apply")
	rebind(1, "namespace nowhere does not exist", "--to", "nowhere/data", "--delete-claim", "--apply")
	w.stillHas(pv, claim)

	// Without --delete-claim, it stops with the volume safe.
	rebind(1, "run kubectl -n rebindcmd-a delete pvc data", "--to", "rebindcmd-a/renamed", "--apply")
	held, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pv, metav1.GetOptions{})
	w.must(err)
	if held.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("the PersistentVolume has the policy %s", held.Spec.PersistentVolumeReclaimPolicy)
	}
	w.must(suite.Client.CoreV1().PersistentVolumeClaims("rebindcmd-a").Delete(w.ctx, "data", metav1.DeleteOptions{}))
	rebind(0, "claim rebindcmd-a/renamed has PersistentVolume "+pv, "--to", "rebindcmd-a/renamed", "--apply")
	w.rebound(pv, "a", "renamed", "tenant-a", corev1.PersistentVolumeReclaimDelete)
	rebind(0, "nothing to do", "--to", "rebindcmd-a/renamed", "--apply")

	rebind(0, "which then counts for tenant tenant-b", "--to", "rebindcmd-b/data", "--delete-claim")
	rebind(0, "claim rebindcmd-b/data has PersistentVolume "+pv, "--to", "rebindcmd-b/data", "--delete-claim", "--apply")
	w.rebound(pv, "b", "data", "tenant-b", corev1.PersistentVolumeReclaimDelete)
	w.metric(leader, `standalone_cinder_quota{name="tenant-a",resource="gigabytes",scope="tenant",type="used"} 0`)
	w.metric(leader, `standalone_cinder_quota{name="tenant-b",resource="gigabytes",scope="tenant",type="used"} 1`)
	if code, answer := w.audit(); code != 0 {
		t.Errorf("the audit finds %+v", answer.Findings)
	}

	// A volume that was kept gets a claim under the name of the one that it had.
	_, err = suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, pv, "application/merge-patch+json", []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(suite.DeleteClaims(w.ctx, "rebindcmd-b"))
	w.released(pv)
	rebind(0, "claim rebindcmd-b/data has PersistentVolume "+pv, "--to", "rebindcmd-b/data", "--apply")
	w.rebound(pv, "b", "data", "tenant-b", corev1.PersistentVolumeReclaimRetain)
	_, err = suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, pv, "application/merge-patch+json", []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(suite.DeleteClaims(w.ctx, "rebindcmd-b"))
	w.noResidue()
	w.metric(leader, `standalone_cinder_quota{name="tenant-b",resource="gigabytes",scope="tenant",type="used"} 0`)
}

// stillHas checks that nothing was changed.
func (w *world) stillHas(pvName string, claim *corev1.PersistentVolumeClaim) {
	w.Helper()
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pvName, metav1.GetOptions{})
	w.must(err)
	if pv.Spec.ClaimRef.UID != claim.UID || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || pv.Annotations[rebind.AnnotationReclaimPolicy] != "" {
		w.Errorf("the PersistentVolume is %+v", pv)
	}
}

// simulated are the volumes of a simulated Cinder.
type simulated struct{ sim *cindersim.Simulator }

func (s simulated) Look(_ context.Context, target backends.Target) (cinder.Volume, cinder.Place, error) {
	v, _ := s.sim.Volume(target.VolumeID)
	return cinder.Volume{ID: v.ID, Status: cinder.Status(v.Status), Metadata: v.Metadata}, cinder.Place{}, nil
}

// dying sends requests until one of them ends the command, before or after it has had
// its effect.
type dying struct {
	to       http.RoundTripper
	die      context.CancelFunc
	mu       sync.Mutex
	requests int
	last     int
	after    bool
}

var errDied = errors.New("the command is dead")

func (d *dying) RoundTrip(r *http.Request) (*http.Response, error) {
	d.mu.Lock()
	d.requests++
	n := d.requests
	d.mu.Unlock()
	switch {
	case n > d.last, n == d.last && !d.after:
		d.die()
		return nil, errDied
	case n == d.last:
		answer, err := d.to.RoundTrip(r)
		if err == nil {
			answer.Body.Close()
		}
		d.die()
		return nil, errDied
	}
	return d.to.RoundTrip(r)
}

// rebindOnce runs the command in this process. Its transport may wrap the real one.
func (w *world) rebindOnce(ctx context.Context, request rebind.Request, wrap func(http.RoundTripper) http.RoundTripper) error {
	config := rest.CopyConfig(suite.Config)
	config.Wrap(wrap)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	loaded, err := policy.Parse([]byte(w.policy), "policy.yaml", nil)
	if err != nil {
		return err
	}
	m := &rebind.Rebinder{
		Client: client, Policy: loaded, ProvisionerName: w.provisioner, Cluster: loaded.ClusterID,
		Volumes: func(string) (rebind.Volumes, error) { return simulated{w.sim}, nil },
		Nodes:   nodeuse.New(nodeuse.Options{Client: client}),
		Say:     func(string) {},
		Pause:   200 * time.Millisecond, Settle: 2 * time.Second,
	}
	plan, err := m.Plan(ctx, request)
	if err != nil {
		return err
	}
	return m.Apply(ctx, plan)
}

// TestRebindThatIsKilledAtAnyRequestContinues kills the command at each of its requests,
// before and after it has an effect, and runs it again. No volume is lost, doubled or
// left.
func TestRebindThatIsKilledAtAnyRequestContinues(t *testing.T) {
	t.Parallel()
	const requests = 30 // more than lead to the first wait for Kubernetes
	w := rebindWorld(t, "rebindkill")
	leader := w.start()
	type attempt struct {
		name string
		last int
		pv   string
	}
	var attempts []*attempt
	for n := 1; n <= requests; n++ {
		for _, when := range []string{"before", "after"} {
			a := &attempt{name: fmt.Sprintf("data-%d-%s", n, when), last: n}
			attempts = append(attempts, a)
			w.claim("a", a.name, "gold", "1Gi")
		}
	}
	claims, err := suite.WaitBound(w.ctx, "rebindkill-a", len(attempts))
	w.must(err)
	for _, claim := range claims {
		for _, a := range attempts {
			if a.name == claim.Name {
				a.pv = claim.Spec.VolumeName
			}
		}
	}
	var group sync.WaitGroup
	for _, a := range attempts {
		group.Go(func() {
			request := rebind.Request{PersistentVolume: a.pv, Namespace: "rebindkill-b", Claim: a.name, DeleteClaim: true}
			ctx, die := context.WithCancel(w.ctx)
			defer die()
			err := w.rebindOnce(ctx, request, func(to http.RoundTripper) http.RoundTripper {
				return &dying{to: to, die: die, last: a.last, after: strings.HasSuffix(a.name, "after")}
			})
			if err == nil {
				t.Errorf("%s: the command was not killed", a.name)
			}
			if err := w.rebindOnce(w.ctx, request, func(to http.RoundTripper) http.RoundTripper { return to }); err != nil {
				t.Errorf("%s: run again: %v", a.name, err)
			}
		})
	}
	group.Wait()
	for _, a := range attempts {
		w.rebound(a.pv, "b", a.name, "tenant-b", corev1.PersistentVolumeReclaimDelete)
	}
	if left, err := suite.Client.CoreV1().PersistentVolumeClaims("rebindkill-a").List(w.ctx, metav1.ListOptions{}); err != nil || len(left.Items) > 0 {
		t.Errorf("%d claims are left, error %v", len(left.Items), err)
	}
	if volumes := len(w.sim.Volumes()); volumes != len(attempts) {
		t.Errorf("%d volumes, want %d", volumes, len(attempts))
	}
	w.metric(leader, `standalone_cinder_quota{name="tenant-a",resource="volumes",scope="tenant",type="used"} 0`)
	w.metric(leader, fmt.Sprintf(`standalone_cinder_quota{name="tenant-b",resource="volumes",scope="tenant",type="used"} %d`, len(attempts)))
	if code, answer := w.audit(); code != 0 {
		t.Errorf("the audit finds %+v", answer.Findings)
	}
	w.must(suite.DeleteClaims(w.ctx, "rebindkill-b"))
	w.noResidue()
	w.metric(leader, `standalone_cinder_quota{name="tenant-b",resource="volumes",scope="tenant",type="used"} 0`)
}
