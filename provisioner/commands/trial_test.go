package commands

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/audit"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
)

// everyKind has two rules that ask for the same volume, one rule for a default type,
// and one on Ceph.
const everyKind = `tenants:
  - name: a
    namespaces: [a]
    classes:
      - {storageClasses: [one], backends: [lab], volumeType: iscsi}
      - {storageClasses: [two], backends: [lab], volumeType: iscsi, fsType: ext4}
      - {storageClasses: [xfs], backends: [lab], volumeType: iscsi, fsType: xfs}
      - {storageClasses: [ceph], backends: [lab], volumeType: rbd, availabilityZone: nova}
`

const cephMapping = ", mapping: {rbd: {as: csi, clusterID: ceph-1, nodeStageSecretRef: {name: ceph, namespace: ceph-csi}}}"

func labWith(more string) string {
	return "backends:\n" + strings.Replace(noauthBackend, "name: lab", "name: lab"+more, 1)
}

// TestTrialsOfEveryKind makes each kind of volume once, by both workflows, and leaves
// nothing behind.
func TestTrialsOfEveryKind(t *testing.T) {
	for _, workflow := range []string{"reserve", "attachment"} {
		for _, backend := range []string{noauthBackend, strings.Replace(teamBackend, "gold", "lab", 1)} {
			t.Run(workflow, func(t *testing.T) {
				t.Parallel()
				passwords := &passwords{}
				c := newCloud(t, cindersim.Options{Types: passwords.note(drivers.DefaultVolumeTypes()), CreateDelay: 5 * time.Millisecond, DeleteDelay: 5 * time.Millisecond}, 0, false)
				text := "backends:\n" + strings.Replace(backend, "name: lab", "name: lab, workflow: "+workflow+cephMapping, 1) + everyKind
				got := c.check(t.Context(), text, "--make-volume")
				if got.code != 0 || len(got.findings()) > 0 {
					t.Fatalf("%d %q", got.code, got.findings())
				}
				var kinds []string
				for _, trial := range got.Live.Trials {
					kinds = append(kinds, strings.Join([]string{strings.Join(trial.Rules, "+"), trial.VolumeType, trial.AvailabilityZone, trial.FSType}, " "))
					if trial.Volume == "" || trial.Error != "" || trial.Left != "" || trial.Source == nil {
						t.Errorf("%+v", trial)
						continue
					}
					switch source := trial.Source; trial.VolumeType {
					case "iscsi":
						if source.ISCSI == nil || source.ISCSI.TargetPortal != "127.0.0.1:3260" || !strings.Contains(source.ISCSI.IQN, trial.Volume) ||
							source.ISCSI.InitiatorName == nil || *source.ISCSI.InitiatorName != "iqn.2018-01.io.k8s.standalone-cinder:prod" || source.ISCSI.FSType != trial.FSType {
							t.Errorf("%+v", source.ISCSI)
						}
						if !strings.HasPrefix(trial.Secret, "secret standalone-cinder/pvc-") || !strings.Contains(trial.Secret, "node.session.auth.password") {
							t.Errorf("the Secret is %q", trial.Secret)
						}
					case "rbd":
						if source.CSI == nil || source.CSI.VolumeAttributes["clusterID"] != "ceph-1" {
							t.Errorf("%+v", source.CSI)
						}
					}
				}
				want := []string{
					"tenants[0].classes[0]+tenants[0].classes[1] iscsi  ext4",
					"tenants[0].classes[2] iscsi  xfs",
					"tenants[0].classes[3] rbd nova ext4",
				}
				if !slices.Equal(kinds, want) {
					t.Errorf("%q", kinds)
				}
				c.wantNothingLeft(3)
				for _, password := range passwords.all() {
					if strings.Contains(got.stdout+got.stderr, password) {
						t.Error("the answer shows a CHAP password")
					}
				}
			})
		}
	}
}

