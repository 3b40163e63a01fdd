//go:build e2e

package vm

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAMachineIsANode(t *testing.T) {
	// Another package may be making the image at the moment, which takes long on a machine
	// that also compiles everything for the first time.
	image, err := Build(t.Context(), DefaultDirectory())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	m, err := Start(ctx, Options{Image: image, Name: "node-1", Initiator: "iqn.2026-01.example:node-1"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Kill()
	names, err := m.Run(ctx, "hostname; cat /etc/iscsi/initiatorname.iscsi; pidof iscsid multipathd >/dev/null && echo running")
	if err != nil || names != "node-1\nInitiatorName=iqn.2026-01.example:node-1\nrunning\n" {
		t.Errorf("%q, %v", names, err)
	}
	if _, err := m.Run(ctx, "echo broken >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a command that fails: %v", err)
	}
	file := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(file, []byte("#!/bin/sh\necho it runs\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Install(ctx, file, "/opt/x/tool"); err != nil {
		t.Fatal(err)
	}
	if output, err := m.Run(ctx, "/opt/x/tool"); err != nil || output != "it runs\n" {
		t.Errorf("%q, %v", output, err)
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello\n"))
			c.Close()
		}
	}()
	address := listener.Addr().String()
	host, port, _ := net.SplitHostPort(address)
	ask := "exec 3<>/dev/tcp/" + host + "/" + port + " && cat <&3"
	if _, err := m.Run(ctx, "bash -c '"+ask+"'"); err == nil {
		t.Error("the node reaches what it was not given")
	}
	cut, err := m.Reach(address)
	if err != nil {
		t.Fatal(err)
	}
	if output, err := m.Run(ctx, "bash -c '"+ask+"'"); err != nil || output != "hello\n" {
		t.Errorf("%q, %v", output, err)
	}
	cut()
	if _, err := m.Run(ctx, "bash -c '"+ask+"'"); err == nil {
		t.Error("the node reaches what was cut")
	}
}
