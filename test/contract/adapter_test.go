package contract

import (
	"slices"
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
			config, sources := target.source(target.Project, target.account())
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
			t.Run("what the project may use", func(t *testing.T) { projectReadings(t, target, client) })
			cindercontract.Run(t, cindercontract.Target{
				Cinder: patient{client, target.Lag}, Member: !target.noauth(), Type: target.Types.ISCSI, OtherType: target.Types.Other, SharedType: target.Types.Shared, FailingType: target.Types.Fail, Wait: target.Wait, Poll: target.Poll,
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
