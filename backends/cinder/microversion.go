package cinder

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
)

// MaxMicroversion returns the newest minor version of v3 that the endpoint offers, 0 if it
// lists none; it asks once per client. Calls that need no microversion send none, so that
// old clouds and proxies without version discovery work.
//
// Concurrent callers share one request, and each stops waiting when its own context ends.
// A failure is remembered briefly, so that they do not repeat it one after another.
func (c *requests) MaxMicroversion(ctx context.Context) (int, error) {
	c.mu.Lock()
	known := c.microversion
	c.mu.Unlock()
	if known != nil && (known.err == nil || time.Since(known.at) < failedDiscoveryAge) {
		return known.newest, known.err
	}
	result := c.discovery.DoChan("", func() (any, error) {
		// The request outlives the caller that happened to come first, even in the queue.
		shared := &requests{c.connection, turns.Admission{Outage: c.admission.Outage}}
		newest, err := shared.discover(turns.WithCaller(context.WithoutCancel(ctx), turns.Caller{}))
		c.mu.Lock()
		defer c.mu.Unlock()
		c.microversion = &discovered{newest: newest, err: err, at: time.Now()}
		return newest, err
	})
	defer turns.CallerOf(ctx).Waiting()()
	select {
	case <-ctx.Done():
		return 0, NotSent(c.backend, operationVersions, ctx.Err())
	case done := <-result:
		return done.Val.(int), done.Err
	}
}

// discovered is what an endpoint offers, or why that is unknown.
type discovered struct {
	newest int
	err    error
	at     time.Time
}

// failedDiscoveryAge is how long a failed discovery is not repeated.
const failedDiscoveryAge = time.Second

const operationVersions = "version.get"

func (c *requests) discover(ctx context.Context) (int, error) {
	root, err := versionRoot(c.service.Endpoint)
	if err != nil {
		return 0, &Error{Backend: c.backend, Kind: KindConfig, Message: err.Error()}
	}
	var answer versionDocument
	response, err := c.service.Request(c.outgoing(ctx, operationVersions), http.MethodGet, root,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK, http.StatusMultipleChoices}, KeepResponseBody: true})
	if err != nil {
		return 0, translate(c.backend, operationVersions, err)
	}
	defer response.Body.Close() //nolint:errcheck // Everything that matters was read.
	if err := json.NewDecoder(response.Body).Decode(&answer); isDecoding(err) {
		return 0, &Error{Backend: c.backend, Operation: operationVersions, Kind: KindInternal,
			Message: fmt.Sprintf("the answer at %s is not a list of versions but %s", auth.WithoutUser(root), contentType(response.Header))}
	} else if err != nil {
		return 0, translate(c.backend, operationVersions, err)
	}
	newest, listed := 0, false
	for _, version := range answer.Versions {
		listed = listed || strings.HasPrefix(version.ID, "v3")
		if minor, ok := strings.CutPrefix(version.Version, "3."); ok {
			if n, err := strconv.Atoi(minor); err == nil {
				newest = max(newest, n)
			}
		}
	}
	if !listed {
		// If remembered, this answer would rule out the attachments API for the client's
		// lifetime.
		return 0, &Error{Backend: c.backend, Operation: operationVersions, Kind: KindInternal,
			Message: "the answer does not list version 3, but " + answer.listed()}
	}
	return newest, nil
}

// versionDocument is the list of an endpoint's versions.
type versionDocument struct {
	Versions []struct {
		ID      string `json:"id"`
		Version string `json:"version"`
	} `json:"versions"`
}

// listed describes the listed versions.
func (d versionDocument) listed() string {
	var all []string
	for _, version := range d.Versions[:min(len(d.Versions), 10)] {
		all = append(all, fmt.Sprintf("%.20q", version.ID))
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}

// contentType describes an answer's declared content type.
func contentType(header http.Header) string {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	switch {
	case err != nil:
		return "something else"
	case kind == "application/json":
		return "other JSON"
	}
	return sentence(kind)
}

// versionRoot returns an endpoint up to its version: http://host/volume/v3/.
func versionRoot(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", fmt.Errorf("endpoint %q is not an address", endpoint)
	}
	before, _, found := strings.Cut(u.Path+"/", "/v3/")
	if !found {
		return "", fmt.Errorf("endpoint %q does not name version 3", endpoint)
	}
	u.Path = before + "/v3/"
	return u.String(), nil
}
