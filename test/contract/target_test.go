package contract

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
)

// A Target is one way to use one Cinder.
type Target struct {
	Name string
	// Endpoint is Cinder's address without a project, ending in /v3.
	Endpoint string
	// Project is the project of the cases.
	Project string
	// Keystone is nil for a Cinder in noauth mode.
	Keystone *Keystone
	Types    Types
	// Backups means that Cinder has a backup service.
	Backups bool
	// Wait bounds the wait for a state; Poll is the time between two reads; Lag is how old
	// the state is that reads show.
	Wait, Poll, Lag time.Duration

	http  *http.Client
	token string
}

// Keystone is how to log in.
type Keystone struct {
	URL, Domain, Region string
	Member              Account
	// Other is a member of another project; may be nil.
	Other *Account
	// Admin is an administrator; may be nil.
	Admin *Account
	// Credential is an application credential of Member; may be nil.
	Credential *Credential
}

// Credential is an application credential.
type Credential struct{ ID, Secret string }

// Account is a user and the project it works in.
type Account struct{ User, Password, Project string }

// Types are the names of volume types; a missing type has none.
type Types struct{ ISCSI, Other, Multipath, Shared, RBD, Fail, LUKS, Limited, Group string }

// noauth reports whether the target has no Keystone.
func (target Target) noauth() bool { return target.Keystone == nil }

// client uses the target's project, which is part of the URL.
func (target Target) client() *client {
	return &client{base: target.Endpoint + "/" + target.Project, token: target.token, http: target.http}
}

// at returns a client for another address, with the same token.
func (target Target) at(base string) *client {
	return &client{base: base, token: target.token, http: target.http}
}

// root returns Cinder's address without /v3.
func (target Target) root() string { return strings.TrimSuffix(target.Endpoint, "/v3") }

// noauthClient uses any project of a Cinder in noauth mode.
func (target Target) noauthClient(project string) *client {
	return &client{base: target.Endpoint + "/" + project, token: "admin:" + project, http: target.http}
}

// admin returns a client without restrictions, in the target's project if
// possible; it skips the test if there is no administrator.
func (target Target) admin(t testing.TB) *client {
	t.Helper()
	if target.noauth() {
		return target.client()
	}
	if target.Keystone.Admin == nil {
		t.Skip("no administrator is known (CONTRACT_ADMIN_USER)")
	}
	return target.login(t, *target.Keystone.Admin)
}

// other returns a client of another project's member.
func (target Target) other(t testing.TB) *client {
	t.Helper()
	if target.Keystone == nil || target.Keystone.Other == nil {
		t.Skip("no member of another project is known (CONTRACT_OTHER_USER)")
	}
	return target.login(t, *target.Keystone.Other)
}

// login gets a token for an account and finds Cinder in its catalog.
func (target Target) login(t testing.TB, account Account) *client {
	t.Helper()
	got := target.Keystone.client(target.http).call(t, "POST", "/auth/tokens", target.Keystone.passwordAuth(account))
	got.want(t, http.StatusCreated)
	endpoint := cinderOf(t, got, target.Keystone.Region)
	return &client{base: endpoint, token: got.header.Get("X-Subject-Token"), http: target.http}
}

func (k *Keystone) client(via *http.Client) *client { return &client{base: k.URL, http: via} }

// passwordAuth returns a request for a token of an account's project.
func (k *Keystone) passwordAuth(account Account) object {
	domain := object{"name": k.Domain}
	return object{"auth": object{
		"identity": object{"methods": []string{"password"}, "password": object{"user": object{
			"name": account.User, "domain": domain, "password": account.Password,
		}}},
		"scope": object{"project": object{"name": account.Project, "domain": domain}},
	}}
}

// cinderOf returns the public address of the volume service in a token's
// catalog.
func cinderOf(t testing.TB, token answer, region string) string {
	t.Helper()
	catalog, _ := token.object(t, "token")["catalog"].([]any)
	for _, kind := range []string{"volumev3", "block-storage"} {
		for _, entry := range catalog {
			service := entry.(map[string]any)
			if service["type"] != kind {
				continue
			}
			for _, e := range service["endpoints"].([]any) {
				endpoint := e.(map[string]any)
				if endpoint["interface"] == "public" && endpoint["region"] == region {
					return strings.TrimSuffix(endpoint["url"].(string), "/")
				}
			}
		}
	}
	t.Fatalf("the catalog has no public volume service in %s", region)
	return ""
}

// needType skips a test that needs a missing volume type.
func needType(t testing.TB, name, variable string) string {
	t.Helper()
	if name == "" {
		t.Skipf("no such volume type is known (%s)", variable)
	}
	return name
}

