package contract

import (
	"net/http"
	"strconv"
	"testing"
)

// limited is a project with its own quotas, and an account that uses it.
type limited struct {
	member, admin *client
	project       string
	target        Target
	volumes       int // existing volumes
	gigabytes     int
}

// newLimited picks a project whose quotas a case may change: a new one in
// noauth mode, otherwise the target's, whose quotas it restores when the test
// ends.
func newLimited(t *testing.T, target Target) *limited {
	t.Helper()
	if target.noauth() {
		project := scratchProject(t)
		c := target.noauthClient(project)
		return &limited{member: c, admin: c, project: project, target: target}
	}
	l := &limited{member: target.client(), admin: target.admin(t), project: target.Project, target: target}
	usage := l.admin.call(t, "GET", "/os-quota-sets/"+l.project+"?usage=True", nil).want(t, http.StatusOK).object(t, "quota_set")
	before := object{}
	for _, name := range []string{"volumes", "gigabytes", "snapshots"} {
		before[name] = usage[name].(map[string]any)["limit"]
	}
	l.volumes = int(usage["volumes"].(map[string]any)["in_use"].(float64))
	l.gigabytes = int(usage["gigabytes"].(map[string]any)["in_use"].(float64))
	t.Cleanup(func() { l.set(t, before) })
	return l
}

func (l *limited) set(t testing.TB, limits object) {
	t.Helper()
	l.admin.call(t, "PUT", "/os-quota-sets/"+l.project, object{"quota_set": limits}).want(t, http.StatusOK)
}

// tryCreate requests a volume of a size.
func (l *limited) tryCreate(t testing.TB, size int) answer {
	t.Helper()
	got := l.member.call(t, "POST", "/volumes", object{"volume": object{
		"name": unique(t, "quota"), "size": size, "volume_type": l.target.Types.ISCSI,
	}})
	if got.status == http.StatusAccepted {
		removed(t, l.target, l.member, got.object(t, "volume")["id"].(string))
	}
	return got
}

func (l *limited) create(t testing.TB, size int) string {
	t.Helper()
	id := l.tryCreate(t, size).want(t, http.StatusAccepted).object(t, "volume")["id"].(string)
	waitStatus(t, l.target, l.member, id, "available")
	return id
}

// wantOverLimit requires the 413 of an exceeded quota.
func wantOverLimit(t testing.TB, got answer, message string) {
	t.Helper()
	got.wantError(t, http.StatusRequestEntityTooLarge, "overLimit", message)
	got.wantHeader(t, "Retry-After", "0")
	if got.object(t, "overLimit")["retryAfter"] != "0" {
		t.Errorf("the body is %s", got.raw)
	}
}

