package rig

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// defaultStateDirectory is the one that rig.sh uses when RIG_STATE is not set.
const defaultStateDirectory = "/tmp/standalone-cinder-e2e"

// Env describes a running rig.
type Env struct {
	// StateDirectory holds everything the rig wrote: configuration, logs, data.
	StateDirectory string
	// CloudsFile is a clouds.yaml with the clouds team-a, team-b, admin
	// (passwords) and team-a-appcred (application credential).
	CloudsFile string
	// Region is the only region of the service catalog.
	Region string
	// Domain is the domain of every user and project.
	Domain string
	// KeystoneURL ends in /v3.
	KeystoneURL string
	// CinderURL is Cinder's endpoint behind Keystone, without a project: it
	// ends in /v3.
	CinderURL string
	// Noauth is the other endpoint of the same Cinder.
	Noauth Noauth
	// TeamA and TeamB are members of their projects and of nothing else.
	TeamA, TeamB Account
	// Admin may do everything everywhere.
	Admin Account
	// TeamACredential is an application credential of TeamA.
	TeamACredential ApplicationCredential
	// Types are the volume types.
	Types VolumeTypes
	// Portals are the addresses (host:port) of the iSCSI target. Volumes of the
	// type ISCSI are announced at the first, those of ISCSIMultipath at both.
	Portals []string
	// FixedKey is that of cinder.conf, in hexadecimal digits.
	FixedKey string
	// CephConfig is the path of a ceph.conf for the user "cinder", CephKeyring of
	// that user's keyring, and CephMonitor the monitor's host:port; empty unless
	// the rig was started with Ceph.
	CephConfig, CephKeyring, CephMonitor string

	targetAdmin string
}

// Noauth is a Cinder endpoint without authentication.
type Noauth struct {
	// Endpoint ends in /v3.
	Endpoint string
	User     string
	// Project is hexadecimal, as Cinder demands.
	Project string
}

// Account is a user with a password and the project it works in.
type Account struct {
	User, Password     string
	Project, ProjectID string
}

// ApplicationCredential is Keystone's credential for programs.
type ApplicationCredential struct {
	ID, Secret string
}

// VolumeTypes are the names of the volume types, by what they are for.
type VolumeTypes struct {
	// ISCSI has one portal and CHAP.
	ISCSI string
	// ISCSIMultipath has two portals and CHAP.
	ISCSIMultipath string
	// Units has one target for all volumes and initiators, and no CHAP. The unit
	// number of a volume that is detached goes to the next one.
	Units string
	// UnitsMasked is like Units, but each initiator has a target of its own.
	UnitsMasked string
	// Shared is like ISCSI, and several hosts may attach a volume of it.
	Shared string
	// Fail is of a backend on which every new volume ends in "error".
	Fail string
	// LUKS is like ISCSI, and LUKS2 like ISCSIMultipath; volumes of them are encrypted
	// with the rig's FixedKey.
	LUKS, LUKS2 string
	// Limited is like ISCSI, and has front-end QoS: 512 KiB and 20 requests a second.
	Limited string
	// RBD is of a Ceph cluster; empty unless the rig was started with one.
	RBD string
	// RBDKeyring is of the same cluster, and connections to its volumes hold the
	// key of their user.
	RBDKeyring string
	// RBDLUKS is like RBD, with volumes encrypted by the node.
	RBDLUKS string
}

// EnvFile returns the path of the file that a start of the rig leaves for
// [Load]: in the directory that the variable RIG_STATE names, or in rig.sh's
// default.
func EnvFile() string {
	directory := os.Getenv("RIG_STATE")
	if directory == "" {
		directory = defaultStateDirectory
	}
	return filepath.Join(directory, "env")
}

// Load reads the file of KEY=value lines that a start of the rig writes. A
// file that lacks a value is an error that names every missing key.
func Load(path string) (Env, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return Env{}, fmt.Errorf("%w: start the rig first (test/e2e/rig/rig.sh start)", err)
	}
	if err != nil {
		return Env{}, err
	}
	defer file.Close()

	values := map[string]string{}
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, found := strings.Cut(line, "=")
		if !found {
			// The line may hold a secret: say where it is, not what it says.
			return Env{}, fmt.Errorf("%s:%d: expected KEY=value", path, number)
		}
		values[key] = value
	}
	if err := lines.Err(); err != nil {
		return Env{}, fmt.Errorf("%s: %w", path, err)
	}

	var missing []string
	get := func(key string) string {
		value := values[key]
		if value == "" {
			missing = append(missing, key)
		}
		return value
	}
	account := func(prefix string) Account {
		return Account{
			User:      get(prefix + "_USER"),
			Password:  get(prefix + "_PASSWORD"),
			Project:   get(prefix + "_PROJECT"),
			ProjectID: get(prefix + "_PROJECT_ID"),
		}
	}
	env := Env{
		StateDirectory: get("RIG_STATE"),
		CloudsFile:     get("RIG_CLOUDS_FILE"),
		Region:         get("RIG_REGION"),
		Domain:         get("RIG_DOMAIN"),
		KeystoneURL:    get("RIG_KEYSTONE_URL"),
		CinderURL:      get("RIG_CINDER_URL"),
		Noauth: Noauth{
			Endpoint: get("RIG_NOAUTH_ENDPOINT"),
			User:     get("RIG_NOAUTH_USER"),
			Project:  get("RIG_NOAUTH_PROJECT"),
		},
		TeamA: account("RIG_TEAM_A"),
		TeamB: account("RIG_TEAM_B"),
		Admin: account("RIG_ADMIN"),
		TeamACredential: ApplicationCredential{
			ID:     get("RIG_TEAM_A_CREDENTIAL_ID"),
			Secret: get("RIG_TEAM_A_CREDENTIAL_SECRET"),
		},
		Types: VolumeTypes{
			ISCSI:          get("RIG_TYPE_ISCSI"),
			ISCSIMultipath: get("RIG_TYPE_ISCSI_MULTIPATH"),
			Units:          get("RIG_TYPE_UNITS"),
			UnitsMasked:    get("RIG_TYPE_UNITS_MASKED"),
			Shared:         get("RIG_TYPE_SHARED"),
			Fail:           get("RIG_TYPE_FAIL"),
			LUKS:           get("RIG_TYPE_LUKS"),
			LUKS2:          get("RIG_TYPE_LUKS2"),
			Limited:        get("RIG_TYPE_LIMITED"),
			RBD:            values["RIG_TYPE_RBD"],
			RBDKeyring:     values["RIG_TYPE_RBD_KEYRING"],
			RBDLUKS:        values["RIG_TYPE_RBD_LUKS"],
		},
		CephConfig:  values["RIG_CEPH_CONF"],
		CephKeyring: values["RIG_CEPH_KEYRING"],
		CephMonitor: values["RIG_CEPH_MONITOR"],
		Portals:     []string{get("RIG_PORTAL"), get("RIG_PORTAL_SECOND")},
		FixedKey:    get("RIG_FIXED_KEY"),
		targetAdmin: get("RIG_TGT_ADMIN"),
	}
	if len(missing) > 0 {
		return Env{}, fmt.Errorf("%s: no value for %s: start the rig again", path, strings.Join(missing, ", "))
	}
	return env, nil
}
