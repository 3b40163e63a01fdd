package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/app/statuspage"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// started returns a follower whose caches have a StorageClass and a namespace.
func started(t *testing.T) (*starter, *http.ServeMux) {
	t.Helper()
	s := newStarter(t, policyOf("first", ""), cloudsOf("hunter2"))
	if _, err := s.start(t); err != nil {
		t.Fatal(err)
	}
	s.status.setReady()
	s.status.setLeader("pod-1_abc")
	classes, namespaces := s.factory.Storage().V1().StorageClasses().Informer(), s.factory.Core().V1().Namespaces().Informer()
	if err := classes.GetStore().Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Provisioner: "another"}); err != nil {
		t.Fatal(err)
	}
	if err := namespaces.GetStore().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	s.server.handleReports(mux)
	return s, mux
}

func getReport(t *testing.T, mux *http.ServeMux, path string, wantCode int) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != wantCode {
		t.Errorf("%s answers %d, want %d: %s", path, w.Code, wantCode, w.Body)
	}
	if w.Header().Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(w.Header().Get("Content-Security-Policy"), "default-src 'none'; ") || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%s has the header %v", path, w.Header())
	}
	if strings.Contains(w.Body.String(), "hunter2") {
		t.Errorf("%s shows a password", path)
	}
	return w
}

// TestFollowersSayWhoKnows: followers name the leader for what they do not know
// themselves.
func TestFollowersSayWhoKnows(t *testing.T) {
	s, mux := started(t)
	var report statusreport.Report
	answer := getReport(t, mux, "/status.json", http.StatusOK)
	if err := json.Unmarshal(answer.Body.Bytes(), &report); err != nil || answer.Header().Get("Content-Type") != "application/json" {
		t.Fatal(err, answer.Header())
	}
	if report.APIVersion != statusreport.APIVersion || report.Kind != statusreport.Kind || report.Replica.Identity != s.identity || !report.Replica.Ready || report.Replica.Leads ||
		report.Leader.Identity != "pod-1_abc" || report.Leader.Lease != "storage/openstack.org-standalone-cinder" {
		t.Errorf("%+v", report)
	}
	if !strings.Contains(report.LeaderOnly, "ask pod-1_abc for ") || report.Claims != nil || report.Deletions != nil || report.KeptVolumes != nil {
		t.Errorf("leaderOnly is %q, claims %v", report.LeaderOnly, report.Claims)
	}
	if report.Policy.Source != statusreport.FromFile || report.Policy.Revision != s.policy.Load().Revision() {
		t.Errorf("policy %+v", report.Policy)
	}
	if len(report.Backends) != 1 || report.Backends[0].State != statusreport.Unknown || len(report.Tenants) != 1 || report.Tenants[0].Quotas[0].Used != nil {
		t.Errorf("backends %+v, tenants %+v", report.Backends, report.Tenants)
	}
	if text := getReport(t, mux, "/status.txt", http.StatusOK).Body.String(); !strings.Contains(text, "ask pod-1_abc for ") {
		t.Error(text)
	}
	if page := getReport(t, mux, "/", http.StatusOK).Body.String(); !strings.Contains(page, `id="leader-only"`) || strings.Contains(page, `id="answer"`) {
		t.Error(page)
	}
}

func TestReportsSelectATenantOrANamespace(t *testing.T) {
	_, mux := started(t)
	for path, want := range map[string]statusreport.Selection{
		"/status.json?namespace=a":           {Namespace: "a", Tenant: "a"},
		"/status.json?namespace=a&claim=d":   {Namespace: "a", Claim: "d", Tenant: "a"},
		"/status.json?tenant=a":              {Tenant: "a"},
		"/status.json?tenant=z":              {Message: `the policy has no tenant "z"`},
		"/status.json?namespace=b&limit=100": {Namespace: "b", Message: "namespace b belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels"},
	} {
		var report statusreport.Report
		if err := json.Unmarshal(getReport(t, mux, path, http.StatusOK).Body.Bytes(), &report); err != nil {
			t.Fatal(err)
		}
		if report.Selection == nil || *report.Selection != want || len(report.Tenants) == 1 != (want.Tenant != "") {
			t.Errorf("%s: %+v with %d tenants", path, report.Selection, len(report.Tenants))
		}
	}
	getReport(t, mux, "/status.json?claim=d", http.StatusBadRequest)
	getReport(t, mux, "/status.json?tenant=a&namespace=a", http.StatusBadRequest)
	getReport(t, mux, "/status.json?limit=x", http.StatusBadRequest)
	getReport(t, mux, "/status.txt?limit=10001", http.StatusBadRequest)
}

