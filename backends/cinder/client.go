package cinder

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/volumes"
)

// Client speaks to one Cinder endpoint as one account. Every method is one
// request (listings: one a page) and returns *Error on failure.
type Client struct {
	backend  string
	workflow Workflow // as it is configured
	service  *gophercloud.ServiceClient
	place    Place
	// now is the time by Cinder's clock.
	now func() time.Time

	discovery    sync.Mutex
	microversion *int // nil until asked
}

// Backend is the name of the client's backend.
func (c *Client) Backend() string { return c.backend }

// Place is where the client's volumes live.
func (c *Client) Place() Place { return c.place }

// Now is the time by Cinder's clock, as far as its answers have told it.
func (c *Client) Now() time.Time { return c.now() }

// NewVolume is a create request.
type NewVolume struct {
	Name     string
	SizeGiB  int64
	Type     string
	Zone     string
	Metadata map[string]string
}

// CreateVolume asks for a volume; the answer comes before it is available.
// Cinder does not mind a second volume of the same name: the caller looks
// before it creates.
func (c *Client) CreateVolume(ctx context.Context, request NewVolume) (Volume, error) {
	const operation = "volume.create"
	size, err := strconv.Atoi(strconv.FormatInt(request.SizeGiB, 10))
	if err != nil || size < 1 {
		return Volume{}, &Error{Backend: c.backend, Operation: operation, Kind: KindInvalid, Message: fmt.Sprintf("%d GiB is not a size", request.SizeGiB)}
	}
	result := volumes.Create(withOperation(ctx, operation), c.service, volumes.CreateOpts{
		Name:             request.Name,
		Size:             size,
		VolumeType:       request.Type,
		AvailabilityZone: request.Zone,
		Metadata:         request.Metadata,
	}, nil)
	return c.volume(operation, result.Err, result.ExtractInto)
}

// Volume reads one volume. Where a 404 does not come from Cinder's own words, a
// listing must confirm it (more requests): "gone" ends the care for a volume.
func (c *Client) Volume(ctx context.Context, id string) (Volume, error) {
	const operation = "volume.get"
	if err := c.checkID(operation, id); err != nil {
		return Volume{}, err
	}
	result := volumes.Get(withOperation(ctx, operation), c.service, id)
	v, err := c.volume(operation, result.Err, result.ExtractInto)
	if statusOf(err) != http.StatusNotFound || IsKind(err, KindNotFound) {
		return v, err
	}
	listed := false
	listErr := c.ListVolumes(ctx, VolumeQuery{PageSize: 1000}, func(page []Volume) bool {
		listed = slices.ContainsFunc(page, func(v Volume) bool { return v.ID == id })
		return !listed
	})
	if listErr != nil || listed {
		return Volume{}, err
	}
	return Volume{}, &Error{Backend: c.backend, Operation: operation, Kind: KindNotFound, Status: http.StatusNotFound,
		Message: fmt.Sprintf("volume %s is not in the list of volumes", id)}
}

// volumeID is what may stand for a volume in an address. Cinder's ids are
// UUIDs; anything else of a path could lead elsewhere.
var volumeID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]*$`)

func (c *Client) checkID(operation, id string) error {
	if volumeID.MatchString(id) {
		return nil
	}
	return &Error{Backend: c.backend, Operation: operation, Kind: KindInvalid, Message: fmt.Sprintf("%q is not the id of a volume", id)}
}

func (c *Client) volume(operation string, err error, extract func(any) error) (Volume, error) {
	if err != nil {
		return Volume{}, translate(c.backend, operation, err)
	}
	var document volumeDocument
	if err := extract(&document); err != nil {
		return Volume{}, &Error{Backend: c.backend, Operation: operation, Kind: KindInternal, EffectUnknown: true, Message: notDescribed}
	}
	if document.ID == "" {
		return Volume{}, &Error{Backend: c.backend, Operation: operation, Kind: KindInternal, EffectUnknown: true,
			Message: "the answer names no volume"}
	}
	return document.volume(), nil
}

// DeleteVolume asks for a volume's deletion. It is done when the volume is
// gone, not when this returns.
func (c *Client) DeleteVolume(ctx context.Context, id string) error {
	const operation = "volume.delete"
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	result := volumes.Delete(withOperation(ctx, operation), c.service, id, nil)
	return translate(c.backend, operation, result.Err)
}

// ForceDeleteVolume asks for a deletion whatever the state; administrators
// only. It is the one way out of error_deleting.
func (c *Client) ForceDeleteVolume(ctx context.Context, id string) error {
	const operation = "volume.force-delete"
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	result := volumes.ForceDelete(withOperation(ctx, operation), c.service, id)
	return translate(c.backend, operation, result.Err)
}

// UpdateMetadata writes metadata on a volume; keys that are not named stay.
func (c *Client) UpdateMetadata(ctx context.Context, id string, metadata map[string]string) error {
	const operation = "metadata.update"
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	body := map[string]any{"metadata": metadata}
	_, err := c.service.Post(withOperation(ctx, operation), c.service.ServiceURL("volumes", id, "metadata"), body, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK}})
	return translate(c.backend, operation, err)
}
