package app

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
)

// annotationWWPNs is where a node's Fibre Channel port names stand, separated by
// commas or blanks. Whoever sets nodes up writes it, for instance from
// /sys/class/fc_host/*/port_name.
const annotationWWPNs = "standalone-cinder.openstack.org/wwpns"

// nodesFresh is how long what was read of the nodes serves: many claims come at
// once, and nodes come and go by the minute.
const nodesFresh = 15 * time.Second

var portName = regexp.MustCompile(`^[0-9a-f]{16}$`)

// nodePools collects the port names of nodes that are selected by labels.
type nodePools struct {
	client kubernetes.Interface

	mu    sync.Mutex
	pools map[string]nodePool // by selector
}

type nodePool struct {
	read  time.Time
	wwpns []string
	err   error
}

func newNodePools(client kubernetes.Interface) *nodePools {
	return &nodePools{client: client, pools: map[string]nodePool{}}
}

// wwpns lists the port names of all nodes with the labels, sorted. A pool
// without any, and a name that is none, are errors: the array would mask the
// volume to nobody, or to the wrong port.
func (n *nodePools) wwpns(ctx context.Context, selected map[string]string) ([]string, error) {
	selector := labels.SelectorFromSet(selected).String()
	n.mu.Lock()
	defer n.mu.Unlock()
	if pool, ok := n.pools[selector]; ok && time.Since(pool.read) < nodesFresh {
		return pool.wwpns, pool.err
	}
	found, err := n.collect(ctx, selector)
	n.pools[selector] = nodePool{time.Now(), found, err}
	return found, err
}

func (n *nodePools) collect(ctx context.Context, selector string) ([]string, error) {
	list, err := n.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("cannot read the nodes with labels %s: %w", selector, err)
	}
	var found []string
	for i := range list.Items {
		node := &list.Items[i]
		for _, written := range strings.FieldsFunc(node.Annotations[annotationWWPNs], func(r rune) bool { return r == ',' || r == ' ' }) {
			name := strings.TrimPrefix(strings.ToLower(strings.ReplaceAll(written, ":", "")), "0x")
			if !portName.MatchString(name) {
				return nil, fmt.Errorf("node %s: annotation %s has %q, which is not a Fibre Channel port name of 16 hexadecimal digits", node.Name, annotationWWPNs, written)
			}
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("none of the %d nodes with labels %s has the annotation %s; annotate them, or name the ports in the policy (connector.wwpns)", len(list.Items), selector, annotationWWPNs)
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}
