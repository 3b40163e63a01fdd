package vm

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
)

//go:embed init.sh
var initScript []byte

const (
	suite    = "bookworm"
	packages = "linux-image-cloud-amd64,open-iscsi,multipath-tools,udev,kmod,iproute2,openssh-server,xfsprogs,e2fsprogs,cryptsetup-bin,procps,containerd,runc,crun,containernetworking-plugins"
	diskSize = "2500M"
)

// Image is a disk from which machines start. They do not write to it.
type Image struct {
	dir    string
	key    ssh.Signer
	server ssh.PublicKey
}

func (i Image) path(name string) string { return filepath.Join(i.dir, name) }

// Build makes the image in a directory, or finds the one that an earlier run of
// the same program made there. Processes that build at once wait for one another. It
// needs root.
func Build(ctx context.Context, dir string) (Image, error) {
	image := Image{dir: dir}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return Image{}, err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return Image{}, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	sum := sha256.Sum256(append([]byte(suite+packages+diskSize), initScript...))
	recipe := hex.EncodeToString(sum[:])
	if made, err := os.ReadFile(image.path("recipe")); err != nil || string(made) != recipe {
		if err := image.make(ctx); err != nil {
			return Image{}, fmt.Errorf("make the image of the virtual machines: %w", err)
		}
		if err := os.WriteFile(image.path("recipe"), []byte(recipe), 0o600); err != nil {
			return Image{}, err
		}
	}
	private, err := os.ReadFile(image.path("key"))
	if err != nil {
		return Image{}, err
	}
	if image.key, err = ssh.ParsePrivateKey(private); err != nil {
		return Image{}, err
	}
	public, err := os.ReadFile(image.path("server.pub"))
	if err != nil {
		return Image{}, err
	}
	image.server, _, _, _, err = ssh.ParseAuthorizedKey(public)
	return image, err
}

func (i Image) make(ctx context.Context) error {
	if err := os.RemoveAll(i.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(i.dir, 0o700); err != nil {
		return err
	}
	root := i.path("root")
	if err := command(ctx, "debootstrap", "--variant=minbase", "--include="+packages, suite, root); err != nil {
		return err
	}
	authorized, err := i.makeKey()
	if err != nil {
		return err
	}
	for _, file := range []struct {
		path    string
		content []byte
		mode    os.FileMode
	}{
		{"node-init", initScript, 0o755},
		{"root/.ssh/authorized_keys", authorized, 0o600},
	} {
		path := filepath.Join(root, file.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, file.content, file.mode); err != nil {
			return err
		}
	}
	server, err := os.ReadFile(filepath.Join(root, "etc/ssh/ssh_host_ed25519_key.pub"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(i.path("server.pub"), server, 0o600); err != nil {
		return err
	}
	for pattern, name := range map[string]string{"vmlinuz-*": "kernel", "initrd.img-*": "initrd"} {
		found, err := filepath.Glob(filepath.Join(root, "boot", pattern))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("the image has %d files boot/%s: %w", len(found), pattern, err)
		}
		if err := os.Rename(found[0], i.path(name)); err != nil {
			return err
		}
	}
	for _, unneeded := range []string{"usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt/lists"} {
		if err := os.RemoveAll(filepath.Join(root, unneeded)); err != nil {
			return err
		}
	}
	if err := command(ctx, "mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", root, i.path("disk"), diskSize); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// makeKey makes the key of the test's commands.
func (i Image) makeKey() (authorized []byte, err error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(i.path("key"), pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return nil, err
	}
	return ssh.MarshalAuthorizedKey(key), nil
}

func command(ctx context.Context, name string, arguments ...string) error {
	output, err := exec.CommandContext(ctx, name, arguments...).CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		return fmt.Errorf("%s: %w: %s", name, err, strings.Join(lines[max(0, len(lines)-5):], "; "))
	}
	return nil
}

// DefaultDirectory returns where tests keep the image, so that one run makes it
// for all.
func DefaultDirectory() string { return filepath.Join(os.TempDir(), "standalone-cinder-node-image") }
