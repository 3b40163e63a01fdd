package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// rackedNode makes a node with a label.
func (w *world) rackedNode(name, rack string) string {
	w.Helper()
	nodes := suite.Client.CoreV1().Nodes()
	node, err := nodes.Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + name, Labels: map[string]string{"rack": rack}}}, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() { _ = nodes.Delete(w.ctx, node.Name, metav1.DeleteOptions{}) })
	return node.Name
}

// isIn waits until a claim of tenant b is bound, and compares the zone of its
// volume with the nodes of its PersistentVolume.
func (w *world) isIn(claim, zone, rack string) {
	w.Helper()
	w.boundIn("b", claim)
	bound, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-b").Get(w.ctx, claim, metav1.GetOptions{})
	w.must(err)
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, bound.Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	volumes := w.sim.VolumesNamed(pv.Name)
	if len(volumes) != 1 || volumes[0].Zone != zone {
		w.Errorf("claim %s has the volumes %+v, want one in zone %s", claim, volumes, zone)
	}
	want := fmt.Sprintf("[{rack In [%s]}]", rack)
	if pv.Spec.NodeAffinity == nil || fmt.Sprint(pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions) != want {
		w.Errorf("claim %s: pods are led to %v, want %s", claim, pv.Spec.NodeAffinity, want)
	}
}

// TestVolumesAreMadeWhereTheirPodsAre: what the scheduler does is written by hand.
func TestVolumesAreMadeWhereTheirPodsAre(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "zones", cindersim.Options{Zones: []string{"az1", "az2"}})
	w.policy = w.change("    workflow: reserve\n", "    workflow: reserve\n    zones:\n      - {name: az1, nodeLabels: {rack: a}}\n      - {name: az2, nodeLabels: {rack: b}}\n")
	w.policy = w.change("      - storageClasses: [\"zones-lab\"]\n", "      - {storageClasses: [zones-lab-spread], backends: [lab], pick: spread}\n      - storageClasses: [\"zones-lab\", \"zones-lab-wait\"]\n")
	w.must(suite.CreateClass(w.ctx, "zones-lab-spread", w.provisioner, nil))
	w.must(suite.CreateClass(w.ctx, "zones-lab-wait", w.provisioner, func(class *storagev1.StorageClass) {
		mode := storagev1.VolumeBindingWaitForFirstConsumer
		class.VolumeBindingMode = &mode
	}))
	nodes := map[string]string{"on-a": w.rackedNode("node-a", "a"), "on-b": w.rackedNode("node-b", "b"), "on-c": w.rackedNode("node-c", "c")}
	replica := w.start(shortLease...)

	for claim, node := range nodes {
		_, err := suite.CreateClaim(w.ctx, harness.Claim("zones-b", claim, "zones-lab-wait", "1Gi", func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{admission.SelectedNodeAnnotation: node, "example.com/note": "mine"}
		}))
		w.must(err)
	}
	w.isIn("on-a", "az1", "a")
	w.isIn("on-b", "az2", "b")
	// The scheduler is asked, and selects another node.
	_, err := suite.WaitEvent(w.ctx, "zones-b", "on-c", "RescheduleRequested", "scheduled to node zones-node-c, but backend lab exports volumes only to nodes with the labels rack=a (zone az1), or rack=b (zone az2)")
	w.must(err)
	waiting, err := suite.Client.CoreV1().PersistentVolumeClaims("zones-b").Get(w.ctx, "on-c", metav1.GetOptions{})
	w.must(err)
	if node := admission.SelectedNode(waiting); node != "" || waiting.Annotations["example.com/note"] != "mine" {
		t.Errorf("the claim has the annotations %v", waiting.Annotations)
	}
	patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, admission.SelectedNodeAnnotation, nodes["on-b"])
	_, err = suite.Client.CoreV1().PersistentVolumeClaims("zones-b").Patch(w.ctx, "on-c", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
	w.must(err)
	w.isIn("on-c", "az2", "b")

	for replica := range 4 {
		w.claim("b", fmt.Sprintf("data-web-%d", replica), "lab-spread", "1Gi")
	}
	zones := map[string]int{}
	for replica := range 4 {
		name := fmt.Sprintf("data-web-%d", replica)
		w.boundIn("b", name)
		claim, err := suite.Client.CoreV1().PersistentVolumeClaims("zones-b").Get(w.ctx, name, metav1.GetOptions{})
		w.must(err)
		zones[w.sim.VolumesNamed(claim.Spec.VolumeName)[0].Zone]++
	}
	if zones["az1"] != 2 || zones["az2"] != 2 {
		t.Errorf("the replicas are in %v", zones)
	}

	// A leader dies after it has created a volume. The next one has a policy under
	// which the claim would get a volume in another zone.
	stuck := w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "action.os-reserve", Code: 503})
	w.claim("b", "killed", "lab", "1Gi")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if stuck.Applied() == 0 {
			return "the volume is not created yet", nil
		}
		return "", nil
	}))
	replica.Kill()
	stuck.Remove()
	w.policy = w.change("      - {name: az1, nodeLabels: {rack: a}}\n      - {name: az2, nodeLabels: {rack: b}}\n", "      - {name: az2, nodeLabels: {rack: b}}\n      - {name: az1, nodeLabels: {rack: a}}\n")
	w.start(shortLease...)
	w.isIn("killed", "az1", "a")
	w.claim("b", "fresh", "lab", "1Gi")
	w.isIn("fresh", "az2", "b")
	if requested := w.creates(); requested != 9 {
		t.Errorf("%d volumes were requested for 9 claims", requested)
	}
	w.must(suite.DeleteClaims(w.ctx, "zones-b"))
	w.noResidue()
}

