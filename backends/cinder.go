package backends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
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
	config  Config
	service *gophercloud.ServiceClient
	place   Place
	// now is the time by Cinder's clock.
	now func() time.Time

	discovery    sync.Mutex
	microversion *int // nil until asked
}

// Place is where the client's volumes live.
func (c *Client) Place() Place { return c.place }

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
		return Volume{}, &Error{Backend: c.config.Name, Operation: operation, Kind: KindInvalid, Message: fmt.Sprintf("%d GiB is not a size", request.SizeGiB)}
	}
	result := volumes.Create(withOperation(ctx, operation), c.service, volumes.CreateOpts{
		Name:             request.Name,
		Size:             size,
		VolumeType:       request.Type,
		AvailabilityZone: request.Zone,
		Metadata:         c.requested(request.Metadata),
	}, nil)
	return c.volume(operation, result.Err, result.ExtractInto)
}

// requested adds to a stamp when the volume was asked for, by Cinder's own
// clock; see IsCopy.
func (c *Client) requested(metadata map[string]string) map[string]string {
	if _, stamped := metadata[stampCluster]; !stamped || c.now == nil {
		return metadata
	}
	metadata = maps.Clone(metadata)
	metadata[stampRequested] = c.now().UTC().Format(time.RFC3339)
	return metadata
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
	return Volume{}, &Error{Backend: c.config.Name, Operation: operation, Kind: KindNotFound, Status: http.StatusNotFound,
		Message: fmt.Sprintf("volume %s is not in the list of volumes", id)}
}

