package rig

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// MaxTransfer bounds one read or write, in bytes: a read comes back as a hex
// dump of nearly five times its size.
const MaxTransfer = 4 << 20

var (
	// ErrLoginRefused is returned when the target exists and does not accept
	// the CHAP credentials, or demands some.
	ErrLoginRefused = errors.New("iSCSI login refused")
	// ErrTargetNotFound is returned when the portal answers and exports no
	// target of that name. A tgtd without any target closes the connection
	// instead, which is an error without a name.
	ErrTargetNotFound = errors.New("no such iSCSI target")
)

// Disk is a unit of an iSCSI target as a node sees it: the fields are those of
// a PersistentVolume's iSCSI source and its CHAP Secret. Every call logs in,
// does its work and logs out. The client is QEMU's (qemu-io with libiscsi),
// which needs no kernel support.
type Disk struct {
	// Portal is host:port.
	Portal string
	IQN    string
	LUN    int
	// CHAPUser and CHAPPassword may be empty: then the login offers none.
	CHAPUser, CHAPPassword string
	// Initiator is the initiator's name; empty leaves it to libiscsi.
	Initiator string
}

// Write puts data at an offset in bytes, which need not be aligned.
func (d Disk) Write(ctx context.Context, offset int64, data []byte) error {
	return write(ctx, d, offset, data)
}

// Read returns length bytes from an offset in bytes.
func (d Disk) Read(ctx context.Context, offset int64, length int) ([]byte, error) {
	return read(ctx, d, offset, length)
}

// Size returns the unit's capacity in bytes.
func (d Disk) Size(ctx context.Context) (int64, error) { return size(ctx, d) }

// drive is what QEMU's programs can open.
type drive interface {
	// String names it without its credentials.
	String() string
	// run executes one of QEMU's programs on it.
	run(ctx context.Context, input []byte, program string, arguments ...string) ([]byte, error)
}

func write(ctx context.Context, d drive, offset int64, data []byte) error {
	if err := checkTransfer(offset, len(data)); err != nil {
		return fmt.Errorf("write to %s: %w", d, err)
	}
	// A flush follows, so that the data is in the backend when this returns.
	write := fmt.Sprintf("write -s /dev/stdin %d %d", offset, len(data))
	if _, err := d.run(ctx, data, "qemu-io", "-c", write, "-c", "flush"); err != nil {
		return fmt.Errorf("write to %s: %w", d, err)
	}
	return nil
}

func read(ctx context.Context, d drive, offset int64, length int) ([]byte, error) {
	if err := checkTransfer(offset, length); err != nil {
		return nil, fmt.Errorf("read from %s: %w", d, err)
	}
	output, err := d.run(ctx, nil, "qemu-io", "-c", fmt.Sprintf("read -v %d %d", offset, length))
	if err != nil {
		return nil, fmt.Errorf("read from %s: %w", d, err)
	}
	data, err := parseDump(output)
	if err != nil {
		return nil, fmt.Errorf("read from %s: %w", d, err)
	}
	if len(data) != length {
		return nil, fmt.Errorf("read from %s: got %d bytes instead of %d", d, len(data), length)
	}
	return data, nil
}

func size(ctx context.Context, d drive) (int64, error) {
	output, err := d.run(ctx, nil, "qemu-img", "info", "--output=json")
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", d, err)
	}
	var answer struct {
		Size int64 `json:"virtual-size"`
	}
	if err := json.Unmarshal(output, &answer); err != nil {
		return 0, fmt.Errorf("size of %s: answer of qemu-img: %w", d, err)
	}
	return answer.Size, nil
}

// String names the disk without its credentials.
func (d Disk) String() string {
	return fmt.Sprintf("iscsi://%s/%s/%d", d.Portal, d.IQN, d.LUN)
}

// GoString keeps the password out of %#v, which test failures like to print.
func (d Disk) GoString() string {
	return d.String()
}

func checkTransfer(offset int64, length int) error {
	if offset < 0 || length <= 0 || length > MaxTransfer {
		return fmt.Errorf("%d bytes at %d: expected 1 to %d bytes at no negative offset", length, offset, MaxTransfer)
	}
	return nil
}

// run executes one of QEMU's programs on the disk.
func (d Disk) run(ctx context.Context, input []byte, program string, arguments ...string) ([]byte, error) {
	options := []string{
		"driver=raw", "file.driver=iscsi", "file.transport=tcp",
		"file.portal=" + escapeOption(d.Portal),
		"file.target=" + escapeOption(d.IQN),
		"file.lun=" + strconv.Itoa(d.LUN),
	}
	if d.Initiator != "" {
		options = append(options, "file.initiator-name="+escapeOption(d.Initiator))
	}
	if d.CHAPUser != "" {
		options = append(options, "file.user="+escapeOption(d.CHAPUser), "file.password-secret=chap")
		arguments = append(arguments, "--object", "secret,id=chap,file=/dev/fd/3")
	}
	output, said, err := execute(ctx, input, d.CHAPPassword, program, append(arguments, "--image-opts", strings.Join(options, ","))...)
	switch {
	case strings.Contains(said, "Authentication failure"):
		return nil, ErrLoginRefused
	case strings.Contains(said, "Target not found"):
		return nil, ErrTargetNotFound
	}
	return output, err
}

// execute runs a program, which finds a secret in /dev/fd/3: arguments can be
// read by everyone on the machine. What a program said that failed is in the
// error too.
func execute(ctx context.Context, input []byte, secret, program string, arguments ...string) (output []byte, said string, err error) {
	pipe, err := pipeWith(secret)
	if err != nil {
		return nil, "", err
	}
	defer pipe.Close()
	var out, complaint bytes.Buffer
	command := exec.CommandContext(ctx, program, arguments...)
	command.Stdin = bytes.NewReader(input)
	command.Stdout, command.Stderr = &out, &complaint
	command.ExtraFiles = []*os.File{pipe}
	err = command.Run()
	switch {
	case err == nil:
		return out.Bytes(), "", nil
	case ctx.Err() != nil:
		return nil, "", ctx.Err()
	}
	// qemu-io reports a failed transfer on its standard output.
	said = strings.TrimSpace(complaint.String() + out.String())
	return nil, said, fmt.Errorf("%s: %w: %s", program, err, said)
}

// pipeWith returns the reading end of a pipe that holds a short text.
func pipeWith(text string) (*os.File, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = writer.WriteString(text)
	if closing := writer.Close(); err == nil {
		err = closing
	}
	if err != nil {
		reader.Close()
		return nil, err
	}
	return reader, nil
}

// escapeOption protects a value in QEMU's comma-separated option lists.
func escapeOption(value string) string {
	return strings.ReplaceAll(value, ",", ",,")
}

// parseDump reads the hex dump of "read -v": lines of an offset, up to sixteen
// bytes and their characters, then a summary.
func parseDump(output []byte) ([]byte, error) {
	var data []byte
	for line := range strings.Lines(string(output)) {
		offset, rest, found := strings.Cut(strings.TrimSpace(line), ":  ")
		if !found {
			continue
		}
		if _, err := strconv.ParseUint(offset, 16, 64); err != nil {
			continue
		}
		digits, _, _ := strings.Cut(rest, "  ")
		row, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			return nil, fmt.Errorf("qemu-io's dump at offset 0x%s: %w", offset, err)
		}
		data = append(data, row...)
	}
	return data, nil
}
