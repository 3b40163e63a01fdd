package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
)

// Image is an RBD image as a node sees it: the fields are those of a
// PersistentVolume and its Secret, and nothing is read from Ceph's own
// configuration files. Every call opens the image by librbd, which needs no
// kernel support, and closes it.
type Image struct {
	// Monitors are host:port.
	Monitors   []string
	Pool, Name string
	// User is without "client.".
	User, Key string
}

// ImageState is what Ceph says about an image.
type ImageState struct {
	// Features are those that a client must know to open it.
	Features []string
	// Watchers are the clients that have it open for writing.
	Watchers []string
}

// Write puts data at an offset in bytes.
func (i Image) Write(ctx context.Context, offset int64, data []byte) error {
	return write(ctx, i, offset, data)
}

// Read returns length bytes from an offset in bytes.
func (i Image) Read(ctx context.Context, offset int64, length int) ([]byte, error) {
	return read(ctx, i, offset, length)
}

// Size returns the image's capacity in bytes.
func (i Image) Size(ctx context.Context) (int64, error) { return size(ctx, i) }

// State asks Ceph about the image, as the image's user.
func (i Image) State(ctx context.Context) (ImageState, error) {
	var info struct {
		Features []string `json:"features"`
	}
	var status struct {
		Watchers []struct {
			Address string `json:"address"`
		} `json:"watchers"`
	}
	// Ceph reads a key file more than once, which a pipe does not allow.
	keyFile, err := os.CreateTemp("", "cephx-")
	if err != nil {
		return ImageState{}, err
	}
	defer os.Remove(keyFile.Name())
	_, err = keyFile.WriteString(i.Key)
	if err := errors.Join(err, keyFile.Close()); err != nil {
		return ImageState{}, err
	}
	for command, answer := range map[string]any{"info": &info, "status": &status} {
		output, _, err := execute(ctx, nil, "", "rbd", "--conf", os.DevNull, "-m", strings.Join(i.Monitors, ","),
			"--id", i.User, "--keyfile", keyFile.Name(), "--format", "json", command, i.Pool+"/"+i.Name)
		if err == nil {
			err = json.Unmarshal(output, answer)
		}
		if err != nil {
			return ImageState{}, fmt.Errorf("%s of %s: %w", command, i, err)
		}
	}
	state := ImageState{Features: info.Features}
	for _, watcher := range status.Watchers {
		state.Watchers = append(state.Watchers, watcher.Address)
	}
	return state, nil
}

// String names the image without its credentials.
func (i Image) String() string {
	return fmt.Sprintf("rbd:%s/%s at %s", i.Pool, i.Name, strings.Join(i.Monitors, ","))
}

// GoString keeps the key out of %#v.
func (i Image) GoString() string { return i.String() }

func (i Image) run(ctx context.Context, input []byte, program string, arguments ...string) ([]byte, error) {
	options := []string{
		"driver=raw", "file.driver=rbd", "file.conf=" + os.DevNull,
		"file.pool=" + escapeOption(i.Pool),
		"file.image=" + escapeOption(i.Name),
		"file.user=" + escapeOption(i.User), "file.key-secret=cephx",
	}
	for n, monitor := range i.Monitors {
		host, port, err := net.SplitHostPort(monitor)
		if err != nil {
			return nil, err
		}
		options = append(options, fmt.Sprintf("file.server.%d.host=%s", n, escapeOption(host)), fmt.Sprintf("file.server.%d.port=%s", n, port))
	}
	arguments = append(arguments, "--object", "secret,id=cephx,file=/dev/fd/3,format=base64", "--image-opts", strings.Join(options, ","))
	output, _, err := execute(ctx, input, i.Key, program, arguments...)
	return output, err
}

// Images lists the images in the pool of the RBD volumes, those in its trash
// included: an image that somebody has open is moved there when it is deleted.
func (e Env) Images(ctx context.Context) ([]string, error) {
	if e.CephConfig == "" {
		return nil, errors.New("list RBD images: the rig was started without Ceph")
	}
	var images []string
	if err := e.rbd(ctx, &images, "ls", "volumes"); err != nil {
		return nil, err
	}
	var trash []struct {
		Name string `json:"name"`
	}
	if err := e.rbd(ctx, &trash, "trash", "ls", "volumes"); err != nil {
		return nil, err
	}
	for _, image := range trash {
		images = append(images, image.Name+" (in the trash)")
	}
	return images, nil
}

// rbd asks with the rig's own configuration, bypassing everything that is
// tested.
func (e Env) rbd(ctx context.Context, answer any, arguments ...string) error {
	output, err := exec.CommandContext(ctx, "rbd", append([]string{"--conf", e.CephConfig, "--id", "cinder", "--format", "json"}, arguments...)...).Output()
	if err == nil {
		err = json.Unmarshal(output, answer)
	}
	if err != nil {
		return fmt.Errorf("rbd %s: %w", strings.Join(arguments, " "), err)
	}
	return nil
}
