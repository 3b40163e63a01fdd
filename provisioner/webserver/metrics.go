package webserver

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

const (
	// fresh is how long one gathering of the metrics serves all requests.
	fresh = time.Second
	// maxPages is how many gatherings are kept for readers that are slow to take them.
	// Others get the last one, even if it is no longer fresh.
	maxPages = 3
)

// Metrics serves metrics in Prometheus' text format. It gathers them at most once a second,
// and all readers share the text, so that slow ones cost nothing.
func Metrics(gatherer prometheus.Gatherer) http.Handler { return &metrics{gatherer: gatherer} }

type metrics struct {
	gatherer prometheus.Gatherer

	mu      sync.Mutex
	last    *page
	reading int // pages that are being read
}

// page is the text of one gathering. It takes a twentieth of the memory compressed, and
// nearly every reader wants it so.
type page struct {
	made       time.Time
	compressed []byte
	err        error
	readers    int
}

// ServeHTTP implements http.Handler.
func (m *metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := m.take()
	defer m.leave(p)
	if p.err != nil {
		http.Error(w, "cannot gather the metrics: "+p.err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	w.Header().Set("Vary", "Accept-Encoding")
	if takesGzip(r.Header.Values("Accept-Encoding")) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(p.compressed)
		return
	}
	if plain, err := gzip.NewReader(bytes.NewReader(p.compressed)); err == nil {
		_, _ = io.Copy(w, plain)
	}
}

// takesGzip reads the header Accept-Encoding. Coding by *, which asks for anything, gets
// plain text.
func takesGzip(accepted []string) bool {
	for coding := range strings.SplitSeq(strings.Join(accepted, ","), ",") {
		name, weight, _ := strings.Cut(coding, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		q, weighted := strings.CutPrefix(strings.ToLower(strings.ReplaceAll(weight, " ", "")), "q=")
		value, err := strconv.ParseFloat(q, 64)
		return !weighted || err == nil && value > 0
	}
	return false
}

// take returns the last page, or a new one.
func (m *metrics) take() *page {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil || time.Since(m.last.made) > fresh && m.reading < maxPages {
		// Meanwhile, the others wait for it.
		m.last = m.gather()
		// However long it took, it is for all who waited.
		m.last.made = time.Now()
	}
	if m.last.readers++; m.last.readers == 1 {
		m.reading++
	}
	return m.last
}

func (m *metrics) leave(p *page) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.readers--; p.readers == 0 {
		m.reading--
	}
}

func (m *metrics) gather() *page {
	p := &page{}
	families, err := m.gatherer.Gather()
	if err != nil {
		p.err = err
		return p
	}
	var compressed bytes.Buffer
	zip := gzip.NewWriter(&compressed)
	to := expfmt.NewEncoder(zip, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if err := to.Encode(family); err != nil {
			p.err = err
			return p
		}
	}
	p.err = zip.Close()
	p.compressed = compressed.Bytes()
	return p
}
