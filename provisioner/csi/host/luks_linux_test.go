package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/killpoint"
)

// TestHeadersOfCryptsetup reads what the real cryptsetup writes, also when it is killed.
func TestHeadersOfCryptsetup(t *testing.T) {
	tool := installed(t, "cryptsetup")
	for version, payload := range map[string]int64{"luks1": 2 << 20, "luks2": 16 << 20} {
		t.Run(version, func(t *testing.T) {
			dir := t.TempDir()
			file, key := filepath.Join(dir, "disk"), filepath.Join(dir, "key")
			empty := func() {
				if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 64<<20), os.WriteFile(key, []byte("00ff"), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			look := func() Content {
				read := make([]byte, beginning)
				f, err := os.Open(file)
				if err == nil {
					_, err = f.ReadAt(read, 0)
				}
				if err = errors.Join(err, f.Close()); err != nil {
					t.Fatal(err)
				}
				return recognize(read)
			}
			format := []string{"--batch-mode", "luksFormat", "--type", version, "--key-file", key, "--uuid", volume, "--cipher", "aes-xts-plain64", "--key-size", "256", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", file}
			empty()
			if output, err := exec.Command(tool, format...).CombinedOutput(); err != nil {
				t.Skipf("cryptsetup does not run here: %v: %s", err, output)
			}
			want := LUKS{Version: int(version[4] - '0'), UUID: volume, Payload: payload}
			if found := look(); found != (Content{LUKS: want}) {
				t.Errorf("it is read as %+v", found)
			}
			keyless := exec.Command(tool, "luksErase", "-q", file)
			if output, err := keyless.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, output)
			}
			want.Keyless = true
			if found := look(); found != (Content{LUKS: want}) {
				t.Errorf("without keys, it is read as %+v", found)
			}
			// Wherever luksFormat is killed, the result is empty, has no key yet, or is
			// junk that only a recorded beginning explains; it never seems ready.
			empty()
			all, ended, err := killpoint.Run(1<<30, tool, format...)
			if errors.Is(err, killpoint.ErrNotTraced) {
				t.Skip(err)
			}
			if err != nil || !ended {
				t.Fatal(err, ended)
			}
			disk := fileRoot{file: file}
			crypt := NewCrypt(New(Root{Files: disk, Devices: disk}, slog.New(slog.DiscardHandler)))
			for point := range killPoints {
				empty()
				if _, _, err := killpoint.Run(all*point/killPoints, tool, format...); err != nil {
					t.Fatal(err)
				}
				found := look()
				if again, err := crypt.Judge(t.Context(), "sdb", found, Wanted{Volume: volume, Begun: true}, want.Version); err != nil || again != (found.LUKS.Version == 0 || found.LUKS.Keyless) {
					t.Errorf("killed at %d of %d: it is made again: %t, %v", all*point/killPoints, all, again, err)
				}
				if found.LUKS.Version != 0 && !found.LUKS.Keyless {
					if output, err := exec.Command(tool, "luksOpen", "--test-passphrase", "--key-file", key, file).CombinedOutput(); err != nil {
						t.Errorf("killed at %d of %d, the header seems ready: %v: %s", all*point/killPoints, all, err, output)
					}
				} else if found.Filesystem != "" || found.UUID != "" {
					t.Errorf("killed at %d of %d, it is read as %+v", all*point/killPoints, all, found)
				}
			}
		})
	}
}

// fileRoot is a node whose only disk is a file.
type fileRoot struct {
	Files
	Devices
	file string
}

func (r fileRoot) ReadFile(string) ([]byte, error) { return nil, os.ErrNotExist }

func (r fileRoot) ReadDevice(_ context.Context, _ string, offset int64, length int) ([]byte, error) {
	f, err := os.Open(r.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content := make([]byte, length)
	_, err = f.ReadAt(content, offset)
	return content, err
}

// TestWhatIsNoHeader: what cannot be read is not formatted, and not opened either.
func TestWhatIsNoHeader(t *testing.T) {
	header := func(change func([]byte)) []byte {
		content := make([]byte, beginning)
		copy(content, luksMagic)
		content[7], content[9+1] = 2, 0x00
		content[14] = 0x40 // 16384 bytes
		copy(content[luksUUID:], volume)
		copy(content[luks2JSON:], `{"keyslots": {"0": {}}, "segments": {"0": {"offset": "16777216"}}}`)
		change(content)
		return content
	}
	if found := recognize(header(func([]byte) {})); found.LUKS != (LUKS{Version: 2, UUID: volume, Payload: 16 << 20}) {
		t.Fatalf("a header is read as %+v", found)
	}
	for name, change := range map[string]func([]byte){
		"a later version":        func(c []byte) { c[7] = 3 },
		"no UUID":                func(c []byte) { clear(c[luksUUID : luksUUID+luksUUIDLength]) },
		"a header without end":   func(c []byte) { c[8] = 0xff },
		"a header that is short": func(c []byte) { c[14] = 0x10 },
		"no JSON":                func(c []byte) { c[luks2JSON] = 'x' },
		"a negative offset":      func(c []byte) { copy(c[luks2JSON:], `{"segments": {"0": {"offset": "-16777216"}}}`+"\x00") },
		"an offset that is a lie": func(c []byte) {
			copy(c[luks2JSON:], `{"segments": {"0": {"offset": "9223372036854775807"}}}`+"\x00")
		},
		"a device that is being encrypted anew": func(c []byte) {
			copy(c[luks2JSON:], `{"keyslots": {"0": {}}, "segments": {"0": {"offset": "16777216"}, "1": {"offset": "26777216"}}}`+"\x00")
		},
	} {
		if found := recognize(header(change)); found.LUKS.Version != 0 || found.Empty {
			t.Errorf("%s is read as %+v", name, found)
		}
	}
	long := make([]byte, beginning)
	copy(long, strings.Repeat("LUKS\xba\xbe", 1000))
	if found := recognize(long); found.LUKS.Version != 0 || found.Empty {
		t.Errorf("%+v", found)
	}
}