// simulatorTargets returns the two ways to use one simulator, whose reads lag.
func simulatorTargets(t *testing.T, lag time.Duration) []Target {
	t.Helper()
	identity := keystone.DefaultIdentity()
	identity.KeyManager = true
	identity.ApplicationCredentials = []keystone.ApplicationCredential{
		{Name: "contract", Secret: "contract-secret", User: "team-a", Project: "team-a"},
	}
	simulator, err := cindersim.New(cindersim.Options{
		Identity: identity,
		Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: "shared", RequiresInitiator: true, Multiattach: true}, drivers.VolumeType{Name: "other", Backend: "iscsi", RequiresInitiator: true},
			drivers.VolumeType{Name: "limited", Backend: "iscsi", RequiresInitiator: true, QoS: map[string]string{"total_bytes_sec": "524288", "total_iops_sec": "20"}},
			drivers.VolumeType{Name: "luks", Backend: "iscsi", RequiresInitiator: true, Encryption: &drivers.Encryption{Provider: "luks", Cipher: "aes-xts-plain64", KeyBits: 256}},
			drivers.VolumeType{Name: "luks-barbican", Backend: "iscsi", RequiresInitiator: true, Encryption: &drivers.Encryption{Provider: "luks", Cipher: "aes-xts-plain64", KeyBits: 256, KeyManager: true}}),
		PlacementDelay: time.Millisecond, CreateDelay: 5 * time.Millisecond, DeleteDelay: 5 * time.Millisecond,
		ExtendDelay: 5 * time.Millisecond, SnapshotDelay: 5 * time.Millisecond, BackupDelay: 5 * time.Millisecond, MigrationDelay: 500 * time.Millisecond, Lag: lag,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := simulator.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(simulator.Close)
	t.Logf("the simulator's seed is %d", simulator.Seed())
	types := Types{ISCSI: "iscsi", Other: "other", Multipath: "iscsi-mp", Shared: "shared", RBD: "rbd", Fail: "fail", LUKS: "luks", Limited: "limited", Group: "consistent"}
	keystoneTypes := types
	keystoneTypes.LUKS = "luks-barbican"
	account := func(name string) Account { return Account{User: name, Password: name + "-pass", Project: name} }
	other, admin := account("team-b"), account("admin")
	return []Target{
		{
			Name: "simulator noauth", Endpoint: simulator.NoauthEndpoint(), Project: cindersim.DefaultNoauthProject,
			Types: types, Backups: true, Wait: 10 * time.Second, Poll: 2 * time.Millisecond, Lag: lag,
		},
		{
			Name: "simulator keystone", Keystone: &Keystone{
				URL: simulator.KeystoneURL(), Domain: "Default", Region: "RegionOne", Member: account("team-a"), Other: &other, Admin: &admin,
				Credential: &Credential{ID: simulator.ApplicationCredentials()[0].ID, Secret: "contract-secret"},
			},
			Types: keystoneTypes, Backups: true, Wait: 10 * time.Second, Poll: 2 * time.Millisecond, Lag: lag,
		},
	}
}

// realTargets returns the targets that the environment names.
func realTargets(t *testing.T) []Target {
	t.Helper()
	types := Types{
		ISCSI: environment("CONTRACT_TYPE_ISCSI", "iscsi"), Other: os.Getenv("CONTRACT_TYPE_OTHER"), Multipath: os.Getenv("CONTRACT_TYPE_ISCSI_MULTIPATH"),
		Shared: os.Getenv("CONTRACT_TYPE_SHARED"), RBD: os.Getenv("CONTRACT_TYPE_RBD"), Fail: os.Getenv("CONTRACT_TYPE_FAIL"), LUKS: os.Getenv("CONTRACT_TYPE_LUKS"),
		Limited: os.Getenv("CONTRACT_TYPE_LIMITED"), Group: os.Getenv("CONTRACT_GROUP_TYPE"),
	}
	wait, err := time.ParseDuration(environment("CONTRACT_WAIT", "60s"))
	if err != nil {
		t.Fatalf("CONTRACT_WAIT: %v", err)
	}
	var targets []Target
	if endpoint := os.Getenv("CONTRACT_NOAUTH_ENDPOINT"); endpoint != "" {
		targets = append(targets, Target{
			Name: "cinder noauth", Endpoint: strings.TrimSuffix(endpoint, "/"),
			Project: environment("CONTRACT_NOAUTH_PROJECT", cindersim.DefaultNoauthProject),
			Types:   types, Backups: os.Getenv("CONTRACT_BACKUPS") != "", Wait: wait, Poll: 100 * time.Millisecond,
		})
	}
	if url := os.Getenv("CONTRACT_KEYSTONE_URL"); url != "" {
		member := account("CONTRACT_")
		if member == nil {
			t.Fatal("CONTRACT_KEYSTONE_URL is set, but CONTRACT_USER is not")
		}
		targets = append(targets, Target{
			Name: "cinder keystone", Keystone: &Keystone{
				URL: strings.TrimSuffix(url, "/"), Domain: environment("CONTRACT_DOMAIN", "Default"),
				Region: environment("CONTRACT_REGION", "RegionOne"), Member: *member,
				Other: account("CONTRACT_OTHER_"), Admin: account("CONTRACT_ADMIN_"), Credential: credential(),
			},
			Types: types, Backups: os.Getenv("CONTRACT_BACKUPS") != "", Wait: wait, Poll: 100 * time.Millisecond,
		})
	}
	return targets
}

func environment(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func account(prefix string) *Account {
	user := os.Getenv(prefix + "USER")
	if user == "" {
		return nil
	}
	return &Account{User: user, Password: os.Getenv(prefix + "PASSWORD"), Project: environment(prefix+"PROJECT", user)}
}

func credential() *Credential {
	id := os.Getenv("CONTRACT_CREDENTIAL_ID")
	if id == "" {
		return nil
	}
	return &Credential{ID: id, Secret: os.Getenv("CONTRACT_CREDENTIAL_SECRET")}
}

// ready logs in and gives the target its own connections.
func (target Target) ready(t *testing.T) Target {
	t.Helper()
	target.http = newHTTPClient()
	target.http.Transport = &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(target.http.CloseIdleConnections)
	if target.noauth() {
		target.token = "admin:" + target.Project
		return target
	}
	member := target.login(t, target.Keystone.Member)
	target.token = member.token
	at := strings.LastIndex(member.base, "/")
	target.Endpoint, target.Project = member.base[:at], member.base[at+1:]
	return target
}

// unique returns a name that nothing else uses.
func unique(t testing.TB, prefix string) string {
	t.Helper()
	suffix := make([]byte, 6)
	if _, err := rand.Read(suffix); err != nil {
		t.Fatal(err)
	}
	return "contract-" + prefix + "-" + hex.EncodeToString(suffix)
}
