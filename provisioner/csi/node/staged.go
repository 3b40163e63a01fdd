package node

// StagedVolumes returns the volumes of which a node has anything in this boot, whether or
// not their state files can be read.
func StagedVolumes(files Files, stateDir, boot string) ([]string, error) {
	s := &state{files: files, dir: stateDir, boot: boot}
	records, err := s.all()
	var volumes []string
	for _, r := range records {
		volumes = append(volumes, r.Volume)
	}
	return volumes, err
}

// StagedPassphrases returns what was proven of the passphrases of the staged volumes that
// get a new one.
func StagedPassphrases(files Files, stateDir, boot string) (map[string][]string, error) {
	s := &state{files: files, dir: stateDir, boot: boot}
	records, err := s.all()
	proven := map[string][]string{}
	for _, r := range records {
		if r.Staged && len(r.Passphrases) > 0 {
			proven[r.Volume] = r.Passphrases
		}
	}
	return proven, err
}
