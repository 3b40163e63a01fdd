package cinder

import (
	"context"
	"encoding/json"
	"math"
	"net/url"
	"strconv"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/jsonstream"
)

// What a project may use. Every member of a project may make these requests. Except for
// VolumeType, they serve checks only; nothing else in the daemon depends on them.

// VolumeType is a volume type that the project may use. A create request may
// name it by either field.
type VolumeType struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Zone is an availability zone.
type Zone struct {
	Name      string
	Available bool
}

// ProjectQuota is the project's quota, in volumes and GiB, and its use. A negative limit
// means unlimited.
type ProjectQuota struct {
	MaxVolumes   int64 `json:"maxTotalVolumes"`
	MaxGigabytes int64 `json:"maxTotalVolumeGigabytes"`
	Volumes      int64 `json:"totalVolumesUsed"`
	Gigabytes    int64 `json:"totalGigabytesUsed"`
}

const (
	typesPage = 500
	// The bounds are far beyond what a cloud has.
	maxTypes     = 10_000
	maxTypePages = 100
	maxZones     = 1_000
)

// VolumeTypes lists the volume types that the project may use. It does not follow
// Cinder's links, which may name an address that only Cinder can reach: each page begins
// after the last type of the previous one, and a page without new types is the last.
func (c projectClient) VolumeTypes(ctx context.Context) ([]VolumeType, error) {
	const operation = "type.list"
	var all []VolumeType
	seen := map[string]bool{}
	// Administrators see private types only if they ask for them, and may use
	// them all; for members, Cinder ignores this filter.
	query := url.Values{"is_public": {"None"}, "limit": {strconv.Itoa(typesPage)}}
	for range maxTypePages {
		var page []VolumeType
		err := c.read(ctx, operation, c.service.ServiceURL("types")+"?"+query.Encode(), "volume_types", func(decoder *json.Decoder) error {
			var t VolumeType
			err := decoder.Decode(&t)
			if err == nil && (t.ID == "" || len(all)+len(page) == maxTypes) {
				err = jsonstream.ErrUnexpectedJSON
			}
			page = append(page, t)
			return err
		})
		if err != nil {
			return nil, err
		}
		before := len(all)
		for _, t := range page {
			if !seen[t.ID] {
				seen[t.ID] = true
				all = append(all, t)
			}
		}
		if len(all) == before {
			return all, nil
		}
		query.Set("marker", page[len(page)-1].ID)
	}
	return nil, c.wrong(operation, "the list of volume types does not end")
}

// DefaultVolumeType returns the type of volumes created without one. KindNotFound means
// that there is none, or that Cinder's configured default does not exist.
func (c projectClient) DefaultVolumeType(ctx context.Context) (VolumeType, error) {
	return c.typeAt(ctx, "default")
}

// VolumeType reads a volume type by its ID. KindNotFound means that there is none, or
// that the project may not use it.
func (c projectClient) VolumeType(ctx context.Context, id string) (VolumeType, error) {
	if err := c.checkID(operationType, id); err != nil {
		return VolumeType{}, err
	}
	found, err := c.typeAt(ctx, id)
	if err == nil && !strings.EqualFold(found.ID, id) {
		return VolumeType{}, c.wrong(operationType, "the answer is about another volume type")
	}
	return found, err
}

const operationType = "type.get"

func (c projectClient) typeAt(ctx context.Context, at string) (VolumeType, error) {
	var answer struct {
		Type VolumeType `json:"volume_type"`
	}
	err := c.send(ctx, request{operation: operationType, path: []string{"types", at}, answer: &answer})
	if err == nil && answer.Type.ID == "" {
		err = c.wrong(operationType, notDescribed)
	}
	if err != nil {
		return VolumeType{}, err
	}
	return answer.Type, nil
}

// Zones lists the availability zones.
func (c projectClient) Zones(ctx context.Context) ([]Zone, error) {
	var zones []Zone
	err := c.read(ctx, "zone.list", c.service.ServiceURL("os-availability-zone"), "availabilityZoneInfo", func(decoder *json.Decoder) error {
		var document struct {
			Name  string `json:"zoneName"`
			State struct {
				Available bool `json:"available"`
			} `json:"zoneState"`
		}
		err := decoder.Decode(&document)
		if err == nil && (document.Name == "" || len(zones) == maxZones) {
			err = jsonstream.ErrUnexpectedJSON
		}
		zones = append(zones, Zone{Name: document.Name, Available: document.State.Available})
		return err
	})
	return zones, err
}

// Quota reads the project's quota from its limits, which show every member the two quotas
// that count, but none of single volume types.
func (c projectClient) Quota(ctx context.Context) (ProjectQuota, error) {
	const operation = "limits.get"
	const missing = math.MinInt64
	quota := ProjectQuota{missing, missing, missing, missing}
	var answer struct {
		Limits struct {
			Absolute *ProjectQuota `json:"absolute"`
		} `json:"limits"`
	}
	answer.Limits.Absolute = &quota
	err := c.send(ctx, request{operation: operation, path: []string{"limits"}, answer: &answer})
	if err == nil && min(quota.MaxVolumes, quota.MaxGigabytes, quota.Volumes, quota.Gigabytes) == missing {
		err = c.wrong(operation, notDescribed)
	}
	if err != nil {
		return ProjectQuota{}, err
	}
	return quota, nil
}

// read streams the list under a key of an answer. read takes each element from the
// decoder.
func (c projectClient) read(ctx context.Context, operation, address, under string, read func(decoder *json.Decoder) error) error {
	listed := false
	err := c.stream(ctx, operation, address, 0, func(decoder *json.Decoder, key string) (err error) {
		if key != under {
			return decoder.Decode(&jsonstream.Skipped{})
		}
		listed, err = jsonstream.Elements(decoder, func() error { return read(decoder) })
		return err
	})
	if err == nil && !listed {
		err = jsonstream.ErrUnexpectedJSON
	}
	return translate(c.backend, operation, err)
}
