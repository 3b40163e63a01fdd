package cindersim

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
)

// usage is what a project uses, by Cinder's resource names.
type usage struct {
	inUse, reserved map[string]int
}

func (c *cloud) usageOf(project string) *usage {
	u := c.usage[project]
	if u == nil {
		u = &usage{inUse: make(map[string]int), reserved: make(map[string]int)}
		c.usage[project] = u
	}
	return u
}

// charge adds volumes and GiB to the usage of a project and their type.
func (c *cloud) charge(project string, kind *drivers.VolumeType, volumes, gigabytes int) {
	inUse := c.usageOf(project).inUse
	inUse["volumes"] += volumes
	inUse["volumes_"+kind.Name] += volumes
	inUse["gigabytes"] += gigabytes
	inUse["gigabytes_"+kind.Name] += gigabytes
}

// chargeSnapshot adds a snapshot, which also counts its GiB.
func (c *cloud) chargeSnapshot(project string, kind *drivers.VolumeType, sign, gigabytes int) {
	inUse := c.usageOf(project).inUse
	inUse["snapshots"] += sign
	inUse["snapshots_"+kind.Name] += sign
	inUse["gigabytes"] += sign * gigabytes
	inUse["gigabytes_"+kind.Name] += sign * gigabytes
}

// chargeBackup adds a backup and its GiB.
func (c *cloud) chargeBackup(project string, sign, gigabytes int) {
	inUse := c.usageOf(project).inUse
	inUse["backups"] += sign
	inUse["backup_gigabytes"] += sign * gigabytes
}

// reserve books GiB that an extend may soon use.
func (c *cloud) reserve(v *volume, gigabytes int) {
	reserved := c.usageOf(v.project).reserved
	reserved["gigabytes"] += gigabytes
	reserved["gigabytes_"+v.kind.Name] += gigabytes
}

// limit returns a project's limit of a resource; -1 is unlimited.
func (c *cloud) limit(project, resource string) int {
	if own, ok := c.quotas[project][resource]; ok {
		return own
	}
	return c.defaultLimit(resource)
}

func (c *cloud) defaultLimit(resource string) int {
	if general, ok := c.options.Quota[resource]; ok {
		return general
	}
	return -1
}

// exceeded returns the alphabetically first resource whose limit the additions
// would exceed, as Cinder reports it, with its limit and the current usage.
func (c *cloud) exceeded(project string, additions map[string]int) (resource string, limit, consumed int, over bool) {
	u := c.usageOf(project)
	for _, name := range slices.Sorted(maps.Keys(additions)) {
		limit, consumed := c.limit(project, name), u.inUse[name]+u.reserved[name]
		if limit >= 0 && consumed+additions[name] > limit {
			return name, limit, consumed, true
		}
	}
	return "", 0, 0, false
}

// admitVolume checks a new volume against its project's quotas.
func (c *cloud) admitVolume(project string, kind *drivers.VolumeType, size int) error {
	if limit := c.limit(project, "per_volume_gigabytes"); limit >= 0 && size > limit {
		return overLimit("VolumeSizeExceedsLimit: Requested volume size %dG is larger than maximum allowed limit %dG.", size, limit)
	}
	name, limit, consumed, over := c.exceeded(project, map[string]int{
		"volumes": 1, "volumes_" + kind.Name: 1, "gigabytes": size, "gigabytes_" + kind.Name: size,
	})
	if !over {
		return nil
	}
	if strings.HasPrefix(name, "gigabytes") {
		return sizeOverLimit(name, size, limit, consumed)
	}
	return overLimit("VolumeLimitExceeded: Maximum number of volumes allowed (%d) exceeded for quota '%s'.", limit, name)
}

// admitSnapshot checks a new snapshot.
func (c *cloud) admitSnapshot(project string, kind *drivers.VolumeType, size int) error {
	name, limit, consumed, over := c.exceeded(project, map[string]int{
		"snapshots": 1, "snapshots_" + kind.Name: 1, "gigabytes": size, "gigabytes_" + kind.Name: size,
	})
	if !over {
		return nil
	}
	if strings.HasPrefix(name, "gigabytes") {
		return sizeOverLimit(name, size, limit, consumed)
	}
	return overLimit("SnapshotLimitExceeded: Maximum number of snapshots allowed (%d) exceeded", limit)
}

// admitBackup checks a new backup.
func (c *cloud) admitBackup(project string, size int) error {
	name, limit, consumed, over := c.exceeded(project, map[string]int{"backups": 1, "backup_gigabytes": size})
	switch {
	case !over:
		return nil
	case name == "backup_gigabytes":
		return overLimit("VolumeBackupSizeExceedsAvailableQuota: Requested backup exceeds allowed Backup gigabytes quota. "+
			"Requested %dG, quota is %dG and %dG has been consumed.", size, limit, consumed)
	}
	return overLimit("BackupLimitExceeded: Maximum number of backups allowed (%d) exceeded", limit)
}

// admitExtend checks the growth of a volume. Cinder always names the project's
// gigabytes quota in its answer, whichever was exceeded.
func (c *cloud) admitExtend(v *volume, newSize int) error {
	if limit := c.limit(v.project, "per_volume_gigabytes"); limit >= 0 && newSize > limit {
		return overLimit("VolumeSizeExceedsLimit: Requested volume size %dG is larger than maximum allowed limit %dG.", newSize, limit)
	}
	growth := newSize - v.size
	if _, _, _, over := c.exceeded(v.project, map[string]int{"gigabytes": growth, "gigabytes_" + v.kind.Name: growth}); over {
		u := c.usageOf(v.project)
		return sizeOverLimit("gigabytes", growth, c.limit(v.project, "gigabytes"), u.inUse["gigabytes"]+u.reserved["gigabytes"])
	}
	return nil
}

