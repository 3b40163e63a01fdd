package webserver

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// start serves metrics of some size, and health, as the program does.
func start(t *testing.T, series int) (address string, gathered func() int) {
	t.Helper()
	registry := prometheus.NewRegistry()
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "series", Help: "Many."}, []string{"tenant"})
	registry.MustRegister(gauge)
	for i := range series {
		gauge.WithLabelValues(fmt.Sprintf("a-tenant-with-quite-a-long-name-%d", i)).Set(1)
	}
	times := make(chan struct{}, 10_000)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", Metrics(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		times <- struct{}{}
		return registry.Gather()
	})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := New(mux, 30*time.Second, slog.New(slog.DiscardHandler))
	go func() { _ = server.Serve(Bound(listener)) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String(), func() int { return len(times) }
}

func get(t *testing.T, address, path, encoding string) string {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept-Encoding", encoding)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Minute}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	var from io.Reader = answer.Body
	if answer.Header.Get("Content-Encoding") == "gzip" {
		if from, err = gzip.NewReader(answer.Body); err != nil {
			t.Fatal(err)
		}
	}
	text, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMetricsAreGatheredOnceASecond(t *testing.T) {
	address, gathered := start(t, 3)
	for _, encoding := range []string{"identity", "gzip", "identity", "br, gzip;q=0.5"} {
		if text := get(t, address, "/metrics", encoding); !strings.Contains(text, `series{tenant="a-tenant-with-quite-a-long-name-2"} 1`) {
			t.Errorf("%s: %s", encoding, text)
		}
	}
	if n := gathered(); n > 2 {
		t.Errorf("gathered %d times", n)
	}
}

func TestMetricsAreCompressedForThoseWhoWantIt(t *testing.T) {
	address, _ := start(t, 3)
	for accepted, want := range map[string]string{
		"": "", "identity": "", "gzip": "gzip", "GZIP": "gzip", "br, gzip;q=0.5": "gzip", "gzip; q=1": "gzip", "gzip;q=0": "", "gzip;q=0.0, identity": "", "br;q=1, gzip ; q=0": "",
		"x-gzipped": "", "*": "", "gzip;q=much": "",
	} {
		request, err := http.NewRequest(http.MethodGet, "http://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept-Encoding", accepted)
		answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if got := answer.Header.Get("Content-Encoding"); got != want || answer.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%q is answered in %q, want %q; header Vary: %q", accepted, got, want, answer.Header.Get("Vary"))
		}
	}
}

// TestAFloodTakesLittleMemoryAndStarvesNoProbe: thousands of connections on which nothing
// is ever sent, and hundreds of readers of the metrics that do not read.
func TestAFloodTakesLittleMemoryAndStarvesNoProbe(t *testing.T) {
	const most = 64 << 20
	address, _ := start(t, 8_000)
	if size := len(get(t, address, "/metrics", "identity")); size < 400<<10 {
		t.Fatalf("the metrics have only %d bytes", size)
	}
	memory := func() uint64 {
		var now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&now)
		return now.HeapAlloc + now.StackInuse
	}
	before := memory()
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	connect := func(request string) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return // this process may have too few file descriptors
		}
		open = append(open, c)
		_, _ = io.WriteString(c, request)
	}
	for i := range 5000 {
		connect("")
		if i%500 == 0 {
			if text := get(t, address, "/healthz", ""); text != "ok\n" {
				t.Errorf("health is %q", text)
			}
		}
	}
	for i := range 400 {
		connect("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
		if i%50 == 0 {
			if text := get(t, address, "/healthz", ""); text != "ok\n" {
				t.Errorf("health is %q", text)
			}
			time.Sleep(300 * time.Millisecond) // further gatherings
		}
	}
	if took := int64(memory()) - int64(before); took > most {
		t.Errorf("they take %d MiB", took>>20)
	} else {
		t.Logf("they take %d MiB", took>>20)
	}
	if text := get(t, address, "/metrics", "gzip"); !strings.Contains(text, "series{") {
		t.Error("a reader of the metrics gets none")
	}
}

// TestTheOldestConnectionIsClosed: the newest one is answered.
func TestTheOldestConnectionIsClosed(t *testing.T) {
	address, _ := start(t, 1)
	first, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	for range maxConnections {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	_ = first.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := bufio.NewReader(first).ReadByte(); err != io.EOF && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("the first connection is open: %v", err)
	}
}

// TestTheFloodOfAnAddressCutsOffNoOther: the connections of an address that has few stay.
func TestTheFloodOfAnAddressCutsOffNoOther(t *testing.T) {
	address, _ := start(t, 1)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	other := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	slow, err := other.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Skip("this machine has no second address: ", err)
	}
	defer func() { _ = slow.Close() }()
	for range 2 * maxConnections {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	if text := get(t, address, "/healthz", ""); text != "ok\n" {
		t.Errorf("health is %q", text)
	}
	_, _ = io.WriteString(slow, "GET /healthz HTTP/1.0\r\n\r\n")
	_ = slow.SetReadDeadline(time.Now().Add(20 * time.Second))
	if answer, err := io.ReadAll(slow); !strings.HasSuffix(string(answer), "ok\n") {
		t.Errorf("the slow client got %q (%v)", answer, err)
	}
}
