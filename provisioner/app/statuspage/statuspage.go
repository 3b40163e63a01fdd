// Package statuspage serves the report of a replica in every form.
package statuspage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"

	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// reportForm is one form of the report.
type reportForm struct {
	contentType string
	// contentSecurityPolicy restricts what a browser does with it.
	contentSecurityPolicy string
	// selects reads which part of the report a request selects.
	selects func(url.Values) (Request, error)
	write   func(body *bytes.Buffer, request *http.Request, report statusreport.Report) error
}

// MaxReports is how many reports are made or sent at once. A report of thousands of
// pending claims takes some ten megabytes until a slow client has read it, and the
// leader must not run out of memory.
const MaxReports = 4

// Request selects a part of a report; the zero value selects all.
type Request struct {
	Namespace, Claim, Tenant string
	// Find is the name of a tenant or, if there is none, of a namespace.
	Find string
	// Limit is the largest number of pending objects to list.
	Limit int
}

// Options are what the pages show.
type Options struct {
	// Report describes the replica.
	Report func(Request) statusreport.Report
	// Answer answers the question that the page's form asks; nil if it asks none.
	Answer func(url.Values) *statusreport.Answer
	Logger *slog.Logger
}

// Handle serves the replica's report in every form. It changes nothing.
func Handle(mux *http.ServeMux, o Options) {
	slots := make(chan struct{}, MaxReports)
	const nothing = "default-src 'none'; frame-ancestors 'none'"
	mux.Handle("GET /status.json", o.serveReport(slots, reportForm{"application/json", nothing, selectedBy, func(body *bytes.Buffer, _ *http.Request, r statusreport.Report) error {
		encoder := json.NewEncoder(body)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}}))
	mux.Handle("GET /status.txt", o.serveReport(slots, reportForm{"text/plain; charset=utf-8", nothing, selectedBy, func(body *bytes.Buffer, _ *http.Request, r statusreport.Report) error {
		return r.WriteTable(body)
	}}))
	// The other query parameters of the page are those of its forms.
	mux.Handle("GET /{$}", o.serveReport(slots, reportForm{"text/html; charset=utf-8", ContentSecurityPolicy(), foundBy, func(body *bytes.Buffer, request *http.Request, r statusreport.Report) error {
		query := request.URL.Query()
		return Page{Report: &r, Answer: o.Answer(query), Find: query.Get("find"), Refresh: query.Has("refresh")}.Write(body)
	}}))
}

// serveReport serves one form of the report. The report is complete before any of it is
// sent, so that a client that does not read blocks nothing.
func (o Options) serveReport(slots chan struct{}, form reportForm) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Cache-Control", "no-store")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Content-Security-Policy", form.contentSecurityPolicy)
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			http.Error(w, "too many status reports are being sent; try again in a few seconds", http.StatusServiceUnavailable)
			return
		}
		selected, err := form.selects(request.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var body bytes.Buffer
		if err := form.write(&body, request, o.Report(selected)); err != nil {
			o.Logger.Error("Cannot write the status report", "error", err)
			http.Error(w, "the report cannot be written; the log says why", http.StatusInternalServerError)
			return
		}
		header.Set("Content-Type", form.contentType)
		_, _ = w.Write(body.Bytes())
	})
}

// foundBy reads what a request for the page selects.
func foundBy(query url.Values) (Request, error) {
	return Request{Find: query.Get("find"), Limit: statusreport.DefaultLimit}, nil
}

// selectedBy reads what a request for data selects.
func selectedBy(query url.Values) (Request, error) {
	s := Request{Namespace: query.Get("namespace"), Claim: query.Get("claim"), Tenant: query.Get("tenant"), Limit: statusreport.DefaultLimit}
	switch {
	case s.Claim != "" && s.Namespace == "":
		return s, fmt.Errorf("claim=%s needs namespace=NAME", s.Claim)
	case s.Tenant != "" && s.Namespace != "":
		return s, errors.New("give tenant=NAME or namespace=NAME, not both")
	}
	if text := query.Get("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 0 || limit > statusreport.MaxLimit {
			return s, fmt.Errorf("limit must be a whole number up to %d, not %q", statusreport.MaxLimit, text)
		}
		s.Limit = limit
	}
	return s, nil
}