// TestTrialsOfEncryptedTypes tell whether nodes would get a key, and show none.
func TestTrialsOfEncryptedTypes(t *testing.T) {
	luks := func(name string, of drivers.Encryption) drivers.VolumeType {
		return drivers.VolumeType{Name: name, RequiresInitiator: true, Encryption: &of}
	}
	types := append(drivers.DefaultVolumeTypes(), luks("managed", drivers.Encryption{Provider: "luks", KeyManager: true}), luks("fixed", drivers.Encryption{Provider: "luks2"}), luks("plain", drivers.Encryption{Provider: "plain"}))
	for name, test := range map[string]struct {
		kind, more string
		rule       string
		noKeys     bool
		want       string
	}{
		"a key of the key manager":   {kind: "managed"},
		"no key manager":             {kind: "managed", noKeys: true, want: "the service catalog has no key-manager endpoint"},
		"a fixed key":                {kind: "fixed", more: ", csi: {encryption: {fixedKeySecret: cinder-key}}"},
		"a fixed key without a name": {kind: "fixed", want: "csi.encryption.fixedKeySecret of the backend names no Secret"},
		"what nodes do not open":     {kind: "plain", want: "nodes open luks and luks2"},
		"of a rule that encrypts":    {kind: "managed", rule: ", encrypt: {keySecret: keys, entry: a}", want: "the rule encrypts its volumes (encrypt), and so does Cinder by the volume type"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			identity := keystone.DefaultIdentity()
			identity.KeyManager = !test.noKeys
			c := newCloud(t, cindersim.Options{Types: types, Identity: identity}, 0, false)
			text := "backends:\n" + strings.Replace(teamBackend, "name: gold", "name: lab, mode: csi"+test.more, 1) + `tenants:
  - name: a
    namespaces: [a]
    classes:
      - {storageClasses: [one], backends: [lab], volumeType: ` + test.kind + test.rule + `}
`
			got := c.check(t.Context(), text, "--make-volume")
			if said := got.stdout + got.stderr; test.want == "" && (got.code != 0 || len(got.findings()) > 0) || !strings.Contains(said, test.want) {
				t.Errorf("%d %q: %s", got.code, got.findings(), said)
			}
			c.wantNothingLeft(1)
		})
	}
}

// TestTrialsInEveryZone makes each kind of volume in each zone of the map.
func TestTrialsInEveryZone(t *testing.T) {
	c := newCloud(t, cindersim.Options{Zones: []string{"az1", "az2"}}, 0, false)
	got := c.check(t.Context(), labWith(zonesOf("az1", "az2", "az9"))+`tenants:
  - name: a
    namespaces: [a]
    classes:
      - {storageClasses: [any], backends: [lab], volumeType: iscsi}
      - {storageClasses: [fixed], backends: [lab], volumeType: iscsi, availabilityZone: az2}
`, "--make-volume")
	var trials []string
	for _, trial := range got.Live.Trials {
		trials = append(trials, trial.AvailabilityZone+" "+strings.Join(trial.Rules, "+")+" "+trial.Error)
	}
	want := []string{"az1 tenants[0].classes[0] ", "az2 tenants[0].classes[0]+tenants[0].classes[1] ", `az9 tenants[0].classes[0] backend lab has no availability zone "az9"; it has az1, az2`}
	if !slices.Equal(trials, want) {
		t.Errorf("%q", trials)
	}
	c.wantNothingLeft(2)
}

// passwords records the credentials in the connections of volume types.
type passwords struct {
	mu    sync.Mutex
	noted []string
}

func (p *passwords) note(types []drivers.VolumeType) []drivers.VolumeType {
	for i := range types {
		connect := types[i].Connection
		types[i].Connection = func(request drivers.ConnectionRequest) (map[string]any, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.noted = append(p.noted, request.Password)
			return connect(request)
		}
	}
	return types
}

func (p *passwords) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.noted
}

// wantNothingLeft requires that the given number of volumes was made, and all were
// removed.
func (c *cloud) wantNothingLeft(made int) {
	c.t.Helper()
	if got := c.CountByOperation()["volume.create"]; got != made {
		c.t.Errorf("%d volumes were requested, want %d", got, made)
	}
	for _, v := range c.Volumes() {
		c.t.Errorf("volume %s (%s) is left %s", v.ID, v.Name, v.Status)
	}
}

