package policy

import (
	"strings"
	"testing"
)

// modesPolicy has backends of both modes, and rules with and without one.
const modesPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}, mode: csi}
  - {name: silver, auth: {cloud: silver}}
tenants:
  - name: team-a
    namespaces: [team-a]
    classes:
      - {storageClasses: [mixed], backends: [gold, silver], import: {names: ["*"]}}
      - {storageClasses: [csi], backends: [gold, silver], mode: csi, import: {names: ["*"]}}
      - {storageClasses: [native], backends: [gold, silver], mode: native}
`

func TestTheRuleWinsOverTheBackendAndTheBackendOverTheDefaults(t *testing.T) {
	const defaultsCSI = "\ndefaults: {mode: csi}\nbackends:"
	for name, test := range map[string]struct {
		text, class  string
		gold, silver Mode
	}{
		"no mode in the rule":           {modesPolicy, "mixed", ModeCSI, ModeNative},
		"csi in the rule":               {modesPolicy, "csi", ModeCSI, ModeCSI},
		"native in the rule":            {modesPolicy, "native", ModeNative, ModeNative},
		"csi in the defaults":           {strings.Replace(modesPolicy, "\nbackends:", defaultsCSI, 1), "mixed", ModeCSI, ModeCSI},
		"a backend against the default": {strings.Replace(strings.Replace(modesPolicy, "\nbackends:", defaultsCSI, 1), "{cloud: silver}", "{cloud: silver}, mode: native", 1), "mixed", ModeCSI, ModeNative},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustParse(t, test.text)
			d := p.Decide(Request{Namespace: "team-a", StorageClass: test.class, Bytes: 1 << 30})
			if d.Denial != nil || d.ModeOn("gold") != test.gold || d.ModeOn("silver") != test.silver {
				t.Errorf("gold %s, silver %s, denial %+v", d.ModeOn("gold"), d.ModeOn("silver"), d.Denial)
			}
			if csi := d.VolumeOn("gold").Mode == ModeCSI; csi != (test.gold == ModeCSI) {
				t.Errorf("the volume on gold has mode %q", d.VolumeOn("gold").Mode)
			}
			if !p.UsesCSI() {
				t.Error("the policy does not use mode csi")
			}
		})
	}
	if p := mustParse(t, decidePolicy); p.UsesCSI() {
		t.Error("a policy without any mode uses mode csi")
	}
	if p := mustParse(t, strings.Replace(decidePolicy, "{cloud: off}", "{cloud: off}, mode: csi", 1)); !p.UsesCSI() {
		t.Error("a suspended backend in mode csi has volumes in mode csi")
	}
}

// TestASuspendedBackendKeepsItsMode: a volume of an earlier attempt may be there.
func TestASuspendedBackendKeepsItsMode(t *testing.T) {
	d := mustParse(t, strings.Replace(modesPolicy, "{cloud: gold}", "{cloud: gold}, suspended: true", 1)).Decide(Request{Namespace: "team-a", StorageClass: "mixed", Bytes: 1 << 30})
	if d.ModeOn("gold") != ModeCSI || len(d.Backends) != 1 || d.Backends[0] != "silver" {
		t.Errorf("mode %s, backends %v", d.ModeOn("gold"), d.Backends)
	}
}

func TestWhatAModeDoesNotHaveIsDenied(t *testing.T) {
	native := &Source{Name: "claim team-a/data", Tenant: "team-a", Backend: "gold", SizeGiB: 1, VolumeMode: Filesystem}
	csi := &Source{Name: "claim team-a/data", Tenant: "team-a", Backend: "gold", SizeGiB: 1, VolumeMode: Filesystem, Mode: ModeCSI}
	block := &Source{Name: "claim team-a/data", Tenant: "team-a", Backend: "gold", SizeGiB: 1, VolumeMode: Block}
	known := &Source{Name: "claim team-a/data", Tenant: "team-a", Backend: "gold", SizeGiB: 1, VolumeMode: Filesystem, FilesystemKnown: true}
	for name, test := range map[string]struct {
		request  Request
		backends string
		path     string
		message  string
	}{
		"the driver's name, and native": {Request{StorageClass: "native", Driver: CSIDriver}, "", "tenants[0].classes[2].mode",
			"StorageClass native names the CSI driver standalone-cinder.openstack.org as its provisioner, but tenants[0].classes[2] makes native volumes on backend gold; give the rule mode: csi, or name the program itself as the provisioner"},
		"the driver's name, and both":      {request: Request{StorageClass: "mixed", Driver: CSIDriver}, backends: "gold"},
		"the driver's name, and csi":       {request: Request{StorageClass: "csi", Driver: CSIDriver}, backends: "gold silver"},
		"a filesystem of the driver":       {request: Request{StorageClass: "csi", Parameters: map[string]string{"fsType": "xfs"}}, backends: "gold silver"},
		"another filesystem, on one":       {request: Request{StorageClass: "mixed", Parameters: map[string]string{"fsType": "btrfs"}}, backends: "silver"},
		"another filesystem, and no other": {Request{StorageClass: "csi", Parameters: map[string]string{"fsType": "btrfs"}}, "", "tenants[0].classes[1].mode", "tenants[0].classes[1] makes volumes in mode csi on backend gold, where the filesystem can be ext4 or xfs, not btrfs"},
		"a raw block volume":               {request: Request{StorageClass: "csi", VolumeMode: Block}, backends: "gold silver"},
		"a copy of a native volume": {Request{StorageClass: "mixed", Source: native}, "", "backends[0].mode",
			"claim team-a/data is a native volume, and tenants[0].classes[0] makes volumes in mode csi on backend gold: the CSI driver mounts only filesystems that it can identify by UUID, and no UUID is recorded for this one; copy it in mode native, or have an administrator record the UUID (docs/how-to/native-to-csi.md)"},
		"a copy of a native volume whose UUID is recorded": {request: Request{StorageClass: "csi", Source: known}, backends: "gold"},
		"a copy of a raw block volume":                     {request: Request{StorageClass: "csi", Source: block, VolumeMode: Block}, backends: "gold"},
		"a copy of a volume in mode csi":                   {request: Request{StorageClass: "csi", Source: csi}, backends: "gold"},
		"a native copy of one in mode csi":                 {request: Request{StorageClass: "native", Source: csi}, backends: "gold"},
		"a volume that exists, in either mode":             {request: Request{StorageClass: "mixed", Import: &Existing{Name: "v"}}, backends: "gold silver"},
		"a volume that exists, in mode csi":                {request: Request{StorageClass: "csi", Import: &Existing{Name: "v"}}, backends: "gold silver"},
		"a volume that exists, by the driver's name":       {request: Request{StorageClass: "mixed", Driver: CSIDriver, Import: &Existing{Name: "v"}}, backends: "gold"},
	} {
		t.Run(name, func(t *testing.T) {
			p, r := mustParse(t, modesPolicy), test.request
			r.Namespace, r.Bytes = "team-a", 1<<30
			decisions := map[string]Decision{"Decide": p.Decide(r)}
			if r.Import != nil {
				decisions["DecideImport"] = p.DecideImport(r)
			}
			for by, d := range decisions {
				var denial Denial
				if d.Denial != nil {
					denial = *d.Denial
				}
				if test.message == "" && d.Denial != nil || denial.Message != test.message || test.message != "" && (denial.Reason != UnsupportedMode || denial.Path != test.path) {
					t.Errorf("%s: denial %+v", by, denial)
				}
				if got := strings.Join(d.Backends, " "); test.message == "" && got != test.backends {
					t.Errorf("%s: backends %s, want %s", by, got, test.backends)
				}
			}
		})
	}
}

func TestImportsThatAClassOfTheDriverCannotHaveAreDenied(t *testing.T) {
	text := strings.Replace(modesPolicy, "mode: native}", `mode: native, import: {names: ["*"]}}`, 1)
	d := mustParse(t, text).DecideImport(Request{Namespace: "team-a", StorageClass: "native", Driver: CSIDriver})
	if d.Denial == nil || d.Denial.Reason != UnsupportedMode {
		t.Errorf("decided %+v", d)
	}
}

func TestModesThatHaveNoEffectAreToldWithTheirLine(t *testing.T) {
	text := strings.Replace(modesPolicy, "{cloud: silver}", "{cloud: silver}, mapping: {iscsi: {as: native}}, connector: {multipath: true, host: h, nqn: \"nqn.2014-08.org.example:n\", nodeLabels: {pool: b}}", 1)
	text = strings.Replace(text, "mode: native}", "mode: csi}", 1)
	text = strings.Replace(text, "backends: [gold, silver], import", "backends: [gold], import", 1)
	p := mustParse(t, text)
	want := []string{
		"policy.yaml:6:44: backends[1].mapping: mapping has no effect: every rule that uses backend \"silver\" makes volumes in mode csi, which the program's own driver attaches; remove it",
		"backends[1].connector.multipath: connector.multipath has no effect: every rule that uses backend \"silver\" makes volumes in mode csi, which the program's own driver attaches; remove it",
		"backends[1].connector.host: connector.host has no effect: ",
	}
	var got []string
	for _, w := range p.Warnings {
		got = append(got, w.Error())
	}
	for _, w := range want {
		found := false
		for _, g := range got {
			found = found || strings.Contains(g, w[strings.Index(w, "backends"):])
		}
		if !found {
			t.Errorf("no warning %q in\n%s", w, strings.Join(got, "\n"))
		}
	}
	for _, has := range []string{"import", "nodeLabels", "initiator", "nqn"} {
		if strings.Contains(strings.Join(got, "\n"), has+" has no effect") {
			t.Errorf("%s is not without effect in mode csi, or is not given, and yet:\n%s", has, strings.Join(got, "\n"))
		}
	}
	for _, w := range mustParse(t, strings.Replace(text, "backends: [gold, silver], mode: csi", "backends: [gold, silver], mode: native", 1)).Warnings {
		if strings.Contains(w.Error(), "no effect") {
			t.Errorf("a rule makes native volumes there, and yet: %s", w)
		}
	}
}

func TestFencingIsByExportUnlessTheBackendSaysOtherwise(t *testing.T) {
	for text, want := range map[string]struct {
		fencing Fencing
		limit   int
	}{
		"{cloud: gold}":                              {FencingExport, 0},
		"{cloud: gold}, csi: {}":                     {FencingExport, 0},
		"{cloud: gold}, csi: {fencing: export}":      {FencingExport, 0},
		"{cloud: gold}, csi: {maxVolumesPerNode: 7}": {FencingExport, 7},
		"{cloud: gold}, csi: {fencing: initiator}":   {FencingInitiator, 0},
	} {
		b, _ := mustParse(t, strings.Replace(modesPolicy, "{cloud: gold}", text, 1)).Backend("gold")
		if b.Fencing() != want.fencing || b.VolumesPerNode() != want.limit {
			t.Errorf("%s: fencing %s, limit %d", text, b.Fencing(), b.VolumesPerNode())
		}
	}
}

// TestSettingsOfTheDriverThatHaveNoEffectAreTold: no rule makes volumes in mode csi there.
func TestSettingsOfTheDriverThatHaveNoEffectAreTold(t *testing.T) {
	const want = `backends[1].csi: csi has no effect: no rule makes volumes in mode csi on backend "silver"; give the backend or a rule mode: csi, or remove it`
	text := strings.Replace(modesPolicy, "{cloud: silver}", "{cloud: silver}, csi: {fencing: initiator}", 1)
	warned := func(text string) bool {
		for _, w := range mustParse(t, text).Warnings {
			if strings.HasSuffix(w.Error(), want) {
				return true
			}
		}
		return false
	}
	if warned(text) {
		t.Error("a rule makes volumes in mode csi there")
	}
	if !warned(strings.Replace(text, "storageClasses: [csi], backends: [gold, silver]", "storageClasses: [csi], backends: [gold]", 1)) {
		t.Error("there is no warning")
	}
}

// TestTypesOfANativeRuleHaveNoEffect: only volumes in mode csi have a VolumeAttributesClass.
func TestTypesOfANativeRuleHaveNoEffect(t *testing.T) {
	const want = `tenants[0].classes[2].volumeTypes: volumeTypes has no effect: the rule makes native volumes only, which cannot have a VolumeAttributesClass; give the rule mode: csi, or remove it`
	for class, count := range map[string]int{"mixed": 0, "csi": 0, "native": 1} {
		text := strings.Replace(modesPolicy, "["+class+"],", "["+class+"], volumeTypes: [ssd],", 1)
		found := 0
		for _, w := range mustParse(t, text).Warnings {
			if strings.HasSuffix(w.Error(), want) {
				found++
			}
		}
		if found != count {
			t.Errorf("%s: %d warnings, want %d", class, found, count)
		}
	}
}

func TestClassesOfVolumesThatDoNotGrowByThemselvesAreTold(t *testing.T) {
	p := mustParse(t, modesPolicy)
	for class, want := range map[string]int{"csi": 0, "mixed": 1} {
		if got := p.ClassWarnings(StorageClass{Name: class, Expandable: true}, ""); len(got) != want {
			t.Errorf("warnings about %s: %q", class, got)
		}
	}
}

// TestBothModesOnOneNodeAreReported: the kubelet takes the driver's session to a target
// for its own.
func TestBothModesOnOneNodeAreReported(t *testing.T) {
	const text = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}, mode: csi, connector: {nodeLabels: {pool: a}}}
  - {name: silver, auth: {cloud: gold}, connector: {nodeLabels: {pool: b}}}
tenants:
  - name: team-a
    namespaces: [team-a]
    classes:
      - {storageClasses: [c], backends: [gold, silver]}
`
	const both, other = `backend "gold" has volumes in both modes`, `backend "gold" has volumes in mode csi, and backend "silver" native ones of the same project (cloud gold, region (default))`
	for name, test := range map[string]struct{ old, new, want string }{
		"nodes of their own":       {"pool: b", "pool: b", ""},
		"the same nodes":           {"pool: b", "pool: a", other},
		"nodes of another label":   {"{pool: b}", "{rack: b}", other},
		"one on all nodes":         {"{nodeLabels: {pool: b}}", "{host: h}", other},
		"one backend":              {"backends: [gold, silver]}", "backends: [gold]}\n      - {storageClasses: [d], backends: [gold], mode: native}", both},
		"another project":          {"silver, auth: {cloud: gold}, connector: {nodeLabels: {pool: b}}", "silver, auth: {cloud: silver}", ""},
		"another region":           {"silver, auth: {cloud: gold}, connector: {nodeLabels: {pool: b}}", "silver, auth: {cloud: gold}, region: two", ""},
		"another driver's volumes": {"nodeLabels: {pool: b}}", "host: h}, mapping: {rbd: {as: csi, driver: rbd.csi.ceph.com, volumeHandle: \"{{ .volume.id }}\"}}", ""},
		"only one mode":            {"backends: [gold, silver]", "backends: [silver]", ""},
		"zones that are apart":     {"nodeLabels: {pool: b}}", "host: h}, zones: [{name: z, nodeLabels: {pool: b}}]", ""},
		"zones that are not":       {"nodeLabels: {pool: b}}", "host: h}, zones: [{name: z, nodeLabels: {pool: b}}, {name: y, nodeLabels: {pool: a}}]", other},
	} {
		t.Run(name, func(t *testing.T) {
			var found []string
			for _, w := range mustParse(t, strings.Replace(text, test.old, test.new, 1)).Warnings {
				if strings.Contains(w.Error(), "a node can have both") {
					found = append(found, w.Error())
				}
			}
			if len(found) > 1 || (len(found) == 1) != (test.want != "") || test.want != "" && !strings.Contains(found[0], test.want+", and a node can have both") {
				t.Errorf("warnings %q, want %q", found, test.want)
			}
		})
	}
}
