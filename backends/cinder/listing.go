package cinder

import (
	"context"
	"errors"
	"net/url"
	"strconv"

	"github.com/gophercloud/gophercloud/v2"
)

// VolumeQuery narrows a listing. The program never trusts a server's filter:
// Cinder compares names without case, accents and trailing blanks on some
// databases, and answers unknown filters with an empty list. The caller
// compares again, and concludes anything from absence only if it set no filter.
type VolumeQuery struct {
	Status   Status
	PageSize int
}

// ListVolumes calls yield with every page until it returns false or the list
// ends. Pages are newest first if the server honors the order. A volume that
// exists from beginning to end is among them; no volume comes twice.
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
	return translate(c.backend, operation, absenceOfNothing(err))
}

// maxPasses bounds how often one listing restarts.
const maxPasses = 5

// pass reads a list from its beginning and yields what was not yet seen. It is
// broken if the volume after which a page was to begin has been deleted
// meanwhile; Cinder answers that with 404.
func (c *Client) pass(ctx context.Context, first string, seen map[string]bool, yield func(page []Volume) bool) (broken bool, err error) {
	visited := map[string]bool{}
	for next := first; next != ""; {
		if visited[next] {
			return false, &Error{Backend: c.backend, Operation: "volume.list", Kind: KindInternal, Message: "the list of volumes links back to a page that was already read"}
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
		return nil, "", translate(c.backend, "volume.list", err)
	}
	if answer.Volumes == nil {
		return nil, "", &Error{Backend: c.backend, Operation: "volume.list", Kind: KindInternal, Message: "the answer has no list of volumes"}
	}
	next, err = c.nextPage(answer.Links)
	return answer.Volumes, next, err
}

// absenceOfNothing keeps a 404 to a listing from being read as the absence of
// the volume that the caller looks for.
func absenceOfNothing(err error) error {
	var failed *Error
	if !errors.As(err, &failed) || failed.Kind != KindNotFound {
		return err
	}
	other := *failed
	other.Kind = KindUnavailable
	return &other
}

// nextPage keeps the host and path prefix from the catalog: behind a proxy,
// Cinder's links may name an address that only Cinder can reach.
func (c *Client) nextPage(links []gophercloud.Link) (string, error) {
	for _, link := range links {
		if link.Rel != "next" {
			continue
		}
		u, err := url.Parse(link.Href)
		if err != nil {
			return "", &Error{Backend: c.backend, Operation: "volume.list", Kind: KindInternal, Message: "the link to the next page is not a valid address"}
		}
		return c.service.ServiceURL("volumes", "detail") + "?" + u.RawQuery, nil
	}
	return "", nil
}
