package volumekeys

import (
	"encoding/hex"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// TestTheScriptUnwrapsKeys: an operator opens volumes without the program.
func TestTheScriptUnwrapsKeys(t *testing.T) {
	// The distribution's, which has the module of its package.
	const python = "/usr/bin/python3"
	if exec.Command(python, "-c", "import cryptography").Run() != nil {
		t.Skip("there is no python3-cryptography")
	}
	with := []byte(strings.Repeat("0123456789abcdef", 4) + "\n")
	record, err := New(stamps.EncryptionRecord{Secret: "keys", Entry: "a", Origin: "6f1d3c52-6f0e-4f0c-9a0d-8f4f7f1b2c3d"}, with)
	if err != nil {
		t.Fatal(err)
	}
	key, err := Unwrap(record, with)
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/entry"
	if err := os.WriteFile(file, with, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := exec.Command(python, "../../../deploy/examples/volume-key.py", record.String(), file).CombinedOutput()
	if err != nil || string(got) != key.Passphrase() || len(got) != hex.EncodedLen(size) {
		t.Errorf("the script printed %d bytes, %v", len(got), err)
	}
	record.Origin = "another"
	if _, err := exec.Command(python, "../../../deploy/examples/volume-key.py", record.String(), file).CombinedOutput(); err == nil {
		t.Error("it unwraps the key of another origin")
	}
}
