package campaign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
)

// administer reloads policies, rotates passwords and puts foreign volumes into
// the program's projects.
func (w *world) administer(ctx, trouble context.Context) {
	for i, step := range w.plan.Administrator {
		if !w.until(trouble, step.At) {
			return
		}
		w.timeline.Note("%s", step)
		var err error
		switch step.Kind {
		case plan.Reload:
			err = w.reload(step.Variant)
		case plan.BadPolicy:
			// This ends early if another actor changes the configuration
			// meanwhile.
			bad := w.configuration().policy + "\nnonsense: true\n"
			err = w.everyReplica(func(r *replica) error { return r.WritePolicy(bad) })
			sleep(trouble, step.For)
			err = errors.Join(err, w.configureAll())
		case plan.Rotate:
			err = w.rotate(userOf(step.Where), fmt.Sprintf("password-%d", i))
		case plan.Foreign:
			err = w.addForeign(step.Where, string(w.claims.Pick(step.Pick)))
		case plan.GiveAway:
			err = w.giveAway(step.Pick)
		case plan.Retype:
			err = w.retype(trouble, step.Pick, step.For)
		}
		if err != nil && ctx.Err() == nil {
			w.timeline.Say("%s: %s", step, err)
		}
	}
}

// reload puts a variant of the policy into force on all replicas.
func (w *world) reload(variant int) error {
	if err := w.allow(variant); err != nil {
		return err
	}
	w.mu.Lock()
	w.variant = variant
	w.mu.Unlock()
	return w.configureAll()
}

// rotate changes a password at Keystone and then in clouds.yaml; in between,
// Keystone refuses the program.
func (w *world) rotate(user, password string) error {
	if err := w.sim.SetPassword(user, password); err != nil {
		return err
	}
	return w.configureAll()
}

// configureAll writes the current files of all replicas.
func (w *world) configureAll() error {
	w.configuring.Lock()
	defer w.configuring.Unlock()
	present := w.configuration()
	return w.everyReplica(func(r *replica) error { return r.configure(present) })
}

// addForeign puts volumes that are not the program's next to those of a claim:
// without a stamp, with another cluster's, and with half of this cluster's. All
// have names like the program's own volumes.
func (w *world) addForeign(backend, claimUID string) error {
	if claimUID == "" {
		claimUID = string(uuid.NewUUID())
	}
	name := "pvc-" + claimUID
	stamp := map[string]string{
		checker.StampCluster:      "another-cluster",
		checker.StampClaimUID:     claimUID,
		checker.StampPV:           name,
		checker.StampTenant:       "a",
		checker.StampStorageClass: w.names.class(plan.Fast),
	}
	half := maps.Clone(stamp)
	half[checker.StampCluster], half[checker.StampPV] = w.names.cluster(), "pvc-another"
	nova := cindersim.Attachment{Instance: "5b8a1c2e-9f6d-4f0e-8c53-1d7f0a2b3c4d", Mountpoint: "/dev/vdb"}
	for _, v := range []cindersim.Volume{
		{Metadata: map[string]string{"owner": "somebody"}},
		{Metadata: map[string]string{}, Status: "error"},
		{Metadata: stamp, Status: "attaching"},
		{Metadata: stamp, Status: "in-use", Attachments: []cindersim.Attachment{nova}},
		{Metadata: half},
	} {
		v.Name, v.Project, v.SizeGiB = name, w.project(backend), 1
		if err := w.putForeign(v); err != nil {
			return err
		}
	}
	return nil
}

// giveAway puts another cluster's stamp on one of the volumes in use, and
// counts it among the foreign ones. Its PersistentVolume names it as before,
// but must not cause its deletion.
func (w *world) giveAway(pick int) error {
	var inUse []cindersim.Volume
	for _, v := range w.sim.Volumes() {
		if v.Status == "in-use" && w.isStamped(v) && !checker.IsOnNodes(v) && !w.names.isApart(v.Metadata[checker.StampStorageClass]) && !w.claims.DeletionRequested(types.UID(v.Metadata[checker.StampClaimUID])) {
			inUse = append(inUse, v)
		}
	}
	if len(inUse) == 0 {
		return nil
	}
	given := inUse[pick%len(inUse)]
	uid := types.UID(given.Metadata[checker.StampClaimUID])
	stamp := maps.Clone(given.Metadata)
	stamp[checker.StampCluster] = "another-cluster"
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.sim.ReplaceVolumeMetadata(given.ID, "in-use", stamp) {
		return nil // it was deleted a moment ago
	}
	if w.claims.DeletionRequested(uid) {
		// Its deletion may already be under way, which is correct.
		w.sim.ReplaceVolumeMetadata(given.ID, "in-use", given.Metadata)
		return nil
	}
	w.timeline.Note("volume %s (%s) now belongs to another cluster", given.ID, given.Name)
	w.given[given.ID] = given
	w.foreign[given.ID], _ = w.sim.Volume(given.ID)
	return nil
}