// TestFullZoneSendsAClaimToTheNext: Cinder accepts a create in a zone without room,
// and the volume goes to error. The rule has a second backend, whose volumes go to
// Cinder's default zone.
//
//tier:outage
func TestFullZoneSendsAClaimToTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "fullzone", cindersim.Options{Zones: []string{"nova", "az1", "az2"}})
	w.policy = w.change("    workflow: reserve\n", "    workflow: reserve\n    zones:\n      - {name: az1, nodeLabels: {rack: a}}\n      - {name: az2, nodeLabels: {rack: b}}\n")
	w.policy = w.change("        backends: [lab]\n", "        backends: [lab, gold]\n")
	replica := w.start(shortLease...)
	requested := 0
	// requests compares the number of creates since the last time.
	requests := func(what string, want int) {
		t.Helper()
		if all := w.creates(); all != requested+want {
			t.Errorf("%s: %d volumes were requested, want %d", what, all-requested, want)
		}
		requested = w.creates()
	}

	w.sim.SetZoneFull("az1", true)
	w.claim("b", "next-zone", "lab", "1Gi")
	w.isIn("next-zone", "az2", "b")
	_, err := suite.WaitEvent(w.ctx, "fullzone-b", "next-zone", "BackendChosen", "on backend lab, availability zone az2; passed over: backend lab, availability zone az1: schedule allocate volume:Could not find any available weighted backend")
	w.must(err)
	requests("the next zone", 2)

	// The answer to the create in the next zone is lost.
	lost := w.sim.Inject(cindersim.Fault{Kind: cindersim.DropAfter, Operation: "volume.create", Nth: 2})
	w.claim("b", "lost", "lab", "1Gi")
	w.isIn("lost", "az2", "b")
	lost.Remove()
	requests("a lost answer", 2)

	// The leader dies after it has created the volume in the next zone. The next
	// leader does not know that the first zone failed.
	stuck := w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "action.os-reserve", Code: 503})
	w.claim("b", "killed", "lab", "1Gi")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if stuck.Applied() == 0 {
			return "the volume is not created yet", nil
		}
		return "", nil
	}))
	replica.Kill()
	stuck.Remove()
	replica = w.start(shortLease...)
	w.isIn("killed", "az2", "b")
	requests("a leader that died", 2)

	// The answer to the removal of the volume that failed is lost, so that nobody
	// knows that it failed: its zone is tried once more.
	lost = w.sim.Inject(cindersim.Fault{Kind: cindersim.DropAfter, Operation: "volume.delete", Times: 1})
	w.claim("b", "removed", "lab", "1Gi")
	w.isIn("removed", "az2", "b")
	lost.Remove()
	requests("a removal whose answer was lost", 3)

	// The leader dies before it has removed the volume that failed. The next one does
	// it, and does not try the zone again.
	stuck = w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "volume.delete", Code: 503})
	w.claim("b", "left", "lab", "1Gi")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if stuck.Applied() == 0 {
			return "the volume has not failed yet", nil
		}
		return "", nil
	}))
	replica.Kill()
	stuck.Remove()
	w.start(shortLease...)
	w.isIn("left", "az2", "b")
	requests("a leader that left a failed volume", 2)

	w.sim.SetZoneFull("az2", true)
	w.claim("b", "next-backend", "lab", "1Gi")
	_, volume := w.boundVolume("b", "next-backend")
	if volume.Zone != "nova" {
		t.Errorf("the volume is in zone %s", volume.Zone)
	}
	requests("the next backend", 3)

	w.sim.SetZoneFull("nova", true)
	w.claim("b", "waits", "lab", "1Gi")
	reason := "schedule allocate volume:Could not find any available weighted backend"
	_, err = suite.WaitEvent(w.ctx, "fullzone-b", "waits", "ProvisioningFailed",
		"Cinder could not make the volume: backend lab, availability zone az1: "+reason+"; backend lab, availability zone az2: "+reason+"; backend gold: "+reason)
	w.must(err)
	w.sim.SetZoneFull("az1", false)
	w.isIn("waits", "az1", "a")
	if len(w.sim.Volumes()) != 7 {
		t.Errorf("7 claims have %d volumes", len(w.sim.Volumes()))
	}
	w.must(suite.DeleteClaims(w.ctx, "fullzone-b"))
	w.noResidue()
}

