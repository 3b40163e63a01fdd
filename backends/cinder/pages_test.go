package cinder

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestAPageThatIsTooLargeIsAskedForInParts: how large an entry is depends on what others
// wrote into it, such as a thousand snapshots of claims with long names, or volumes that
// many nodes have had. No size of the entries may stop a backend.
func TestAPageThatIsTooLargeIsAskedForInParts(t *testing.T) {
	const bound = maxPageSize >> 5 // The race detector makes reading slow.
	for collection, list := range map[string]func(ctx context.Context, c *Client, page int, found *[]string) error{
		"volumes": func(ctx context.Context, c *Client, page int, found *[]string) error {
			return c.ListVolumes(ctx, Query{PageSize: page}, func(page []Volume) bool {
				for _, v := range page {
					*found = append(*found, v.ID)
				}
				return true
			})
		},
		"snapshots": func(ctx context.Context, c *Client, page int, found *[]string) error {
			return c.ListSnapshots(ctx, Query{PageSize: page}, func(page []Snapshot) bool {
				for _, s := range page {
					*found = append(*found, s.ID)
				}
				return true
			})
		},
	} {
		for _, c := range []struct{ size, page, total int }{{bound >> 13, 1000, 1500}, {bound >> 9, 1000, 750}, {bound * 5 / 8, 8, 3}, {bound * 9 / 8, 8, 3}} {
			t.Run(fmt.Sprintf("%s of %d bytes", collection, c.size), func(t *testing.T) {
				size, total := c.size, c.total
				padding := strings.Repeat("x", size)
				var limits []int
				cloud := cindertest.NewCloud(t)
				client := logIn(t, cloud)
				client.wire.maxPage = bound
				cloud.Set(func() {
					cloud.Cinder = func(w http.ResponseWriter, r *http.Request) {
						limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
						if err != nil {
							http.Error(w, "limit", http.StatusBadRequest)
							return
						}
						limits = append(limits, limit)
						first := 0
						if marker := r.URL.Query().Get("marker"); marker != "" {
							first, _ = strconv.Atoi(strings.TrimPrefix(marker, "e"))
							first++
						}
						w.Header().Set("Content-Type", "application/json")
						fmt.Fprintf(w, `{%q: [`, collection)
						last := min(first+limit, total)
						for i := first; i < last; i++ {
							fmt.Fprintf(w, `%s{"id": "e%d", "status": "available", "metadata": {"padding": "`, strings.Repeat(",", min(1, i-first)), i)
							_, _ = io.WriteString(w, padding)
							_, _ = io.WriteString(w, `"}}`)
						}
						fmt.Fprint(w, "]")
						if last < total {
							fmt.Fprintf(w, `, "%s_links": [{"rel": "next", "href": "http://elsewhere/v3/p/%s/detail?limit=%d&marker=e%d"}]`, collection, collection, limit, last-1)
						}
						fmt.Fprint(w, "}")
					}
				})
				var found []string
				err := list(t.Context(), client, c.page, &found)
				if size > bound {
					if err == nil || !strings.Contains(err.Error(), "the answer is larger than 256 KiB") || limits[len(limits)-1] != 1 {
						t.Errorf("the error is %v, after pages of %v", err, limits)
					}
					return
				}
				if err != nil || len(found) != total || len(slices.Compact(slices.Sorted(slices.Values(found)))) != total {
					t.Errorf("found %d of %d (%v), in pages of %v", len(found), total, err, limits)
				}
				if most := 3 + total*size*4/bound + 10; len(limits) > most {
					t.Errorf("it took %d pages: %v", len(limits), limits)
				}
			})
		}
	}
}
