package node

import "github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"

// StagedVolumes returns the volumes of which a node has anything in this boot, whether or
// not their state files can be read.
func StagedVolumes(files host.Files, stateDir, boot string) ([]string, error) {
	s := &state{files: files, dir: stateDir, boot: boot}
	records, err := s.all()
	var volumes []string
	for _, r := range records {
		volumes = append(volumes, r.Volume)
	}
	return volumes, err
}
