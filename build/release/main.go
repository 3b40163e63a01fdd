// Release builds everything that a release of standalone-cinder consists of:
// static binaries, archives of them, a container image, SBOMs, the chart and
// checksums with their signature, and pushes image and chart to a registry. The same commit, version and toolchain give the same bytes on
// every machine. docs/releases.md describes the result.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	directory := flag.String("source", ".", "`directory` of the checkout")
	out := flag.String("out", "dist", "`directory` for the result; it must be empty or absent")
	version := flag.String("version", "", "such as v0.1.0; default is what git describe says, else "+development)
	key := flag.String("key", "", "`file` with the private key that signs the checksums; default is no signature")
	registry := flag.String("push", "", "`place` in a registry, such as registry.example/storage, that gets the image and the chart; default is none")
	plugins := flag.String("plugins", pluginPlatforms, "`platforms` of the kubectl plugin")
	flag.Parse()

	source, err := readSource(ctx, *directory, *version)
	source.plugins = strings.Split(*plugins, ",")
	var by *signer
	if err == nil {
		by, err = readSigner(*key)
	}
	if err == nil {
		fmt.Printf("building %s of commit %s into %s\n", source.version, source.commit, *out)
		err = build(ctx, source, *out, by)
	}
	if err == nil && *registry != "" {
		fmt.Printf("pushing %[1]s/%[2]s:%[3]s and oci://%[1]s/charts/%[2]s\n", *registry, program, source.version)
		err = push(ctx, source, *out, *registry)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}