func quotaCases() []testCase {
	return []testCase{
		{"quota: a volume too many is a 413 that need not be retried", both, func(t *testing.T, target Target) {
			l := newLimited(t, target)
			l.set(t, object{"volumes": l.volumes + 1})
			l.create(t, 1)
			wantOverLimit(t, l.tryCreate(t, 1), "VolumeLimitExceeded: Maximum number of volumes allowed ("+number(l.volumes+1)+
				") exceeded for quota 'volumes'.")
		}},
		{"quota: gigabytes, for creates and extends", both, func(t *testing.T, target Target) {
			l := newLimited(t, target)
			l.set(t, object{"gigabytes": l.gigabytes + 3})
			id := l.create(t, 1)
			consumed := number(l.gigabytes+3) + "G and " + number(l.gigabytes+1) + "G has been consumed."
			const exceeds = "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. Requested "
			wantOverLimit(t, l.tryCreate(t, 5), exceeds+"5G, quota is "+consumed)
			wantOverLimit(t, act(t, l.member, id, "os-extend", object{"new_size": 9}), exceeds+"8G, quota is "+consumed)
			wantStatus(t, l.member, id, "available")
		}},
		{"quota: snapshots count, with their gigabytes", onlyNoauth, func(t *testing.T, target Target) {
			l := newLimited(t, target)
			l.set(t, object{"snapshots": 1})
			volume := l.create(t, 1)
			owned := l.target
			owned.Project, owned.token = l.project, l.member.token
			snapshotOf(t, owned, volume, nil)
			wantOverLimit(t, l.member.call(t, "POST", "/snapshots", object{"snapshot": object{"volume_id": volume}}),
				"SnapshotLimitExceeded: Maximum number of snapshots allowed (1) exceeded")
			l.wantUsage(t, 1, 2, 1)
		}},
		{"quota: usage and limits follow what exists", onlyNoauth, func(t *testing.T, target Target) {
			l := newLimited(t, target)
			l.set(t, object{"volumes": 7, "gigabytes": 70})
			l.wantUsage(t, 0, 0, 0)
			id := l.create(t, 2)
			l.wantUsage(t, 1, 2, 0)
			act(t, l.member, id, "os-extend", object{"new_size": 3}).wantEmpty(t, http.StatusAccepted)
			waitStatus(t, target, l.member, id, "available")
			l.wantUsage(t, 1, 3, 0)
			l.member.call(t, "DELETE", "/volumes/"+id, nil).wantEmpty(t, http.StatusAccepted)
			waitGone(t, target, l.member, "/volumes/"+id)
			l.wantUsage(t, 0, 0, 0)
			absolute := l.member.call(t, "GET", "/limits", nil).want(t, http.StatusOK).object(t, "limits", "absolute")
			if absolute["maxTotalVolumes"] != 7.0 || absolute["maxTotalVolumeGigabytes"] != 70.0 {
				t.Errorf("the limits are %v", absolute)
			}
		}},
		{"quota: a type has quotas of its own", onlyNoauth, func(t *testing.T, target Target) {
			l := newLimited(t, target)
			resource := "gigabytes_" + target.Types.ISCSI
			l.set(t, object{resource: 1})
			l.create(t, 1)
			wantOverLimit(t, l.tryCreate(t, 1), "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed "+resource+
				" quota. Requested 1G, quota is 1G and 1G has been consumed.")
		}},
		{"quota: a quota set that is deleted gives the defaults again", onlyNoauth, func(t *testing.T, target Target) {
			l := newLimited(t, target)
			path := "/os-quota-sets/" + l.project
			before := l.admin.call(t, "GET", path, nil).want(t, http.StatusOK).object(t, "quota_set")
			l.set(t, object{"volumes": 3})
			if now := l.admin.call(t, "GET", path, nil).want(t, http.StatusOK).object(t, "quota_set"); now["volumes"] != 3.0 || now["id"] != l.project {
				t.Errorf("the quotas are %v", now)
			}
			l.admin.call(t, "DELETE", path, nil).wantEmpty(t, http.StatusOK)
			after := l.admin.call(t, "GET", path, nil).want(t, http.StatusOK).object(t, "quota_set")
			defaults := l.admin.call(t, "GET", path+"/defaults", nil).want(t, http.StatusOK).object(t, "quota_set")
			if !same(before, after) || !same(after, defaults) {
				t.Errorf("before %v, after %v, defaults %v", before, after, defaults)
			}
		}},
		{"quota: a member may read the usage", onlyKeystone, func(t *testing.T, target Target) {
			set := target.client().call(t, "GET", "/os-quota-sets/"+target.Project+"?usage=True", nil).want(t, http.StatusOK).object(t, "quota_set")
			for _, name := range []string{"volumes", "gigabytes", "snapshots"} {
				usage, _ := set[name].(map[string]any)
				for _, field := range []string{"limit", "in_use", "reserved"} {
					if _, ok := usage[field].(float64); !ok {
						t.Errorf("%s is %v", name, set[name])
					}
				}
			}
		}},
	}
}

// wantUsage requires what a project uses, according to its quotas and its
// limits.
func (l *limited) wantUsage(t testing.TB, volumes, gigabytes, snapshots int) {
	t.Helper()
	set := l.member.call(t, "GET", "/os-quota-sets/"+l.project+"?usage=True", nil).want(t, http.StatusOK).object(t, "quota_set")
	absolute := l.member.call(t, "GET", "/limits", nil).want(t, http.StatusOK).object(t, "limits", "absolute")
	for _, check := range []struct {
		resource, used string
		want           int
	}{
		{"volumes", "totalVolumesUsed", volumes},
		{"gigabytes", "totalGigabytesUsed", gigabytes},
		{"snapshots", "totalSnapshotsUsed", snapshots},
	} {
		if got := set[check.resource].(map[string]any)["in_use"]; got != float64(check.want) {
			t.Errorf("%s in use: %v, want %d", check.resource, got, check.want)
		}
		if got := absolute[check.used]; got != float64(check.want) {
			t.Errorf("%s: %v, want %d", check.used, got, check.want)
		}
	}
}

func number(n int) string { return strconv.Itoa(n) }
