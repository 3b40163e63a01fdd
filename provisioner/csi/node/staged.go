package node

import (
	"errors"
	"io/fs"
	"net/url"
	"path"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// StagedVolumes returns the volumes of which a node has anything in this boot, whether or
// not their state files can be read.
func StagedVolumes(files host.Files, stateDir, boot string) ([]string, error) {
	s := &state{files, stateDir, boot}
	names, err := s.files.ReadDir(path.Join(s.dir, kindVolumes))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var volumes []string
	for _, name := range names {
		escaped, isState := strings.CutSuffix(name, ".json")
		volume, err := url.PathUnescape(escaped)
		if !isState || err != nil {
			continue
		}
		if r, err := s.load(volume); err == nil && r == nil {
			continue // of another boot
		}
		volumes = append(volumes, volume)
	}
	return volumes, nil
}