// TestTrialsThatFail injects a failure into each step.
func TestTrialsThatFail(t *testing.T) {
	always := func(operation string, code int) []cindersim.Fault {
		return []cindersim.Fault{{Kind: cindersim.RespondBefore, Operation: operation, Code: code}}
	}
	once := func(kind cindersim.Kind, operation string) []cindersim.Fault {
		return []cindersim.Fault{{Kind: kind, Operation: operation, Times: 1}}
	}
	const iscsi = ", volumeType: iscsi"
	tests := map[string]struct {
		faults     []cindersim.Fault
		more, rule string
		step       string
		message    string
		left       bool
		good       bool
		creates    int
	}{
		"a type that fails":                {rule: ", volumeType: fail", step: "create", message: "went to error and was removed", creates: 1},
		"create is refused":                {faults: always("volume.create", http.StatusForbidden), rule: iscsi, step: "create", message: "volume.create: ", creates: 1},
		"create fails":                     {faults: always("volume.create", http.StatusInternalServerError), rule: iscsi, step: "create", message: "volume.create: ", creates: 1, left: true},
		"the answer to create is lost":     {faults: once(cindersim.DropAfter, "volume.create"), rule: iscsi, step: "create", message: "volume.create: ", creates: 1},
		"a request to create is lost":      {faults: once(cindersim.DropBefore, "volume.create"), rule: iscsi, step: "create", message: "volume.create: ", creates: 1, left: true},
		"reserve fails":                    {faults: always("action.os-reserve", http.StatusInternalServerError), more: ", workflow: reserve", rule: iscsi, step: "connect", message: "volume.os-reserve: ", creates: 1},
		"initialize fails":                 {faults: always("action.os-initialize_connection", http.StatusInternalServerError), more: ", workflow: reserve", rule: iscsi, step: "connect", message: "volume.os-initialize_connection: ", creates: 1},
		"the attachment fails":             {faults: always("attachment.create", http.StatusInternalServerError), rule: iscsi, step: "connect", message: "attachment.create: ", creates: 1},
		"the attachment's answer is lost":  {faults: once(cindersim.DropAfter, "attachment.create"), rule: iscsi, step: "connect", message: "attachment.create: ", creates: 1},
		"the backend fails to connect":     {faults: []cindersim.Fault{{Kind: cindersim.FailBackend, Operation: "attachment.create"}}, rule: iscsi, step: "connect", message: "attachment.create: ", creates: 1},
		"a connection that is not mapped":  {rule: ", volumeType: rbd", step: "map", message: "mapping.rbd", creates: 1},
		"delete fails once":                {faults: once(cindersim.RespondBefore, "volume.delete"), rule: iscsi, good: true, creates: 1},
		"the answer to delete is lost":     {faults: once(cindersim.DropAfter, "volume.delete"), rule: iscsi, good: true, creates: 1},
		"detaching fails once":             {faults: once(cindersim.RespondBefore, "attachment.delete"), rule: iscsi, good: true, creates: 1},
		"delete always fails":              {faults: always("volume.delete", http.StatusInternalServerError), rule: iscsi, left: true, creates: 1},
		"detaching always fails":           {faults: always("attachment.delete", http.StatusInternalServerError), rule: iscsi, left: true, creates: 1},
		"the backend fails to delete":      {faults: []cindersim.Fault{{Kind: cindersim.FailBackend, Operation: "volume.delete"}, {Kind: cindersim.FailBackend, Operation: "action.os-force_delete"}}, rule: iscsi, left: true, creates: 1},
		"map and delete fail":              {faults: always("volume.delete", http.StatusForbidden), rule: ", volumeType: rbd", step: "map", message: "mapping.rbd", left: true, creates: 1},
		"a missing type is not tried":      {rule: ", volumeType: ssd", step: "begin", message: `has no volume type "ssd"`},
		"unknown port names are not tried": {more: ", connector: {nodeLabels: {rack: a}}", rule: iscsi, step: "begin", message: "connector.wwpns"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t, cindersim.Options{}, 0, false)
			for _, fault := range test.faults {
				c.Inject(fault)
			}
			got := c.check(t.Context(), labWith(test.more)+tenant("lab", test.rule), "--make-volume")
			if len(got.Live.Trials) != 1 {
				t.Fatalf("%s", got.stdout)
			}
			trial := got.Live.Trials[0]
			if string(trial.Step) != test.step || !strings.Contains(trial.Error, test.message) || (trial.Left != "") != test.left {
				t.Errorf("%+v\n%q", trial, got.findings())
			}
			if failed := !test.good && test.step != "begin" || len(got.Errors) > 0; failed != (got.code == 1) {
				t.Errorf("code %d, %q", got.code, got.findings())
			}
			if !test.left {
				c.wantNothingLeft(test.creates)
				return
			}
			if left := c.Volumes(); len(left) > 1 || len(left) == 1 && !strings.Contains(trial.Left, "backend lab: volume "+left[0].ID+" ("+left[0].Name+") at "+c.NoauthEndpoint()) {
				t.Errorf("left %+v\n%s", left, trial.Left)
			}
			if !strings.Contains(trial.Left, "openstack volume delete ") || !strings.Contains(got.stderr, trial.Left) {
				t.Errorf("%s\n%s", trial.Left, got.stderr)
			}
			if !slices.Contains(got.findings(), "error backends[0]: "+trial.Left) {
				t.Errorf("%q", got.findings())
			}
		})
	}
}

