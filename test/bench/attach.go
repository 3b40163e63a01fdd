package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// attach measures claims in mode csi next to native ones, and attaching and detaching
// their volumes next to the bare requests to Cinder.
func attach(ctx context.Context, suite *harness.Suite, o options, r *results, out io.Writer) error {
	fmt.Fprintf(out, "\n%d claims at once in mode csi, and their volumes attached to %d nodes; Cinder takes %s to export one\n\n", o.attached, benchNodes, o.exportDelay)
	native, err := newScene(ctx, suite, o, "native")
	if err != nil {
		return err
	}
	defer native.sim.Close()
	replica, err := suite.StartReplica(ctx, harness.ReplicaOptions{Policy: policyFor(native), Provisioner: native.provisioner})
	if err != nil {
		return err
	}
	defer replica.Kill()
	driver, err := newDriver(ctx, suite, o)
	if err != nil {
		return err
	}
	defer driver.close()

	// They take turns, and the first turn, which finds nothing prepared, does not count.
	var times [2][]time.Duration
	var requests [2]float64
	for round := range attachRounds + 1 {
		for i, s := range []*scene{native, driver.scene} {
			took, per, err := s.serve(ctx, fmt.Sprintf("data-%d", round), o.attached)
			if err != nil {
				return err
			}
			if round > 0 {
				times[i], requests[i] = append(times[i], took), per
			}
			if round == attachRounds && s == driver.scene {
				break // its volumes are attached next
			}
			if err := s.clear(ctx); err != nil {
				return err
			}
		}
	}
	ratio := per(median(times[1]).Seconds(), median(times[0]).Seconds())
	fmt.Fprintf(out, "all Bound: %.2f s, native %.2f s, ratio %.2f; requests to Cinder per claim: %.2f, native %.2f\n",
		median(times[1]).Seconds(), median(times[0]).Seconds(), ratio, requests[1], requests[0])
	r.set("attach.made.last_bound_seconds.ratio", ratio)
	r.set("attach.made.cinder_requests_per_claim.csi", requests[1])
	r.set("attach.made.cinder_requests_per_claim.native", requests[0])
	return driver.measure(ctx, r, out)
}

const (
	attachRounds = 3
	benchNodes   = 10
)

// serve makes claims, waits until all are Bound and their volumes recorded, and returns
// how long the former took and the requests to Cinder per claim.
func (s *scene) serve(ctx context.Context, prefix string, n int) (time.Duration, float64, error) {
	s.sim.ResetJournal()
	began := time.Now()
	claims, err := s.createClaims(ctx, prefix, n)
	if err != nil {
		return 0, 0, err
	}
	for _, claim := range claims {
		if err := s.observer.waitFor(ctx, claim.UID, bound); err != nil {
			return 0, 0, err
		}
	}
	took := time.Since(began)
	// What follows the PersistentVolume at Cinder belongs to a claim, too.
	var all int
	err = harness.Eventually(ctx, func() (string, error) {
		for _, v := range s.sim.Volumes() {
			if v.Metadata["standalone-cinder.openstack.org/attached"] != "true" {
				return "volume " + v.Name + " is not marked as recorded", nil
			}
		}
		all, _ = s.requests()
		return "", nil
	})
	return took, per(float64(all), float64(n)), err
}

func (s *scene) clear(ctx context.Context) error {
	if err := s.suite.DeleteClaims(ctx, s.namespace); err != nil {
		return err
	}
	return s.suite.WaitForNoPersistentVolumes(ctx, s.provisioner)
}

// driver is the program in mode csi with the real external-attacher and nodes.
type driver struct {
	*scene
	replica  *harness.Replica
	attacher *harness.Sidecar
	loop     *loop
	seen     *attachments
	// dir has the socket.
	dir string
}

