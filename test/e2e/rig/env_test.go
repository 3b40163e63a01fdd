package rig

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const completeEnv = `# written by a start of the rig
RIG_STATE=/state
RIG_CLOUDS_FILE=/state/clouds.yaml
RIG_REGION=RegionOne
RIG_DOMAIN=Default
RIG_NOAUTH_ENDPOINT=http://127.0.0.1:8776/v3
RIG_NOAUTH_USER=admin
RIG_NOAUTH_PROJECT=0123456789abcdef0123456789abcdef
RIG_KEYSTONE_URL=http://127.0.0.1:5000/v3
RIG_CINDER_URL=http://127.0.0.1:8777/v3

RIG_TEAM_A_USER=team-a
RIG_TEAM_A_PASSWORD=a=secret
RIG_TEAM_A_PROJECT=team-a
RIG_TEAM_A_PROJECT_ID=aaaa
RIG_TEAM_B_USER=team-b
RIG_TEAM_B_PASSWORD=b-secret
RIG_TEAM_B_PROJECT=team-b
RIG_TEAM_B_PROJECT_ID=bbbb
RIG_ADMIN_USER=admin
RIG_ADMIN_PASSWORD=admin-secret
RIG_ADMIN_PROJECT=admin
RIG_ADMIN_PROJECT_ID=cccc
RIG_TEAM_A_CREDENTIAL_ID=credential
RIG_TEAM_A_CREDENTIAL_SECRET=credential-secret
RIG_TYPE_ISCSI=iscsi
RIG_TYPE_ISCSI_MULTIPATH=iscsi-mp
RIG_TYPE_UNITS=units
RIG_TYPE_UNITS_MASKED=units-masked
RIG_TYPE_SHARED=shared
RIG_TYPE_FAIL=fail
RIG_TYPE_LUKS=luks
RIG_TYPE_LUKS2=luks2
RIG_TYPE_LIMITED=limited
RIG_FIXED_KEY=00ff
RIG_PORTAL=127.0.0.1:3260
RIG_PORTAL_SECOND=127.0.0.2:3260
RIG_TGT_ADMIN=/state/bin/tgt-admin
CONTRACT_REGION=RegionOne
`

func writeEnv(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadReadsEveryValue(t *testing.T) {
	env, err := Load(writeEnv(t, completeEnv))
	if err != nil {
		t.Fatal(err)
	}
	if want := (Account{User: "team-a", Password: "a=secret", Project: "team-a", ProjectID: "aaaa"}); env.TeamA != want {
		t.Errorf("TeamA is %+v, want %+v", env.TeamA, want)
	}
	if want := (Noauth{"http://127.0.0.1:8776/v3", "admin", "0123456789abcdef0123456789abcdef"}); env.Noauth != want {
		t.Errorf("Noauth is %+v, want %+v", env.Noauth, want)
	}
	if want := (VolumeTypes{ISCSI: "iscsi", ISCSIMultipath: "iscsi-mp", Units: "units", UnitsMasked: "units-masked", Shared: "shared", Fail: "fail", LUKS: "luks", LUKS2: "luks2", Limited: "limited"}); env.Types != want {
		t.Errorf("Types is %+v, want %+v", env.Types, want)
	}
	if got := strings.Join(env.Portals, " "); got != "127.0.0.1:3260 127.0.0.2:3260" {
		t.Errorf("Portals is %q", got)
	}
	if env.StateDirectory != "/state" || env.CloudsFile != "/state/clouds.yaml" || env.targetAdmin != "/state/bin/tgt-admin" || env.FixedKey != "00ff" {
		t.Errorf("paths are %q, %q, %q", env.StateDirectory, env.CloudsFile, env.targetAdmin)
	}
}

func TestLoadReadsWhereCephIs(t *testing.T) {
	env, err := Load(writeEnv(t, completeEnv+`RIG_TYPE_RBD=rbd
RIG_TYPE_RBD_KEYRING=rbd-keyring
RIG_TYPE_RBD_LUKS=rbd-luks
RIG_CEPH_CONF=/state/etc/ceph.conf
RIG_CEPH_KEYRING=/state/keyring
RIG_CEPH_MONITOR=127.0.0.1:6789
`))
	if err != nil {
		t.Fatal(err)
	}
	if env.Types.RBD != "rbd" || env.Types.RBDKeyring != "rbd-keyring" || env.Types.RBDLUKS != "rbd-luks" {
		t.Errorf("Types is %+v", env.Types)
	}
	if env.CephConfig != "/state/etc/ceph.conf" || env.CephKeyring != "/state/keyring" || env.CephMonitor != "127.0.0.1:6789" {
		t.Errorf("Ceph is at %q, %q, %q", env.CephConfig, env.CephKeyring, env.CephMonitor)
	}
}

func TestLoadNamesEveryMissingKey(t *testing.T) {
	text := strings.ReplaceAll(completeEnv, "RIG_REGION=RegionOne\n", "")
	text = strings.ReplaceAll(text, "RIG_TEAM_B_PASSWORD=b-secret", "RIG_TEAM_B_PASSWORD=")
	path := writeEnv(t, text)
	_, err := Load(path)
	want := path + ": no value for RIG_REGION, RIG_TEAM_B_PASSWORD: start the rig again"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestLoadDoesNotRepeatALineThatMayBeASecret(t *testing.T) {
	path := writeEnv(t, "RIG_STATE=/state\nsecret-without-key\n")
	_, err := Load(path)
	if want := path + ":2: expected KEY=value"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestLoadOfARigNeverStartedSaysHowToStartIt(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "env"))
	if !errors.Is(err, os.ErrNotExist) || !strings.HasSuffix(err.Error(), ": start the rig first (test/e2e/rig/rig.sh start)") {
		t.Errorf("got %v", err)
	}
}

func TestEnvFileFollowsTheStateDirectory(t *testing.T) {
	t.Setenv("RIG_STATE", "")
	if got := EnvFile(); got != "/tmp/standalone-cinder-e2e/env" {
		t.Errorf("without RIG_STATE: %s", got)
	}
	t.Setenv("RIG_STATE", "/elsewhere")
	if got := EnvFile(); got != "/elsewhere/env" {
		t.Errorf("with RIG_STATE: %s", got)
	}
}
