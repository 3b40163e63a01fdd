package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/move"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// movePatience is how long a move waits for a claim to be bound, a pod to start and a volume
// to be detached, each. A node may pull an image first.
const movePatience = 10 * time.Minute

// copies moves volumes to another backend.
type copies struct {
	mover          move.Mover
	backend, class string
	say            func(string)
}

func (c *copies) target() string { return "backend " + c.backend }

func (c *copies) move(ctx context.Context, one *oneMove, apply bool) (string, error) {
	plan, err := c.mover.Plan(ctx, move.Request{Namespace: one.namespace, Claim: one.claim, Backend: c.backend, StorageClass: c.class})
	// The list may be hours old.
	if err == nil && !plan.Done && one.pv != "" && (plan.PersistentVolume != one.pv || plan.At.ID != one.volume.ID) {
		err = fmt.Errorf("the claim has another volume by now, %s of PersistentVolume %s", plan.At, plan.PersistentVolume)
	}
	if err == nil && !apply {
		err = c.mover.Try(ctx, plan)
	}
	if err != nil {
		return "", err
	}
	if !apply {
		return plan.Warning(), nil
	}
	at, err := c.mover.Apply(ctx, plan, func(text string) { c.say(one.namespace + "/" + one.claim + ": " + text) })
	return "is at " + at.String(), err
}

// copies prepares moves to --to-backend.
func (f *moveFlags) copies(ctx context.Context, opened *volumeRun, stderr io.Writer) (*copies, error) {
	if _, known := opened.policy.Backend(f.toBackend); !known {
		return nil, fmt.Errorf("--to-backend: the policy has no backend %q", f.toBackend)
	}
	if _, known := opened.policy.Backend(f.fromBackend); f.fromBackend != "" && !known {
		return nil, fmt.Errorf("--from-backend: the policy has no backend %q", f.fromBackend)
	}
	image := f.image
	if image == "" {
		var err error
		if image, err = programImage(ctx, opened.client); err != nil {
			return nil, err
		}
	}
	var speaking sync.Mutex
	return &copies{
		mover:   move.Mover{Swapper: *opened.swapper(f.ProvisionerName), Image: image, MiBPerSecond: f.mibPerSecond, Patience: movePatience, Pause: time.Second},
		backend: f.toBackend, class: f.storageClass,
		say: func(text string) {
			speaking.Lock()
			defer speaking.Unlock()
			fmt.Fprintln(stderr, statusreport.OneLine(text))
		},
	}, nil
}

// programImage returns the image of the program, from where the documentation installs it: tenants
// can label Deployments of their own.
func programImage(ctx context.Context, client kubernetes.Interface) (string, error) {
	const selector = "app.kubernetes.io/name=standalone-cinder,app.kubernetes.io/component=provisioner"
	deployments, err := client.AppsV1().Deployments(defaultMapNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return "", fmt.Errorf("cannot find the image of the program, so give --image: %w", err)
	}
	images := map[string]bool{}
	for i := range deployments.Items {
		for _, container := range deployments.Items[i].Spec.Template.Spec.Containers {
			if container.Name == "standalone-cinder" {
				images[container.Image] = true
			}
		}
	}
	for image := range images {
		if len(images) == 1 {
			return image, nil
		}
	}
	return "", fmt.Errorf("namespace %s has Deployments of the program with %d images instead of one; give --image", defaultMapNamespace, len(images))
}

// runCopy moves the volume of one claim to another backend.
func (f *moveFlags) runCopy(ctx context.Context, stdout, stderr io.Writer) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	opened, err := f.open(ctx, f.apply)
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	copies, err := f.copies(ctx, opened, stderr)
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	plan, err := copies.mover.Plan(ctx, move.Request{Namespace: f.request.Namespace, Claim: f.request.Claim, Backend: f.toBackend, StorageClass: f.storageClass})
	said := ""
	switch {
	case err != nil:
	case f.apply:
		var at wire.Handle
		if at, err = copies.mover.Apply(ctx, plan, copies.say); err == nil && at != plan.At {
			said = fmt.Sprintf("claim %s/%s has volume %s; claim %s keeps %s: delete it when you trust the copy", f.request.Namespace, f.request.Claim, at, plan.Former(), plan.At)
		}
	default:
		err = copies.mover.Try(ctx, plan)
	}
	if ctx.Err() != nil {
		err = errors.Join(errors.New("interrupted; run the command again"), err)
	}
	if err != nil {
		return policycli.Exit(policycli.ExitFailed, errors.New(statusreport.OneLine(fmt.Sprintf("cannot move the volume of claim %s/%s: %s", f.request.Namespace, f.request.Claim, err))))
	}
	if !f.apply && !plan.Done {
		fmt.Fprintln(stdout, "nothing was changed; with --apply, this would be so:")
	}
	fmt.Fprintln(stdout, statusreport.OneLine(cmp.Or(said, plan.Describe())))
	return nil
}
