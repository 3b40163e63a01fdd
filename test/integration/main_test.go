// Package integration runs the program against a real control plane and the
// simulated Cinder.
package integration

import (
	"context"
	encoding "encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

var suite *harness.Suite

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("integration tests need a control plane; left out because of -short")
		os.Exit(0)
	}
	os.Exit(runSuite(m))
}

func runSuite(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute)
	defer cancel()
	var err error
	suite, err = harness.StartSuite(ctx, harness.SuiteOptions{
		Race: raceEnabled, Snapshots: true, Attacher: true, Resizer: true, Snapshotter: true, Log: os.Stderr, ControlPlane: controlplane.Options{AuditPolicy: auditPolicy, Scheduler: true},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot start:", err)
		return 1
	}
	defer func() {
		if err := suite.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "cannot stop:", err)
		}
	}()
	code := m.Run()
	if allTestsRan() {
		if err := compareRights(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// world is what one test has to itself: a simulator, namespaces, StorageClasses
// and a provisioner name, in a cluster that all tests share.
type world struct {
	*testing.T
	ctx         context.Context
	sim         *cindersim.Simulator
	name        string
	provisioner string
	policy      string
	clouds      string
}

// worldTime bounds a test, so that one that hangs says where. A slow machine is no
// finding.
const worldTime = 15 * time.Minute

// newWorld makes tenants a and b: namespace NAME-a may use class NAME-gold on
// the Keystone backend, which connects by the attachments API, NAME-b class
// NAME-lab on the noauth one, which connects by the volume actions.
func newWorld(t *testing.T, name string, options cindersim.Options) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), worldTime)
	t.Cleanup(cancel)
	sim, err := cindersim.New(options)
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	w := &world{T: t, ctx: ctx, sim: sim, name: name, provisioner: "test.example/" + name, clouds: sim.CloudsYAML()}
	w.policy = strings.NewReplacer("NAME", name, "NOAUTH", sim.NoauthEndpoint(), "PROJECT", cindersim.DefaultNoauthProject).Replace(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: cluster-NAME
backends:
  - name: gold
    auth: {cloud: team-a}
    connector: {host: k8s, initiator: "iqn.2026-01.example:NAME"}
  - name: lab
    auth: {noauth: {endpoint: "NOAUTH", user: admin, project: PROJECT}}
    workflow: reserve
tenants:
  - name: tenant-a
    namespaces: ["NAME-a"]
    metadata: {costcenter: "4711"}
    classes:
      - storageClasses: ["NAME-gold"]
        backends: [gold]
        fsType: xfs
  - name: tenant-b
    namespaces: ["NAME-b"]
    volumeSize: {max: 10Gi}
    classes:
      - storageClasses: ["NAME-lab"]
        backends: [lab]
`)
	t.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := suite.RemoveAdmissionPolicies(ctx, w.provisioner); err != nil {
			t.Error(err)
		}
	})
	for _, namespace := range []string{"a", "b", "stranger"} {
		w.must(suite.CreateNamespace(ctx, name+"-"+namespace, nil))
	}
	w.must(suite.CreateClass(ctx, name+"-gold", w.provisioner, func(class *storagev1.StorageClass) {
		class.Parameters = map[string]string{"type": "iscsi"}
		class.MountOptions = []string{"noatime"}
	}))
	w.must(suite.CreateClass(ctx, name+"-lab", w.provisioner, nil))
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) start(arguments ...string) *harness.Replica {
	w.Helper()
	replica, err := suite.StartReplica(w.ctx, harness.ReplicaOptions{
		Policy: w.policy, Clouds: w.clouds, Provisioner: w.provisioner, Arguments: arguments,
	})
	w.must(err)
	w.Cleanup(func() {
		replica.Kill()
		if w.Failed() {
			w.Logf("a replica said:\n%s", replica.Log())
		}
		if strings.Contains(replica.Log(), "DATA RACE") {
			w.Errorf("data race:\n%s", replica.Log())
		}
	})
	return replica
}

func (w *world) claim(namespace, name, class, size string) {
	w.Helper()
	_, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-"+namespace, name, w.name+"-"+class, size, nil))
	w.must(err)
}

// noResidue waits until the deletion of everything has left nothing behind.
func (w *world) noResidue() {
	w.Helper()
	w.must(suite.WaitForNoPersistentVolumes(w.ctx, w.provisioner))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if left := w.sim.Volumes(); len(left) > 0 {
			return fmt.Sprintf("%d volumes are left at Cinder, such as %s (%s)", len(left), left[0].Name, left[0].Status), nil
		}
		return "", nil
	}))
}

// readable returns every event and PersistentVolume of the test, as JSON.
func (w *world) readable() string {
	w.Helper()
	var text strings.Builder
	for _, namespace := range []string{"a", "b", "stranger"} {
		events, err := suite.Client.CoreV1().Events(w.name+"-"+namespace).List(w.ctx, metav1.ListOptions{})
		w.must(err)
		w.must(json.NewEncoder(&text).Encode(events))
	}
	pvs, err := suite.PersistentVolumes(w.ctx, w.provisioner)
	w.must(err)
	w.must(json.NewEncoder(&text).Encode(pvs))
	return text.String()
}

func base64(text string) string { return encoding.StdEncoding.EncodeToString([]byte(text)) }

// withoutLab returns the policy without the backend that needs no credentials, and without
// its tenant.
func (w *world) withoutLab() string {
	return w.policy[:strings.Index(w.policy, "  - name: lab\n")] + w.policy[strings.Index(w.policy, "tenants:\n"):strings.Index(w.policy, "  - name: tenant-b\n")]
}
