package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// SanityReplica is what test/csisanity needs to know about a replica.
type SanityReplica struct {
	Endpoint, Backend, NodeID string
	// NodeEndpoint is the socket of the node that TestNode tests. NodePaths is the URL of
	// a server that answers 200 if that node has the directory of the URL's path, else 404.
	NodeEndpoint, NodePaths string
	// Skip leaves out tests by their names, and Focus all others; both may be empty.
	Skip, Focus                                       string
	Parameters, SnapshotParameters, MutableParameters map[string]string
}

// CSISanity runs a test of test/csisanity, the specification's own suite, against a
// replica's socket, and returns what it prints.
func (s *Suite) CSISanity(ctx context.Context, test string, replica SanityReplica) (output string, err error) {
	described, err := json.Marshal(replica)
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-timeout", "10m", "-run", "^"+test+"$", ".")
	command.Dir = filepath.Join(s.root, "test", "csisanity")
	command.Env = append(os.Environ(), "CSI_SANITY_REPLICA="+string(described))
	printed, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s of test/csisanity: %w", test, err)
	}
	return string(printed), err
}
