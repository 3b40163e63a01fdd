package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	volume = "86a25cac-e84c-4ef1-816f-76fcd478cebd"
	source = "0b1c5a52-3a3f-4a64-9a59-2b7e2a6f1c11"
	other  = "11111111-2222-3333-4444-555555555555"
)

func TestWhatIsFormattedUsedAndRefused(t *testing.T) {
	own := Content{Filesystem: Ext4, UUID: volume}
	for name, c := range map[string]struct {
		content Content
		wanted  Wanted
		format  bool
		reason  Reason
	}{
		"an empty disk":                     {Content{Empty: true}, Wanted{}, true, ""},
		"its own filesystem":                {own, Wanted{}, false, ""},
		"its own filesystem, read-only":     {own, Wanted{ReadOnly: true}, false, ""},
		"its source's":                      {Content{Filesystem: Ext4, UUID: source}, Wanted{Copied: []string{other + "x", source}}, false, ""},
		"another's":                         {Content{Filesystem: Ext4, UUID: other}, Wanted{Copied: []string{source}}, false, WrongVolume},
		"another's, and formatting begun":   {Content{Filesystem: Ext4, UUID: other}, Wanted{Begun: true}, false, WrongVolume},
		"its own of another type":           {Content{Filesystem: XFS, UUID: volume}, Wanted{}, false, WrongFilesystem},
		"data":                              {Content{}, Wanted{}, false, NotEmpty},
		"half a filesystem of its own":      {Content{}, Wanted{Begun: true}, true, ""},
		"two filesystems":                   {Content{Filesystem: "ext and xfs"}, Wanted{Begun: true}, false, NotEmpty},
		"an empty disk that is read-only":   {Content{Empty: true}, Wanted{ReadOnly: true}, false, WrongFilesystem},
		"an imported disk that looks empty": {Content{Empty: true}, Wanted{NeverFormat: true}, false, WrongFilesystem},
		"an imported disk with data":        {Content{}, Wanted{NeverFormat: true, Begun: true}, false, WrongFilesystem},
		"an imported filesystem":            {Content{Filesystem: Ext4, UUID: source}, Wanted{NeverFormat: true, Copied: []string{source}}, false, ""},
		"half a filesystem, read-only now":  {Content{}, Wanted{Begun: true, ReadOnly: true}, false, WrongFilesystem},
		"an unfinished XFS":                 {Content{Unfinished: volume}, Wanted{}, true, ""},
		"an unfinished XFS of its source":   {Content{Unfinished: source}, Wanted{Copied: []string{source}}, false, NotEmpty},
		"an unfinished XFS of another":      {Content{Unfinished: other}, Wanted{}, false, NotEmpty},
		"an unfinished XFS, read-only now":  {Content{Unfinished: volume}, Wanted{ReadOnly: true}, false, WrongFilesystem},
		"an imported unfinished XFS":        {Content{Unfinished: volume}, Wanted{NeverFormat: true}, false, WrongFilesystem},
	} {
		c.wanted.Volume, c.wanted.Filesystem = volume, Ext4
		format, err := Judge("sdb", c.content, c.wanted)
		var refusal *Refusal
		if errors.As(err, &refusal) != (c.reason != "") || format != c.format || refusal != nil && refusal.Reason != c.reason {
			t.Errorf("%s: %t, %v", name, format, err)
		}
	}
}