// TestAllowedTopologiesDecideTheZone: as the topology suite of Kubernetes' end-to-end
// tests does, a StorageClass asks for one zone, and another for none that exists.
func TestAllowedTopologiesDecideTheZone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "topology", cindersim.Options{Zones: []string{"az1", "az2"}})
	w.policy = w.change("    workflow: reserve\n", "    workflow: reserve\n    zones:\n      - {name: az1, nodeLabels: {rack: a}}\n      - {name: az2, nodeLabels: {rack: b}}\n")
	w.policy = w.change("      - storageClasses: [\"topology-lab\"]\n", "      - storageClasses: [\"topology-lab\", \"topology-lab-b\", \"topology-lab-z\"]\n")
	for _, rack := range []string{"b", "z"} {
		w.must(suite.CreateClass(w.ctx, "topology-lab-"+rack, w.provisioner, func(class *storagev1.StorageClass) {
			class.AllowedTopologies = []corev1.TopologySelectorTerm{{
				MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "rack", Values: []string{rack}}},
			}}
		}))
	}
	w.start()
	w.claim("b", "nowhere", "lab-z", "1Gi")
	w.claim("b", "on-b", "lab-b", "1Gi")
	w.isIn("on-b", "az2", "b")
	_, err := suite.WaitEvent(w.ctx, "topology-b", "nowhere", "UnsupportedTopology", "rack")
	w.must(err)
	if requested := w.creates(); requested != 1 {
		t.Errorf("%d volumes were requested for the one claim that has a zone", requested)
	}
	w.must(suite.DeleteClaims(w.ctx, "topology-b"))
	w.noResidue()
}

