package app

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

func TestPortNamesAreCollectedFromTheNodesOfAPool(t *testing.T) {
	node := func(name, pool, wwpns string) runtime.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"storage": pool}, Annotations: map[string]string{annotationWWPNs: wwpns}}}
	}
	client := fake.NewClientset(
		node("one", "fc", "10:00:00:90:FA:34:18:BC, 0x10000090fa3418bd"),
		node("two", "fc", "10000090fa3418be 10000090fa3418bc"),
		node("other", "iscsi", "10000090fa3418bf"),
		node("odd", "odd", "10000090fa3418"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "none", Labels: map[string]string{"storage": "none"}}},
	)
	for _, c := range []struct {
		pool string
		want []string
		err  string
	}{
		{pool: "fc", want: []string{"10000090fa3418bc", "10000090fa3418bd", "10000090fa3418be"}},
		{pool: "odd", err: `node odd: annotation standalone-cinder.openstack.org/wwpns has "10000090fa3418", which is not a Fibre Channel port name of 16 hexadecimal digits`},
		{pool: "none", err: "none of the 1 nodes with labels storage=none has the annotation standalone-cinder.openstack.org/wwpns; annotate them, or name the ports in the policy (connector.wwpns)"},
		{pool: "nowhere", err: "none of the 0 nodes with labels storage=nowhere has the annotation standalone-cinder.openstack.org/wwpns; annotate them, or name the ports in the policy (connector.wwpns)"},
	} {
		got, err := newNodePools(client).wwpns(t.Context(), map[string]string{"storage": c.pool})
		if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("pool %s: %v, %v", c.pool, got, err)
		}
	}
}

func TestNodesAreReadOnceForManyClaims(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"storage": "fc"}, Annotations: map[string]string{annotationWWPNs: "10000090fa3418bc"}}})
	pools := newNodePools(client)
	for range 10 {
		if _, err := pools.wwpns(t.Context(), map[string]string{"storage": "fc"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(client.Actions()); n != 1 {
		t.Errorf("%d requests", n)
	}
}