// installed returns the path of a program of this machine, which may be outside PATH.
func installed(t *testing.T, program string) string {
	t.Helper()
	for _, name := range []string{program, "/usr/sbin/" + program} {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	t.Skip(program + " is not installed")
	return ""
}

// TestSuperblocks reads what the real mkfs programs write.
func TestSuperblocks(t *testing.T) {
	for _, filesystem := range []string{Ext4, XFS} {
		t.Run(filesystem, func(t *testing.T) {
			tool := installed(t, "mkfs."+filesystem)
			file := filepath.Join(t.TempDir(), "disk")
			const size = 320 << 20
			if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, size)); err != nil {
				t.Fatal(err)
			}
			read := func() []byte {
				content := make([]byte, beginning)
				f, err := os.Open(file)
				if err == nil {
					_, err = f.ReadAt(content, 0)
				}
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
				return content
			}
			if got := recognize(read()); got != (Content{Empty: true}) {
				t.Errorf("an empty disk is %+v", got)
			}
			arguments := []string{"-q", "-U", volume, file}
			if filesystem == XFS {
				arguments = []string{"-q", "-m", "uuid=" + volume, file}
			}
			if output, err := exec.Command(tool, arguments...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			if got := recognize(read()); got != (Content{Filesystem: filesystem, UUID: volume, Bytes: size}) {
				t.Errorf("recognized %+v", got)
			}
		})
	}
}

