package nodecopy

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// grow fills a directory with entries of all kinds.
func grow(t *testing.T, random *rand.Rand, root, below string, depth int) {
	t.Helper()
	for i := range 3 + random.IntN(6) {
		name := filepath.Join(below, fmt.Sprintf("%d \xff\n%s", i, strings.Repeat("n", random.IntN(200))))
		switch random.IntN(8) {
		case 0, 1:
			must(t, os.Mkdir(name, 0o755))
			if depth > 0 {
				grow(t, random, root, name, depth-1)
			}
			must(t, os.Chmod(name, os.FileMode(random.IntN(0o1000))|os.ModeSetgid|os.ModeSticky))
		case 2:
			must(t, os.Symlink([]string{"/etc/passwd", "..", "nowhere", "0"}[random.IntN(4)], name))
		case 3:
			must(t, unix.Mkfifo(name, 0o640))
		case 4:
			content := make([]byte, random.IntN(3*chunk))
			for i := range content[:min(len(content), 100)] {
				content[i] = byte(random.Uint32())
			}
			must(t, os.WriteFile(name, content, 0o600))
			must(t, os.Link(name, filepath.Join(root, fmt.Sprintf("other name of %d at %d, %d", i, depth, random.Uint32()))))
		case 5: // begins and ends with a hole
			file, err := os.Create(name)
			must(t, err)
			_, err = file.WriteAt([]byte("in the middle"), int64(5+random.IntN(9))<<20)
			must(t, err)
			must(t, file.Truncate(20<<20))
			must(t, file.Close())
		default:
			must(t, os.WriteFile(name, []byte(name), os.FileMode(random.IntN(0o1000))))
			if os.Geteuid() == 0 {
				must(t, os.Chown(name, random.IntN(5), 4000000000))
				must(t, unix.Setxattr(name, "security.capability", []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
			}
			must(t, os.Chmod(name, os.FileMode(random.IntN(0o1000))|os.ModeSetuid))
			must(t, os.Chtimes(name, time.Time{}, time.Unix(random.Int64N(1<<32), random.Int64N(1e9))))
		}
	}
}

// asRoot skips a test that reads files which nobody else may.
func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func TestATreeIsCopiedWhole(t *testing.T) {
	asRoot(t)
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			from, to := t.TempDir(), t.TempDir()
			grow(t, rand.New(rand.NewPCG(seed, 1)), from, from, 3)
			// What an interrupted copy, or mkfs, has left.
			grow(t, rand.New(rand.NewPCG(seed, 2)), to, to, 2)
			must(t, os.MkdirAll(filepath.Join(to, "lost+found", "old"), 0o700))
			result := filepath.Join(t.TempDir(), "result")
			copied, err := Run(t.Context(), Options{From: from, To: to, ResultFile: result})
			must(t, err)
			var files, bytes, blocks [2]int64
			for i, root := range []string{from, to} {
				must(t, filepath.WalkDir(root, func(_ string, entry os.DirEntry, err error) error {
					if err != nil {
						return err
					}
					about, err := entry.Info()
					files[i]++
					if err == nil && about.Mode().IsRegular() {
						bytes[i] += about.Size()
						blocks[i] += about.Sys().(*syscall.Stat_t).Blocks
					}
					return err
				}))
			}
			if files[0] != files[1] || bytes[0] != bytes[1] || blocks[1] > blocks[0]+blocks[0]/10 {
				t.Errorf("source and copy have %v files, %v bytes and %v blocks", files, bytes, blocks)
			}
			said, err := os.ReadFile(result)
			must(t, err)
			var answer wire.Copied
			must(t, json.Unmarshal(said, &answer))
			if answer != copied || copied.Files < files[0] {
				t.Errorf("the result is %+v, and in the file %+v; there are %d files", copied, answer, files[0])
			}
		})
	}
}

