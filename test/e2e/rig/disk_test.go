package rig

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
)

// dump was recorded from qemu-io 7.2.
const dump = `000003e8:  68 65 6c 6c 6f 20 77 6f 72 6c 64 2c 20 61 72 62  hello.world..arb
000003f8:  69 74 72 61 72 79 00 00 00 00 00 00 00 00  itrary........
read 30/30 bytes at offset 1000
30 bytes, 1 ops; 00.00 sec (224.396 KiB/sec and 7659.3724 ops/sec)
`

func TestParseDump(t *testing.T) {
	got, err := parseDump([]byte(dump))
	if want := append([]byte("hello world, arbitrary"), make([]byte, 8)...); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestParseDumpRefusesWhatIsNotHexadecimal(t *testing.T) {
	_, err := parseDump([]byte("000003e8:  68 65 6c 6c zz  hell.\n"))
	want := "qemu-io's dump at offset 0x000003e8: encoding/hex: invalid byte: U+007A 'z'"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestTransfersOutOfBoundsAreRefused(t *testing.T) {
	disk := Disk{Portal: "127.0.0.1:1", IQN: "iqn.2026-01.example:d", LUN: 1}
	for _, test := range []struct {
		offset int64
		length int
		want   string
	}{
		{-1, 1, "read from iscsi://127.0.0.1:1/iqn.2026-01.example:d/1: 1 bytes at -1: expected 1 to 4194304 bytes at no negative offset"},
		{0, 0, "read from iscsi://127.0.0.1:1/iqn.2026-01.example:d/1: 0 bytes at 0: expected 1 to 4194304 bytes at no negative offset"},
		{0, MaxTransfer + 1, "read from iscsi://127.0.0.1:1/iqn.2026-01.example:d/1: 4194305 bytes at 0: expected 1 to 4194304 bytes at no negative offset"},
	} {
		if _, err := disk.Read(context.Background(), test.offset, test.length); err == nil || err.Error() != test.want {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
	if err := disk.Write(context.Background(), 0, nil); err == nil || !strings.HasPrefix(err.Error(), "write to iscsi://127.0.0.1:1/") {
		t.Errorf("writing nothing: %v", err)
	}
}

func TestDiskPrintsWithoutItsPassword(t *testing.T) {
	disk := Disk{Portal: "127.0.0.1:3260", IQN: "iqn.2026-01.example:d", LUN: 1, CHAPUser: "user", CHAPPassword: "hidden"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if printed := fmt.Sprintf(verb, disk); strings.Contains(printed, "hidden") {
			t.Errorf("%s prints %s", verb, printed)
		}
	}
}

func TestEscapeOption(t *testing.T) {
	if got := escapeOption("a,b,,c"); got != "a,,b,,,,c" {
		t.Errorf("got %q", got)
	}
}

func TestPipeWith(t *testing.T) {
	reader, err := pipeWith("secret")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if got, err := io.ReadAll(reader); err != nil || string(got) != "secret" {
		t.Errorf("got %q, %v", got, err)
	}
}
