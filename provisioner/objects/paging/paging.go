// Package paging reads long lists from the API server in pages.
package paging

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pageSize bounds the size of one response of the API server.
const pageSize = 500

// List reads a list in pages, and returns what items takes from each. If the API server
// has forgotten where a page ended, as it does after some minutes, List rereads the whole
// list in one request, the only way to reach its end.
func List[L metav1.ListInterface, T any](ctx context.Context, what string, list func(context.Context, metav1.ListOptions) (L, error), items func(page L) []T) ([]T, error) {
	var all []T
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := list(ctx, options)
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			all, options = nil, metav1.ListOptions{}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list %s: %w", what, err)
		}
		all = append(all, items(page)...)
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}
