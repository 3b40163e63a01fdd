package cinder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/jsonstream"
)

// Query narrows a listing. The program never trusts a server's filter: Cinder compares
// names without case, accents and trailing blanks on some databases, and answers unknown
// filters with an empty list. The caller filters again, and infers absence only from a
// listing without a filter.
type Query struct {
	Status Status
	// VolumeID selects one volume's snapshots; empty means all volumes.
	VolumeID string
	// AllProjects includes the objects of other projects, if the account may see them.
	AllProjects bool
	PageSize    int
	// Keep selects the metadata keys that the objects have in the result; nil
	// keeps all of them.
	Keep func(key string) bool
}

// listing is one paged list of volumes or snapshots.
type listing[T Object] struct {
	objects[T]
	query Query
}

// list calls yield with every page, newest first if the server honors the order; see
// ListVolumes.
func (o objects[T]) list(ctx context.Context, query Query, yield func(page []T) (more bool)) error {
	if err := o.offered(ctx, o.noun+".list"); err != nil {
		return err
	}
	l := listing[T]{o, query}
	values := o.parameters()
	values.Set("sort", "created_at:desc")
	if query.PageSize > 0 {
		values.Set("limit", strconv.Itoa(query.PageSize))
	}
	if query.Status != "" {
		values.Set("status", string(query.Status))
	}
	if query.VolumeID != "" {
		values.Set("volume_id", query.VolumeID)
	}
	if query.AllProjects {
		values.Set("all_tenants", "1")
	}
	first := l.address(values.Encode())
	seen := map[string]bool{}
	ends := time.Now().Add(maxListingTime)
	var err error
	for range maxPasses {
		var broken bool
		if broken, err = l.pass(ctx, first, seen, ends, yield); !broken {
			break
		}
	}
	return translate(l.backend, l.operation(), absenceOfNothing(err))
}

// operation names the request in errors and metrics.
func (l listing[T]) operation() string { return l.noun + ".list" }

// collection names the list in addresses and answers.
func (l listing[T]) collection() string { return l.noun + "s" }

func (l listing[T]) address(query string) string {
	return l.service.ServiceURL(l.collection(), "detail") + "?" + query
}

// maxPasses bounds how often one listing restarts.
const maxPasses = 5

// Bounds of one listing, far beyond any project: 10,000 pages of 1,000 entries. A server
// whose list never ends is broken and must not occupy the program for the rest of a term.
const (
	maxListingTime  = 30 * time.Minute
	maxPages        = 10_000
	maxEmptyPages   = 3 // in a row, without any new entry
	defaultPageSize = 1000
)

// pass reads a list from its beginning and yields entries not seen before. It breaks if
// the entry after which a page was to begin has been deleted meanwhile, which Cinder
// answers with 404.
func (l listing[T]) pass(ctx context.Context, first string, seen map[string]bool, ends time.Time, yield func(page []T) bool) (broken bool, err error) {
	visited := map[string]bool{}
	empty := 0
	for next := first; next != ""; {
		if visited[next] {
			return false, l.broken("the list of " + l.collection() + " links back to a page that was already read")
		}
		if len(visited) == maxPages || empty == maxEmptyPages || time.Now().After(ends) {
			return false, l.broken("the list of " + l.collection() + " does not end")
		}
		visited[next] = true
		all, following, err := l.page(ctx, next)
		if smaller := l.half(next); smaller != "" && errors.As(err, new(*http.MaxBytesError)) {
			// Entries contain texts of any length.
			next = smaller
			continue
		}
		if err != nil {
			return next != first && IsKind(err, KindNotFound), err
		}
		page := make([]T, 0, len(all))
		for _, entry := range all {
			// An entry created between two pages shifts the window, so an entry may
			// appear twice.
			if id := IDOf(entry); !seen[id] {
				seen[id] = true
				page = append(page, entry)
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

// half returns the address of a page with half the entries; empty for a page of one.
func (l listing[T]) half(address string) string {
	_, query, _ := strings.Cut(address, "?")
	values, err := url.ParseQuery(query)
	limit, limitErr := strconv.Atoi(cmp.Or(values.Get("limit"), strconv.Itoa(defaultPageSize)))
	if err != nil || limitErr != nil || limit < 2 {
		return ""
	}
	values.Set("limit", strconv.Itoa(limit/2))
	return l.address(values.Encode())
}

func (l listing[T]) broken(message string) error {
	return l.wrong(l.operation(), message)
}

// page reads one page as a stream, and the address of the next.
func (l listing[T]) page(ctx context.Context, address string) (page []T, next string, err error) {
	links := 0
	most := cmp.Or(l.query.PageSize, defaultPageSize)
	listed, following := false, ""
	err = l.stream(ctx, l.operation(), address, l.minor, func(decoder *json.Decoder, key string) (err error) {
		switch key {
		case l.collection():
			listed, err = jsonstream.Elements(decoder, func() error {
				if len(page) == most {
					return l.broken(fmt.Sprintf("the page has more %s than the %d requested", l.collection(), most))
				}
				entry, err := l.entry(decoder)
				if err != nil {
					return err
				}
				page = append(page, entry)
				return nil
			})
		case l.collection() + "_links", l.noun + "_links":
			_, err = jsonstream.Elements(decoder, func() error {
				if links++; links > maxLinks {
					return jsonstream.ErrUnexpectedJSON
				}
				var link gophercloud.Link
				err := decoder.Decode(&link)
				if link.Rel == "next" && following == "" {
					following = link.Href
				}
				return err
			})
		default:
			err = decoder.Decode(&jsonstream.Skipped{})
		}
		return err
	})
	if err == nil && !listed {
		err = l.broken("the answer has no list of " + l.collection())
	}
	if err != nil || following == "" {
		return page, "", err
	}
	// Keep the host and path prefix from the catalog: behind a proxy, Cinder's links may name
	// an address that only Cinder can reach.
	u, err := url.Parse(following)
	if err != nil {
		return page, "", l.broken("the link to the next page is not a valid address")
	}
	return page, l.address(u.RawQuery), nil
}

// entry reads one element from the decoder.
func (l listing[T]) entry(decoder *json.Decoder) (T, error) {
	object, odd, err := l.read(decoder.Decode, l.query.Keep)
	if err != nil {
		return object, err
	}
	id := IDOf(object)
	status, metadata := l.fields(&object)
	switch {
	case !usableID.MatchString(id):
		return object, l.broken("the list has a " + l.noun + " without an id")
	case metadata == nil:
		// It may be the one that the caller is looking for, so the list does not prove its
		// absence.
		return object, l.broken(fmt.Sprintf("the metadata of %s %s cannot be read", l.noun, sentence(id)))
	case odd || *status == "":
		*status = StatusUnreadable
	}
	return object, nil
}

// maxLinks is how many links of a page are read; Cinder sends one.
const maxLinks = 16

// absenceOfNothing keeps a listing's 404 from being read as the absence of the volume
// that the caller is looking for.
func absenceOfNothing(err error) error {
	return altered(err, func(e *Error) {
		if e.Kind == KindNotFound {
			e.Kind = KindUnavailable
		}
	})
}
