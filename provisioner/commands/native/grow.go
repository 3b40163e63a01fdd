package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// statusLimit bounds the wait for the running program.
const statusLimit = 2 * time.Minute

// grow grows the filesystem of one claim.
func (r *runner) grow(ctx context.Context, namespace, name string) error {
	ctx, end := context.WithTimeout(ctx, r.timeout)
	defer end()
	claim, pv, err := r.read(ctx, namespace, name)
	if err != nil {
		return err
	}
	v, err := r.growing(ctx, claim, pv)
	if err != nil {
		return err
	}
	grown, err, stays := r.grown(ctx, v)
	if err == nil {
		// What has grown is confirmed even if the pod stays.
		r.Say(fmt.Sprintf("grew the %s filesystem on %s (%s) of node %s to %s", grown.Filesystem, grown.Device, strings.Join(grown.Paths, ", "), v.node, v.size.String()))
		err = r.confirm(ctx, v)
	}
	return errors.Join(err, stays)
}

// confirm records the size on the claim, and waits until the running program has seen it.
func (r *runner) confirm(ctx context.Context, v *volume) error {
	claims := r.Client.CoreV1().PersistentVolumeClaims(v.claim.Namespace)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": v.claim.UID, "annotations": map[string]string{objects.AnnotationFilesystemGrown: v.size.String()},
	}})
	if err == nil {
		_, err = claims.Patch(ctx, v.claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("the filesystem has grown, but its size is not recorded; run the command again: %w", err)
	}
	ctx, end := context.WithTimeout(ctx, statusLimit)
	defer end()
	for {
		claim, err := claims.Get(ctx, v.claim.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && claim.UID != v.claim.UID:
			return errors.New("the filesystem has grown, but meanwhile the claim was deleted, or replaced by another")
		case err == nil:
			if has := storage(claim.Status.Capacity); has.Cmp(v.size) >= 0 {
				r.Say(fmt.Sprintf("claim %s/%s has %s", claim.Namespace, claim.Name, has.String()))
				return nil
			}
		}
		if stopped := r.Wait(ctx); stopped != nil {
			return fmt.Errorf("the filesystem has grown, and the claim records it, but its status does not show %s yet; see kubectl cinder why %s -n %s: %w", v.size.String(), v.claim.Name, v.claim.Namespace, errors.Join(err, stopped))
		}
	}
}
