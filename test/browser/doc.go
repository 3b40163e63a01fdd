// Package browser opens the status page in a headless Chromium, which must be
// installed: a browser decides what a Content-Security-Policy allows, how a form is
// sent and what markup means.
package browser
