package paging

import (
	"context"
	"errors"
	"reflect"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAnExpiredListIsReadAnew(t *testing.T) {
	got, err := List(t.Context(), "Things", func(_ context.Context, options metav1.ListOptions) ([]int, string, error) {
		switch {
		case options.Limit == 0:
			return []int{1, 2, 3}, "", nil
		case options.Continue == "":
			return []int{1}, "next", nil
		}
		return nil, "", apierrors.NewResourceExpired("too old")
	})
	if err != nil || !reflect.DeepEqual(got, []int{1, 2, 3}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestListThatCannotBeRead(t *testing.T) {
	refused := errors.New("forbidden")
	_, err := List(t.Context(), "Things", func(context.Context, metav1.ListOptions) ([]int, string, error) { return nil, "", refused })
	if !errors.Is(err, refused) || err.Error() != "cannot list Things: forbidden" {
		t.Errorf("%v", err)
	}
	// An expiry that does not concern a page is an ordinary error.
	calls := 0
	_, err = List(t.Context(), "Things", func(context.Context, metav1.ListOptions) ([]int, string, error) {
		calls++
		return nil, "", apierrors.NewResourceExpired("too old")
	})
	if err == nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
