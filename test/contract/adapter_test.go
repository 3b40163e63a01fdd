package contract

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/test/cindercontract"
)

// TestAdapter checks the program's own client with the same table as the
// in-memory Cinder of the lifecycle's tests.
func TestAdapter(t *testing.T) {
	simulators, servers := append(simulatorTargets(t, 0), lagging(t, 15*time.Millisecond)), realTargets(t)
	for i, target := range append(simulators, servers...) {
		t.Run(target.Name, func(t *testing.T) {
			target := target.ready(t)
			client := target.adapter(t, target.account())
			t.Run("what the project may use", func(t *testing.T) { projectReadings(t, target, client) })
			if target.Lag == 0 {
				t.Run("whose keys the key manager shows", func(t *testing.T) { keyReadings(t, target, client) })
			}
			groups, groupType := cindercontract.Groups(client), target.Types.Group
			if target.Lag > 0 {
				groups = nil
			}
			cindercontract.Run(t, cindercontract.Target{
				Groups: groups, GroupType: groupType,
				Cinder: patient{client, target.Lag}, Member: !target.noauth(), Type: target.Types.ISCSI, OtherType: target.Types.Other, SharedType: target.Types.Shared, FailingType: target.Types.Fail, Backups: target.Backups, Wait: target.Wait, Poll: target.Poll,
				// Real volumes take a second each.
				OnlyMember: testing.Short() && !target.noauth() && i >= len(simulators),
			})
		})
	}
}

// projectReadings checks what a member may read about the project.
func projectReadings(t *testing.T, target Target, client *cinder.Client) {
	types, err := client.VolumeTypes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byDefault, err := client.DefaultVolumeType(t.Context())
	if err != nil || !slices.Contains(types, byDefault) {
		t.Errorf("the default type is %+v, the types are %+v (%v)", byDefault, types, err)
	}
	if !slices.ContainsFunc(types, func(of cinder.VolumeType) bool { return of.Name == target.Types.ISCSI }) {
		t.Errorf("the types are %+v", types)
	}
	byID, err := client.VolumeType(t.Context(), byDefault.ID)
	if err != nil || byID != byDefault {
		t.Errorf("type %s is %+v (%v)", byDefault.ID, byID, err)
	}
	if _, err := client.VolumeType(t.Context(), "00000000-0000-4000-8000-000000000000"); !cinder.IsKind(err, cinder.KindNotFound) {
		t.Errorf("a type that is none: %v", err)
	}
	zones, err := client.Zones(t.Context())
	if err != nil || !slices.ContainsFunc(zones, func(zone cinder.Zone) bool { return zone.Name != "" && zone.Available }) {
		t.Errorf("the zones are %+v (%v)", zones, err)
	}
	newest, err := client.MaxMicroversion(t.Context())
	if err != nil || newest < cinder.MicroversionMessages {
		t.Errorf("the newest microversion is 3.%d (%v)", newest, err)
	}
	quota, err := client.Quota(t.Context())
	if err != nil || quota.MaxVolumes < -1 || quota.MaxGigabytes < -1 || quota.Volumes < 0 || quota.Gigabytes < quota.Volumes {
		t.Errorf("the quota is %+v (%v)", quota, err)
	}
	if ahead, known := client.ClockAhead(); !known || ahead.Abs() > time.Hour {
		t.Errorf("the clock is %s ahead, %t", ahead, known)
	}
}

// adapter logs the program's own client in with an account.
func (target Target) adapter(t *testing.T, account Account) *cinder.Client {
	t.Helper()
	config, sources := target.source(account.Project, account)
	if target.noauth() {
		config, sources = target.source(target.Project, account)
	}
	found, err := sources.Resolve(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := cinder.Login(t.Context(), found, cinder.Options{
		Backend: target.Name, Workflow: cinder.WorkflowAuto, Limits: turns.Limits{Concurrency: 8},
		// Cinder retries a failing backend's driver for a while.
		RequestTimeout: 2 * time.Minute, Metrics: cinder.NewMetrics(prometheus.NewRegistry()),
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// keyReadings checks who reads the key of an encrypted volume, and what the others are
// told.
func keyReadings(t *testing.T, target Target, client *cinder.Client) {
	id := available(t, target, object{"volume_type": needType(t, target.Types.LUKS, "CONTRACT_TYPE_LUKS")})
	encryption, err := client.Encryption(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	key, err := client.Key(t.Context(), encryption.KeyID)
	if target.noauth() {
		wantKeyError(t, "without Keystone", err, cinder.KindConfig, "csi.encryption.fixedKeySecret")
		return
	}
	if err != nil || len(key.Passphrase()) != encryption.KeyBits/4 {
		t.Errorf("the key of %+v has %d digits (%v)", encryption, len(key.Passphrase()), err)
	}
	again, err := client.Key(t.Context(), encryption.KeyID)
	if err != nil || again.Passphrase() != key.Passphrase() {
		t.Errorf("the key is another one at the next reading (%v)", err)
	}
	for who, account := range map[string]*Account{"a member of another project": target.Keystone.Other, "an administrator of another project": target.Keystone.Admin} {
		if account != nil {
			_, err := target.adapter(t, *account).Key(t.Context(), encryption.KeyID)
			wantKeyError(t, who, err, cinder.KindForbidden, "does not give key "+encryption.KeyID)
		}
	}
	_, err = client.Key(t.Context(), "00000000-0000-4000-8000-000000000000")
	wantKeyError(t, "a key that is none", err, cinder.KindConfig, "has no key 00000000-0000-4000-8000-000000000000")
}

func wantKeyError(t *testing.T, who string, err error, kind cinder.Kind, text string) {
	t.Helper()
	if !cinder.IsKind(err, kind) || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want %s with %q", who, err, kind, text)
	}
}

// account returns the account for a target's cases; none in noauth mode.
func (target Target) account() Account {
	if target.noauth() {
		return Account{}
	}
	return target.Keystone.Member
}

// source returns where the program finds an account's credentials, and the
// environment for that.
func (target Target) source(project string, account Account) (auth.Config, auth.Sources) {
	if target.noauth() {
		return auth.Config{Source: auth.Source{Noauth: &auth.Noauth{Endpoint: target.Endpoint, User: "admin", Project: project}}}, auth.Sources{}
	}
	environment := map[string]string{
		"OS_AUTH_URL": target.Keystone.URL, "OS_USERNAME": account.User, "OS_PASSWORD": account.Password,
		"OS_PROJECT_NAME": account.Project, "OS_USER_DOMAIN_NAME": target.Keystone.Domain,
		"OS_PROJECT_DOMAIN_NAME": target.Keystone.Domain,
	}
	return auth.Config{Source: auth.Source{Environment: true}, Region: target.Keystone.Region},
		auth.Sources{Getenv: func(name string) string { return environment[name] }}
}
