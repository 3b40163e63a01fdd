package outofservice

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// evicted makes a pod one that the taint manager deletes.
func evicted(p *corev1.Pod) {
	p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager"}}
}

// TestEvictedPodsAreDeleted: those that Kubernetes would delete by force, too, and no others.
// Nothing else depends on it.
func TestEvictedPodsAreDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*corev1.Pod)
		owner   string
		without bool                // without a claim
		returns func(c *cluster)    // before the pod is evicted
		refuses error               // of the API server
		after   time.Duration       // from the taint until it is evicted
		mark    func(p *corev1.Pod) // what the eviction does
		want    []string            // the deleted pods
	}{
		"of a StatefulSet":               {owner: "StatefulSet", want: []string{"a/evicted"}},
		"of a ReplicaSet":                {owner: "ReplicaSet", want: []string{"a/evicted"}},
		"later":                          {owner: "StatefulSet", after: 3 * time.Second, want: []string{"a/evicted"}},
		"much later":                     {owner: "StatefulSet", after: 10 * time.Second},
		"of a DaemonSet":                 {owner: "DaemonSet", without: true},
		"without a claim":                {owner: "ReplicaSet", without: true},
		"with a finalizer":               {owner: "Job", change: func(p *corev1.Pod) { p.Finalizers = []string{"batch.kubernetes.io/job-tracking"} }},
		"deleted by a person":            {owner: "StatefulSet", mark: func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }},
		"about to be evicted":            {owner: "StatefulSet", mark: func(p *corev1.Pod) { evicted(p); p.DeletionTimestamp = nil }},
		"when the node answers again":    {owner: "StatefulSet", returns: func(c *cluster) { c.becomes("n1", ready) }},
		"when the taint is gone":         {owner: "StatefulSet", returns: func(c *cluster) { c.becomes("n1", func(n *corev1.Node) { n.Spec.Taints = nil }) }},
		"when the API server refuses it": {owner: "StatefulSet", refuses: errors.New("refused"), want: []string{"a/evicted"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var volumes []corev1.Volume
				if !test.without {
					volumes = append(volumes, ofClaim("more"))
				}
				c := newCluster(t, lost(claim("more", "pv2"), pod("evicted", "n1", test.owner, test.change, volumes...), pod("elsewhere", "n2", "StatefulSet", evicted, ofClaim("more")))...)
				var deleted []string
				c.client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
					of := action.(clienttesting.DeleteActionImpl)
					if options := of.DeleteOptions; options.GracePeriodSeconds == nil || *options.GracePeriodSeconds != 0 || options.Preconditions == nil || options.Preconditions.UID == nil {
						t.Errorf("the deletion of pod %s has the options %+v", of.Name, options)
					}
					deleted = append(deleted, of.Namespace+"/"+of.Name)
					return test.refuses != nil, nil, test.refuses
				})
				end := c.term(10)
				defer end()
				for c.state("n1") != "taken b1 tainted" {
					time.Sleep(10 * time.Millisecond)
				}
				if test.returns != nil {
					test.returns(c)
				}
				time.Sleep(test.after)
				mark := test.mark
				if mark == nil {
					mark = evicted
				}
				one, err := c.client.CoreV1().Pods("a").Get(t.Context(), "evicted", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				mark(one)
				if _, err := c.client.CoreV1().Pods("a").Update(t.Context(), one, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if !slices.Equal(deleted, test.want) {
					t.Errorf("deleted were the pods %q, want %q", deleted, test.want)
				}
			})
		})
	}
}