// TestSchedulerSendsThePodWhereThereIsRoom: first the only node is one that no zone
// reaches, then there is one of a full zone, then one of a zone with room. The pod
// prefers each to the one before, so that chance has no part.
//
//tier:outage
func TestSchedulerSendsThePodWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "resched", cindersim.Options{Zones: []string{"az1", "az2"}})
	w.policy = w.change("    workflow: reserve\n", "    workflow: reserve\n    zones:\n      - {name: az1, nodeLabels: {rack: resched-a}}\n      - {name: az2, nodeLabels: {rack: resched-b}}\n")
	w.policy = w.change("      - storageClasses: [\"resched-lab\"]\n", "      - storageClasses: [\"resched-wait\"]\n")
	w.must(suite.CreateClass(w.ctx, "resched-wait", w.provisioner, func(class *storagev1.StorageClass) {
		mode := storagev1.VolumeBindingWaitForFirstConsumer
		class.VolumeBindingMode = &mode
	}))
	w.sim.SetZoneFull("az1", true)
	w.start()
	w.claim("b", "data", "wait", "1Gi")
	nodes := map[string]string{}
	for _, rack := range []string{"a", "b", "c"} {
		nodes[rack] = w.rackedNode("node-"+rack, "resched-"+rack)
		w.isReady(nodes[rack])
	}
	w.joins(nodes["c"])
	w.podOf("data", "resched-b", "resched-a")

	_, err := suite.WaitEvent(w.ctx, "resched-b", "data", "RescheduleRequested", "a node other than "+nodes["c"]+": the claim's pod was scheduled to node")
	w.must(err)
	if requested := w.creates(); requested != 0 {
		t.Errorf("%d volumes were requested for a node that no zone reaches", requested)
	}
	w.joins(nodes["a"])
	_, err = suite.WaitEvent(w.ctx, "resched-b", "data", "RescheduleRequested", "a node other than "+nodes["a"]+": backend lab: volume ")
	w.must(err)
	w.joins(nodes["b"])
	w.isIn("data", "az2", "resched-b")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		pod, err := suite.Client.CoreV1().Pods("resched-b").Get(w.ctx, "app", metav1.GetOptions{})
		if err == nil && pod.Spec.NodeName != nodes["b"] {
			return fmt.Sprintf("the pod is on node %q", pod.Spec.NodeName), nil
		}
		return "", err
	}))
	if len(w.sim.Volumes()) != 1 {
		t.Errorf("one claim has %d volumes", len(w.sim.Volumes()))
	}
	w.must(suite.Client.CoreV1().Pods("resched-b").Delete(w.ctx, "app", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	w.must(suite.DeleteClaims(w.ctx, "resched-b"))
	w.noResidue()
}

// isReady gives a node room for pods.
func (w *world) isReady(name string) {
	w.Helper()
	node, err := suite.Client.CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("100")}
	node.Status.Capacity = node.Status.Allocatable
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	_, err = suite.Client.CoreV1().Nodes().UpdateStatus(w.ctx, node, metav1.UpdateOptions{})
	w.must(err)
}

// joins makes a node one of those that podOf asks for.
func (w *world) joins(node string) {
	w.Helper()
	patch := fmt.Sprintf(`{"metadata": {"labels": {"pool": %q}}}`, w.name)
	_, err := suite.Client.CoreV1().Nodes().Patch(w.ctx, node, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
	w.must(err)
}

// podOf makes a pod with a claim of tenant b, which prefers nodes of the given racks,
// the first most.
func (w *world) podOf(claim string, racks ...string) {
	w.Helper()
	var preferred []corev1.PreferredSchedulingTerm
	for i, rack := range racks {
		preferred = append(preferred, corev1.PreferredSchedulingTerm{Weight: int32(100 - 50*i), Preference: corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{rack}}},
		}})
	}
	_, err := suite.Client.CoreV1().Pods(w.name+"-b").Create(w.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"pool": w.name},
			Affinity:     &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: preferred}},
			// No controller is there to see that a node is ready.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "app", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			Volumes:     []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
}
