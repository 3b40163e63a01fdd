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
	// freshFor is the part of its duration, as a divisor, for which the Lease of another node
	// counts as renewed. Kubelets renew theirs after a quarter of it, 10 s. That of the silent
	// node counts for all of its duration: however soon kube-controller-manager gives up a
	// node, in an outage the others are no longer fresh then, since they renewed theirs at most
	// a quarter later.
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
func (c *Controller) tooMany(ctx context.Context, node *corev1.Node, latest bool) (*Refusal, error) {
	leases, err := c.kubelets(ctx, latest)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	refusal := c.exceeds(node, func(other *corev1.Node) bool {
		return nodemark.IsReady(other) && isRenewed(leases[other.Name], now, freshFor)
	})
	if refusal == nil && isRenewed(leases[node.Name], now, 1) {
		refusal = refuse(Share, "its kubelet's Lease has not expired, so it is kube-controller-manager that does not see it, or too early to tell")
	}
	if refusal != nil {
		c.soon(node.Name, 2*time.Second)
	}
	return refusal, nil
}

// kubelets returns the Leases of kubelets by node. Before anything was done about a node,
// those of a moment ago suffice: hundreds of nodes may ask for the Leases of thousands.
func (c *Controller) kubelets(ctx context.Context, latest bool) (map[string]coordinationv1.LeaseSpec, error) {
	if !latest && time.Since(c.read) < lookEvery {
		return c.leases, nil
	}
	// Before the list, so that it is not older than it seems.
	read, found := time.Now(), map[string]coordinationv1.LeaseSpec{}
	_, err := paging.List(ctx, "the Leases of kubelets", c.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List,
		func(page *coordinationv1.LeaseList) []struct{} {
			for i := range page.Items {
				found[page.Items[i].Name] = page.Items[i].Spec
			}
			return nil
		})
	if err != nil {
		return nil, err
	}
	c.read, c.leases = read, found
	return found, nil
}

// isRenewed reports whether a kubelet has renewed its Lease within a part of its duration,
// which is a divisor. The clocks are those of the node and of this program: if they differ so
// much that they prove nothing, it has not.
func isRenewed(lease coordinationv1.LeaseSpec, now time.Time, part time.Duration) bool {
	if lease.RenewTime == nil || lease.LeaseDurationSeconds == nil {
		return false
	}
	age := now.Sub(lease.RenewTime.Time)
	return age >= -clocksDiffer && age <= time.Duration(*lease.LeaseDurationSeconds)*time.Second/part
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
