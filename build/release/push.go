package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push brings the image and the chart of a release to a registry, as PLACE/standalone-cinder
// and PLACE/charts/standalone-cinder, with the login that docker, helm or crane keeps. The
// image keeps its digest.
func push(ctx context.Context, s source, out, place string) error {
	tag, err := name.NewTag(place + "/" + program + ":" + s.version)
	if err != nil {
		return err
	}
	top, err := layout.ImageIndexFromPath(filepath.Join(out, imageDirectory))
	if err != nil {
		return err
	}
	entries, err := top.IndexManifest()
	if err != nil {
		return err
	}
	// The layout has one entry, the index of all platforms.
	index, err := top.ImageIndex(entries.Manifests[0].Digest)
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("push %s: %w", tag, err)
	}
	chart, err := filepath.Abs(filepath.Join(out, s.chart()))
	if err != nil {
		return err
	}
	arguments := []string{"push", chart, "oci://" + place + "/charts"}
	if tag.Scheme() == "http" {
		arguments = append(arguments, "--plain-http")
	}
	_, err = runHelm(ctx, s, nil, arguments...)
	return err
}
