package campaign

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// places are the backends that lead away from home, and where they lead.
type places map[string]plan.Place

func (p places) String() string {
	var parts []string
	for _, backend := range slices.Sorted(maps.Keys(p)) {
		parts = append(parts, fmt.Sprintf("%s: %s", backend, p[backend]))
	}
	return strings.Join(parts, ", ")
}

// The noauth backend's places. Both addresses are reachable only through the
// proxy in a replica's environment, which leads to the same Cinder.
const (
	otherLabProject  = "fedcba9876543210fedcba9876543210"
	otherLabEndpoint = "http://cinder.elsewhere.example:8776/v3"
)

// otherUser returns the user, and the name of the project, to which a backend
// behind Keystone leads when it does not lead home.
func otherUser(backend string) string { return userOf(backend) + "-elsewhere" }

// lab returns where the noauth backend is found.
func (p places) lab() (endpoint, project string) {
	switch p[plan.Lab] {
	case plan.OtherProject:
		return labEndpoint, otherLabProject
	case plan.OtherAddress:
		return otherLabEndpoint, cindersim.DefaultNoauthProject
	}
	return labEndpoint, cindersim.DefaultNoauthProject
}

// clouds exchanges the entries of a clouds.yaml.
func (p places) clouds(text string) string {
	var exchanged []string
	for _, backend := range []string{plan.Gold, plan.Silver} {
		if p[backend] == plan.OtherProject {
			home, other := entry(userOf(backend)), entry(otherUser(backend))
			exchanged = append(exchanged, home, other, other, home)
		}
	}
	return strings.NewReplacer(exchanged...).Replace(text)
}

func entry(name string) string { return "\n  \"" + name + "\":\n" }

// otherProject returns the ID of the project to which a backend leads when it
// does not lead home.
func (w *world) otherProject(backend string) string {
	if backend == plan.Lab {
		return otherLabProject
	}
	return w.sim.ProjectID(otherUser(backend))
}

// lead makes backends lead to other places from now on.
func (w *world) lead(to places) error {
	w.mu.Lock()
	w.places = to
	w.moved = time.Now()
	w.mu.Unlock()
	return w.configureAll()
}

// disturbPlaces makes backends lead elsewhere. They lead home when it returns.
func (w *world) disturbPlaces(ctx, trouble context.Context) {
	for _, step := range w.plan.Places {
		if !w.until(trouble, step.At) {
			return
		}
		w.timeline.Note("%s", step)
		w.change(func(c *Counts) { c.Places++ })
		if err := w.lead(places{step.Where: step.Place}); err != nil {
			w.timeline.Say("%s: %s", step, err)
		}
		sleep(trouble, step.For)
		if err := w.lead(nil); err != nil && ctx.Err() == nil {
			w.timeline.Say("%s: %s", step, err)
		}
		w.timeline.Note("%s leads home", step.Where)
	}
}

// placesOf returns the places where backends lead then.
func (w *world) placesOf(lead places) func(place string) bool {
	return func(place string) bool {
		for backend, to := range lead {
			if to == plan.OtherAddress && place == otherLabEndpoint || to == plan.OtherProject && place == w.otherProject(backend) {
				return true
			}
		}
		return false
	}
}

// isReachable reports whether a project's backend leads to it at the moment.
func (w *world) isReachable(project string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	backend := w.backendOf()[project]
	return w.isOther[project] == (w.places[backend] == plan.OtherProject)
}

// isAnythingAt reports whether a volume of ours is at one of the places, or a
// PersistentVolume records that.
func (w *world) isAnythingAt(ctx context.Context, lead places) (bool, error) {
	there := w.placesOf(lead)
	for _, v := range w.sim.Volumes() {
		if w.isStamped(v) && there(v.Project) {
			return true, nil
		}
	}
	pvs, err := w.listPVs(ctx)
	if err != nil || slices.ContainsFunc(pvs, func(pv checker.PV) bool { return there(pv.Place) }) {
		return err == nil, err
	}
	contents, err := w.contentsAt(ctx, there)
	return len(contents) > 0, err
}

// contentsAt lists the VolumeSnapshotContents whose snapshots were taken at one of the
// places, or were to be.
func (w *world) contentsAt(ctx context.Context, there func(place string) bool) ([]snapshotv1.VolumeSnapshotContent, error) {
	if !w.options.Snapshots {
		return nil, nil
	}
	contents, err := w.listContents(ctx)
	return slices.DeleteFunc(contents, func(content snapshotv1.VolumeSnapshotContent) bool {
		origin, err := objects.SnapshotOriginOf(&content)
		return err != nil || !there(origin.Place.Project) && !there(origin.Place.Endpoint)
	}), err
}

// maxToRemove is how long to wait at another place for the end of snapshots whose
// volumes are at home.
const maxToRemove = 15 * time.Second

// settleContents waits a while for the end of deleted contents. What is left is
// judged at home.
func (w *world) settleContents(ctx context.Context, lead places) error {
	for deadline := time.Now().Add(maxToRemove); time.Now().Before(deadline); {
		contents, err := w.contentsAt(ctx, w.placesOf(lead))
		if err != nil || !slices.ContainsFunc(contents, func(content snapshotv1.VolumeSnapshotContent) bool { return content.DeletionTimestamp != nil }) {
			return err
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// visit makes backends lead to every other place once, so that volumes left
// there can be removed: a volume that a PersistentVolume records elsewhere
// cannot be removed from home.
func (w *world) visit(ctx context.Context) error {
	for _, to := range []places{
		{plan.Gold: plan.OtherProject, plan.Silver: plan.OtherProject, plan.Lab: plan.OtherProject},
		{plan.Lab: plan.OtherAddress},
	} {
		anything, err := w.isAnythingAt(ctx, to)
		if err != nil {
			return err
		}
		if !anything {
			continue
		}
		began := time.Now()
		if err := w.lead(to); err != nil {
			return err
		}
		if err := w.settle(ctx, to); err != nil {
			return err
		}
		if err := w.settleContents(ctx, to); err != nil {
			return err
		}
		w.timeline.Say("seed %d: volumes elsewhere (%s) settled after %.1f s", w.plan.Seed, to, time.Since(began).Seconds())
	}
	return w.lead(nil)
}
