package hostile

import (
	"bufio"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"
)

// heads returns attacks on what precedes the body of a true answer.
func heads() []Attack {
	header := func(name string, change func(http.Header)) Attack {
		return Attack{Name: name, answer: func(e exchange) {
			e.truth.header = e.truth.header.Clone()
			change(e.truth.header)
			e.truth.write(e.w)
		}}
	}
	date := func(name string, ahead time.Duration) Attack {
		return header(name, func(h http.Header) { h.Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat)) })
	}
	return []Attack{
		date("clock hours ahead", 20*time.Hour),
		date("clock hours behind", -20*time.Hour),
		date("clock years ahead", 100_000*time.Hour),
		header("invalid date", func(h http.Header) { h.Set("Date", "tomorrow") }),
		header("long request id", func(h http.Header) { h.Set("X-Openstack-Request-Id", strings.Repeat("req-\t\x7f", 10_000)) }),
		header("many headers", func(h http.Header) {
			for i := range 5000 {
				h.Add("X-Header-"+fmt.Sprint(i), "value")
			}
		}),
		{Name: "other success", answer: func(e exchange) {
			e.truth.status = 299
			e.truth.write(e.w)
		}},
		{Name: "no content", answer: func(e exchange) {
			maps.Copy(e.w.Header(), e.truth.header)
			e.w.Header().Del("Content-Length")
			e.w.WriteHeader(http.StatusNoContent)
		}},
	}
}

// raw takes the connection from the server and writes to it directly.
func raw(name string, write func(e exchange, w *bufio.Writer)) Attack {
	return Attack{Name: name, answer: func(e exchange) {
		connection, buffer, err := http.NewResponseController(e.w).Hijack()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer connection.Close()
		// A server whose connection was taken no longer notices that the client
		// leaves; writing does.
		write(e, buffer.Writer)
		_ = buffer.Flush()
	}}
}

// repeat writes a part again and again, until the client leaves.
func repeat(e exchange, w *bufio.Writer, part string, pause time.Duration) {
	sent, ends := 0, time.Now().Add(maxFlowTime)
	for e.ctx.Err() == nil && sent < maxFlowSize && time.Now().Before(ends) {
		sent += len(part)
		if _, err := w.WriteString(part); err != nil {
			return
		}
		if pause > 0 {
			if w.Flush() != nil {
				return
			}
			select {
			case <-time.After(pause):
			case <-e.ctx.Done():
			}
		}
	}
}

// status answers with a status and a body, without the true answer's.
func status(name string, code int, contentType, body string, header ...string) Attack {
	return Attack{Name: name, answer: func(e exchange) {
		e.w.Header().Set("Content-Type", contentType)
		for i := 0; i < len(header); i += 2 {
			e.w.Header().Set(header[i], header[i+1])
		}
		e.w.WriteHeader(code)
		_, _ = e.w.Write([]byte(body))
	}}
}

const (
	page = "<html><body><h1>Error</h1>The page you requested is not here.</body></html>"
	html = "text/html"
	jsn  = "application/json"
)

func fault(message string) string {
	return fmt.Sprintf(`{"computeFault": {"code": 500, "message": %q}}`, message)
}

