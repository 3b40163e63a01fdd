// Command workload is what the pods of the tests run. It writes numbered records
// with checksums to a volume, each flushed before the next, after it has verified all
// that are there, and reports how far it is and how large the volume is. It keeps a text
// there, too, if it is given one, and reports the text that is there. It writes each record
// to two volumes, one after the other, as programs do whose data depend on each other. It
// also measures how fast a volume is without caches.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	switch {
	case len(arguments) == 1 && arguments[0] == "pause":
		// The container that keeps a pod's namespaces does nothing.
		<-ctx.Done()
		return nil
	case len(arguments) == 2 && arguments[0] == "write":
		return write(ctx, arguments[1])
	case len(arguments) == 3 && arguments[0] == "write":
		if err := keep(arguments[1], arguments[2]); err != nil {
			return err
		}
		return write(ctx, arguments[1])
	case len(arguments) == 3 && arguments[0] == "pair":
		return pair(ctx, arguments[1], arguments[2])
	case len(arguments) == 3 && arguments[0] == "measure":
		length, err := time.ParseDuration(arguments[2])
		if err != nil {
			return err
		}
		if err := measure(arguments[1], length); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	return errors.New("usage: workload pause | workload measure DIRECTORY DURATION | workload write DIRECTORY-OR-DEVICE | workload write DIRECTORY TEXT | workload pair FIRST SECOND")
}

const (
	recordSize = 512
	// A record is its number, the digest of the rest, and what is random.
	numberSize, digestSize = 12, sha256.Size * 2
	pause                  = 20 * time.Millisecond
	report                 = 500 * time.Millisecond
)

// keep writes a text for good, unless there is one, and reports the one that is there.
func keep(directory, text string) error {
	path := filepath.Join(directory, "text")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o660)
	if err == nil {
		_, err = file.WriteString(text)
		err = errors.Join(err, file.Sync(), file.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fmt.Printf("has the text %q\n", kept)
	return nil
}

// write goes on until the context ends.
func write(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	isFile := info.IsDir()
	target := path
	if isFile {
		target = filepath.Join(path, "records")
	}
	file, err := os.OpenFile(target, os.O_RDWR|map[bool]int{true: os.O_CREATE}[isFile], 0o660)
	if err != nil {
		return err
	}
	defer file.Close()
	last, err := verify(file)
	if err != nil {
		return err
	}
	if info, err = file.Stat(); err != nil {
		return err
	}
	fmt.Printf("found %d as user %d, group of the file %d\n", last, os.Getuid(), info.Sys().(*syscall.Stat_t).Gid)
	told := time.Time{}
	for ctx.Err() == nil {
		if _, err := file.WriteAt(record(last+1), last*recordSize); err != nil {
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
		last++
		if time.Since(told) > report {
			size, err := sizeOf(path, isFile)
			if err != nil {
				return err
			}
			fmt.Printf("wrote %d of size %d\n", last, size)
			told = time.Now()
		}
		time.Sleep(pause)
	}
	fmt.Printf("ended %d\n", last)
	return nil
}

// pair writes each record to the first directory, and then to the second, and reports the
// longest that a record took.
func pair(ctx context.Context, directories ...string) error {
	var files []*os.File
	for _, directory := range directories {
		file, err := os.OpenFile(filepath.Join(directory, "records"), os.O_RDWR|os.O_CREATE, 0o660)
		if err != nil {
			return err
		}
		defer file.Close()
		files = append(files, file)
	}
	last, err := verify(files[0])
	if err != nil {
		return err
	}
	var told time.Time
	var longest time.Duration
	for ctx.Err() == nil {
		began, next := time.Now(), record(last+1)
		for _, file := range files {
			if _, err := file.WriteAt(next, last*recordSize); err != nil {
				return err
			}
			if err := file.Sync(); err != nil {
				return err
			}
		}
		last, longest = last+1, max(longest, time.Since(began))
		if time.Since(told) > report {
			fmt.Printf("wrote %d of both, each within %d ms\n", last, longest.Milliseconds())
			told, longest = time.Now(), 0
		}
	}
	return nil
}

// verify reads all records, and returns the number of the last one.
func verify(from io.Reader) (int64, error) {
	block := make([]byte, recordSize)
	for last := int64(0); ; last++ {
		n, err := io.ReadFull(from, block)
		if errors.Is(err, io.EOF) || err == nil && bytes.Equal(block, make([]byte, recordSize)) {
			return last, nil
		}
		if err != nil {
			return 0, fmt.Errorf("DAMAGED: record %d has %d bytes: %w", last+1, n, err)
		}
		number, err := strconv.ParseInt(string(block[:numberSize]), 10, 64)
		if err != nil || number != last+1 || digestOf(block) != string(block[numberSize:numberSize+digestSize]) {
			return 0, fmt.Errorf("DAMAGED: record %d is not what was written: %w", last+1, errors.Join(err, fs.ErrInvalid))
		}
	}
}

func record(number int64) []byte {
	block := make([]byte, recordSize)
	copy(block, fmt.Sprintf("%0*d", numberSize, number))
	_, _ = rand.Read(block[numberSize+digestSize:])
	copy(block[numberSize:], digestOf(block))
	return block
}

func digestOf(block []byte) string {
	sum := sha256.Sum256(append(bytes.Clone(block[:numberSize]), block[numberSize+digestSize:]...))
	return hex.EncodeToString(sum[:])
}

// sizeOf returns the size of a filesystem or device.
func sizeOf(path string, isFilesystem bool) (int64, error) {
	if isFilesystem {
		var now syscall.Statfs_t
		err := syscall.Statfs(path, &now)
		return int64(now.Blocks) * now.Bsize, err
	}
	device, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer device.Close()
	return device.Seek(0, io.SeekEnd)
}
