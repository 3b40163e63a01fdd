package hostile

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const someVolume = `{"volume": {"id": "v1", "name": "pvc-1", "status": "creating", "size": 1, "metadata": {"a": "b"}, "attachments": []}}`

// serve puts a hostile server before one that counts its requests.
func serve(t *testing.T, performed *atomic.Int32, told func(Lie)) (*Server, *httptest.Server) {
	t.Helper()
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		performed.Add(1)
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Asked", string(body))
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, someVolume)
	}), told)
	listening := httptest.NewUnstartedServer(server)
	listening.Config.ErrorLog = log.New(io.Discard, "", 0)
	listening.Start()
	t.Cleanup(func() {
		server.Close()
		listening.CloseClientConnections()
		listening.Close()
	})
	return server, listening
}

func post(t *testing.T, address string) (*http.Response, string) {
	t.Helper()
	client := &http.Client{
		Timeout:       200 * time.Millisecond,
		Transport:     &http.Transport{DisableCompression: true, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Post(address+"/v3/p/volumes", "application/json", strings.NewReader(`{"volume": {}}`))
	if err != nil {
		return nil, ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return response, "cut off"
	}
	return response, string(body)
}

func TestWithoutAJudgeAnswersAreTrue(t *testing.T) {
	var performed atomic.Int32
	server, listening := serve(t, &performed, func(lie Lie) { t.Errorf("told of %+v", lie) })
	for _, judge := range []Judge{nil, func(*http.Request) (Attack, bool) { return Attack{}, false }} {
		server.Judge(judge)
		response, body := post(t, listening.URL)
		if response == nil || response.StatusCode != http.StatusAccepted || body != someVolume || response.Header.Get("X-Asked") != `{"volume": {}}` {
			t.Errorf("got %+v, %q", response, body)
		}
	}
	if performed.Load() != 2 {
		t.Errorf("performed %d times", performed.Load())
	}
}

// TestAttacksKeepTheirPromise: each differs from the true answer, only a
// rejection is sent for a request that is not performed, and each is reported.
func TestAttacksKeepTheirPromise(t *testing.T) {
	for _, attack := range Attacks() {
		if !attack.Suits("volume.create") {
			continue
		}
		t.Run(attack.Name, func(t *testing.T) {
			t.Parallel()
			var performed atomic.Int32
			lies := make(chan Lie, 1)
			server, listening := serve(t, &performed, func(lie Lie) { lies <- lie })
			server.Judge(func(*http.Request) (Attack, bool) { return attack, true })
			var response *http.Response
			var body string
			var lie Lie
			for told := false; !told; {
				response, body = post(t, listening.URL)
				select {
				case lie = <-lies:
					told = true
				case <-time.After(time.Second): // on a busy machine, the request may never have arrived
				}
			}
			if lie.Attack != attack.Name || lie.Performed != (attack.when == after) || performed.Load() == 1 != lie.Performed {
				t.Errorf("told %+v, performed %d times", lie, performed.Load())
			}
			if !lie.Performed && response != nil && response.StatusCode < 300 && body != "cut off" {
				t.Errorf("an answer with status %d in place of the effect", response.StatusCode)
			}
			if response != nil && response.StatusCode == http.StatusAccepted && body == someVolume && len(response.Header) < 5 &&
				time.Since(dateOf(response)).Abs() < time.Minute && response.Header.Get("Content-Type") != "application/octet-stream" {
				t.Errorf("the answer is the true one: %+v", response.Header)
			}
			if server.Used()[attack.Name] != 1 {
				t.Errorf("counted %v", server.Used())
			}
		})
	}
}

func dateOf(response *http.Response) time.Time {
	at, _ := http.ParseTime(response.Header.Get("Date")) // zero is far away
	return at
}

func TestOperationsAreNamed(t *testing.T) {
	for request, want := range map[string]string{
		"POST /identity/v3/auth/tokens":            "login",
		"GET /v3/":                                 "version.get",
		"GET /v3/p/volumes/detail?limit=1":         "volume.list",
		"POST /v3/p/volumes":                       "volume.create",
		"GET /volume/v3/p/volumes/v1":              "volume.get",
		"DELETE /v3/p/volumes/v1":                  "volume.delete",
		"POST /v3/p/volumes/v1/metadata":           "metadata.update",
		"DELETE /v3/p/volumes/v1/metadata/k":       "metadata.delete",
		`POST /v3/p/volumes/v1/action {"os-a":{}}`: "os-a",
		"POST /v3/p/volumes/v1/action nothing":     "other",
		"POST /v3/p/attachments":                   "attachment.create",
		"GET /v3/p/attachments?volume_id=v1":       "attachment.list",
		"GET /v3/p/attachments/a1":                 "attachment.get",
		"POST /v3/p/attachments/a1/action {}":      "attachment.complete",
		"DELETE /v3/p/attachments/a1":              "attachment.delete",
		"GET /v3/p/limits":                         "other",
	} {
		parts := append(strings.SplitN(request, " ", 3), "")
		r := httptest.NewRequest(parts[0], parts[1], strings.NewReader(parts[2]))
		if got := Operation(r); got != want {
			t.Errorf("%s is %q, want %q", request, got, want)
		}
		if body, _ := io.ReadAll(r.Body); string(body) != parts[2] {
			t.Errorf("%s: the body that is left is %q", request, body)
		}
	}
}
