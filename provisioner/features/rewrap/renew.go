package rewrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/volumekeys"
)

// A volume gets a new key in three steps (stamps.KeyRecords), each by one run of Renew. The
// node that has the volume changes its header between the first and the last: the leader, and
// each run, write into the node's entry of the volume's Secret what the records say, and the
// node says in its report what it has proven. A node that lies harms only volumes that it
// could destroy anyway: its report counts only for what Cinder and its own report say that it
// has, and it alone.

// Renewal says which volumes get new keys.
type Renewal struct {
	// From opens the volumes until now, and To wraps the new keys. Volumes that have begun
	// to get a new key go on, whatever opens them.
	From, To Entry
	// Namespace and Claim restrict it to the volume of one claim; empty for all.
	Namespace, Claim string
}

// Progress counts volumes by the step that was taken, or would be.
type Progress struct {
	Begun, Switched, Ended, Waiting int
}

// Renew takes the next step for every volume that can take it. What fails does not stop the
// rest.
func (r *Rewrapper) Renew(ctx context.Context, of Renewal, apply bool) (Progress, error) {
	if r.Keeper.Now == nil {
		r.Keeper.Now = time.Now
	}
	run := renewal{Rewrapper: r, Renewal: of, apply: apply, volumes: map[wire.Handle][]*corev1.PersistentVolume{}, moving: map[types.UID]bool{}}
	if _, err := r.Keeper.New(ctx, of.To.Secret, of.To.Entry, "none"); err != nil {
		return run.done, err
	}
	all, err := paging.List(ctx, "PersistentVolumes", r.Keeper.Client.CoreV1().PersistentVolumes().List, func(page *corev1.PersistentVolumeList) []corev1.PersistentVolume { return page.Items })
	if err != nil {
		return run.done, err
	}
	for i := range all {
		pv := &all[i]
		if !objects.IsCSI(pv) {
			continue
		}
		if at, err := objects.LocationOf(pv); err == nil {
			run.volumes[at] = append(run.volumes[at], pv)
		}
		if source := pv.Annotations[objects.AnnotationCopyOf]; source != "" && pv.Spec.ClaimRef != nil {
			run.moving[types.UID(source)], run.moving[pv.Spec.ClaimRef.UID] = true, true
		}
	}
	var errs []error
	for _, b := range r.Backends {
		errs = append(errs, run.backend(ctx, b))
	}
	return run.done, errors.Join(errs...)
}

type renewal struct {
	*Rewrapper
	Renewal
	apply bool
	// volumes are the PersistentVolumes of the driver, by where their volumes are.
	volumes map[wire.Handle][]*corev1.PersistentVolume
	// moving are the claims whose volumes are being moved.
	moving map[types.UID]bool
	done   Progress
}

// freshFor is how long a listing is used. What was read is written soon, or not at all.
const freshFor = time.Minute

func (r *renewal) backend(ctx context.Context, b Backend) error {
	var errs []error
	listed := time.Time{}
	current := map[string]backends.KeyedVolume{}
	list := func() error {
		began := time.Now()
		volumes, err := b.Keys.Volumes(ctx)
		if err != nil {
			return fmt.Errorf("backend %s: %w", b.Name, err)
		}
		listed = began
		clear(current)
		for _, v := range volumes {
			current[v.RecordedKey.ID] = v
		}
		return nil
	}
	if err := list(); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(current)) {
		if time.Since(listed) > freshFor {
			if err := list(); err != nil {
				return errors.Join(append(errs, err)...)
			}
		}
		v, there := current[id]
		if !there {
			continue
		}
		if err := r.volume(ctx, b, v); err != nil {
			errs = append(errs, fmt.Errorf("%s of backend %s: %w", v.RecordedKey, b.Name, err))
		}
	}
	return errors.Join(errs...)
}