// TestInterruptedTrials interrupts the command at every request to Cinder.
func TestInterruptedTrials(t *testing.T) {
	for _, operation := range []string{"volume.list", "type.list", "volume.create", "volume.get", "attachment.create", "attachment.delete", "volume.delete"} {
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			c := newCloud(t, cindersim.Options{CreateDelay: 20 * time.Millisecond, DeleteDelay: 20 * time.Millisecond}, 0, false)
			hit := c.Inject(cindersim.Fault{Kind: cindersim.Delay, Operation: operation, Match: func(cindersim.Request) bool {
				interrupt()
				return true
			}})
			got := c.check(ctx, labWith("")+tenant("lab", ", volumeType: iscsi")+"      - {storageClasses: [d], backends: [lab], volumeType: iscsi-mp}\n", "--make-volume")
			if hit.Applied() == 0 {
				t.Fatal("no such request")
			}
			if got.code != 1 {
				t.Errorf("code %d, %q", got.code, got.findings())
			}
			for _, v := range c.Volumes() {
				t.Errorf("volume %s is left %s\n%s", v.ID, v.Status, got.stderr)
			}
			if creates := c.CountByOperation()["volume.create"]; creates > 1 {
				t.Errorf("%d volumes were requested", creates)
			}
		})
	}
}

