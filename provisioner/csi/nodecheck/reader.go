package nodecheck

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// Files are the node's.
type Files interface {
	host.Files
	// Modified returns when a file was last written.
	Modified(path string) (time.Time, error)
}

// reader has the files and programs of a node that cannot be changed, and where nothing can
// hang: a path may lead to a pipe, or to a server that is gone. Its Files bound their bytes.
type reader struct {
	Files
	tools host.Tools
	ctx   context.Context // Calls for files have none.
}

// readLimit bounds the wait for one file. A call that hangs is abandoned with its thread,
// which a process that ends soon can afford.
const readLimit = 5 * time.Second

func bounded[T any](r reader, path string, read func(string) (T, error)) (T, error) {
	type answer struct {
		content T
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		content, err := read(path)
		answers <- answer{content, err}
	}()
	ctx, cancel := context.WithTimeout(r.ctx, readLimit)
	defer cancel()
	select {
	case a := <-answers:
		return a.content, a.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("%s could not be read in time: %w", path, ctx.Err())
	}
}

func (r reader) ReadFile(path string) ([]byte, error) { return bounded(r, path, r.Files.ReadFile) }

func (r reader) ReadDir(path string) ([]string, error) { return bounded(r, path, r.Files.ReadDir) }

func (r reader) Modified(path string) (time.Time, error) { return bounded(r, path, r.Files.Modified) }

func (r reader) Has(tool string) bool {
	found, _ := bounded(r, tool, func(tool string) (bool, error) { return r.tools.Has(tool), nil })
	return found
}

var errReadOnly = errors.New("a check changes nothing")

// Run runs nothing: even a question can start a daemon through its socket.
func (reader) Run(context.Context, host.Command) (string, error) { return "", errReadOnly }

func (reader) Set(context.Context, string, string) error { return errReadOnly }
func (reader) MakeDir(string) error                      { return errReadOnly }
func (reader) MakeFile(string) error                     { return errReadOnly }
func (reader) Remove(string) error                       { return errReadOnly }

// devices are those of a node that cannot be changed.
type devices struct{ host.Devices }

func (devices) ConnectNVMe(context.Context, string, string) error { return errReadOnly }
