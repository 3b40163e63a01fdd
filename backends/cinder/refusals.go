package cinder

import (
	"bytes"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// isIntermediary reports whether an answer is from something in front of the service,
// such as a proxy or a firewall: a web page, or a demand for a login that no OpenStack
// service uses.
func isIntermediary(header http.Header, body []byte) bool {
	challenge := header.Get("WWW-Authenticate")
	if challenge != "" {
		return !strings.HasPrefix(strings.ToLower(challenge), "keystone")
	}
	return strings.HasPrefix(header.Get("Content-Type"), "text/html") || bytes.HasPrefix(bytes.TrimSpace(body), []byte("<"))
}

// isTokenCheck reports whether a 401 is from the token check in front of Cinder
// (keystonemiddleware).
func isTokenCheck(header http.Header, fault fault) bool {
	return strings.HasPrefix(strings.ToLower(header.Get("WWW-Authenticate")), "keystone") || fault.name == "error"
}

const (
	tokenRefused = "Cinder does not accept the token that Keystone issued: it asks another Keystone, or its service account there " +
		"(keystone_authtoken in cinder.conf) is not what it was"
	tokenUnchecked = "Cinder could not have the token checked: its Keystone does not answer, or its service account there " +
		"(keystone_authtoken in cinder.conf) is broken"
	demandsLogin = "something in front of %s, such as a proxy, demands a login of its own; let the program's requests pass there"
	forbidsIt    = "something in front of %s, such as a proxy or a firewall, forbids the request; let the program's requests pass there"
)

// isTokenUnchecked recognizes keystonemiddleware's 503, which is about Cinder's own
// Keystone and service account.
func isTokenUnchecked(body []byte) bool {
	return bytes.Contains(body, []byte("Keystone service is temporarily unavailable"))
}

// exceeds matches Cinder's message for a size beyond the quota (exception
// VolumeSizeExceedsAvailableQuota).
var exceeds = regexp.MustCompile(`Requested (\d+)G, quota is (\d+)G`)

// neverFits reports whether the request itself is larger than the quota or than the
// project's largest volume, so that freeing room would not help.
func neverFits(message string) bool {
	if strings.Contains(message, "larger than maximum allowed limit") {
		return true
	}
	sizes := exceeds.FindStringSubmatch(message)
	if sizes == nil {
		return false
	}
	requested, err := strconv.ParseUint(sizes[1], 10, 63)
	quota, err2 := strconv.ParseUint(sizes[2], 10, 63)
	return err == nil && err2 == nil && requested > quota
}

// errFruitless means that a new token would be refused as well.
var errFruitless = errors.New("a new token did not help")

// renewals remembers the operations for which a fresh token was refused, too. They get no
// new token for a while, so that a Cinder or proxy that refuses everything costs no
// logins.
type renewals struct {
	mu sync.Mutex
	at map[string]time.Time
}

// fruitlessAge is how long an operation gets no new token after a fresh one was refused.
const fruitlessAge = time.Minute

// mayHelp reports whether a new token may help an operation.
func (r *renewals) mayHelp(operation string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, tried := r.at[operation]
	return !tried || time.Since(at) >= fruitlessAge
}

// renewed notes a new token for an operation.
func (r *renewals) renewed(operation string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil {
		r.at = map[string]time.Time{}
	}
	r.at[operation] = time.Now()
}

// answered records the answer to an operation: any status but 401 means that the token
// was accepted.
func (r *renewals) answered(operation string, response *http.Response) {
	switch {
	case response.StatusCode != http.StatusUnauthorized:
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.at, operation)
	case isIntermediary(response.Header, nil):
		r.renewed(operation)
	}
}