// TestACopyThatDiffersIsNoCopy changes a copy in each way, and compares again.
func TestACopyThatDiffersIsNoCopy(t *testing.T) {
	asRoot(t)
	moment := time.Unix(1000, 5)
	for want, change := range map[string]func(at string) error{
		"has 5 entries":                     func(at string) error { return os.WriteFile(at+"/more", nil, 0o600) },
		"others":                            func(at string) error { return os.Rename(at+"/file", at+"/renamed") },
		"another mode":                      func(at string) error { return os.Chmod(at+"/file", 0o640) },
		"another owner":                     func(at string) error { return os.Lchown(at+"/link", 5, 6) },
		"another time of modification":      func(at string) error { return os.Chtimes(at+"/below", time.Time{}, moment.Add(1)) },
		"another size":                      func(at string) error { return os.Truncate(at+"/file", 1) },
		"another set of extended":           func(at string) error { return unix.Setxattr(at+"/file", "user.some", []byte("x"), 0) },
		"differs between bytes 0 and 4":     func(at string) error { return os.WriteFile(at+"/file", []byte("text"), 0) },
		"data where the source has a hole":  func(at string) error { return overwrite(at+"/holes", 12<<20) },
		"between bytes 4194304 and 4198400": func(at string) error { return overwrite(at+"/holes", 4<<20) },
		"another target": func(at string) error {
			must(t, os.Remove(at+"/link"))
			return os.Symlink("file", at+"/link")
		},
		"another number of names": func(at string) error {
			must(t, os.Remove(at+"/below/second"))
			must(t, os.WriteFile(at+"/below/second", []byte("twice"), 0o644))
			return os.Chtimes(at+"/below/second", time.Time{}, moment)
		},
	} {
		t.Run(want, func(t *testing.T) {
			from, to := t.TempDir(), t.TempDir()
			must(t, os.WriteFile(from+"/file", []byte("data"), 0o644))
			must(t, os.WriteFile(from+"/first", []byte("twice"), 0o644))
			must(t, os.Mkdir(from+"/below", 0o755))
			must(t, os.Link(from+"/first", from+"/below/second"))
			must(t, os.Symlink("nowhere", from+"/link"))
			must(t, os.WriteFile(from+"/holes", nil, 0o644))
			must(t, overwrite(from+"/holes", 4<<20))
			must(t, os.Truncate(from+"/holes", 30<<20))
			for _, name := range []string{"file", "first", "holes", "below"} {
				must(t, os.Chtimes(from+"/"+name, time.Time{}, moment))
			}
			c := &copier{limit: rate.NewLimiter(rate.Inf, 0)}
			source, target := opened(t, from), opened(t, to)
			must(t, c.runTree(t.Context(), source, target))
			must(t, change(to))
			for _, name := range []string{"file", "first", "holes"} {
				_ = os.Chtimes(to+"/"+name, time.Time{}, moment)
			}
			if !strings.Contains(want, "time") {
				_ = os.Chtimes(to+"/below", time.Time{}, moment)
			}
			root, err := source.read(".")
			must(t, err)
			must(t, target.describe(".", root))
			err = newTrees(c, target, root).compareDirectory(t.Context(), source, target)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		})
	}
}

func overwrite(name string, at int64) error {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteAt(bytes.Repeat([]byte{byte(time.Now().Nanosecond()) | 1}, 4096), at)
	return err
}

func opened(t *testing.T, name string) *directory {
	t.Helper()
	file, err := os.Open(name)
	must(t, err)
	t.Cleanup(func() { file.Close() })
	return &directory{File: file}
}

// TestWhatIsNotCopied: nothing beside the two volumes is read or written.
func TestWhatIsNotCopied(t *testing.T) {
	asRoot(t)
	t.Run("what a link in the target leads to", func(t *testing.T) {
		from, to, elsewhere := t.TempDir(), t.TempDir(), t.TempDir()
		must(t, os.Mkdir(from+"/data", 0o755))
		must(t, os.WriteFile(from+"/data/file", []byte("new"), 0o600))
		must(t, os.WriteFile(elsewhere+"/file", []byte("old"), 0o600))
		must(t, os.Symlink(elsewhere, to+"/data"))
		_, err := Run(t.Context(), Options{From: from, To: to})
		must(t, err)
		if content, err := os.ReadFile(elsewhere + "/file"); err != nil || string(content) != "old" {
			t.Errorf("it has %q, %v", content, err)
		}
	})
	t.Run("another filesystem", func(t *testing.T) {
		from, to := t.TempDir(), t.TempDir()
		must(t, os.Mkdir(from+"/mounted", 0o755))
		if err := unix.Mount("none", from+"/mounted", "tmpfs", 0, ""); err != nil {
			t.Skip(err)
		}
		defer func() { must(t, unix.Unmount(from+"/mounted", 0)) }()
		copied, err := Run(t.Context(), Options{From: from, To: to})
		if err == nil || !strings.Contains(copied.Error, "another filesystem is mounted") {
			t.Errorf("the result is %+v", copied)
		}
	})
	t.Run("a device that is too large", func(t *testing.T) {
		from, to := t.TempDir()+"/from", t.TempDir()+"/to"
		must(t, os.WriteFile(from, make([]byte, 4097), 0o600))
		must(t, os.WriteFile(to, []byte(strings.Repeat("x", 4096)), 0o600))
		if _, err := Run(t.Context(), Options{From: from, To: to}); err == nil || !strings.Contains(err.Error(), "has 4097 bytes, and the target 4096") {
			t.Errorf("error %v", err)
		}
		if content, err := os.ReadFile(to); err != nil || !strings.HasPrefix(string(content), "xxx") {
			t.Errorf("the target has %q, %v", content, err)
		}
	})
}

