package outofservice

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

const (
	// freshFor is the part of its duration, as a divisor, for which a Lease counts as
	// renewed. Kubelets renew theirs after a quarter of it, 10 s.
	freshFor = 2
	// clocksDiffer is how far a node's clock may be ahead.
	clocksDiffer = 5 * time.Second
)

// isCrowded returns what the cache alone says against a node about which nothing was done
// yet: in an outage of the control plane there may be thousands.
func (c *Controller) isCrowded(name string) *Refusal {
	object, exists, err := c.Nodes.GetByKey(name)
	node, ok := object.(*corev1.Node)
	if err != nil || !exists || !ok || !nodemark.IsSilent(node) || hasTaint(node) {
		return nil
	}
	if _, marked := nodemark.Of(node); marked {
		return nil
	}
	return c.exceeds(node, nodemark.IsReady)
}

// tooMany returns why a node is left alone because of the others. A node is Ready until
// nothing was heard of it for 50 s, so in an outage of the control plane the first one that
// is not looks like a lost one. But then no kubelet renews its Lease.
func (c *Controller) tooMany(ctx context.Context, node *corev1.Node) (*Refusal, error) {
	leases, err := paging.List(ctx, "the Leases of kubelets", c.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List,
		func(page *coordinationv1.LeaseList) []coordinationv1.Lease { return page.Items })
	if err != nil {
		return nil, err
	}
	heard, now := map[string]bool{}, time.Now()
	for i := range leases {
		heard[leases[i].Name] = isRenewed(&leases[i], now)
	}
	refusal := c.exceeds(node, func(other *corev1.Node) bool { return nodemark.IsReady(other) && heard[other.Name] })
	if refusal == nil && heard[node.Name] {
		refusal = refuse(Share, "its kubelet renews its Lease, so it is kube-controller-manager that does not see it")
	}
	if refusal != nil {
		c.soon(node.Name, 2*time.Second)
	}
	return refusal, nil
}

// isRenewed reports whether a kubelet has renewed its Lease lately. The clocks are those of
// the node and of this program: if they differ so much that they prove nothing, it has not.
func isRenewed(lease *coordinationv1.Lease, now time.Time) bool {
	if lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		return false
	}
	age := now.Sub(lease.Spec.RenewTime.Time)
	return age >= -clocksDiffer && age <= time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second/freshFor
}

// exceeds returns why a node is left alone if, with it, too many nodes are out of service or
// not well. Nodes that a person declared off do not count.
func (c *Controller) exceeds(node *corev1.Node, isWell func(*corev1.Node) bool) *Refusal {
	if !c.NodesKnown() {
		return refuse(Share, "the Nodes are not read yet")
	}
	total, out := 0, 0
	for _, object := range c.Nodes.List() {
		other, ok := object.(*corev1.Node)
		if !ok || staged.IsOff(other) {
			continue
		}
		total++
		if other.Name == node.Name || nodemark.HasTaint(other) || !isWell(other) {
			out++
		}
	}
	if most := Most(total, c.Share); out > most {
		return refuse(Share, "%d of %d nodes are not Ready, have not renewed their Lease or are out of service, more than the %d that --taint-lost-nodes-share=%d allows, so the trouble may be the control plane's, or that of clocks", out, total, most, c.Share)
	}
	return nil
}

// Most returns how many of so many nodes may be out of service by a percentage: at least
// one of three or more.
func Most(nodes, percent int) int {
	most := nodes * percent / 100
	if most == 0 && nodes >= 3 {
		return 1
	}
	return most
}