// rejections returns answers that no client can take for a success or for one
// of Cinder's own rejections. They come after the effect or in place of it.
func rejections() []Attack {
	elsewhere := "http://192.0.2.1:8776/v3/volumes"
	return []Attack{
		status("page with 502", http.StatusBadGateway, html, page),
		status("page with 500", http.StatusInternalServerError, html, page),
		status("page with 403", http.StatusForbidden, html, page),
		status("page with 404", http.StatusNotFound, html, page),
		status("page with 400", http.StatusBadRequest, html, page),
		status("page with 409", http.StatusConflict, html, page),
		status("teapot", http.StatusTeapot, jsn, "{}"),
		status("status 599", 599, jsn, "{}"),
		status("status 600", 600, jsn, "{}"),
		status("status 999", 999, html, page),
		status("moved permanently", http.StatusMovedPermanently, html, page, "Location", elsewhere),
		status("found elsewhere", http.StatusFound, html, page, "Location", elsewhere),
		status("temporarily elsewhere", http.StatusTemporaryRedirect, html, page, "Location", elsewhere),
		status("elsewhere with control characters", http.StatusPermanentRedirect, html, page, "Location", "http://a\tb/"+strings.Repeat("x", 5000)),
		status("multiple choices", http.StatusMultipleChoices, jsn, "{}"),
		status("fault with control characters", http.StatusInternalServerError, jsn, fault("first\r\n\x1b[31msecond\x00third")),
		{Name: "endless fault", answer: func(e exchange) {
			e.truth = answer{status: http.StatusInternalServerError, header: http.Header{"Content-Type": {jsn}}}
			e.flow(`{"computeFault": {"code": 500, "message": "`, strings.Repeat("very ", 10_000), 0)
		}},
		status("fault without a message", http.StatusInternalServerError, jsn, `{"computeFault": null}`),
		status("retry by date", http.StatusServiceUnavailable, jsn, fault("busy"), "Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"),
		status("retry before now", http.StatusServiceUnavailable, jsn, fault("busy"), "Retry-After", "-5"),
		status("retry in a million years", http.StatusServiceUnavailable, jsn, fault("busy"), "Retry-After", strings.Repeat("9", 40)),
		raw("closed without an answer", func(exchange, *bufio.Writer) {}),
		raw("closed in the header", func(_ exchange, w *bufio.Writer) { _, _ = w.WriteString("HTTP/1.1 200 OK\r\nContent-Ty") }),
		raw("not HTTP", func(_ exchange, w *bufio.Writer) { _, _ = w.WriteString("SSH-2.0-OpenSSH_9.2\r\n\r\n") }),
		raw("no status line", func(_ exchange, w *bufio.Writer) { _, _ = w.WriteString("HTTP/1.1 fine\r\n\r\n") }),
		raw("two lengths", func(_ exchange, w *bufio.Writer) {
			_, _ = w.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}")
		}),
		raw("negative length", func(_ exchange, w *bufio.Writer) {
			_, _ = w.WriteString("HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}")
		}),
		raw("endless header", func(e exchange, w *bufio.Writer) {
			_, _ = w.WriteString("HTTP/1.1 200 OK\r\n")
			repeat(e, w, "X-Padding: "+strings.Repeat("a", 1000)+"\r\n", 0)
		}),
		raw("endless line in the header", func(e exchange, w *bufio.Writer) {
			_, _ = w.WriteString("HTTP/1.1 200 OK\r\nX-Padding: ")
			repeat(e, w, strings.Repeat("a", 1000), 0)
		}),
		raw("endless early hints", func(e exchange, w *bufio.Writer) { repeat(e, w, "HTTP/1.1 103 Early Hints\r\n\r\n", 0) }),
		raw("dripping header", func(e exchange, w *bufio.Writer) {
			_, _ = w.WriteString("HTTP/1.1 200 OK\r\nX-Padding: ")
			repeat(e, w, "a", 50*time.Millisecond)
		}),
	}
}

// refusals returns answers that mean that the request had no effect, so they
// come in place of it.
func refusals() []Attack {
	refusal := func(a Attack) Attack {
		a.when = before
		return a
	}
	rejection := func(a Attack) Attack {
		a.unauthorized = true
		return refusal(a)
	}
	unauthorized := `{"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}`
	return []Attack{
		rejection(status("token rejected", http.StatusUnauthorized, jsn, unauthorized)),
		rejection(status("page with 401", http.StatusUnauthorized, html, page)),
		refusal(status("too many requests until a date", http.StatusTooManyRequests, jsn, "{}", "Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT")),
		refusal(status("too many requests", http.StatusTooManyRequests, html, page, "Retry-After", "-1")),
		refusal(status("page with 413", http.StatusRequestEntityTooLarge, html, page)),
		refusal(status("too large until a date", http.StatusRequestEntityTooLarge, html, page, "Retry-After", "Thu, 01 Jan 1970 00:00:00 GMT")),
	}
}
