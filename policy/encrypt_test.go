package policy

import (
	"strings"
	"testing"
)

const encryptPolicy = `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends: [{name: gold, auth: {environment: true}, mode: csi}]
tenants:
  - name: team-a
    namespaces: [team-a]
    classes:
      - {storageClasses: [plain], backends: [gold]}
      - {storageClasses: [secret], backends: [gold], encrypt: {keySecret: keys, entry: "2026-11"}}
`

// TestCopiesAreEncryptedAsTheirSourcesAre: a rule's encryption is never silently ignored,
// and nobody gets an encrypted copy whose rule does not say so.
func TestCopiesAreEncryptedAsTheirSourcesAre(t *testing.T) {
	p := mustParse(t, encryptPolicy)
	for name, test := range map[string]struct {
		class     string
		source    bool
		encrypted bool
		refused   string
	}{
		"a new volume, encrypted":         {class: "secret"},
		"a new volume":                    {class: "plain"},
		"an encrypted copy, of encrypted": {class: "secret", source: true, encrypted: true},
		"a copy of what is not encrypted": {class: "plain", source: true},
		"an encrypted copy of what is not": {class: "secret", source: true,
			refused: "tenants[0].classes[1].encrypt: claim team-a/data is not encrypted, so its copy would not be either, but tenants[0].classes[1] encrypts its volumes (encrypt); ask for a StorageClass whose rule does not, or copy the files in a pod"},
		"a copy of encrypted by another rule": {class: "plain", source: true, encrypted: true,
			refused: "tenants[0].classes[0]: claim team-a/data is encrypted by nodes, and so would be its copy, but tenants[0].classes[0] has no encrypt; ask for a StorageClass whose rule has it"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Namespace: "team-a", StorageClass: test.class, Bytes: 1 << 30}
			if test.source {
				r.Source = &Source{Name: "claim team-a/data", Tenant: "team-a", Backend: "gold", SizeGiB: 1, VolumeMode: Filesystem, Mode: ModeCSI, Encrypted: test.encrypted}
			}
			d := p.Decide(r)
			if test.refused != "" {
				if d.Denial == nil || d.Denial.Reason != SourceNotAllowed || d.Denial.Path+": "+d.Denial.Message != test.refused {
					t.Errorf("\n got %+v\nwant %s", d.Denial, test.refused)
				}
				return
			}
			if d.Denial != nil || (d.VolumeOn("gold").Encrypt != nil) != (test.class == "secret") {
				t.Errorf("denial %+v, volume %+v", d.Denial, d.VolumeOn("gold"))
			}
		})
	}
	if e := p.Decide(Request{Namespace: "team-a", StorageClass: "secret", Bytes: 1}).VolumeOn("gold").Encrypt; e == nil || *e != (Encrypt{"keys", "2026-11"}) {
		t.Errorf("the key-encryption key is %+v", e)
	}
}

// TestEncryptNeedsModeCSI: whichever value decides the mode.
func TestEncryptNeedsModeCSI(t *testing.T) {
	_, err := Parse([]byte(strings.Replace(encryptPolicy, "mode: csi", "mode: native", 1)), "policy.yaml", nil)
	if err == nil || !strings.Contains(err.Error(), "encrypt needs mode csi") {
		t.Errorf("error %v", err)
	}
}
