package app

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// TestABadFileReplacesOnlyWhatItCannotUse: a leader whose own file is bad may have an older
// policy in force than another leader kept.
func TestABadFileReplacesOnlyWhatItCannotUse(t *testing.T) {
	newer := policyOf("newer", "")
	s := newStarter(t, policyOf("own", ""), cloudsOf("own"))
	r, err := s.start(t)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "policy.yaml", "tenants: [")
	r.checkPolicyFile()
	for name, c := range map[string]struct{ policy, want string }{
		"newer":           {newer, "newer"},
		"damaged":         {"tenants: [", "own"},
		"another cluster": {policyOf("newer", "clusterID: another\n"), "own"},
	} {
		t.Run(name, func(t *testing.T) {
			s.save(t, c.policy)
			if err := s.keepNow(t); err != nil {
				t.Fatal(err)
			}
			if text := s.kept(t); text != policyOf(c.want, "") {
				t.Errorf("kept %q", text)
			}
		})
	}
}

// TestWhatCannotBeKeptIsTold: it is reported once, and by a gauge until it can be kept.
func TestWhatCannotBeKeptIsTold(t *testing.T) {
	s := newStarter(t, policyOf("own", ""), cloudsOf("hunter2"))
	if _, err := s.start(t); err != nil {
		t.Fatal(err)
	}
	forbid := true
	s.client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return forbid, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "x", errors.New("no"))
	})
	k := &keeper{replica: s.replica}
	again := func() {
		k.again, k.next = true, time.Time{}
		k.look(t.Context())
	}
	again()
	again()
	if told := strings.Count(s.log.String(), "The policy in force is not kept"); told != 1 || testutil.ToFloat64(s.reloads.kept) != 0 {
		t.Errorf("told %d times; the gauge is %g", told, testutil.ToFloat64(s.reloads.kept))
	}
	forbid = false
	again()
	if text := s.kept(t); text != policyOf("own", "") || testutil.ToFloat64(s.reloads.kept) != 1 || !strings.Contains(s.log.String(), "The policy in force is kept again") {
		t.Errorf("kept %q; the gauge is %g", text, testutil.ToFloat64(s.reloads.kept))
	}

	// If nothing has changed, it sends no request before the next try is due.
	asked := len(s.client.Actions())
	k.look(t.Context())
	if len(s.client.Actions()) != asked {
		t.Error("requests were sent without a reason")
	}
	// What somebody removes is written again.
	if err := s.client.CoreV1().Secrets("storage").Delete(t.Context(), s.lastGood.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again()
	if text := s.kept(t); text != policyOf("own", "") {
		t.Errorf("kept %q", text)
	}
}
