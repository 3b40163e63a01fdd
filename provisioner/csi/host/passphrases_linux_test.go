package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/killpoint"
)

// keyslots is a node whose only disk is a file, with the real cryptsetup.
type keyslots struct {
	fileRoot
	tool string
	// calls are the arguments of what was run.
	calls []string
}

func (k *keyslots) Has(string) bool { return true }

// Run makes the keyslots of tests cheap.
func (k *keyslots) Run(ctx context.Context, c Command) (string, error) {
	k.calls = append(k.calls, c.String())
	var arguments []string
	for _, a := range c.Arguments {
		switch a {
		case "/dev/sdb":
			a = k.file
		case "pbkdf2":
			arguments = append(arguments, a)
			arguments, a = append(arguments, "--pbkdf-force-iterations"), "1000"
		}
		arguments = append(arguments, a)
	}
	command := exec.CommandContext(ctx, k.tool, arguments...)
	command.Stdin = strings.NewReader(c.Input + c.Further)
	output, err := command.CombinedOutput()
	if exited := new(exec.ExitError); errors.As(err, &exited) {
		return "", &ToolError{c.String(), exited.ExitCode(), c.clean(string(output))}
	}
	return string(output), err
}

// realHeader makes a LUKS2 header that some passphrases open.
func realHeader(t *testing.T, passphrases ...string) (*Crypt, *keyslots) {
	t.Helper()
	k := &keyslots{fileRoot: fileRoot{file: filepath.Join(t.TempDir(), "disk")}, tool: installed(t, "cryptsetup")}
	if err := errors.Join(os.WriteFile(k.file, nil, 0o600), os.Truncate(k.file, 32<<20)); err != nil {
		t.Fatal(err)
	}
	c := NewCrypt(New(Root{Files: k, Devices: k, Tools: k}, slog.New(slog.DiscardHandler)))
	if err := c.Format(t.Context(), "sdb", volume, Encryption{Version: 2}, passphrases[0]); err != nil {
		t.Skipf("cryptsetup does not run here: %v", err)
	}
	for _, p := range passphrases[1:] {
		if err := c.AddPassphrase(t.Context(), "sdb", passphrases[0], p); err != nil {
			t.Fatal(err)
		}
	}
	return c, k
}

var (
	formerPassphrase = strings.Repeat("0123456789abcdef", 4)
	nextPassphrase   = strings.Repeat("fedcba9876543210", 4)
)

func opening(t *testing.T, c *Crypt, passphrases ...string) (opens []bool) {
	t.Helper()
	for _, p := range passphrases {
		has, err := c.Opens(t.Context(), "sdb", p)
		if err != nil {
			t.Fatal(err)
		}
		opens = append(opens, has)
	}
	return opens
}

// TestPassphrasesOfRealHeaders: what cryptsetup does with them is what the program expects,
// again and again, and a header is never without the passphrase that stays.
func TestPassphrasesOfRealHeaders(t *testing.T) {
	c, k := realHeader(t, formerPassphrase)
	former, next := formerPassphrase, nextPassphrase
	if err := c.RemovePassphrase(t.Context(), "sdb", next, former); err == nil {
		t.Error("the last passphrase is removed for one that does not open the header")
	}
	if err := c.RemovePassphrase(t.Context(), "sdb", former, former); err == nil {
		t.Error("a passphrase is removed for itself")
	}
	if err := c.AddPassphrase(t.Context(), "sdb", next, "another"); err == nil {
		t.Error("a passphrase is added with one that does not open the header")
	}
	for range 2 {
		if err := c.AddPassphrase(t.Context(), "sdb", former, next); err != nil {
			t.Fatal(err)
		}
		if got := opening(t, c, former, next); !slices.Equal(got, []bool{true, true}) {
			t.Fatalf("after it was added: %v", got)
		}
		if slots, err := c.slots(t.Context(), "sdb"); err != nil || len(slots) != 2 {
			t.Fatalf("%d keyslots, %v", len(slots), err)
		}
	}
	for range 2 {
		if err := c.RemovePassphrase(t.Context(), "sdb", next, former); err != nil {
			t.Fatal(err)
		}
		if got := opening(t, c, former, next); !slices.Equal(got, []bool{false, true}) {
			t.Fatalf("after it was removed: %v", got)
		}
	}
	for _, call := range k.calls {
		if strings.Contains(call, former) || strings.Contains(call, next) {
			t.Errorf("a passphrase is an argument of %s", call)
		}
	}
}

// TestKilledChangesOfRealHeaders: wherever cryptsetup is killed, the header is opened by the
// passphrase that opened it before, and by the one that stays.
func TestKilledChangesOfRealHeaders(t *testing.T) {
	keyFile := func(dir, name, passphrase string) string {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, []byte(passphrase), 0o600); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for name, arguments := range map[string]func(dir, disk string) []string{
		"add": func(dir, disk string) []string {
			return []string{"--batch-mode", "luksAddKey", "--key-file", keyFile(dir, "a", formerPassphrase), "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", disk, keyFile(dir, "b", nextPassphrase)}
		},
		"remove": func(dir, disk string) []string {
			return []string{"luksKillSlot", "--key-file", keyFile(dir, "b", nextPassphrase), disk, "0"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			has := []string{formerPassphrase, nextPassphrase}
			stays := nextPassphrase
			if name == "add" {
				has, stays = has[:1], formerPassphrase
			}
			c, k := realHeader(t, has...)
			before, err := os.ReadFile(k.file)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			all, ended, err := killpoint.Run(1<<30, k.tool, arguments(dir, k.file)...)
			if errors.Is(err, killpoint.ErrNotTraced) {
				t.Skip(err)
			}
			if err != nil || !ended {
				t.Fatal(err, ended)
			}
			for point := range killPoints / 3 {
				if err := os.WriteFile(k.file, before, 0o600); err != nil {
					t.Fatal(err)
				}
				if _, _, err := killpoint.Run(all*point*3/killPoints, k.tool, arguments(dir, k.file)...); err != nil {
					t.Fatal(err)
				}
				if !opening(t, c, stays)[0] {
					t.Fatalf("killed at %d of %d, the header is lost", all*point*3/killPoints, all)
				}
				// The next attempt does the rest.
				again := c.RemovePassphrase(t.Context(), "sdb", nextPassphrase, formerPassphrase)
				if name == "add" {
					again = c.AddPassphrase(t.Context(), "sdb", formerPassphrase, nextPassphrase)
				}
				if got := opening(t, c, formerPassphrase, nextPassphrase); again != nil || !got[1] || got[0] != (name == "add") {
					t.Fatalf("killed at %d of %d, the next attempt ends with %v: %v", all*point*3/killPoints, all, got, again)
				}
			}
		})
	}
}
