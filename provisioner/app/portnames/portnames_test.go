package portnames

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestPortNamesAreCollectedFromTheNodesOfAPool(t *testing.T) {
	node := func(name, pool, wwpns string) runtime.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"storage": pool}, Annotations: map[string]string{annotationWWPNs: wwpns}}}
	}
	var many strings.Builder
	for i := range 33 {
		fmt.Fprintf(&many, "%016x ", i)
	}
	client := fake.NewClientset(
		node("one", "fc", "10:00:00:90:FA:34:18:BC, 0x10000090fa3418bd"),
		node("two", "fc", "10000090fa3418be 10000090fa3418bc"),
		node("other", "iscsi", "10000090fa3418bf"),
		node("odd", "odd", "10000090fa3418"),
		node("mixed-good", "mixed", "10000090fa3418c0"),
		node("mixed-odd", "mixed", "10000090fa3418c1, $(reboot)"),
		node("mixed-many", "mixed", many.String()),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "none", Labels: map[string]string{"storage": "none"}}},
	)
	for _, c := range []struct {
		pool    string
		want    []string
		skipped []string
		err     string
	}{
		{pool: "fc", want: []string{"10000090fa3418bc", "10000090fa3418bd", "10000090fa3418be"}},
		{pool: "mixed", want: []string{"10000090fa3418c0"}, skipped: []string{
			"mixed-many: node mixed-many: annotation standalone-cinder.openstack.org/wwpns has 33 port names; at most 32 are used",
			`mixed-odd: node mixed-odd: annotation standalone-cinder.openstack.org/wwpns has "$(reboot)", which is not a Fibre Channel port name of 16 hexadecimal digits`,
		}},
		{pool: "odd", skipped: []string{`odd: node odd: annotation standalone-cinder.openstack.org/wwpns has "10000090fa3418", which is not a Fibre Channel port name of 16 hexadecimal digits`}, err: `node odd: annotation standalone-cinder.openstack.org/wwpns has "10000090fa3418", which is not a Fibre Channel port name of 16 hexadecimal digits`},
		{pool: "none", err: "none of the 1 nodes with labels storage=none has the annotation standalone-cinder.openstack.org/wwpns; annotate them, or name the ports in the policy (connector.wwpns)"},
		{pool: "nowhere", err: "none of the 0 nodes with labels storage=nowhere has the annotation standalone-cinder.openstack.org/wwpns; annotate them, or name the ports in the policy (connector.wwpns)"},
	} {
		pools := New(client)
		var skipped []string
		pools.Skipped = func(node, why string) { skipped = append(skipped, node+": "+why) }
		got, err := pools.Of(t.Context(), map[string]string{"storage": c.pool})
		if !slices.Equal(skipped, c.skipped) {
			t.Errorf("pool %s: skipped %q, want %q", c.pool, skipped, c.skipped)
		}
		if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("pool %s: %v, %v", c.pool, got, err)
		}
	}
}

// TestANodeThatIsLeftOutIsToldOnce: the nodes are read again for later claims.
func TestANodeThatIsLeftOutIsToldOnce(t *testing.T) {
	odd := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "odd", Annotations: map[string]string{annotationWWPNs: "none"}}}
	client := fake.NewClientset(odd)
	pools := New(client)
	told := 0
	pools.Skipped = func(string, string) { told++ }
	read := func() {
		if _, err := pools.collect(t.Context(), ""); err == nil {
			t.Error("no error")
		}
	}
	read()
	read()
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	odd.Annotations[annotationWWPNs] = "nothing"
	if _, err := client.CoreV1().Nodes().Update(t.Context(), odd, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	read()
	if told != 2 {
		t.Errorf("after a change, told %d times", told)
	}
}

func TestNodesAreReadOnceForManyClaims(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"storage": "fc"}, Annotations: map[string]string{annotationWWPNs: "10000090fa3418bc"}}})
	pools := New(client)
	for range 10 {
		if _, err := pools.Of(t.Context(), map[string]string{"storage": "fc"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(client.Actions()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestSlowNodeListKeepsNobodyWhoLeaves uses an API server that does not answer. The
// first caller leaves; its reading still serves the others.
func TestSlowNodeListKeepsNobodyWhoLeaves(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"storage": "fc"}, Annotations: map[string]string{annotationWWPNs: "10000090fa3418bc"}}})
	asked, answer := make(chan struct{}), make(chan struct{})
	var requests atomic.Int32
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if requests.Add(1) == 1 {
			close(asked)
		}
		<-answer
		return false, nil, nil
	})
	pools := New(client)
	first, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := pools.Of(first, map[string]string{"storage": "fc"})
		left <- err
	}()
	<-asked
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that leaves gets %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := pools.Of(ended, map[string]string{"storage": "fc"}); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller whose context ended gets %v", err)
	}
	close(answer)
	if got, err := pools.Of(t.Context(), map[string]string{"storage": "fc"}); err != nil || len(got) != 1 {
		t.Errorf("the callers that stay get %v, %v", got, err)
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestNodesAreReadInPages(t *testing.T) {
	node := func(name string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotationWWPNs: name}}}
	}
	for _, c := range []struct {
		name    string
		expires bool // of the second page's token
		want    []string
		limits  []int64
	}{
		{name: "two pages", want: []string{"1000000000000001", "1000000000000002"}, limits: []int64{nodesPage, nodesPage}},
		{name: "the second page is forgotten", expires: true, want: []string{"1000000000000001", "1000000000000002"}, limits: []int64{nodesPage, nodesPage, 0}},
	} {
		client := fake.NewClientset()
		var limits []int64
		client.PrependReactor("list", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			options := action.(clienttesting.ListActionImpl).GetListOptions()
			limits = append(limits, options.Limit)
			one, two := node("1000000000000001"), node("1000000000000002")
			switch {
			case options.Limit == 0:
				return true, &corev1.NodeList{Items: []corev1.Node{two, one}}, nil
			case options.Continue == "":
				return true, &corev1.NodeList{ListMeta: metav1.ListMeta{Continue: "more"}, Items: []corev1.Node{two}}, nil
			case c.expires:
				return true, nil, apierrors.NewResourceExpired("too old")
			}
			return true, &corev1.NodeList{Items: []corev1.Node{one}}, nil
		})
		got, err := New(client).Of(t.Context(), nil)
		if err != nil || !slices.Equal(got, c.want) || !slices.Equal(limits, c.limits) {
			t.Errorf("%s: %v, %v, limits %v", c.name, got, err, limits)
		}
	}
}
