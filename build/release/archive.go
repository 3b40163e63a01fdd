package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"time"
)

// file is an entry of an archive or a layer. A name that ends in a slash is a
// directory's.
type file struct {
	name    string
	content []byte
	mode    int64
}

// tarball archives files in the order given, all owned by root and with the
// same time.
func tarball(files []file, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.content)), Mode: f.mode, ModTime: at}
		if f.name[len(f.name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// writeArchive puts a binary and the texts for its users into a tar.gz next to
// it.
func writeArchive(s source, t target, binary string, notices []byte) error {
	top := filepath.Base(binary) + "/"
	files := []file{{name: top, mode: 0o755}}
	for _, name := range []string{"LICENSE", "README.md"} {
		content, err := os.ReadFile(filepath.Join(s.directory, name))
		if err != nil {
			return err
		}
		files = append(files, file{top + name, content, 0o644})
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	files = append(files, file{top + noticesName, notices, 0o644}, file{top + t.executable(), content, 0o755})
	archive, err := tarball(files, s.time)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(archive); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(binary+".tar.gz", b.Bytes(), 0o644)
}