func (w *world) putForeign(v cindersim.Volume) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, err := w.sim.AddVolume(v)
	if err != nil {
		return err
	}
	w.foreign[id], _ = w.sim.Volume(id)
	return nil
}

// Volumes are created with the first of these types, and change to the other one
// and back.
const (
	firstType = "iscsi"
	otherType = "iscsi-other"
)

// volumeTypes returns the volume types: those of volumes that nobody stages, and those of
// the arrays.
func volumeTypes(arrays map[string]*drivers.Array) []drivers.VolumeType {
	types := append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: otherType, Backend: firstType, RequiresInitiator: true})
	for _, name := range slices.Sorted(maps.Keys(arrays)) {
		types = append(types, arrays[name].Type(name))
	}
	return types
}

// retype has an operator change the type of a volume in use with the command, while
// everything else goes on. An operator who has waited long enough kills the
// command.
func (w *world) retype(trouble context.Context, pick int, patience time.Duration) error {
	var inUse []cindersim.Volume
	for _, v := range w.sim.Volumes() {
		if v.Status == "in-use" && w.isStamped(v) && !w.names.isApart(v.Metadata[checker.StampStorageClass]) && !w.claims.DeletionRequested(types.UID(v.Metadata[checker.StampClaimUID])) {
			inUse = append(inUse, v)
		}
	}
	if len(inUse) == 0 {
		return nil
	}
	v := inUse[pick%len(inUse)]
	kind := otherType
	if v.Type == otherType {
		kind = firstType
	}
	ctx, cancel := context.WithTimeout(trouble, patience)
	defer cancel()
	output, err := w.retypeCommand(ctx, v, kind)
	if err != nil {
		// Cinder, the API server or the claim may be away.
		w.timeline.Note("volume %s is not changed to type %s, as far as the operator knows: %s, %s", v.ID, kind, err, firstLine(strings.TrimSpace(output)))
		return nil
	}
	w.timeline.Note("volume %s has type %s now", v.ID, kind)
	w.change(func(c *Counts) { c.Retypes++ })
	if now, ok := w.sim.Volume(v.ID); ok && now.Type != kind {
		w.found(checker.Finding{Kind: checker.WrongType, Object: "volume " + v.Name, VolumeID: v.ID, Text: fmt.Sprintf("it has type %s, but the command said: %s", now.Type, output)})
	}
	return nil
}

func (w *world) retypeCommand(ctx context.Context, v cindersim.Volume, kind string) (output string, err error) {
	dir, err := os.MkdirTemp("", "standalone-cinder-operator-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	files, names := w.configuration(), [2]string{filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "clouds.yaml")}
	for i, content := range []string{files.policy, files.clouds} {
		if err := os.WriteFile(names[i], []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	kubeconfig, err := w.suite.Administrator(dir, "", nil)
	if err != nil {
		return "", err
	}
	lab, err := faultproxy.Start(faultproxy.Options{Target: strings.TrimSuffix(w.sim.NoauthEndpoint(), "/v3")})
	if err != nil {
		return "", err
	}
	defer lab.Close()
	program := w.options.Program
	program = cmp.Or(program, w.suite.Program)
	command := exec.CommandContext(ctx, program, "volume", "retype", "--policy", names[0], "--kubeconfig", kubeconfig, "--provisioner-name", w.names.provisioner(),
		"--namespace", v.Metadata[checker.StampNamespace], "--claim", v.Metadata[checker.StampClaim], "--type", kind, "--apply")
	command.Env = append(os.Environ(), "OS_CLIENT_CONFIG_FILE="+names[1], "HTTP_PROXY="+lab.URL(), "NO_PROXY=", "no_proxy=")
	combined, err := command.CombinedOutput()
	return string(combined), err
}