func newDriver(ctx context.Context, suite *harness.Suite, o options) (_ *driver, err error) {
	s, err := newScene(ctx, suite, o, "csi")
	if err != nil {
		return nil, err
	}
	d := &driver{scene: s}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	s.sim.Inject(cindersim.Fault{Kind: cindersim.Delay, Operation: "attachment.create", Delay: o.exportDelay})
	s.mode = "csi"
	if d.loop, err = newLoop(s); err != nil {
		return nil, err
	}
	d.seen = watchAttachments(ctx, suite)
	for n := range benchNodes {
		name := benchNode(n)
		id, err := wire.Node{Name: name, InitiatorName: "iqn.2026-01.example:" + name}.NodeID()
		if err != nil {
			return nil, err
		}
		if _, err := suite.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		if err := suite.ReportStaged(ctx, name, harness.Machine(name, "boot-1")); err != nil {
			return nil, err
		}
		if _, err := suite.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: wire.DriverName, NodeID: id}}},
		}, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	if d.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, err
	}
	socket := filepath.Join(d.dir, "csi.sock")
	if d.replica, err = suite.StartReplica(ctx, harness.ReplicaOptions{
		Policy: policyFor(s), Provisioner: s.provisioner, Arguments: []string{"--csi-endpoint", "unix://" + socket},
	}); err != nil {
		return nil, err
	}
	if err := suite.AllowCSINodes(ctx, s.provisioner); err != nil {
		return nil, err
	}
	d.attacher, err = suite.Attacher(ctx, s.provisioner)(socket)
	return d, err
}

func benchNode(n int) string { return fmt.Sprintf("bench-node-%d", n) }

func (d *driver) close() {
	if d.attacher != nil {
		d.attacher.Stop()
	}
	if d.replica != nil {
		d.replica.Kill()
	}
	d.sim.Close()
	_ = os.RemoveAll(d.dir)
}

// bare attaches and detaches a volume by requests to Cinder alone.
func (d *driver) bare(ctx context.Context, volume, node string) (attach, detach time.Duration, err error) {
	var made struct {
		Attachment struct {
			ID string `json:"id"`
		} `json:"attachment"`
	}
	began := time.Now()
	if err := d.loop.cinder.post(ctx, "/attachments", fmt.Sprintf(
		`{"attachment":{"volume_uuid":%q,"connector":{"host":%q,"initiator":"iqn.2026-01.example:%s"}}}`, volume, node, node), &made); err != nil {
		return 0, 0, err
	}
	if err := d.loop.cinder.post(ctx, "/attachments/"+made.Attachment.ID+"/action", `{"os-complete":{}}`, nil); err != nil {
		return 0, 0, err
	}
	attach, began = time.Since(began), time.Now()
	err = d.loop.cinder.send(ctx, http.MethodDelete, "/attachments/"+made.Attachment.ID, "", nil)
	return attach, time.Since(began), err
}

// throughProgram attaches and detaches a volume by a VolumeAttachment.
func (d *driver) throughProgram(ctx context.Context, pv, node string) (attach, detach time.Duration, err error) {
	name, client := "bench-"+pv, d.suite.Client.StorageV1().VolumeAttachments()
	began := time.Now()
	if _, err := client.Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: wire.DriverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
	}, metav1.CreateOptions{}); err != nil {
		return 0, 0, err
	}
	if err := d.seen.wait(ctx, name, true); err != nil {
		return 0, 0, err
	}
	attach, began = time.Since(began), time.Now()
	if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, 0, err
	}
	err = d.seen.wait(ctx, name, false)
	return attach, time.Since(began), err
}

