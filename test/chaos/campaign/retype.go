package campaign

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
)

// Volumes are created with the first of these types, and change to the other one
// and back.
const (
	firstType = "iscsi"
	otherType = "iscsi-other"
)

func volumeTypes() []drivers.VolumeType {
	return append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: otherType, Backend: firstType, RequiresInitiator: true})
}

// retype has an operator change the type of a volume in use with the command, while
// everything else goes on. An operator who has waited long enough kills the
// command.
func (w *world) retype(trouble context.Context, pick int, patience time.Duration) error {
	var inUse []cindersim.Volume
	for _, v := range w.sim.Volumes() {
		if v.Status == "in-use" && w.isStamped(v) && !w.names.isMoved(v.Metadata[checker.StampStorageClass]) && !w.claims.DeletionRequested(types.UID(v.Metadata[checker.StampClaimUID])) {
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
	if program == "" {
		program = w.suite.Program
	}
	command := exec.CommandContext(ctx, program, "volume", "retype", "--policy", names[0], "--kubeconfig", kubeconfig, "--provisioner-name", w.names.provisioner(),
		"--namespace", v.Metadata[checker.StampNamespace], "--claim", v.Metadata[checker.StampClaim], "--type", kind, "--apply")
	command.Env = append(os.Environ(), "OS_CLIENT_CONFIG_FILE="+names[1], "HTTP_PROXY="+lab.URL(), "NO_PROXY=", "no_proxy=")
	combined, err := command.CombinedOutput()
	return string(combined), err
}