// volume takes the next step for a volume.
func (r *renewal) volume(ctx context.Context, b Backend, v backends.KeyedVolume) error {
	begins := false
	if !v.IsChanging() {
		main, err := stamps.ParseEncryptionRecord(v.Main)
		begins = err == nil && Entry{main.Secret, main.Entry} == r.From
	}
	pv, why := r.persistentVolume(wire.Handle{Backend: b.Name, ID: v.RecordedKey.ID}, v)
	if r.Claim != "" && (pv == nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != r.Namespace || pv.Spec.ClaimRef.Name != r.Claim) {
		return nil
	}
	switch {
	case !begins && !v.IsChanging():
		return nil
	case pv == nil:
		return r.wait(v, b, why)
	case begins && pv.Spec.ClaimRef != nil && r.moving[pv.Spec.ClaimRef.UID]:
		return r.wait(v, b, "volume move copies it, and no pod may use it before the end")
	}
	origin := objects.EncryptedOf(pv)
	opened, err := r.Keeper.Open(ctx, v.RecordedKey.ID, origin, v.Volume.Metadata)
	if err == nil {
		err = opened.Unusable
	}
	if err != nil {
		return err
	}
	next, what, why, err := r.next(ctx, pv.Spec.CSI.VolumeHandle, v, opened, origin)
	if err != nil {
		return err
	}
	if next == v.KeyRecords {
		if err := r.wait(v, b, why); err != nil || !r.apply {
			return err
		}
		return r.inform(ctx, v, pv, origin, next)
	}
	if r.apply {
		if err := b.Keys.Replace(ctx, v.RecordedKey, next); err != nil {
			return err
		}
	}
	switch {
	case next.Next != "":
		r.done.Begun++
	case next.Former != "":
		r.done.Switched++
	default:
		r.done.Ended++
	}
	if !r.apply {
		return nil
	}
	r.Say(fmt.Sprintf("%s of backend %s: %s", v.RecordedKey, b.Name, what))
	return r.inform(ctx, v, pv, origin, next)
}

func (r *renewal) wait(v backends.KeyedVolume, b Backend, why string) error {
	r.done.Waiting++
	r.Say(fmt.Sprintf("%s of backend %s waits: %s", v.RecordedKey, b.Name, why))
	return nil
}

// persistentVolume returns the one PersistentVolume of a volume, or why there is none.
func (r *renewal) persistentVolume(at wire.Handle, v backends.KeyedVolume) (pv *corev1.PersistentVolume, why string) {
	of := r.volumes[at]
	switch {
	case len(of) != 1:
		return nil, fmt.Sprintf("%d PersistentVolumes name it, and it takes one", len(of))
	case of[0].Name != v.Volume.Metadata[stamps.KeyPV]:
		return nil, fmt.Sprintf("PersistentVolume %s names it, and its stamp another one", of[0].Name)
	case of[0].DeletionTimestamp != nil:
		return nil, "its PersistentVolume is being deleted"
	}
	return of[0], ""
}

// next returns the records after the next step and what it means, or the same records and
// why they stay.
func (r *renewal) next(ctx context.Context, handle string, v backends.KeyedVolume, opened volumekeys.Opened, origin string) (next stamps.KeyRecords, what, why string, err error) {
	next = v.KeyRecords
	now := r.Keeper.Now().UTC()
	today := now.Format(time.RFC3339)
	switch at, settled := v.Settled(now); {
	case v.IsChanging() && !settled:
		if since, err := time.Parse(time.RFC3339, v.Since); err != nil || since.After(now) {
			next.Since = today
			return next, "the time of its record could not be read, and counts anew", "", nil
		}
		return next, "", fmt.Sprintf("the next step can be taken from %s on", at.Format(time.RFC3339)), nil
	case !v.IsChanging() && v.Volume.MultiAttach:
		return next, "", "several nodes may have it at once, and would change its header at once; it keeps its key", nil
	case !v.IsChanging():
		record, err := r.Keeper.New(ctx, r.To.Secret, r.To.Entry, origin)
		next.Next, next.Since = record.String(), today
		return next, "it gets a new key from its node when it is staged again", "", err
	}
	proven, why, err := r.proven(ctx, handle, v)
	if err != nil || why != "" {
		return next, "", why, err
	}
	has := func(name string) bool { return slices.Contains(proven, name) }
	main := wire.PassphraseName(opened.Main.Passphrase())
	switch {
	case v.Former != "":
		former := wire.PassphraseName(opened.Former.Passphrase())
		if opened.Former.Passphrase() != "" && !(has(main) && has(wire.Absent(former))) {
			return next, "", "its node has not removed the former key yet; it does when the volume is staged again", nil
		}
		next.Former, next.Since = "", ""
		if next.Next != "" {
			next.Since = today
		}
		return next, "its former key opens it no longer", "", nil
	case opened.Also.Passphrase() == "":
		return next, "", "", errors.New("the record of its next key has the same key as that of its key")
	case v.IsBeingCopied:
		return next, "", "it is being copied", nil
	case !has(wire.PassphraseName(opened.Also.Passphrase())):
		return next, "", "its node has not added the new key yet; it does when the volume is staged again", nil
	}
	next = stamps.KeyRecords{Main: v.Next, Former: v.Main, Since: today}
	return next, "its new key opens it; its node removes the former one when the volume is staged again, an hour from now", "", nil
}