// volumeID is what may stand for a volume in an address. Cinder's ids are
// UUIDs; anything else of a path could lead elsewhere.
var volumeID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]*$`)

func (c *Client) checkID(operation, id string) error {
	if volumeID.MatchString(id) {
		return nil
	}
	return &Error{Backend: c.config.Name, Operation: operation, Kind: KindInvalid, Message: fmt.Sprintf("%q is not the id of a volume", id)}
}

func (c *Client) volume(operation string, err error, extract func(any) error) (Volume, error) {
	if err != nil {
		return Volume{}, translate(c.config.Name, operation, err)
	}
	var document volumeDocument
	if err := extract(&document); err != nil {
		return Volume{}, &Error{Backend: c.config.Name, Operation: operation, Kind: KindInternal, EffectUnknown: true, Message: notDescribed}
	}
	if document.ID == "" {
		return Volume{}, &Error{Backend: c.config.Name, Operation: operation, Kind: KindInternal, EffectUnknown: true,
			Message: "the answer names no volume"}
	}
	return document.volume(), nil
}

// VolumeQuery narrows a listing. Filters are a hint to the server, never
// trusted: Cinder compares names without case, accents and trailing blanks on
// some databases and answers unknown filters with an empty list. The caller
// compares again, and concludes from absence only when it set no filter.
type VolumeQuery struct {
	Status   Status
	PageSize int
}

// ListVolumes calls yield with every page until it returns false or the list
// ends. Pages are newest first where the server honors the order. A volume
// that exists from beginning to end is among them; none comes twice.
func (c *Client) ListVolumes(ctx context.Context, query VolumeQuery, yield func(page []Volume) (more bool)) error {
	const operation = "volume.list"
	ctx = withOperation(ctx, operation)
	values := url.Values{"sort": {"created_at:desc"}}
	if query.Status != "" {
		values.Set("status", string(query.Status))
	}
	if query.PageSize > 0 {
		values.Set("limit", strconv.Itoa(query.PageSize))
	}
	first := c.service.ServiceURL("volumes", "detail") + "?" + values.Encode()
	seen := map[string]bool{}
	var err error
	for range maxPasses {
		var broken bool
		if broken, err = c.pass(ctx, first, seen, yield); !broken {
			break
		}
	}
	return translate(c.config.Name, operation, absenceOfNothing(err))
}

// maxPasses bounds how often one listing begins again.
const maxPasses = 5

// pass reads a list from its beginning and yields what was not seen before. It
// is broken when the volume that a page was to begin behind has been deleted
// meanwhile, which Cinder answers with 404.
func (c *Client) pass(ctx context.Context, first string, seen map[string]bool, yield func(page []Volume) bool) (broken bool, err error) {
	visited := map[string]bool{}
	for next := first; next != ""; {
		if visited[next] {
			return false, &Error{Backend: c.config.Name, Operation: "volume.list", Kind: KindInternal, Message: "the list of volumes leads back to a page that was read before"}
		}
		visited[next] = true
		documents, following, err := c.page(ctx, next)
		if err != nil {
			return next != first && IsKind(err, KindNotFound), err
		}
		page := make([]Volume, 0, len(documents))
		for _, document := range documents {
			// A volume created between two pages shifts the window; the same
			// volume may then come twice.
			if !seen[document.ID] {
				seen[document.ID] = true
				page = append(page, document.volume())
			}
		}
		if len(documents) == 0 || len(page) > 0 && !yield(page) {
			return false, nil
		}
		next = following
	}
	return false, nil
}

// page reads one page and the address of the next.
func (c *Client) page(ctx context.Context, address string) (documents []volumeDocument, next string, err error) {
	var answer struct {
		Volumes []volumeDocument   `json:"volumes"`
		Links   []gophercloud.Link `json:"volumes_links"`
	}
	if _, err := c.service.Get(ctx, address, &answer, nil); err != nil {
		return nil, "", translate(c.config.Name, "volume.list", err)
	}
	if answer.Volumes == nil {
		return nil, "", &Error{Backend: c.config.Name, Operation: "volume.list", Kind: KindInternal, Message: "the answer has no list of volumes"}
	}
	next, err = c.nextPage(answer.Links)
	return answer.Volumes, next, err
}

// absenceOfNothing keeps a 404 for a listing from being taken for the absence
// of the volume that somebody looks for in it.
func absenceOfNothing(err error) error {
	var failed *Error
	if !errors.As(err, &failed) || failed.Kind != KindNotFound {
		return err
	}
	other := *failed
	other.Kind = KindUnavailable
	return &other
}

// nextPage keeps to the host and path prefix that the catalog gave: behind a
// proxy Cinder's links may name an address that only it knows.
func (c *Client) nextPage(links []gophercloud.Link) (string, error) {
	for _, link := range links {
		if link.Rel != "next" {
			continue
		}
		u, err := url.Parse(link.Href)
		if err != nil {
			return "", &Error{Backend: c.config.Name, Operation: "volume.list", Kind: KindInternal, Message: "the link to the next page is not an address"}
		}
		return c.service.ServiceURL("volumes", "detail") + "?" + u.RawQuery, nil
	}
	return "", nil
}

// DeleteVolume asks for a volume's deletion. It is done when the volume is
// gone, not when this returns.
func (c *Client) DeleteVolume(ctx context.Context, id string) error {
	const operation = "volume.delete"
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	result := volumes.Delete(withOperation(ctx, operation), c.service, id, nil)
	return translate(c.config.Name, operation, result.Err)
}

// ForceDeleteVolume asks for a deletion whatever the state; administrators
// only. It is the one way out of error_deleting.
func (c *Client) ForceDeleteVolume(ctx context.Context, id string) error {
	const operation = "volume.force-delete"
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	result := volumes.ForceDelete(withOperation(ctx, operation), c.service, id)
	return translate(c.config.Name, operation, result.Err)
}

// Reserve marks an available volume as being attached.
func (c *Client) Reserve(ctx context.Context, id string) error {
	const operation = "volume.os-reserve"
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	return translate(c.config.Name, operation, volumes.Reserve(withOperation(ctx, operation), c.service, id).Err)
}

// Unreserve takes a reservation back; it changes nothing on a volume that is
// available or in use.
func (c *Client) Unreserve(ctx context.Context, id string) error {
	const operation = "volume.os-unreserve"
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	return translate(c.config.Name, operation, volumes.Unreserve(withOperation(ctx, operation), c.service, id).Err)
}

// InitializeConnection exports the volume to the connector and returns the
// connection document as Cinder wrote it: {"driver_volume_type", "data"}. It
// is idempotent. The document may hold credentials; keep it out of logs.
func (c *Client) InitializeConnection(ctx context.Context, id string, connector Connector) ([]byte, error) {
	const operation = "volume.os-initialize_connection"
	if err := c.checkID(operation, id); err != nil {
		return nil, err
	}
	result := volumes.InitializeConnection(withOperation(ctx, operation), c.service, id, connectorRequest{"os-initialize_connection", connector})
	if result.Err != nil {
		return nil, translate(c.config.Name, operation, result.Err)
	}
	var answer struct {
		ConnectionInfo json.RawMessage `json:"connection_info"`
	}
	if err := result.ExtractInto(&answer); err != nil || len(answer.ConnectionInfo) == 0 || string(answer.ConnectionInfo) == "null" {
		return nil, &Error{Backend: c.config.Name, Operation: operation, Kind: KindInternal, Message: "the answer has no connection_info"}
	}
	return answer.ConnectionInfo, nil
}

// TerminateConnection takes the connector's access away. On a volume that was
// reserved and never attached, Cinder also takes the reservation back.
func (c *Client) TerminateConnection(ctx context.Context, id string, connector Connector) error {
	const operation = "volume.os-terminate_connection"
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	result := volumes.TerminateConnection(withOperation(ctx, operation), c.service, id, connectorRequest{"os-terminate_connection", connector})
	return translate(c.config.Name, operation, result.Err)
}

// Attach moves a volume to in-use. It never names an instance: Cinder would
// then let only Nova delete the attachment (CVE-2023-2088).
func (c *Client) Attach(ctx context.Context, id, host string, readOnly bool) error {
	const operation = "volume.os-attach"
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	mode := volumes.ReadWrite
	if readOnly {
		mode = volumes.ReadOnly
	}
	result := volumes.Attach(withOperation(ctx, operation), c.service, id, volumes.AttachOpts{
		HostName:   host,
		MountPoint: "/dev/standalone-cinder",
		Mode:       mode,
	})
	return translate(c.config.Name, operation, result.Err)
}

// Detach ends one attachment; with several on a volume Cinder insists on its
// id. Detaching removes the export.
func (c *Client) Detach(ctx context.Context, id, attachmentID string) error {
	const operation = "volume.os-detach"
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	result := volumes.Detach(withOperation(ctx, operation), c.service, id, volumes.DetachOpts{AttachmentID: attachmentID})
	return translate(c.config.Name, operation, result.Err)
}

// connectorRequest is the body of the two connection actions. gophercloud's
// own options know no NQN.
type connectorRequest struct {
	action    string
	connector Connector
}

func (r connectorRequest) body() map[string]any {
	return map[string]any{r.action: map[string]any{"connector": r.connector.request()}}
}

func (r connectorRequest) ToVolumeInitializeConnectionMap() (map[string]any, error) {
	return r.body(), nil
}

func (r connectorRequest) ToVolumeTerminateConnectionMap() (map[string]any, error) {
	return r.body(), nil
}

// volumeDocument is a volume as the API writes it. It reads more leniently
// than gophercloud's type, whose dates admit one form only.
type volumeDocument struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Status      string            `json:"status"`
	Size        int64             `json:"size"`
	Type        string            `json:"volume_type"`
	Zone        string            `json:"availability_zone"`
	Encrypted   bool              `json:"encrypted"`
	MultiAttach bool              `json:"multiattach"`
	Metadata    map[string]string `json:"metadata"`
	CreatedAt   string            `json:"created_at"`
	Attachments []struct {
		AttachmentID string `json:"attachment_id"`
		HostName     string `json:"host_name"`
		ServerID     string `json:"server_id"`
	} `json:"attachments"`
}

func (d volumeDocument) volume() Volume {
	v := Volume{
		ID:          d.ID,
		Name:        d.Name,
		Status:      Status(d.Status),
		SizeGiB:     d.Size,
		Type:        d.Type,
		Zone:        d.Zone,
		Encrypted:   d.Encrypted,
		MultiAttach: d.MultiAttach,
		Metadata:    d.Metadata,
		CreatedAt:   parseTime(d.CreatedAt),
	}
	for _, a := range d.Attachments {
		v.Attachments = append(v.Attachments, Attachment{ID: a.AttachmentID, Host: a.HostName, ServerID: a.ServerID})
	}
	return v
}

// parseTime reads Cinder's time stamps, which are UTC without saying so.
func parseTime(text string) time.Time {
	for _, layout := range []string{"2006-01-02T15:04:05.999999", time.RFC3339Nano} {
		if t, err := time.Parse(layout, text); err == nil {
			return t
		}
	}
	return time.Time{}
}
