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

// List reads a list in pages. If the API server has forgotten where a page ended, as it
// does after some minutes, List rereads the whole list in one request, the only way to
// reach its end.
func List[T any](ctx context.Context, what string, list func(context.Context, metav1.ListOptions) ([]T, string, error)) ([]T, error) {
	var all []T
	options := metav1.ListOptions{Limit: pageSize}
	for {
		items, next, err := list(ctx, options)
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			all, options = nil, metav1.ListOptions{}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list %s: %w", what, err)
		}
		all = append(all, items...)
		if next == "" {
			return all, nil
		}
		options.Continue = next
	}
}