// TestTrialsAtOnePlace: trials of one backend are not leftovers to another, and a
// leftover is reported only once.
func TestTrialsAtOnePlace(t *testing.T) {
	c := newCloud(t, cindersim.Options{CreateDelay: 50 * time.Millisecond}, 0, false)
	stamp := trialStamp("u1")
	if _, err := c.AddVolume(cindersim.Volume{Name: stamp.PV, Metadata: stamp.Metadata(nil), Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	text := labWith("") + strings.Replace(noauthBackend, "name: lab", "name: same, connector: {multipath: true}", 1) + tenant("lab, same", ", volumeType: iscsi")
	got := c.check(t.Context(), text, "--make-volume")
	if findings := got.findings(); got.code != 0 || len(findings) != 1 || !strings.Contains(findings[0], "("+stamp.PV+")") || len(got.Live.Trials) != 2 {
		t.Errorf("code %d, %d trials, %q", got.code, len(got.Live.Trials), findings)
	}
	if left := c.Volumes(); len(left) != 1 {
		t.Errorf("left: %+v", left)
	}
}

// TestLeftoversOfKilledCommands: what a killed run left is removed when it is an hour
// old, and only if it is provably a trial's.
func TestLeftoversOfKilledCommands(t *testing.T) {
	c := newCloud(t, cindersim.Options{}, 0, false)
	add := func(name string, age time.Duration, stamp stamps.Volume, status string) string {
		id, err := c.AddVolume(cindersim.Volume{Name: name, Status: status, Created: time.Now().Add(-age), Metadata: stamp.Metadata(nil)})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	changed := trialStamp("u4")
	changed.PV = objects.PVNameFor("u4")
	add("old", 2*time.Hour, trialStamp("u1"), "available")
	add("reserved", 2*time.Hour, trialStamp("u2"), "attaching")
	young := add("young", time.Minute, trialStamp("u3"), "available")
	kept := []string{
		young,
		add("changed", 2*time.Hour, changed, "available"),
		add("used", 2*time.Hour, trialStamp("u5"), "in-use"),
		add("claim's", 2*time.Hour, stamps.Volume{Cluster: "prod", ClaimUID: "u6", PV: objects.PVNameFor("u6")}, "available"),
		add("foreign", 2*time.Hour, stamps.Volume{}, "available"),
		add(trialPrefix+"name-alone", 2*time.Hour, stamps.Volume{}, "available"),
	}
	got := c.check(t.Context(), labWith("")+tenant("lab", ", volumeType: iscsi"), "--make-volume")
	var left []string
	for _, v := range c.Volumes() {
		left = append(left, v.ID)
	}
	slices.Sort(left)
	if !slices.Equal(left, slices.Sorted(slices.Values(kept))) {
		t.Errorf("left %q, want %q\n%s", left, kept, got.stdout)
	}
	findings := strings.Join(got.findings(), "\n")
	if len(got.findings()) != 2 || !strings.Contains(findings, young+" (young) at ") || !strings.Contains(findings, kept[2]+" (used) at ") {
		t.Errorf("%s", findings)
	}
	for _, name := range []string{"(old)", "(reserved)"} {
		if !strings.Contains(got.stderr, name) {
			t.Errorf("the removal of %s is not told: %s", name, got.stderr)
		}
	}
}

// TestNoProgramTakesATrialForItsOwn lists as the daemon and the audit of the same
// policy do, and also shows the trial to the audit as if it had been listed.
func TestNoProgramTakesATrialForItsOwn(t *testing.T) {
	c := newCloud(t, cindersim.Options{}, 0, false)
	stamp := trialStamp("u1")
	if _, err := c.AddVolume(cindersim.Volume{Name: stamp.PV, Created: time.Now().Add(-48 * time.Hour), Metadata: stamp.Metadata(nil)}); err != nil {
		t.Fatal(err)
	}
	lifecycleOf := func(cluster string) *backends.Lifecycle {
		metrics := backends.NewMetrics(prometheus.NewRegistry())
		return backends.NewLifecycle(backends.LifecycleOptions{
			Config:  backends.Config{Name: "lab", Auth: auth.Config{Source: auth.Source{Noauth: &auth.Noauth{Endpoint: c.NoauthEndpoint(), Project: cindersim.DefaultNoauthProject}}}},
			Pool:    backends.NewPool(backends.PoolOptions{Metrics: metrics}),
			Cluster: cluster, Fence: func() error { return nil }, Term: t.Context(), Logger: slog.New(slog.DiscardHandler), Metrics: metrics,
		})
	}
	for _, cluster := range []string{"prod", policy.ClusterIDPattern, "5f2c1c1e-4b1e-4c53-9f8e-0d6f7b3a2c11"} {
		listings := listBackends(t.Context(), map[string]*backends.Lifecycle{"lab": lifecycleOf(cluster)})
		if findings := audit.Compare(audit.State{Now: time.Now(), Cluster: cluster, Grace: time.Minute, Backends: listings}); len(findings) > 0 || len(listings["lab"].Volumes) > 0 {
			t.Errorf("%+v, %+v", listings, findings)
		}
	}
	listed := listBackends(t.Context(), map[string]*backends.Lifecycle{"lab": lifecycleOf(trialCluster)})
	if len(listed["lab"].Volumes) != 1 {
		t.Fatalf("%+v", listed)
	}
	for _, finding := range audit.Compare(audit.State{Now: time.Now(), Cluster: "prod", Grace: time.Minute, Backends: listed}) {
		if finding.Removable {
			t.Errorf("the audit would remove it: %+v", finding)
		}
	}
}

// TestTrialClusterIsNoCluster: no policy can give its cluster this ID.
func TestTrialClusterIsNoCluster(t *testing.T) {
	text := "apiVersion: " + policy.APIVersion + "\nkind: Policy\nclusterID: " + trialCluster + "\n" + strings.ReplaceAll(labWith(""), "$NOAUTH", "http://c:8776/v3") + "tenants: []\n"
	_, err := policy.Parse([]byte(strings.ReplaceAll(text, "$PROJECT", "abc")), "p", mappers.BuiltIn().Describe())
	if err == nil || !strings.Contains(err.Error(), "clusterID: ") {
		t.Errorf("%v", err)
	}
}

// TestTrialsInModeCSI: trials show the PersistentVolume of the driver, and fail for
// volumes that the driver cannot reach.
func TestTrialsInModeCSI(t *testing.T) {
	nvme := func(transport string) drivers.VolumeType {
		return drivers.VolumeType{Name: "nvme-" + transport, StorageProtocol: "NVMe-oF", Connection: drivers.FixedConnection("nvmeof", map[string]any{
			"nqn": "nqn.2014-08.org.example:s1", "target_portal": "192.0.2.1", "target_port": 4420, "transport_type": transport, "ns_id": 10,
		})}
	}
	c := newCloud(t, cindersim.Options{Types: append(drivers.DefaultVolumeTypes(), nvme("tcp"), nvme("rdma"), drivers.VolumeType{
		Name: "storpool", StorageProtocol: "storpool", Connection: drivers.FixedConnection("storpool", map[string]any{"volume": "v"}),
	}, drivers.VolumeType{
		Name: "fc", StorageProtocol: "FC", Connection: drivers.FixedConnection("fibre_channel", map[string]any{"target_wwn": []string{"500a098280feeb01"}, "target_lun": 300, "addressing_mode": "SAM2"}),
	})}, 0, false)
	got := c.check(t.Context(), labWith("")+`tenants:
  - name: a
    namespaces: [a]
    classes:
      - {storageClasses: [native], backends: [lab], volumeType: iscsi}
      - {storageClasses: [csi], backends: [lab], volumeType: iscsi, mode: csi}
      - {storageClasses: [ceph], backends: [lab], volumeType: rbd, mode: csi}
      - {storageClasses: [nvme], backends: [lab], volumeType: nvme-tcp, mode: csi}
      - {storageClasses: [rdma], backends: [lab], volumeType: nvme-rdma, mode: csi}
      - {storageClasses: [fc], backends: [lab], volumeType: fc, mode: csi}
      - {storageClasses: [storpool], backends: [lab], volumeType: storpool, mode: csi}
`, "--make-volume")
	if len(got.Live.Trials) != 7 || got.code != 1 {
		t.Fatalf("%d: %+v", got.code, got.Live.Trials)
	}
	if native := got.Live.Trials[0]; native.Source == nil || native.Source.ISCSI == nil || native.Mode != "" {
		t.Errorf("%+v", native)
	}
	csi := got.Live.Trials[1]
	if csi.Error != "" || csi.Mode != policy.ModeCSI || csi.Source == nil || csi.Source.CSI == nil || csi.Source.CSI.VolumeHandle != "lab/"+csi.Volume || csi.Source.CSI.FSType != "ext4" {
		t.Errorf("%+v", csi)
	}
	const noKey = "InvalidMapping: backend lab: Cinder sends no key for the Ceph cluster, and the policy names none; make a Secret with userID and userKey in the program's own namespace, and name it in csi.cephSecret of the backend"
	if ceph := got.Live.Trials[2]; ceph.Error != noKey || ceph.Step != policycli.StepMap {
		t.Errorf("%+v", ceph)
	}
	if nvme := got.Live.Trials[3]; nvme.Error != "" || nvme.Source == nil || nvme.Source.CSI == nil {
		t.Errorf("%+v", nvme)
	}
	if rdma := got.Live.Trials[4]; !strings.Contains(rdma.Error, "transport_type is rdma, and the nodes of the CSI driver connect by tcp") {
		t.Errorf("%+v", rdma)
	}
	const unknown = "backend lab: the CSI driver attaches volumes by fibre_channel, iscsi, iser, nvmeof or rbd, and these are reached by storpool; use mode native"
	if storpool := got.Live.Trials[6]; storpool.Error != unknown || storpool.Step != policycli.StepMap {
		t.Errorf("%+v", storpool)
	}
	if fc := got.Live.Trials[5]; fc.Error != "" || fc.Source == nil || fc.Source.CSI == nil {
		t.Errorf("%+v", fc)
	}
	c.wantNothingLeft(7)
}

// TestTrialNoticesThatReadsLag: a Cinder that does not show at once what it has made is
// a warning, and nothing is left behind.
func TestTrialNoticesThatReadsLag(t *testing.T) {
	for _, lag := range []time.Duration{0, 700 * time.Millisecond} {
		for _, workflow := range []string{"reserve", "attachment"} {
			t.Run(lag.String()+", "+workflow, func(t *testing.T) {
				t.Parallel()
				c := newCloud(t, cindersim.Options{Lag: lag}, 0, false)
				got := c.check(t.Context(), labWith(", workflow: "+workflow)+tenant("lab", ", volumeType: iscsi"), "--make-volume")
				findings := strings.Join(got.findings(), "\n")
				if warns := strings.Contains(findings, "warning backends[0]: backend lab") && strings.Contains(findings, "Cinder does not read its own writes"); got.code != 0 || warns != (lag > 0) || len(got.findings()) > 1 {
					t.Errorf("%d: %s", got.code, findings)
				}
				c.wantNothingLeft(1)
			})
		}
	}
}
