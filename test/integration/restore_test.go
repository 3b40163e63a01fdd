package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// restored is a cluster of its own, whose etcd goes back in time. Its array gives a volume
// the LUN that was freed last.
type restored struct {
	*testing.T
	*harness.Suite
	ctx    context.Context
	dir    string // the control plane's
	array  drivers.Array
	sim    *cindersim.Simulator
	policy string
}

const restoredName = "restored"

// up starts the control plane with what its directory has, and no program.
func (r *restored) up() {
	r.Helper()
	var err error
	r.Suite, err = harness.StartSuite(r.ctx, harness.SuiteOptions{Program: suite.Program, Log: os.Stderr, ControlPlane: controlplane.Options{Dir: r.dir}})
	r.must(err)
}

func (r *restored) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// run starts the program, and returns how to end it.
func (r *restored) run() (stop func()) {
	r.Helper()
	replica, err := r.StartReplica(r.ctx, harness.ReplicaOptions{Policy: r.policy, Provisioner: "test.example/" + restoredName})
	r.must(err)
	return func() { r.Helper(); r.must(replica.Stop(r.ctx)) }
}

// leadsToAnothers lists the PersistentVolumes that pods may mount, since a claim is bound
// to them, and behind whose address the array has another volume than theirs.
func (r *restored) leadsToAnothers() (names []string) {
	r.Helper()
	pvs, err := r.Client.CoreV1().PersistentVolumes().List(r.ctx, metav1.ListOptions{})
	r.must(err)
	for _, pv := range pvs.Items {
		ref := pv.Spec.ClaimRef
		if _, err := r.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(r.ctx, ref.Name, metav1.GetOptions{}); err != nil {
			continue
		}
		if behind := r.array.Behind("", int(pv.Spec.ISCSI.Lun)); behind != "" && behind != pv.Annotations["standalone-cinder.openstack.org/volume-id"] {
			names = append(names, pv.Name)
		}
	}
	return names
}

// bound creates a claim, and waits until it has its volume in use.
func (r *restored) bound(name string, count int) corev1.PersistentVolumeClaim {
	r.Helper()
	_, err := r.CreateClaim(r.ctx, harness.Claim(restoredName, name, restoredName, "1Gi", nil))
	r.must(err)
	claims, err := r.WaitBound(r.ctx, restoredName, count)
	r.must(err)
	found := claims[slices.IndexFunc(claims, func(c corev1.PersistentVolumeClaim) bool { return c.Name == name })]
	r.must(harness.Eventually(r.ctx, func() (string, error) {
		if v := r.sim.VolumesNamed(found.Spec.VolumeName); len(v) != 1 || v[0].Status != "in-use" {
			return fmt.Sprintf("%+v", v), nil
		}
		return "", nil
	}))
	return found
}