// proven returns what the node that has the volume has proven of its passphrases, or why
// nothing counts.
func (r *renewal) proven(ctx context.Context, handle string, v backends.KeyedVolume) (names []string, why string, err error) {
	records := stamps.NodeRecordsOf(v.Volume)
	if len(records) != 1 {
		return nil, fmt.Sprintf("%d nodes have it; one node alone changes its header", len(records)), nil
	}
	for key, record := range records {
		if wire.NodeKey(record.Node) != key {
			return nil, "its record of node " + record.Node + " does not tell which node it is", nil
		}
		// It changes no header, and its word must not destroy what it cannot.
		if record.ReadOnly {
			return nil, "node " + record.Node + " may only read it", nil
		}
		node, err := r.Keeper.Client.CoreV1().Nodes().Get(ctx, record.Node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, "node " + record.Node + ", which had it, does not exist", nil
		}
		if err != nil {
			return nil, "", fmt.Errorf("cannot read node %s: %w", record.Node, err)
		}
		lease, err := r.Keeper.Client.CoordinationV1().Leases(r.Keeper.Namespace).Get(ctx, staged.LeaseName(record.Node), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, "node " + record.Node + " reports nothing", nil
		}
		if err != nil {
			return nil, "", fmt.Errorf("cannot read the report of node %s: %w", record.Node, err)
		}
		report := staged.Of(lease)
		if !report.Has(handle, node) {
			return nil, "node " + record.Node + " does not report that it has it", nil
		}
		names = report.Passphrases[handle]
	}
	return names, "", nil
}

// inform makes the entries of nodes in the volume's Secret what the records say, as attaching
// the volume again would: a kubelet that stages the volume again passes them on. Entries of
// nodes that do not have the volume, or that have a key of none of the records, stay.
//
// The PersistentVolume is read again: by now, it may have another volume, which loses a key
// that it needs if it has a former one of this volume.
func (r *renewal) inform(ctx context.Context, v backends.KeyedVolume, pv *corev1.PersistentVolume, origin string, next stamps.KeyRecords) error {
	at, err := objects.LocationOf(pv)
	if err != nil {
		return err
	}
	pv, err = r.Keeper.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read PersistentVolume %s: %w", pv.Name, err)
	}
	if now, err := objects.LocationOf(pv); err != nil || now != at || objects.EncryptedOf(pv) != origin {
		return nil // the next run finds what it has
	}
	ref := pv.Spec.CSI.NodeStageSecretRef
	if ref == nil || ref.Namespace != r.Keeper.Namespace || ref.Name != objects.NodeSecretName(pv.Name) {
		return fmt.Errorf("PersistentVolume %s does not name the Secret of its volume in spec.csi.nodeStageSecretRef", pv.Name)
	}
	open := func(records stamps.KeyRecords) (volumekeys.Opened, error) {
		metadata := maps.Clone(v.Volume.Metadata)
		maps.Copy(metadata, v.KeyRecords.Changes(records))
		opened, err := r.Keeper.Open(ctx, v.RecordedKey.ID, origin, metadata)
		return opened, errors.Join(err, opened.Unusable)
	}
	before, err := open(v.KeyRecords)
	if err != nil {
		return err
	}
	after, err := open(next)
	if err != nil {
		return err
	}
	var known []string
	for _, o := range []volumekeys.Opened{before, after} {
		known = append(known, passphrasesOf(o).Passphrases()...)
	}
	return editSecret(ctx, r.Keeper.Client, ref, func(secret *corev1.Secret) (changed bool) {
		for _, record := range stamps.NodeRecordsOf(v.Volume) {
			key := wire.SecretKey(record.Node)
			present, has := secret.Data[key]
			if !has {
				continue
			}
			credentials, err := wire.CredentialsFor(record.Node, map[string]string{key: string(present)})
			if err != nil || !slices.Contains(known, credentials.Passphrase) {
				continue
			}
			now := passphrasesOf(after)
			credentials.Passphrase, credentials.AlsoPassphrase, credentials.FormerPassphrase = now.Passphrase, now.AlsoPassphrase, now.FormerPassphrase
			_, value, err := wire.SecretEntry(record.Node, credentials)
			if err == nil && !bytes.Equal(value, present) {
				secret.Data[key], changed = value, true
			}
		}
		return changed
	})
}

func passphrasesOf(o volumekeys.Opened) wire.Credentials {
	return wire.Credentials{Passphrase: o.Main.Passphrase(), AlsoPassphrase: o.Also.Passphrase(), FormerPassphrase: o.Former.Passphrase()}
}

// editSecret replaces the version of a Secret that it has read. If the leader has changed it
// meanwhile, the next run tries again.
func editSecret(ctx context.Context, client kubernetes.Interface, ref *corev1.SecretReference, edit func(*corev1.Secret) (changed bool)) error {
	secrets := client.CoreV1().Secrets(ref.Namespace)
	secret, err := secrets.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // it is made when the volume is attached
	}
	if err == nil && edit(secret) {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("cannot write Secret %s/%s, from which its node gets the keys; run the command again: %w", ref.Namespace, ref.Name, err)
	}
	return nil
}
