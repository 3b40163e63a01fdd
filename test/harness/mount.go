package harness

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// mount is a directory as kubelet mounts a ConfigMap or Secret: every file is a
// symlink into ..data, itself a symlink to a directory that is replaced as a
// whole.
type mount struct{ dir string }

func newMount(dir string) (mount, error) { return mount{dir}, os.MkdirAll(dir, 0o700) }

func (m mount) path(name string) string { return filepath.Join(m.dir, name) }

// write replaces the file, the only one of the mount, in one step.
func (m mount) write(name, content string) error {
	return m.writeAll(map[string]string{name: content})
}

// writeAll replaces all files in one step.
func (m mount) writeAll(files map[string]string) error {
	version, err := os.MkdirTemp(m.dir, "..version-")
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(version, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	data := filepath.Join(m.dir, "..data")
	before, err := os.Readlink(data)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next := filepath.Join(m.dir, "..data_tmp")
	if err := os.Symlink(filepath.Base(version), next); err != nil {
		return err
	}
	if err := os.Rename(next, data); err != nil {
		return err
	}
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), m.path(name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if before == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(m.dir, before))
}