// TestARestoredEtcdLeadsNoPodToAnothersVolume follows docs/how-to/backup.md in its order:
// etcd has a PersistentVolume whose volume was deleted after the snapshot, and whose LUN
// is another volume's by now.
func TestARestoredEtcdLeadsNoPodToAnothersVolume(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), worldTime)
	defer cancel()
	r := &restored{T: t, ctx: ctx, dir: filepath.Join(t.TempDir(), "plane"), array: drivers.Array{Target: "iqn.2026-01.example:array", Portal: "192.0.2.1:3260"}}
	var err error
	r.sim, err = cindersim.New(cindersim.Options{Types: []drivers.VolumeType{r.array.Type("array")}})
	r.must(err)
	r.must(r.sim.Start())
	defer r.sim.Close()
	r.policy = strings.NewReplacer("NAME", restoredName, "NOAUTH", r.sim.NoauthEndpoint(), "PROJECT", cindersim.DefaultNoauthProject).Replace(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: NAME
backends:
  - {name: lab, auth: {noauth: {endpoint: "NOAUTH", user: admin, project: PROJECT}}, connector: {host: k8s, initiator: "iqn.2026-01.example:NAME"}}
tenants:
  - {name: NAME, namespaces: [NAME], classes: [{storageClasses: [NAME], backends: [lab]}]}
`)
	r.up()
	r.must(r.CreateNamespace(ctx, restoredName, nil))
	r.must(r.CreateClass(ctx, restoredName, "test.example/"+restoredName, nil))
	stop := r.run()
	kept, lost := r.bound("kept", 1), r.bound("lost", 2)
	stop()
	r.must(r.Suite.Stop())
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	r.must(os.CopyFS(snapshot, os.DirFS(r.dir)))

	gone := r.sim.VolumesNamed(lost.Spec.VolumeName)[0]

	// After the snapshot, the volume goes, and another one gets its LUN.
	r.up()
	stop = r.run()
	r.must(r.Client.CoreV1().PersistentVolumeClaims(restoredName).Delete(ctx, lost.Name, metav1.DeleteOptions{}))
	r.must(harness.Eventually(ctx, func() (string, error) {
		return strings.Join(map[bool][]string{true: {"the volume is there"}}[len(r.sim.VolumesNamed(lost.Spec.VolumeName)) > 0], ""), nil
	}))
	next := r.bound("next", 2)
	others := r.sim.VolumesNamed(next.Spec.VolumeName)[0]
	stop()
	r.must(r.Suite.Stop())

	// Step 1: the program does not run. Step 2: nor does a kubelet. Step 3: etcd is restored.
	r.must(os.RemoveAll(r.dir))
	r.must(os.CopyFS(r.dir, os.DirFS(snapshot)))
	r.up()
	defer func() { r.must(r.Suite.Stop()) }()
	if led := r.leadsToAnothers(); !slices.Equal(led, []string{lost.Spec.VolumeName}) {
		t.Fatalf("nothing was to be feared: %q", led)
	}
	pv, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, lost.Spec.VolumeName, metav1.GetOptions{})
	r.must(err)
	address := int(pv.Spec.ISCSI.Lun)
	// Step 5: the audit, and the end of the claims that it names.
	policyFile := filepath.Join(t.TempDir(), "policy.yaml")
	r.must(os.WriteFile(policyFile, []byte(r.policy), 0o600))
	audit := func() (missing, orphans []string) {
		t.Helper()
		_, output, err := r.Suite.Run(ctx, "audit", "--policy", policyFile, "--kubeconfig", "KUBECONFIG", "--namespace", harness.Namespace, "--provisioner-name", "test.example/"+restoredName, "--output", "json", "--grace", "0s")
		r.must(err)
		var answer auditAnswer
		document, _, _ := strings.Cut(output, "\nstandalone-cinder: ")
		if err := json.Unmarshal([]byte(document), &answer); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		for _, f := range answer.Findings {
			switch f.Kind {
			case "MissingVolume":
				missing = append(missing, f.Volume)
			case "OrphanVolume":
				orphans = append(orphans, f.Volume)
			}
		}
		return missing, orphans
	}
	if missing, orphans := audit(); !slices.Equal(missing, []string{gone.ID}) || !slices.Equal(orphans, []string{others.ID}) {
		t.Errorf("missing %q, orphans %q", missing, orphans)
	}
	r.must(r.Client.CoreV1().PersistentVolumeClaims(restoredName).Delete(ctx, lost.Name, metav1.DeleteOptions{}))
	r.must(harness.Eventually(ctx, func() (string, error) { return strings.Join(r.leadsToAnothers(), ", "), nil }))
	// Step 6: from here on, kubelets may run, and the program tidies up.
	stop = r.run()
	defer stop()
	r.must(harness.Eventually(ctx, func() (string, error) {
		if led := r.leadsToAnothers(); len(led) > 0 {
			t.Errorf("a pod can mount %q", led)
		}
		pvs, err := r.PersistentVolumes(ctx, "test.example/"+restoredName)
		if err != nil || len(pvs) != 1 || pvs[0].Name != kept.Spec.VolumeName {
			return fmt.Sprintf("%d PersistentVolumes", len(pvs)), err
		}
		return "", nil
	}))
	if v, _ := r.sim.Volume(others.ID); v.Status != "in-use" || r.array.Behind("", address) != others.ID {
		t.Errorf("the other volume is %q, and behind its address is %q", v.Status, r.array.Behind("", address))
	}
}