func TestADeviceIsCopiedWhole(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	content := make([]byte, 3*chunk+4096)
	_, err := random.Read(content[:2*chunk-7])
	must(t, err)
	from, to := t.TempDir()+"/from", t.TempDir()+"/to"
	must(t, os.WriteFile(from, content, 0o600))
	must(t, os.WriteFile(to, nil, 0o600))
	must(t, os.Truncate(to, 5*chunk))
	must(t, overwrite(to, chunk))
	copied, err := Run(t.Context(), Options{From: from, To: to})
	must(t, err)
	has, err := os.ReadFile(to)
	must(t, err)
	if !bytes.Equal(has[:len(content)], content) || copied.Bytes != int64(len(content)) {
		t.Errorf("the copy differs; the result is %+v", copied)
	}
	var about unix.Stat_t
	must(t, unix.Stat(to, &about))
	if about.Blocks*512 > 2*chunk+4096 {
		t.Errorf("the copy takes %d bytes", about.Blocks*512)
	}
}

// acl is an access control list that gives user 1234 everything.
func acl() []byte {
	list := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][3]uint32{{1, 7, 0xffffffff}, {2, 7, 1234}, {4, 5, 0xffffffff}, {16, 7, 0xffffffff}, {32, 5, 0xffffffff}} {
		list = binary.LittleEndian.AppendUint16(list, uint16(e[0]))
		list = binary.LittleEndian.AppendUint16(list, uint16(e[1]))
		list = binary.LittleEndian.AppendUint32(list, e[2])
	}
	return list
}

// filesystem is an empty ext4 filesystem.
func filesystem(t *testing.T) string {
	t.Helper()
	asRoot(t)
	image, at := filepath.Join(t.TempDir(), "image"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 32<<20))
	for _, command := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, at}} {
		if output, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%v: %s", err, output)
		}
	}
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) })
	return at
}

// TestACopyIsMadeAnewWhateverTheRootHas: the first copy was complete, but not taken, since a
// pod had used the claim.
func TestACopyIsMadeAnewWhateverTheRootHas(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, from string){
		"a default access control list": func(t *testing.T, from string) {
			must(t, unix.Setxattr(from, "system.posix_acl_default", acl(), 0))
		},
		"an attribute that is gone by then": func(t *testing.T, from string) {
			must(t, unix.Setxattr(from, "user.some", []byte("x"), 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := filesystem(t), filesystem(t)
			must(t, os.WriteFile(from+"/file", []byte("data"), 0o644))
			must(t, os.Mkdir(from+"/below", 0o750))
			change(t, from)
			for i := range 2 {
				if _, err := Run(t.Context(), Options{From: from, To: to}); err != nil {
					t.Fatalf("copy %d: %v", i+1, err)
				}
				_ = unix.Removexattr(from, "user.some")
			}
		})
	}
}

// TestAHardLinkToADeepFileIsCopied: the name of the first is longer than a path may be.
func TestAHardLinkToADeepFileIsCopied(t *testing.T) {
	asRoot(t)
	from, to := t.TempDir(), t.TempDir()
	at := opened(t, from)
	for range 20 {
		name := strings.Repeat("d", 250)
		must(t, unix.Mkdirat(int(at.Fd()), name, 0o755))
		below, err := at.directory(name)
		must(t, err)
		defer below.Close()
		at = below
	}
	fd, err := unix.Openat(int(at.Fd()), "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	must(t, err)
	must(t, unix.Close(fd))
	must(t, unix.Linkat(int(at.Fd()), "file", int(opened(t, from).Fd()), "other", 0))
	if _, err := Run(t.Context(), Options{From: from, To: to}); err != nil {
		t.Errorf("%.60s ... %s", err, err.Error()[max(0, len(err.Error())-60):])
	}
}

func TestSaysHowFarTheCopyIs(t *testing.T) {
	for want, test := range map[string]struct{ total, copied, compared int64 }{
		"copied 3 files with 256 MiB, and compared 1 files with 0 MiB: about 12%, 7m0s left":   {1 << 30, 256 << 20, 0},
		"copied 3 files with 1024 MiB, and compared 1 files with 512 MiB: about 75%, 20s left": {1 << 30, 1 << 30, 512 << 20},
		"copied 3 files with 1024 MiB, and compared 1 files with 1024 MiB":                     {1 << 30, 1 << 30, 1 << 30}, // more than was estimated
		"copied 3 files with 0 MiB, and compared 1 files with 0 MiB":                           {1 << 30, 0, 0},
		"copied 3 files with 1 MiB, and compared 1 files with 0 MiB: about 0%":                 {16 << 40, 1 << 20, 0},
		"copied 3 files with 128 MiB, and compared 1 files with 0 MiB":                         {0, 128 << 20, 0}, // nobody knows
	} {
		c := &copier{}
		c.copied.files.Store(3)
		c.compared.files.Store(1)
		c.total.Store(test.total)
		c.copied.bytes.Store(test.copied)
		c.compared.bytes.Store(test.compared)
		if got := c.far(time.Minute); got != want {
			t.Errorf("%+v: %s; want %s", test, got, want)
		}
	}
}
