package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	measured = 16 << 20
	// The first requests may use what a limit has left over from the time before.
	warmUp = 2 * time.Second
)

// measure writes and reads a file past all caches, in large and in small blocks, and
// reports how many bytes and requests the volume does in a second.
func measure(directory string, length time.Duration) error {
	// O_DIRECT needs memory that is aligned as the pages are.
	buffer, err := syscall.Mmap(-1, 0, 64<<10, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(directory, "measured"), os.O_RDWR|os.O_CREATE|syscall.O_DIRECT, 0o660)
	if err != nil {
		return err
	}
	// Everything that is read must have been written: a hole asks no disk.
	for at := int64(0); at < measured; at += int64(len(buffer)) {
		if _, err := file.WriteAt(buffer, at); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	for _, do := range []struct {
		name  string
		block int
		at    func([]byte, int64) (int, error)
	}{{"write", 64 << 10, file.WriteAt}, {"read", 64 << 10, file.ReadAt}, {"write", 4 << 10, file.WriteAt}, {"read", 4 << 10, file.ReadAt}} {
		at, done := int64(0), 0
		began := time.Now().Add(warmUp)
		for time.Since(began) < length {
			if _, err := do.at(buffer[:do.block], at); err != nil {
				return errors.Join(err, file.Close())
			}
			at = (at + int64(do.block)) % measured
			if time.Now().After(began) {
				done++
			}
		}
		seconds := time.Since(began).Seconds()
		fmt.Printf("measured %s of %d: %.0f bytes and %.1f requests a second\n", do.name, do.block, float64(done*do.block)/seconds, float64(done)/seconds)
	}
	fmt.Println("measured everything")
	return file.Close()
}
