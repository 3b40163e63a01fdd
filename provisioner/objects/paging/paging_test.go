package paging

import (
	"context"
	"errors"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAnExpiredListIsReadAnew(t *testing.T) {
	page := func(next string, names ...string) (*corev1.NodeList, error) {
		list := &corev1.NodeList{ListMeta: metav1.ListMeta{Continue: next}}
		for _, name := range names {
			list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		return list, nil
	}
	got, err := List(t.Context(), "Things", func(_ context.Context, options metav1.ListOptions) (*corev1.NodeList, error) {
		switch {
		case options.Limit == 0:
			return page("", "1", "2", "3")
		case options.Continue == "":
			return page("next", "1")
		}
		return nil, apierrors.NewResourceExpired("too old")
	}, namesOf)
	if err != nil || !reflect.DeepEqual(got, []string{"1", "2", "3"}) {
		t.Errorf("%v, %v", got, err)
	}
}

func namesOf(page *corev1.NodeList) (names []string) {
	for _, node := range page.Items {
		names = append(names, node.Name)
	}
	return names
}

func TestListThatCannotBeRead(t *testing.T) {
	refused := errors.New("forbidden")
	_, err := List(t.Context(), "Things", func(context.Context, metav1.ListOptions) (*corev1.NodeList, error) { return nil, refused }, namesOf)
	if !errors.Is(err, refused) || err.Error() != "cannot list Things: forbidden" {
		t.Errorf("%v", err)
	}
	// An expiry that does not concern a page is an ordinary error.
	calls := 0
	_, err = List(t.Context(), "Things", func(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
		calls++
		return nil, apierrors.NewResourceExpired("too old")
	}, namesOf)
	if err == nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