// measure attaches and detaches all volumes, one after the other and at once.
func (d *driver) measure(ctx context.Context, r *results, out io.Writer) error {
	pvs, err := d.suite.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	type pair struct{ volume, pv, node string }
	var pairs []pair
	for i, pv := range pvs.Items {
		if pv.Spec.StorageClassName != d.class || pv.Spec.CSI == nil {
			continue
		}
		handle, err := wire.ParseHandle(pv.Spec.CSI.VolumeHandle)
		if err != nil {
			return err
		}
		pairs = append(pairs, pair{handle.ID, pv.Name, benchNode(i % benchNodes)})
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\ntime of a volume\tmedian\tp95\tslowest")
	for _, size := range []struct {
		title, figure string
		volumes, each int
	}{{"one after the other", "single", min(fewClaims, len(pairs)), 1}, {fmt.Sprintf("%d at once", len(pairs)), "at_once", len(pairs), len(pairs)}} {
		var attached, detached [2][]time.Duration
		for way, do := range []func(p pair) (time.Duration, time.Duration, error){
			func(p pair) (time.Duration, time.Duration, error) { return d.bare(ctx, p.volume, p.node) },
			func(p pair) (time.Duration, time.Duration, error) { return d.throughProgram(ctx, p.pv, p.node) },
		} {
			var mu sync.Mutex
			if err := parallel(ctx, size.volumes, size.each, func(i int) error {
				on, off, err := do(pairs[i])
				mu.Lock()
				defer mu.Unlock()
				attached[way], detached[way] = append(attached[way], on), append(detached[way], off)
				return err
			}); err != nil {
				return err
			}
			slices.Sort(attached[way])
			slices.Sort(detached[way])
		}
		for _, span := range []struct {
			title, figure string
			times         [2][]time.Duration
		}{{"attached", "attached", attached}, {"detached", "detached", detached}} {
			for way, title := range []string{"bare requests", "standalone-cinder"} {
				r.setTimes(fmt.Sprintf("attach.%s.%s_seconds.%s", size.figure, span.figure, []string{"loop", "program"}[way]), span.times[way])
				fmt.Fprintf(table, "%s, %s, %s\t%.2f s\t%.2f s\t%.2f s\n", span.title, size.title, title,
					quantile(span.times[way], 0.5).Seconds(), quantile(span.times[way], 0.95).Seconds(), quantile(span.times[way], 1).Seconds())
			}
			ratios := r.setRatios(fmt.Sprintf("attach.%s.%s_ratio", size.figure, span.figure), span.times[1], span.times[0])
			fmt.Fprintf(table, "%s, %s, ratio\t%.2f\t%.2f\t%.2f\n", span.title, size.title, ratios[0], ratios[1], ratios[2])
		}
	}
	return table.Flush()
}

// attachments knows which VolumeAttachments exist and are attached. It watches, so
// that it neither loads the API server nor loses time between two polls.
type attachments struct {
	mu       sync.Mutex
	attached map[string]bool // by name; false as long as it is not
	changed  chan struct{}
}

func watchAttachments(ctx context.Context, suite *harness.Suite) *attachments {
	a := &attachments{attached: map[string]bool{}, changed: make(chan struct{})}
	client := suite.Client.StorageV1().RESTClient()
	go func() {
		_, _ = watchtools.UntilWithSync(ctx, cache.NewListWatchFromClient(client, "volumeattachments", "", fields.Everything()),
			&storagev1.VolumeAttachment{}, nil, func(event watch.Event) (bool, error) {
				if attachment, ok := event.Object.(*storagev1.VolumeAttachment); ok {
					a.note(attachment, event.Type == watch.Deleted)
				}
				return false, nil
			})
	}()
	return a
}

func (a *attachments) note(attachment *storagev1.VolumeAttachment, isGone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if isGone {
		delete(a.attached, attachment.Name)
	} else {
		a.attached[attachment.Name] = attachment.Status.Attached
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// wait waits until a VolumeAttachment is attached, or is gone.
func (a *attachments) wait(ctx context.Context, name string, attached bool) error {
	for {
		a.mu.Lock()
		is, exists := a.attached[name]
		changed := a.changed
		a.mu.Unlock()
		if attached && is || !attached && !exists {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("VolumeAttachment %s: %w", name, ctx.Err())
		}
	}
}
