package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"image"
	"image/color/palette"
	"image/draw"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/standalone-cinder/standalone-cinder/provisioner/app/statuspage"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

var updateScreenshot = flag.Bool("update-screenshot", false, "write docs/status-page.png")

const markup = `fast"><script>alert(1)</script><img src=x onerror=alert(2)>`

// serve serves the page of the golden report, and answers what is asked with
// markup.
func serve(t *testing.T) *httptest.Server {
	t.Helper()
	golden, err := os.ReadFile(filepath.Join("..", "..", "provisioner", "statusreport", "testdata", "leader.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report statusreport.Report
	if err := json.Unmarshal(golden, &report); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", statuspage.ContentSecurityPolicy())
		var answer *statusreport.Answer
		if query := r.URL.Query(); query.Has("namespace") {
			answer = &statusreport.Answer{
				Question: statusreport.Question{Namespace: query.Get("namespace"), StorageClass: query.Get("storageClass"), Size: query.Get("size")},
				Tenant:   "team-a", Reason: "NoMatchingClass", Message: "no rule has " + query.Get("storageClass"),
			}
		}
		shown := report
		if r.URL.Query().Has("picture") {
			// What tests inject would puzzle the reader of a document.
			shown.Program.Version = "v1.0.0"
			claims := *report.Claims
			claims.Pending = slices.Clone(claims.Pending)
			claims.Pending[1].Message = "backend gold: create volume: Cinder answered internal server error (HTTP 500)"
			shown.Claims = &claims
		}
		if err := (statuspage.Page{Report: &shown, Answer: answer, Find: r.URL.Query().Get("find")}).Write(w); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// chromium starts a browser with an empty profile, and opens a tab.
func chromium(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is not installed; make browser installs it")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.WindowSize(1100, 1200), chromedp.Env("TZ=UTC"),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true))
	// The test's context is not used, because its end would kill the browser,
	// whose children would still write to the profile while that is being
	// removed.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	allocator, stop := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stop)
	tab, closeTab := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		// Asks the browser to close, and waits for that.
		if err := chromedp.Cancel(tab); err != nil {
			t.Errorf("the browser did not close: %v", err)
		}
		closeTab()
	})
	return tab
}

// seen is what the browser reports about a page.
type seen struct {
	mu       sync.Mutex
	problems []string
	requests []string
}

func watch(tab context.Context) *seen {
	s := &seen{}
	note := func(list *[]string, text string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		*list = append(*list, text)
	}
	chromedp.ListenTarget(tab, func(event any) {
		switch e := event.(type) {
		case *cdplog.EventEntryAdded: // such as what the policy blocks
			note(&s.problems, e.Entry.Text)
		case *runtime.EventExceptionThrown:
			note(&s.problems, e.ExceptionDetails.Text)
		case *page.EventJavascriptDialogOpening:
			note(&s.problems, "dialog: "+e.Message)
		case *network.EventRequestWillBeSent:
			note(&s.requests, e.Request.URL)
		}
	})
	return s
}

func TestThePageInABrowser(t *testing.T) {
	server := serve(t)
	tab := chromium(t)
	s := watch(tab)

	var title, width, colorOfTrouble, text string
	var meters []map[string]string
	err := chromedp.Run(tab, cdplog.Enable(), network.Enable(), runtime.Enable(),
		chromedp.Navigate(server.URL+"/"),
		chromedp.Title(&title),
		chromedp.Evaluate(`getComputedStyle(document.body).maxWidth`, &width),
		chromedp.Evaluate(`getComputedStyle(document.querySelector(".bad")).color`, &colorOfTrouble),
		chromedp.AttributesAll("#tenants meter", &meters),
		chromedp.Text("main", &text),
	)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(title, "✗ standalone-cinder: standalone-cinder-6c9f7-x2x7k") {
		t.Errorf("the title is %q", title)
	}
	// The policy allows exactly the page's own style, by its digest.
	if width != "1152px" || colorOfTrouble != "rgb(204, 51, 51)" {
		t.Errorf("the page's style is not applied: width %s, color %s", width, colorOfTrouble)
	}
	if len(meters) == 0 || meters[0]["value"] != "20" || meters[0]["max"] != "20" {
		t.Errorf("the meters are %v", meters)
	}
	if before, _, _ := strings.Cut(text, "Pending claims"); !strings.Contains(before, "backend silver does not answer for 12 min, which concerns tenants team-a, team-b") {
		t.Errorf("the page begins with %q instead of the verdict", before)
	}
	for _, wanted := range []string{"circuit open", "tenant team-a would use 21 of 20 volumes", `<b>"type" & zone</b>`, "and 1 more"} {
		if !strings.Contains(text, wanted) {
			t.Errorf("the page lacks %q", wanted)
		}
	}
	if *updateScreenshot {
		var picture []byte
		if err := chromedp.Run(tab, chromedp.Navigate(server.URL+"/?picture"), chromedp.FullScreenshot(&picture, 100), chromedp.Navigate(server.URL+"/")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join("..", "..", "docs", "status-page.png"), withFewColors(t, picture), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	var address, answer, repeated string
	var images int
	err = chromedp.Run(tab,
		chromedp.SendKeys(`input[name=namespace]`, "team-a"),
		chromedp.SendKeys(`input[name=storageClass]`, markup),
		chromedp.Click(`#question button`),
		chromedp.WaitVisible("#answer"),
		chromedp.Location(&address),
		chromedp.Text("#answer", &answer),
		chromedp.Value(`input[name=storageClass]`, &repeated),
		chromedp.Evaluate(`document.querySelectorAll("img, script, iframe").length`, &images),
	)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(address, server.URL+"/?namespace=team-a&storageClass=fast%22") || !strings.HasSuffix(address, "&size=1Gi#question") {
		t.Errorf("the form leads to %s", address)
	}
	if !strings.Contains(answer, "denied: NoMatchingClass: no rule has "+markup) || repeated != markup || images != 0 {
		t.Errorf("the answer is %q, the field has %q, elements from the markup: %d", answer, repeated, images)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, problem := range s.problems {
		if !strings.Contains(problem, "favicon") {
			t.Errorf("the browser reports: %s", problem)
		}
	}
	if len(s.requests) == 0 {
		t.Error("the browser reports no requests; this test would prove little")
	}
	for _, request := range s.requests {
		if !strings.HasPrefix(request, server.URL+"/") {
			t.Errorf("the page asks %s", request)
		}
	}
}

// TestThePageFitsItsWindow: on a telephone and on a screen, in the light and in the dark,
// nothing has to be moved sideways, and what is urgent differs from its background.
func TestThePageFitsItsWindow(t *testing.T) {
	server := serve(t)
	tab := chromium(t)
	for _, width := range []int64{400, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			var overflow, contrast float64
			err := chromedp.Run(tab,
				chromedp.EmulateViewport(width, 900),
				emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
				chromedp.Navigate(server.URL+"/"),
				chromedp.Evaluate(`document.documentElement.scrollWidth - window.innerWidth`, &overflow),
				chromedp.Evaluate(contrastOfUrgent, &contrast),
			)
			if err != nil {
				t.Fatal(err)
			}
			if overflow > 0 || contrast < 4.5 {
				t.Errorf("%d pixels, %s: %v pixels too wide, contrast %.1f", width, scheme, overflow, contrast)
			}
		}
	}
}

// contrastOfUrgent computes the smallest contrast of the urgent words with the page (WCAG
// 2, relative luminance).
const contrastOfUrgent = `(() => {
	const luminance = color => {
		const c = color.match(/[\d.]+/g).slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
	};
	const dark = matchMedia("(prefers-color-scheme: dark)").matches;
	const page = luminance(dark ? "rgb(18, 18, 18)" : "rgb(255, 255, 255)");
	return Math.min(...[...document.querySelectorAll(".bad, .warn")].map(e => {
		const text = luminance(getComputedStyle(e).color);
		return (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05);
	}));
})()`

// withFewColors makes a picture small enough for a repository.
func withFewColors(t *testing.T, picture []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	few := image.NewPaletted(full.Bounds(), palette.WebSafe)
	draw.Draw(few, few.Rect, full, full.Bounds().Min, draw.Src)
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, few); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestThePolicyBlocksForeignCode makes sure that the policy, and not only the
// escaping, would stop code that slipped into the page.
func TestThePolicyBlocksForeignCode(t *testing.T) {
	policy := statuspage.ContentSecurityPolicy()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Security-Policy", policy)
		_, _ = w.Write([]byte(`<!DOCTYPE html><title>quiet</title><p>text</p><style>p { color: red }</style><script>document.title = "ran"</script><p onclick="x()">`))
	}))
	t.Cleanup(server.Close)
	tab := chromium(t)
	s := watch(tab)
	var title, color string
	err := chromedp.Run(tab, cdplog.Enable(), chromedp.Navigate(server.URL), chromedp.Title(&title),
		chromedp.Evaluate(`getComputedStyle(document.querySelector("p")).color`, &color))
	if err != nil {
		t.Fatal(err)
	}
	if title != "quiet" || color != "rgb(0, 0, 0)" {
		t.Errorf("title %q, color %s", title, color)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) < 2 {
		t.Errorf("the browser reports only %q", s.problems)
	}
}