func sizeOverLimit(resource string, requested, limit, consumed int) error {
	return overLimit("VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed %s quota. "+
		"Requested %dG, quota is %dG and %dG has been consumed.", resource, requested, limit, consumed)
}

// quotaResources returns the names of a quota set.
func (c *cloud) quotaResources() []string {
	names := []string{"volumes", "per_volume_gigabytes", "snapshots", "gigabytes", "backups", "backup_gigabytes", "groups"}
	for _, kind := range c.types {
		names = append(names, "volumes_"+kind.Name, "gigabytes_"+kind.Name, "snapshots_"+kind.Name)
	}
	return names
}

func (c *cloud) quotaSet(limit func(resource string) any) map[string]any {
	set := make(map[string]any)
	for _, name := range c.quotaResources() {
		set[name] = limit(name)
	}
	return set
}

func (c *cloud) showQuota(q *call, project string) (*reply, error) {
	if !q.admin && project != q.project {
		return nil, forbidden("volume_extension:quotas:show")
	}
	withUsage, err := q.flag("usage")
	if err != nil {
		return nil, err
	}
	set := c.quotaSet(func(name string) any {
		if !withUsage {
			return c.limit(project, name)
		}
		u := c.usageOf(project)
		return map[string]int{"limit": c.limit(project, name), "in_use": u.inUse[name], "reserved": u.reserved[name]}
	})
	set["id"] = project
	return success(http.StatusOK, map[string]any{"quota_set": set}), nil
}

func (c *cloud) defaultQuota(q *call, project string) (*reply, error) {
	if !q.admin && project != q.project {
		return nil, forbidden("volume_extension:quotas:show")
	}
	set := c.quotaSet(func(name string) any { return c.defaultLimit(name) })
	set["id"] = project
	return success(http.StatusOK, map[string]any{"quota_set": set}), nil
}

func (c *cloud) updateQuota(q *call, project string) (*reply, error) {
	if !q.admin {
		return nil, forbidden("volume_extension:quotas:update")
	}
	set, err := q.entity("quota_set")
	if err != nil {
		return nil, err
	}
	known := c.quotaResources()
	limits := make(map[string]int, len(set))
	for name, value := range set {
		if name == "tenant_id" || name == "id" {
			continue
		}
		if !slices.Contains(known, name) {
			return nil, refuse(http.StatusBadRequest, "Invalid input received: Bad key(s) in quota set: %s", name)
		}
		number, ok := value.(json.Number)
		if text, isText := value.(string); isText && fields.Digits(text) {
			return nil, refuse(http.StatusBadRequest, messageMalformed)
		}
		if !ok {
			return nil, refuse(http.StatusBadRequest, "%s must be an integer", name)
		}
		limit, err := number.Int64()
		if err != nil || limit < -1 || limit > fields.MaxInteger {
			return nil, refuse(http.StatusBadRequest, "%s must be >= -1", name)
		}
		u := c.usageOf(project)
		if _, own := c.quotas[project][name]; own && limit >= 0 && int(limit) < u.inUse[name]+u.reserved[name] {
			return nil, refuse(http.StatusBadRequest, "Quota %s limit must be equal or greater than existing resources. "+
				"Current usage is %d and the requested limit is %d.", name, u.inUse[name]+u.reserved[name], limit)
		}
		limits[name] = int(limit)
	}
	c.setQuota(project, limits)
	return success(http.StatusOK, map[string]any{
		"quota_set": c.quotaSet(func(name string) any { return c.limit(project, name) }),
	}), nil
}

func (c *cloud) setQuota(project string, limits map[string]int) {
	if c.quotas[project] == nil {
		c.quotas[project] = make(map[string]int)
	}
	maps.Copy(c.quotas[project], limits)
}

func (c *cloud) deleteQuota(q *call, project string) (*reply, error) {
	if !q.admin {
		return nil, forbidden("volume_extension:quotas:delete")
	}
	delete(c.quotas, project)
	return &reply{status: http.StatusOK}, nil
}

func (c *cloud) showLimits(q *call) (*reply, error) {
	inUse := c.usageOf(q.project).inUse
	return success(http.StatusOK, map[string]any{"limits": map[string]any{
		"rate": []any{},
		"absolute": map[string]int{
			"maxTotalVolumes":          c.limit(q.project, "volumes"),
			"maxTotalSnapshots":        c.limit(q.project, "snapshots"),
			"maxTotalVolumeGigabytes":  c.limit(q.project, "gigabytes"),
			"maxTotalBackups":          c.limit(q.project, "backups"),
			"maxTotalBackupGigabytes":  c.limit(q.project, "backup_gigabytes"),
			"totalVolumesUsed":         inUse["volumes"],
			"totalGigabytesUsed":       inUse["gigabytes"],
			"totalSnapshotsUsed":       inUse["snapshots"],
			"totalBackupsUsed":         inUse["backups"],
			"totalBackupGigabytesUsed": inUse["backup_gigabytes"],
		},
	}}), nil
}