// TestThePageFindsTenantsAndNamespaces: a person need not know which of them a name is.
func TestThePageFindsTenantsAndNamespaces(t *testing.T) {
	_, mux := started(t)
	for path, wanted := range map[string]string{
		"/?find=a":               "Only tenant a<",
		"/?find=b":               "Only namespace b: namespace b belongs to no tenant of the policy",
		"/?find=%3Cb%3E&refresh": `href="?find=%3Cb%3E">stop`,
		"/?refresh":              `<meta http-equiv="refresh" content="10">`,
	} {
		if page := getReport(t, mux, path, http.StatusOK).Body.String(); !strings.Contains(page, wanted) {
			t.Errorf("%s: no %s in %s", path, wanted, page)
		}
	}
	// It would clear the fields while a person reads the answer.
	if page := getReport(t, mux, "/?namespace=a&storageClass=c&refresh", http.StatusOK).Body.String(); strings.Contains(page, "http-equiv") {
		t.Error(page)
	}
}

// TestThePageAnswersByThePolicy: the one in force, and by what the cluster has.
func TestThePageAnswersByThePolicy(t *testing.T) {
	_, mux := started(t)
	for path, wanted := range map[string][]string{
		"/?namespace=a&storageClass=c&size=1Gi": {
			"<strong>granted</strong>: tenant a, rule tenants[0].classes[0], backend gold", "belongs to the provisioner another", "Only the leader knows"},
		"/?namespace=a&storageClass=x&size=1Gi":                      {"NoMatchingClass", "The cluster has no StorageClass x"},
		"/?namespace=b&storageClass=c&size=1Gi":                      {"NoMatchingTenant"},
		"/?namespace=a&storageClass=c&size=huge":                     {"the size must be a quantity"},
		"/?namespace=a":                                              {"give a namespace and a StorageClass"},
		"/?namespace=%3Cscript%3E&storageClass=%3Cscript%3E&size=1k": {"&lt;script&gt;"},
	} {
		page := getReport(t, mux, path, http.StatusOK).Body.String()
		for _, one := range wanted {
			if !strings.Contains(page, one) {
				t.Errorf("%s lacks %q", path, one)
			}
		}
		if strings.Contains(page, "<script") {
			t.Errorf("%s passes on markup", path)
		}
	}
}

// TestSizesThatTakeForEverAreMistakes: some short quantities have billions of
// digits, and the page needs no login.
func TestSizesThatTakeForEverAreMistakes(t *testing.T) {
	_, mux := started(t)
	for _, size := range []string{"1e-2147483648", "1E-2147483648", "1e2147483647", "0." + strings.Repeat("9", 1000)} {
		page := getReport(t, mux, "/?namespace=a&storageClass=c&size="+size, http.StatusOK).Body.String()
		if !strings.Contains(page, "the size must be a quantity") {
			t.Errorf("%.20s is taken", size)
		}
	}
	for _, size := range []string{"1", "1.5Gi", "100M", "2E", "1e9"} {
		if page := getReport(t, mux, "/?namespace=a&storageClass=c&size="+size, http.StatusOK).Body.String(); strings.Contains(page, "the size must be a quantity") {
			t.Errorf("%s is refused", size)
		}
	}
}

// heldResponse is the response to a client that does not read it.
type heldResponse struct {
	*httptest.ResponseRecorder
	began func()
	held  <-chan struct{}
}

func (w heldResponse) Write(p []byte) (int, error) {
	w.began()
	<-w.held
	return w.ResponseRecorder.Write(p)
}

// TestFewReportsAreMadeAtOnce: each takes memory while it is sent, and the leader must
// not run out of it.
func TestFewReportsAreMadeAtOnce(t *testing.T) {
	_, mux := started(t)
	var begun, ended sync.WaitGroup
	held := make(chan struct{})
	for range statuspage.MaxReports {
		begun.Add(1)
		ended.Go(func() {
			mux.ServeHTTP(heldResponse{httptest.NewRecorder(), begun.Done, held}, httptest.NewRequest(http.MethodGet, "/status.json", nil))
		})
	}
	begun.Wait()
	for _, path := range []string{"/", "/status.json", "/status.txt"} {
		getReport(t, mux, path, http.StatusServiceUnavailable)
	}
	close(held)
	ended.Wait()
	getReport(t, mux, "/status.json", http.StatusOK)
}

func TestAReplicaIsNamedByItsPod(t *testing.T) {
	identity := newIdentity(func(name string) string { return map[string]string{"POD_NAME": "pod_1"}[name] })
	if !strings.HasPrefix(identity, "pod_1_") || newIdentity(func(string) string { return "" }) == identity {
		t.Errorf("the identity is %s", identity)
	}
}
