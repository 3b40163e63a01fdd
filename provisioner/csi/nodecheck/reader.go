package nodecheck

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// reader is a node that cannot be changed, and whose files cannot hang: a path may lead to
// a pipe, or to a server that is gone. Its Root bounds their bytes.
type reader struct {
	host.Root
	ctx context.Context // Calls for files have none.
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

func (r reader) ReadFile(path string) ([]byte, error) { return bounded(r, path, r.Root.ReadFile) }

func (r reader) ReadDir(path string) ([]string, error) { return bounded(r, path, r.Root.ReadDir) }

func (r reader) Modified(path string) (time.Time, error) { return bounded(r, path, r.Root.Modified) }

func (r reader) Has(tool string) bool {
	found, _ := bounded(r, tool, func(tool string) (bool, error) { return r.Root.Has(tool), nil })
	return found
}

var errReadOnly = errors.New("a check changes nothing")

// Run runs nothing: even a question can start a daemon through its socket.
func (reader) Run(context.Context, host.Command) (string, error) { return "", errReadOnly }

func (reader) Set(context.Context, string, string) error         { return errReadOnly }
func (reader) Replace(string, []byte) error                      { return errReadOnly }
func (reader) MakeDir(string) error                              { return errReadOnly }
func (reader) MakeFile(string) error                             { return errReadOnly }
func (reader) Remove(string) error                               { return errReadOnly }
func (reader) ConnectNVMe(context.Context, string, string) error { return errReadOnly }
func (reader) Lock(context.Context, string, bool) (func(), error) {
	return nil, errReadOnly
}
