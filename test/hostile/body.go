package hostile

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// replace sends the true status and header with another body.
func (e exchange) replace(body []byte) {
	truth := e.truth
	truth.header = truth.header.Clone()
	truth.header.Del("Content-Length")
	truth.body = body
	truth.write(e.w)
}

// How long and how large answers that pretend to be endless are. A client that
// still reads then would never stop; a proxy on the way must not.
const (
	maxFlowTime = 10 * time.Second
	maxFlowSize = 64 << 20
)

// flow sends the true status and header, a beginning, and then a part again and
// again, until the client leaves.
func (e exchange) flow(beginning, part string, pause time.Duration) {
	maps.Copy(e.w.Header(), e.truth.header)
	e.w.Header().Del("Content-Length")
	status := e.truth.status
	if status == http.StatusNoContent {
		status = http.StatusAccepted // has a body
	}
	e.w.WriteHeader(status)
	flush := http.NewResponseController(e.w)
	sent, ends := 0, time.Now().Add(maxFlowTime)
	for text := beginning; e.ctx.Err() == nil && sent < maxFlowSize && time.Now().Before(ends); text = part {
		sent += len(text)
		if _, err := io.WriteString(e.w, text); err != nil || flush.Flush() != nil {
			return
		}
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-e.ctx.Done():
			}
		}
	}
	panic(http.ErrAbortHandler)
}

// compressedBlanks returns 8 MiB in 8 KiB.
func compressedBlanks() []byte {
	var out bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is valid
	blanks := bytes.Repeat([]byte(" "), 1<<20)
	for range 8 {
		_, _ = zip.Write(blanks) // to memory
	}
	_ = zip.Close()
	return out.Bytes()
}

// bodies returns attacks on the body alone, whatever is in it.
func bodies() []Attack {
	html := "<!DOCTYPE html>\n<html><head><title>Welcome</title></head><body><h1>It works</h1></body></html>\n"
	return []Attack{
		{Name: "compressed blanks", answer: func(e exchange) {
			e.w.Header().Set("Content-Encoding", "gzip")
			e.replace(compressedBlanks())
		}},
		{Name: "endless blanks", answer: func(e exchange) { e.flow(" ", strings.Repeat(" ", 64<<10), 0) }},
		{Name: "endless list", answer: func(e exchange) { e.flow(`{"volumes":[{}`, strings.Repeat(",{}", 20<<10), 0) }},
		{Name: "endless fields", answer: func(e exchange) { e.flow(`{"volume":{"id":"x"`, strings.Repeat(`,"a":[{}]`, 8<<10), 0) }},
		{Name: "dripping body", answer: func(e exchange) { e.flow(" ", " ", 50*time.Millisecond) }},
		{Name: "nested lists", answer: func(e exchange) { e.replace([]byte(`{"volume":` + strings.Repeat("[", 200_000))) }},
		{Name: "page instead of JSON", answer: func(e exchange) {
			e.truth.header.Set("Content-Type", "text/html")
			e.replace([]byte(html))
		}},
		{Name: "other content type", answer: func(e exchange) {
			e.truth.header.Set("Content-Type", "application/octet-stream")
			e.replace(e.truth.body)
		}},
		{Name: "half of the body", answer: func(e exchange) { e.replace(e.truth.body[:len(e.truth.body)/2]) }},
		{Name: "body cut off", answer: func(e exchange) {
			e.truth.header.Set("Content-Length", strconv.Itoa(len(e.truth.body)+100))
			maps.Copy(e.w.Header(), e.truth.header)
			e.w.WriteHeader(bodyStatus(e.truth.status))
			_, _ = e.w.Write(e.truth.body)
			_ = http.NewResponseController(e.w).Flush()
			panic(http.ErrAbortHandler)
		}},
		{Name: "empty body", answer: func(e exchange) { e.replace(nil) }},
		{Name: "empty object", answer: func(e exchange) { e.replace([]byte("{}")) }},
		{Name: "null", answer: func(e exchange) { e.replace([]byte("null")) }},
		{Name: "list instead of an object", answer: func(e exchange) { e.replace([]byte("[" + string(e.truth.body) + "]")) }},
		{Name: "invalid UTF-8", answer: func(e exchange) {
			e.replace(bytes.ReplaceAll(e.truth.body, []byte(`": "`), []byte("\": \"\xff\xfe\x00")))
		}},
		{Name: "two documents", answer: func(e exchange) { e.replace(append(append([]byte{}, e.truth.body...), e.truth.body...)) }},
	}
}

// bodyStatus returns a status that may have a body.
func bodyStatus(status int) int {
	if status == http.StatusNoContent {
		return http.StatusAccepted
	}
	return status
}
