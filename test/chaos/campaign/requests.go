package campaign

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// client is a client of one kind of objects.
type client[T any] interface {
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Patch(ctx context.Context, name string, how types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

// read reads an object.
func read[T any](ctx context.Context, in client[T], name string) (found T, err error) {
	err = insist(ctx, func(ctx context.Context) (err error) {
		found, err = in.Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return found, err
}

// create creates an object, or returns the existing one of its name: this one, if the
// answer was lost, or an earlier one.
func create[T metav1.Object](ctx context.Context, in client[T], object T) (made T, err error) {
	err = insist(ctx, func(ctx context.Context) (err error) {
		made, err = in.Create(ctx, object, metav1.CreateOptions{})
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		return read(ctx, in, object.GetName())
	}
	return made, err
}

// remove requests the deletion of an object, unless it is gone, or another has its name.
func remove[T any](ctx context.Context, in client[T], name string, uid types.UID) error {
	return unlessGone(insist(ctx, func(ctx context.Context) error {
		return in.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	}))
}

// destroy requests the deletion of whatever has the name.
func destroy[T any](ctx context.Context, in client[T], name string) error {
	return unlessGone(insist(ctx, func(ctx context.Context) error { return in.Delete(ctx, name, metav1.DeleteOptions{}) }))
}

// unlessGone returns an error unless it says that the object is gone or has changed.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// free removes the finalizers of an object that has this version.
func free[T any](ctx context.Context, in client[T], name, version string) error {
	patch := []byte(`{"metadata": {"finalizers": null, "resourceVersion": "` + version + `"}}`)
	return insist(ctx, func(ctx context.Context) error {
		_, err := in.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// sweep removes an object at once, whatever its state.
func sweep[T any](ctx context.Context, in client[T], name string) error {
	err := insist(ctx, func(ctx context.Context) error { return in.Delete(ctx, name, metav1.DeleteOptions{}) })
	if err == nil {
		_, err = in.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// inEach reads something of each tenant's namespace.
func (w *world) inEach(ctx context.Context, tenants []string, read func(ctx context.Context, namespace string) error) error {
	for _, tenant := range tenants {
		if err := insist(ctx, func(ctx context.Context) error { return read(ctx, w.names.namespace(tenant)) }); err != nil {
			return err
		}
	}
	return nil
}
