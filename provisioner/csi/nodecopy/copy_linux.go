package nodecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// run copies, makes the copy durable, and compares what the devices have.
func (c *copier) run(ctx context.Context, from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer shut(source)
	about, err := source.Stat()
	if err != nil {
		return err
	}
	if !about.IsDir() {
		return c.runDevice(ctx, source, to)
	}
	var filesystem unix.Statfs_t
	if err := unix.Fstatfs(int(source.Fd()), &filesystem); err == nil {
		c.total.Store(int64(filesystem.Blocks-filesystem.Bfree) * filesystem.Bsize)
	}
	target, err := os.Open(to)
	if err != nil {
		return err
	}
	defer shut(target)
	return c.runTree(ctx, &directory{File: source}, &directory{File: target})
}

// runDevice copies a block device. A part that is equal already is not written, so that a
// thin volume stays thin.
func (c *copier) runDevice(ctx context.Context, source *os.File, to string) error {
	// A device that is mounted, or in use by another device, is not opened.
	target, err := os.OpenFile(to, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return err
	}
	defer shut(target)
	size, err := source.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	room, err := target.Seek(0, io.SeekEnd)
	switch {
	case err != nil:
		return err
	case room < size:
		return fmt.Errorf("the source has %d bytes, and the target %d", size, room)
	}
	c.total.Store(size)
	err = c.eachChunk(ctx, source, target, 0, size, &c.copied, func(at int64, want, has []byte) error {
		if bytes.Equal(want, has) {
			return nil
		}
		_, err := target.WriteAt(want, at)
		return err
	})
	if err != nil {
		return err
	}
	if err := target.Sync(); err != nil {
		return fmt.Errorf("cannot make the copy durable: %w", err)
	}
	forget(source)
	forget(target)
	return c.eachChunk(ctx, source, target, 0, size, &c.compared, func(at int64, want, has []byte) error {
		if !bytes.Equal(want, has) {
			return fmt.Errorf("the copy differs from the source between bytes %d and %d", at, at+int64(len(want)))
		}
		return nil
	})
}

// eachChunk reads a range of two files, chunk by chunk.
func (c *copier) eachChunk(ctx context.Context, source, target *os.File, from, to int64, done *progress, do func(at int64, want, has []byte) error) error {
	want, has := make([]byte, chunk), make([]byte, chunk)
	for at := from; at < to; at += chunk {
		n := int(min(chunk, to-at))
		if err := c.limit.WaitN(ctx, n); err != nil {
			return err
		}
		if err := read(source, want[:n], at); err != nil {
			return err
		}
		if err := read(target, has[:n], at); err != nil {
			return err
		}
		if err := do(at, want[:n], has[:n]); err != nil {
			return err
		}
		done.bytes.Add(int64(n))
	}
	return nil
}

// read fills a buffer.
func read(file *os.File, buffer []byte, at int64) error {
	_, err := file.ReadAt(buffer, at)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s ends before byte %d", file.Name(), at+int64(len(buffer)))
	}
	return err
}

// forget drops what the page cache has of a file, so that a comparison reads the device. A
// kernel that does not, compares what it has.
func forget(file *os.File) { _ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED) }

// shut closes a file. What was written to it is made durable, and compared, apart from that.
func shut(file io.Closer) { _ = file.Close() }
