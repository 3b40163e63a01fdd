package cinder

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/jsonstream"
)

// What a project may use. Every member of a project may make these requests. Except for
// VolumeType, they serve checks only; nothing else in the daemon depends on them.

// VolumeType is a volume type that the project may use. A create request may
// name it by either field.
type VolumeType struct{ ID, Name string }

// Zone is an availability zone.
type Zone struct {
	Name      string
	Available bool
}

// ProjectQuota is the project's quota, in volumes and GiB, and its use. A negative limit
// means unlimited.
type ProjectQuota struct {
	MaxVolumes, MaxGigabytes int64
	Volumes, Gigabytes       int64
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
			var document struct {
				ID   jsonstream.Text `json:"id"`
				Name jsonstream.Text `json:"name"`
			}
			if err := decoder.Decode(&document); err != nil {
				return err
			}
			if document.ID.Odd || document.Name.Odd || document.ID.Value == "" || len(all)+len(page) == maxTypes {
				return jsonstream.ErrUnexpectedJSON
			}
			page = append(page, VolumeType{ID: document.ID.Value, Name: document.Name.Value})
			return nil
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
	const operation = operationType
	var answer struct {
		Type struct {
			ID   jsonstream.Text `json:"id"`
			Name jsonstream.Text `json:"name"`
		} `json:"volume_type"`
	}
	if err := c.send(ctx, request{operation: operation, path: []string{"types", at}, answer: &answer}); err != nil {
		return VolumeType{}, err
	}
	if answer.Type.ID.Odd || answer.Type.Name.Odd || answer.Type.ID.Value == "" {
		return VolumeType{}, translate(c.backend, operation, jsonstream.ErrUnexpectedJSON)
	}
	return VolumeType{ID: answer.Type.ID.Value, Name: answer.Type.Name.Value}, nil
}

// Zones lists the availability zones.
func (c projectClient) Zones(ctx context.Context) ([]Zone, error) {
	var zones []Zone
	err := c.read(ctx, "zone.list", c.service.ServiceURL("os-availability-zone"), "availabilityZoneInfo", func(decoder *json.Decoder) error {
		var document struct {
			Name  jsonstream.Text `json:"zoneName"`
			State struct {
				Available jsonstream.Flag `json:"available"`
			} `json:"zoneState"`
		}
		if err := decoder.Decode(&document); err != nil {
			return err
		}
		if document.Name.Odd || document.State.Available.Odd || document.Name.Value == "" || len(zones) == maxZones {
			return jsonstream.ErrUnexpectedJSON
		}
		zones = append(zones, Zone{Name: document.Name.Value, Available: document.State.Available.Value})
		return nil
	})
	return zones, err
}

// Quota reads the project's quota from its limits, which show every member the two quotas
// that count, but none of single volume types.
func (c projectClient) Quota(ctx context.Context) (ProjectQuota, error) {
	const operation = "limits.get"
	var answer struct {
		Limits struct {
			Absolute struct {
				MaxVolumes   *json.Number `json:"maxTotalVolumes"`
				MaxGigabytes *json.Number `json:"maxTotalVolumeGigabytes"`
				Volumes      *json.Number `json:"totalVolumesUsed"`
				Gigabytes    *json.Number `json:"totalGigabytesUsed"`
			} `json:"absolute"`
		} `json:"limits"`
	}
	if err := c.send(ctx, request{operation: operation, path: []string{"limits"}, answer: &answer}); err != nil {
		return ProjectQuota{}, err
	}
	var quota ProjectQuota
	for _, field := range []struct {
		from *json.Number
		to   *int64
	}{
		{answer.Limits.Absolute.MaxVolumes, &quota.MaxVolumes},
		{answer.Limits.Absolute.MaxGigabytes, &quota.MaxGigabytes},
		{answer.Limits.Absolute.Volumes, &quota.Volumes},
		{answer.Limits.Absolute.Gigabytes, &quota.Gigabytes},
	} {
		if field.from == nil {
			return ProjectQuota{}, translate(c.backend, operation, jsonstream.ErrUnexpectedJSON)
		}
		var err error
		if *field.to, err = field.from.Int64(); err != nil {
			return ProjectQuota{}, translate(c.backend, operation, jsonstream.ErrUnexpectedJSON)
		}
	}
	return quota, nil
}

// MaxMicroversion returns the newest minor version of v3 that the endpoint
// offers; 0 if it lists none.
func (c projectClient) MaxMicroversion(ctx context.Context) (int, error) {
	return c.maxMicroversion(ctx)
}

// read streams the list under a key of an answer. read takes each element from the
// decoder.
func (c projectClient) read(ctx context.Context, operation, address, under string, read func(decoder *json.Decoder) error) error {
	listed := false
	err := c.stream(ctx, operation, address, func(decoder *json.Decoder, key string) (err error) {
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
