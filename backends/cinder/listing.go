package cinder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gophercloud/gophercloud/v2"
)

// operationList is the name of a listing in errors and metrics.
const operationList = "volume.list"

// VolumeQuery narrows a listing. The program never trusts a server's filter:
// Cinder compares names without case, accents and trailing blanks on some
// databases, and answers unknown filters with an empty list. The caller
// compares again, and concludes anything from absence only if it set no filter.
type VolumeQuery struct {
	Status   Status
	PageSize int
	// Keep selects the metadata keys that the volumes have in the result; nil
	// keeps all of them.
	Keep func(key string) bool
}

// ListVolumes calls yield with every page until it returns false or the list
// ends. Pages are newest first if the server honors the order. A volume that
// exists from beginning to end is among them; no volume comes twice.
func (c *Client) ListVolumes(ctx context.Context, query VolumeQuery, yield func(page []Volume) (more bool)) error {
	ctx = withOperation(ctx, operationList)
	values := url.Values{"sort": {"created_at:desc"}}
	if query.Status != "" {
		values.Set("status", string(query.Status))
	}
	if query.PageSize > 0 {
		values.Set("limit", strconv.Itoa(query.PageSize))
	}
	first := c.service.ServiceURL("volumes", "detail") + "?" + values.Encode()
	seen := map[string]bool{}
	ends := time.Now().Add(longestListing)
	var err error
	for range maxPasses {
		var broken bool
		if broken, err = c.pass(ctx, first, query, seen, ends, yield); !broken {
			break
		}
	}
	return translate(c.backend, operationList, absenceOfNothing(err))
}

// maxPasses bounds how often one listing begins again.
const maxPasses = 5

// Bounds of one listing, far beyond what a project has: 10,000 pages of 1,000
// volumes. A server whose list never ends is broken, and must not keep the
// program busy for the rest of a term.
const (
	longestListing  = 30 * time.Minute
	mostPages       = 10_000
	mostEmptyPages  = 3 // without any new volume, one after the other
	defaultPageSize = 1000
)

// pass reads a list from its beginning and yields volumes that were not seen
// before. It is broken if the volume that a page was to begin behind has been
// deleted meanwhile, which Cinder answers with 404.
func (c *Client) pass(ctx context.Context, first string, query VolumeQuery, seen map[string]bool, ends time.Time, yield func(page []Volume) bool) (broken bool, err error) {
	visited := map[string]bool{}
	empty := 0
	for next := first; next != ""; {
		if visited[next] {
			return false, c.brokenList("the list of volumes links back to a page that was already read")
		}
		if len(visited) == mostPages || empty == mostEmptyPages || time.Now().After(ends) {
			return false, c.brokenList("the list of volumes does not end")
		}
		visited[next] = true
		all, following, err := c.page(ctx, next, query)
		if err != nil {
			return next != first && IsKind(err, KindNotFound), err
		}
		page := make([]Volume, 0, len(all))
		for _, v := range all {
			// A volume created between two pages shifts the window; the same
			// volume may then come twice.
			if !seen[v.ID] {
				seen[v.ID] = true
				page = append(page, v)
			}
		}
		empty++
		if len(page) > 0 {
			empty = 0
		}
		if len(all) == 0 || len(page) > 0 && !yield(page) {
			return false, nil
		}
		next = following
	}
	return false, nil
}

func (c *Client) brokenList(message string) error {
	return &Error{Backend: c.backend, Operation: operationList, Kind: KindInternal, Message: message}
}

// page reads one page and the address of the next.
func (c *Client) page(ctx context.Context, address string, query VolumeQuery) (page []Volume, next string, err error) {
	response, err := c.service.Request(ctx, http.MethodGet, address, &gophercloud.RequestOpts{OkCodes: []int{http.StatusOK}, KeepResponseBody: true})
	if err != nil {
		return nil, "", translate(c.backend, operationList, err)
	}
	defer response.Body.Close() //nolint:errcheck // Everything that matters was read.
	page, links, err := readPage(response.Body, cmp.Or(query.PageSize, defaultPageSize), query.Keep)
	var failed *Error
	switch {
	case errors.As(err, &failed):
		failed.Backend, failed.Operation = c.backend, operationList
		return nil, "", failed
	case err != nil:
		return nil, "", translate(c.backend, operationList, err)
	}
	next, err = c.nextPage(links)
	return page, next, err
}

// readPage reads a page as a stream.
func readPage(body io.Reader, most int, keep func(key string) bool) (page []Volume, links []gophercloud.Link, err error) {
	decoder := json.NewDecoder(body)
	listed := false
	err = fields(decoder, func(key string) (err error) {
		switch key {
		case "volumes":
			listed, err = elements(decoder, func() error {
				if len(page) == most {
					return &Error{Kind: KindInternal, Message: fmt.Sprintf("the page has more volumes than the %d requested", most)}
				}
				var document volumeDocument
				if err := decoder.Decode(&document); err != nil {
					return err
				}
				v, odd := document.volume(keep)
				if !usableID.MatchString(v.ID) {
					return &Error{Kind: KindInternal, Message: "the list has a volume without an id"}
				}
				if v.Metadata == nil {
					// It may be a volume that the caller looks for, so that the list does not
					// prove its absence.
					return &Error{Kind: KindInternal, Message: fmt.Sprintf("the metadata of volume %s cannot be read", sentence(v.ID))}
				}
				if odd || v.Status == "" {
					v.Status = StatusUnreadable
				}
				page = append(page, v)
				return nil
			})
		case "volumes_links":
			_, err = elements(decoder, func() error {
				if len(links) == mostLinks {
					return errNotAsDescribed
				}
				var link gophercloud.Link
				err := decoder.Decode(&link)
				links = append(links, link)
				return err
			})
		default:
			err = decoder.Decode(&skipped{})
		}
		return err
	})
	if err == nil && !listed {
		err = &Error{Kind: KindInternal, Message: "the answer has no list of volumes"}
	}
	return page, links, err
}

// mostLinks is how many links of a page are read; Cinder sends one.
const mostLinks = 16

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
			return "", &Error{Backend: c.backend, Operation: operationList, Kind: KindInternal, Message: "the link to the next page is not a valid address"}
		}
		return c.service.ServiceURL("volumes", "detail") + "?" + u.RawQuery, nil
	}
	return "", nil
}
