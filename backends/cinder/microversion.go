package cinder

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
)

// maxMicroversion is the newest minor version of v3 that the endpoint offers,
// requested once per client. Calls that need no microversion send none, so that
// old clouds and proxies without version discovery work.
func (c *Client) maxMicroversion(ctx context.Context) (int, error) {
	c.discovery.Lock()
	defer c.discovery.Unlock()
	if c.microversion != nil {
		return *c.microversion, nil
	}
	root, err := versionRoot(c.service.Endpoint)
	if err != nil {
		return 0, &Error{Backend: c.backend, Kind: KindConfig, Message: err.Error()}
	}
	var answer struct {
		Versions []struct {
			ID      string `json:"id"`
			Version string `json:"version"`
		} `json:"versions"`
	}
	const operation = "version.get"
	if _, err := c.service.Get(withOperation(ctx, operation), root, &answer, &gophercloud.RequestOpts{OkCodes: []int{http.StatusOK, http.StatusMultipleChoices}}); err != nil {
		return 0, translate(c.backend, operation, err)
	}
	newest := 0
	for _, version := range answer.Versions {
		if minor, ok := strings.CutPrefix(version.Version, "3."); ok {
			if n, err := strconv.Atoi(minor); err == nil {
				newest = max(newest, n)
			}
		}
	}
	c.microversion = &newest
	return newest, nil
}

// versionRoot is an endpoint up to its version: http://host/volume/v3/.
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

func microversion(minor int) map[string]string {
	return map[string]string{"OpenStack-API-Version": fmt.Sprintf("volume 3.%d", minor)}
}