func TestContentThatIsNoFilesystem(t *testing.T) {
	for name, c := range map[string]struct {
		change func([]byte)
		want   Content
	}{
		"an XFS without an end":  {func(b []byte) { copy(b, "XFSB"); b[32], b[126] = 0x0b, 1 }, Content{Unfinished: "0b000000-0000-0000-0000-000000000000"}},
		"nothing":                {func([]byte) {}, Content{Empty: true}},
		"the last byte":          {func(b []byte) { b[beginning-1] = 1 }, Content{}},
		"a boot sector":          {func(b []byte) { b[510], b[511] = 0x55, 0xaa }, Content{}},
		"both signatures":        {func(b []byte) { copy(b, "XFSB"); b[1024+0x38], b[1024+0x39] = 0x53, 0xef }, Content{Filesystem: "ext and xfs"}},
		"a filesystem from 1993": {func(b []byte) { b[1024+0x38], b[1024+0x39] = 0x53, 0xef }, Content{Filesystem: "ext2", UUID: "00000000-0000-0000-0000-000000000000"}},
	} {
		content := make([]byte, beginning)
		c.change(content)
		if got := recognize(content); got != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestDesignators(t *testing.T) {
	naa := []byte{1, 3, 0, 8, 0x50, 1, 2, 3, 4, 5, 6, 7}
	vendor := append([]byte{2, 1, 0, 9}, "IET  0001"...)
	port := []byte{1, 0x13, 0, 8, 9, 9, 9, 9, 9, 9, 9, 9}
	for name, c := range map[string]struct {
		page []byte
		want string
	}{
		"none":              {nil, ""},
		"a number":          {naa, "naa.5001020304050607"},
		"a number is best":  {slices.Concat(vendor, naa), "naa.5001020304050607"},
		"a vendor's text":   {vendor, "t10.IET  0001"},
		"a port is no disk": {slices.Concat(port, vendor), "t10.IET  0001"},
	} {
		if got, err := parseDesignators(c.page); err != nil || got != c.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, bad := range [][]byte{{1, 3}, {1, 3, 0, 8, 1}} {
		if got, err := parseDesignators(bad); err == nil {
			t.Errorf("%x is %q", bad, got)
		}
	}
}

func TestSenseKeys(t *testing.T) {
	for want, sense := range map[byte][]byte{
		6: {0x70, 0, 6, 0}, 5: {0x72, 5, 0x20}, 0: nil, 3: {0xf0, 0, 0x23},
	} {
		if got := senseKey(sense); got != want {
			t.Errorf("%x has key %d, want %d", sense, got, want)
		}
	}
}

func TestMountTables(t *testing.T) {
	const table = `22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
40 22 8:16 / /var/lib/kubelet/a\040b ro,relatime shared:2 master:1 - xfs /dev/sdb rw,attr2
41 22 0:5 /dm-3 /var/lib/kubelet/raw rw - devtmpfs udev rw,size=1k
42 22 0:5 /sdc//deleted /gone rw - devtmpfs udev rw
43 22 8:32 / /broken rw - ext4 /dev/sdc ro
`
	mounts, err := parseMounts(table)
	if err != nil {
		t.Fatal(err)
	}
	want := []Mount{
		{At: "/", Number: "254:1", Root: "/", Type: "ext4"},
		{At: "/var/lib/kubelet/a b", Number: "8:16", Root: "/", Type: "xfs", ReadOnly: true},
		{At: "/var/lib/kubelet/raw", Number: "0:5", Root: "/dm-3", Type: "devtmpfs"},
		{At: "/gone", Number: "0:5", Root: "/sdc//deleted", Type: "devtmpfs"},
		{At: "/broken", Number: "8:32", Root: "/", Type: "ext4", FilesystemReadOnly: true},
	}
	if !reflect.DeepEqual(mounts, want) {
		t.Errorf("read %+v", mounts)
	}
	if !mounts[2].isOfDevice("dm-3") || !mounts[3].isOfDevice("sdc") || mounts[3].isOfDevice("sd") || mounts[0].isOfDevice("") {
		t.Error("a device's mount is not recognized")
	}
	for _, bad := range []string{"x", "22 1 254:1 / / rw", "22 1 254:1 / / rw - ext4"} {
		if mounts, err := parseMounts(bad); err == nil {
			t.Errorf("%q is %+v", bad, mounts)
		}
	}
}

func FuzzMountTables(f *testing.F) {
	f.Add("40 22 8:16 / /a\\040b ro shared:2 - xfs /dev/sdb rw")
	f.Add(`1 1 1:1 / \07 rw - a b`)
	f.Fuzz(func(t *testing.T, table string) { _, _ = parseMounts(table) })
}

func TestPortals(t *testing.T) {
	for _, same := range [][2]string{
		{"10.0.0.1:3260", "10.0.0.1:3260"}, {"[fd00::1]:3260", "[fd00:0:0::1]:3260"}, {"[::ffff:10.0.0.1]:3260", "10.0.0.1:3260"}, {"Storage.example:3260", "storage.example:3260"},
	} {
		if !samePortal(same[0], same[1]) {
			t.Errorf("%q are two", same)
		}
	}
	for _, different := range [][2]string{{"10.0.0.1:3260", "10.0.0.1:3261"}, {"10.0.0.1:3260", "10.0.0.2:3260"}, {"10.0.0.1", "10.0.0.1:3260"}} {
		if samePortal(different[0], different[1]) {
			t.Errorf("%q are one", different)
		}
	}
}

func TestTargetsThatCannotBe(t *testing.T) {
	good := Target{"iqn.2010-10.org.openstack:volume-" + volume, "10.0.0.1:3260"}
	for _, portal := range []string{good.Portal, "[fd00::1]:3260", "storage.example:3260"} {
		if err := CheckTarget(Target{good.Name, portal}, 0); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []Target{
		{"", good.Portal}, {"--help", good.Portal}, {"iqn.a b", good.Portal}, {"iqn.a\n", good.Portal}, {"volume", good.Portal},
		{good.Name, ""}, {good.Name, "10.0.0.1"}, {good.Name, "-x:1"}, {good.Name, "10.0.0.1:"}, {good.Name, "10.0.0.1:a"}, {good.Name, "a b:1"},
	} {
		if err := CheckTarget(bad, 0); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestMountOptions(t *testing.T) {
	for _, c := range []struct {
		filesystem     string
		given          []string
		readOnly, gone bool
		want           string
	}{
		{Ext4, nil, false, false, "_netdev,errors=remount-ro"},
		{Ext4, []string{"noatime"}, true, false, "noatime,_netdev,ro,errors=remount-ro"},
		{Ext4, []string{"rw"}, true, true, "_netdev,ro,noload,errors=remount-ro"},
		{Ext4, []string{"errors=panic"}, false, false, "errors=panic,_netdev"},
		{XFS, []string{"nouuid"}, false, false, "nouuid,_netdev"},
		{XFS, nil, true, true, "_netdev,ro,nouuid,norecovery"},
	} {
		if got := strings.Join(Options(c.filesystem, c.given, c.readOnly, c.gone), ","); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	credentials := Credentials{"u", "swordfish"}
	c := Command{Tool: "false", Arguments: []string{"-v"}, Secret: "swordfish"}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("logged", "credentials", credentials)
	encoded, err := json.Marshal(credentials)
	if err != nil {
		t.Fatal(err)
	}
	printed := fmt.Sprintf("%v %+v %#v %s %v %#v %s", credentials, credentials, credentials, credentials, c, c, encoded) + log.String()
	_, err = NewLocal("/").Run(context.Background(), Command{Tool: "ls", Secret: "/swordfish"})
	var tool *ToolError
	if !errors.As(err, &tool) || tool.Code == 0 {
		t.Errorf("%v", err)
	}
	if printed += err.Error(); strings.Contains(printed, "swordfish") {
		t.Errorf("printed %s", printed)
	}
}

func TestToolsOfTheNode(t *testing.T) {
	l, ctx := NewLocal("/"), context.Background()
	if output, err := l.Run(ctx, Command{Tool: "echo", Arguments: []string{"a b", "$HOME"}}); err != nil || output != "a b $HOME" {
		t.Errorf("%q, %v", output, err)
	}
	_, err := l.Run(ctx, Command{Tool: "ls", Arguments: []string{"/no-such-file"}})
	if err == nil || !strings.HasPrefix(err.Error(), "ls /no-such-file failed with code 2: ") {
		t.Errorf("%v", err)
	}
	started := time.Now()
	if _, err = l.Run(ctx, Command{Tool: "sleep", Arguments: []string{"60"}, Limit: 50 * time.Millisecond}); err == nil || time.Since(started) > 20*time.Second {
		t.Errorf("%v after %s", err, time.Since(started))
	}
	if _, err := l.Run(ctx, Command{Tool: "no-such-tool"}); err == nil || !strings.HasPrefix(err.Error(), "MissingTool: no-such-tool is not installed on the node") {
		t.Errorf("%v", err)
	}
	if l.Has("no-such-tool") || !l.Has("ls") {
		t.Error("the node's tools are not found")
	}
	// A program of this machine must not be taken for the node's.
	if NewLocal(t.TempDir()).Has("ls") {
		t.Error("an empty node has ls")
	}
}

// TestProgramsInOtherPlaces: Flatcar and NixOS have them elsewhere, NixOS behind absolute
// links, and the operator may name more places.
func TestProgramsInOtherPlaces(t *testing.T) {
	for _, c := range []struct {
		place string
		more  []string
		found bool
	}{
		{"/opt/bin", nil, true},
		{"/run/current-system/sw/bin", nil, true},
		{"/usr/local/lib/x", nil, false},
		{"/usr/local/lib/x", []string{"/usr/local/lib/x"}, true},
	} {
		for _, linked := range []bool{false, true} {
			root := t.TempDir()
			file := c.place + "/a-tool"
			if linked {
				file = "/nix/store/a-tool"
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(errors.Join(os.MkdirAll(root+c.place, 0o755), os.MkdirAll(filepath.Dir(root+file), 0o755), os.WriteFile(root+file, []byte("#!/bin/sh\n"), 0o755)))
			if linked {
				must(os.Symlink(file, root+c.place+"/a-tool"))
				must(os.Symlink("/nix/nowhere", root+c.place+"/another-tool"))
			}
			l := NewLocal(root, c.more...)
			if l.Has("a-tool") != c.found || l.Has("another-tool") {
				t.Errorf("%+v, behind a link: %t", c, linked)
			}
		}
	}
}

// TestLinksOfTheNodeLeadBelowItsRoot: in a container, an absolute link would lead to the
// container's own files.
func TestLinksOfTheNodeLeadBelowItsRoot(t *testing.T) {
	root := t.TempDir()
	for _, link := range []struct{ at, to string }{
		{"/etc", "/data/etc"}, {"/kubelet", "../data/kubelet"}, {"/data/etc/file", "/data/../data/real"}, {"/loop", "loop"}, {"/out", "../../../../data"},
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(root+link.at), 0o755), os.Symlink(link.to, root+link.at)); err != nil {
			t.Fatal(err)
		}
	}
	l := NewLocal(root)
	if err := errors.Join(os.MkdirAll(root+"/data/kubelet", 0o755), os.WriteFile(root+"/data/real", []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{
		"/": "/", "/data": "/data", "/etc/file": "/data/real", "/kubelet/a/b": "/data/kubelet/a/b", "/out/real": "/data/real", "/loop": "/loop", "/none/x": "/none/x",
	} {
		if got := l.Resolve(at); got != want {
			t.Errorf("%s is %s, want %s", at, got, want)
		}
	}
	if content, err := l.ReadFile("/etc/file"); err != nil || string(content) != "mine" {
		t.Errorf("%q, %v", content, err)
	}
	if err := errors.Join(l.MakeDir("/kubelet/x"), l.Replace("/etc/new", nil), l.Remove("/etc/file")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"/data/kubelet/x", "/data/etc/new", "/data/real"} {
		if _, err := os.Lstat(root + name); err != nil {
			t.Error(err)
		}
	}
}

// TestNamesOfInitiators are those that open-iscsi itself reads from the file.
func TestNamesOfInitiators(t *testing.T) {
	const name = "iqn.1993-08.org.debian:01:abc"
	for content, want := range map[string]string{
		"InitiatorName=" + name + "\n":                   name,
		"## a comment\r\nInitiatorName=" + name + "\r\n": name,
		" \tInitiatorName = " + name + " ":               name,
		"#InitiatorName=iqn.2001-04.com.example:x\nInitiatorName=\nInitiatorAlias=x\nInitiatorName=" + name: name,
		"InitiatorName=" + name + "\nInitiatorName=iqn.2001-04.com.example:x":                               name,
		"GenerateName=yes\n":                    "/etc/iscsi/initiatorname.iscsi has no line InitiatorName=iqn…",
		"InitiatorName=" + name + " # node 1\n": "remove quotes and comments",
		`InitiatorName="` + name + `"`:          "remove quotes and comments",
	} {
		root := t.TempDir()
		if err := errors.Join(os.MkdirAll(root+"/etc/iscsi", 0o755), os.WriteFile(root+"/etc/iscsi/initiatorname.iscsi", []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
		got, err := (&ISCSI{&SCSI{New(NewLocal(root).Root(), slog.Default())}}).InitiatorName()
		if got != want && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
}

func TestFilesOfTheNode(t *testing.T) {
	dir := t.TempDir()
	l := NewLocal(dir + "/")
	for range 2 {
		if err := l.Replace("/a/b.json", []byte("content")); err != nil {
			t.Fatal(err)
		}
	}
	if content, err := l.ReadFile("/a/b.json"); err != nil || string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
	if names, err := l.ReadDir("/a"); err != nil || !slices.Equal(names, []string{"b.json"}) {
		t.Errorf("%q, %v", names, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "a", "b.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := errors.Join(l.MakeFile("/t/target"), l.MakeFile("/t/target"), l.MakeDir("/d/e"), l.MakeDir("/d/e"), l.Set(context.Background(), "/t/target", "1")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Remove("/t/target"), l.Remove("/t/target"), l.Remove("/d/e")); err != nil {
		t.Error(err)
	}
	if err := l.Remove("/a"); err == nil {
		t.Error("a directory with content was removed")
	}
}

func TestWhenAndWhere(t *testing.T) {
	l, h := NewLocal("/"), New(NewLocal("/").Root(), slog.Default())
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	written, err := l.Modified(file)
	booted, bootErr := h.Booted()
	if err := errors.Join(err, bootErr); err != nil || !booted.Before(written) {
		t.Errorf("booted %s, wrote %s: %v", booted, written, err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Dial(context.Background(), listener.Addr().String()); err != nil {
		t.Error(err)
	}
	listener.Close()
	if err := h.Dial(context.Background(), listener.Addr().String()); err == nil {
		t.Error("a closed port answers")
	}
}

func TestLocks(t *testing.T) {
	l, ctx := NewLocal(t.TempDir()), context.Background()
	release, err := l.Lock(ctx, "/locks/a", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lock(ctx, "/locks/a", false); !errors.Is(err, ErrLocked) {
		t.Errorf("a second lock: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := l.Lock(short, "/locks/a", true); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that ends: %v", err)
	}
	second, err := l.Lock(ctx, "/locks/b", false)
	if err != nil {
		t.Fatal(err)
	}
	second()
	const waiting = 5
	var inside atomic.Int32
	ended := make(chan struct{}, waiting)
	for range waiting {
		go func() {
			defer func() { ended <- struct{}{} }()
			release, err := l.Lock(ctx, "/locks/a", true)
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two hold the lock")
			}
			time.Sleep(time.Millisecond)
			inside.Add(-1)
			release()
		}()
	}
	release()
	for range waiting {
		<-ended
	}
	if names, err := l.ReadDir("/locks"); err != nil || len(names) > 0 {
		t.Errorf("left: %q, %v", names, err)
	}
}

func TestWhatHangsIsGivenUp(t *testing.T) {
	l, ctx := NewLocal(t.TempDir()), context.Background()
	hangs := make(chan struct{})
	do := func() error {
		return l.bounded(ctx, 10*time.Millisecond, "the test", func() error { <-hangs; return nil })
	}
	if err := do(); err == nil || err.Error() != "the test did not finish within 10ms" {
		t.Errorf("%v", err)
	}
	// It is not tried again in the meantime, because each try would cost a thread.
	if err := do(); err == nil || err.Error() != "the test is still hanging from an earlier attempt" {
		t.Errorf("%v", err)
	}
	if err := l.bounded(ctx, time.Second, "something else", func() error { return nil }); err != nil {
		t.Error(err)
	}
	close(hangs)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		err := l.bounded(ctx, time.Second, "the test", func() error { return nil })
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestErrorsOfToolsAreShort(t *testing.T) {
	err := &ToolError{"mkfs", 1, string(bytes.Repeat([]byte("x\n"), 5000))}
	if len(err.Error()) > 600 || strings.Contains(err.Error(), "\n") {
		t.Errorf("%d bytes: %s", len(err.Error()), err)
	}
}

// TestAConnectionThatHangsHindersNoOtherSubsystem: the subsystems of several volumes
// share a portal, and the kernel may be waiting for only one of them.
func TestAConnectionThatHangsHindersNoOtherSubsystem(t *testing.T) {
	l := NewLocal(t.TempDir())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(l.MakeDir("/dev"))
	// A full pipe simulates a kernel that does not answer.
	must(syscall.Mkfifo(l.Path("/dev/nvme-fabrics"), 0o600))
	pipe, err := syscall.Open(l.Path("/dev/nvme-fabrics"), syscall.O_RDWR|syscall.O_NONBLOCK, 0)
	must(err)
	for err == nil {
		_, err = syscall.Write(pipe, make([]byte, 4096))
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	t.Cleanup(func() { must(errors.Join(listener.Close(), syscall.Close(pipe))) })
	portal := listener.Addr().String()
	connect := func(options string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return l.ConnectNVMe(ctx, portal, options)
	}
	for _, test := range []struct{ options, want string }{
		{"nqn=nqn.a,transport=tcp", "was given up"},
		{"nqn=nqn.a,transport=tcp", "is still hanging"},
		{"nqn=nqn.b,transport=tcp", "was given up"},
	} {
		if err := connect(test.options); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want one that says %q", test.options, err, test.want)
		}
	}
}
