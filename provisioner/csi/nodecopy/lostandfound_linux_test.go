package nodecopy

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestACopyIsMadeAnewWhateverLostAndFoundHas: that directory stays in the target, with what an
// earlier copy has given it.
func TestACopyIsMadeAnewWhateverLostAndFoundHas(t *testing.T) {
	for name, change := range map[string]struct{ set, unset func(at string) error }{
		"an attribute that is gone by then": {
			func(at string) error { return unix.Setxattr(at, "user.some", []byte("x"), 0) },
			func(at string) error { return unix.Removexattr(at, "user.some") },
		},
		"an access control list that is gone by then": {
			func(at string) error { return unix.Setxattr(at, "system.posix_acl_default", acl(), 0) },
			func(at string) error { return unix.Removexattr(at, "system.posix_acl_default") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := filesystem(t), filesystem(t)
			must(t, os.WriteFile(from+"/lost+found/#12", []byte("data"), 0o644))
			must(t, change.set(from+"/lost+found"))
			if _, err := Run(t.Context(), Options{From: from, To: to}); err != nil {
				t.Fatalf("the first copy: %v", err)
			}
			must(t, change.unset(from+"/lost+found"))
			if _, err := Run(t.Context(), Options{From: from, To: to}); err != nil {
				t.Errorf("the copy that is made anew fails, and so does each further one: %v", err)
			}
		})
	}
}

// TestLostAndFoundThatIsNoDirectory: somebody has removed the source's, and mkfs has made one in
// the target.
func TestLostAndFoundThatIsNoDirectory(t *testing.T) {
	for name, make := range map[string]func(at string) error{
		"a file":          func(at string) error { return os.WriteFile(at, []byte("data"), 0o644) },
		"a symbolic link": func(at string) error { return os.Symlink("elsewhere", at) },
	} {
		t.Run(name, func(t *testing.T) {
			from, to := filesystem(t), filesystem(t)
			must(t, os.Remove(from+"/lost+found"))
			must(t, make(from+"/lost+found"))
			if _, err := Run(t.Context(), Options{From: from, To: to}); err != nil {
				t.Errorf("such a volume can never be copied: %v", err)
			}
		})
	}
}

// TestLinksAreCounted: hard links of symbolic links, FIFOs and files, in and out of lost+found.
func TestLinksAreCounted(t *testing.T) {
	from, to := filesystem(t), filesystem(t)
	must(t, os.Mkdir(from+"/z", 0o755))
	must(t, os.WriteFile(from+"/lost+found/#12", []byte("data"), 0o644))
	must(t, os.Link(from+"/lost+found/#12", from+"/z/file"))
	must(t, os.Link(from+"/lost+found/#12", from+"/a"))
	must(t, os.Symlink("nowhere", from+"/b"))
	must(t, os.Link(from+"/b", from+"/lost+found/#13"))
	must(t, unix.Mkfifo(from+"/fifo", 0o600))
	must(t, os.Link(from+"/fifo", from+"/z/fifo"))
	for range 2 {
		if _, err := Run(t.Context(), Options{From: from, To: to}); err != nil {
			t.Error(err)
		}
	}
}
