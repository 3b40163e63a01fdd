// Package portnames collects the Fibre Channel port names that nodes have in
// annotations.
package portnames

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
)

// annotationWWPNs lists a node's Fibre Channel port names, separated by commas or
// whitespace. Whoever sets up nodes writes it, for example from
// /sys/class/fc_host/*/port_name.
const annotationWWPNs = "standalone-cinder.openstack.org/wwpns"

// nodesFresh is how long the result of one reading is used, because many claims arrive
// at once, but nodes change only over minutes.
const nodesFresh = 15 * time.Second

var portName = regexp.MustCompile(`^[0-9a-f]{16}$`)

// nodesTimeout is how long one reading of the nodes may take. Callers share a
// reading, so it does not end with any caller's context.
const nodesTimeout = 30 * time.Second

// ReasonInvalidPortNames is the reason of events about nodes whose annotation does not
// list port names.
const ReasonInvalidPortNames = "InvalidPortNames"

// maxNames bounds the port names of a node: all go to Cinder with each volume of the
// pool. Nodes have two or four.
const maxNames = 32

// Pools collects the port names of nodes selected by labels.
type Pools struct {
	// Skipped, if set, is told once about each node whose annotation is of no use, and
	// why.
	Skipped func(node, why string)

	client kubernetes.Interface
	// reading makes concurrent callers for the same nodes share one reading.
	reading singleflight.Group

	mu    sync.Mutex
	pools map[string]nodePool // by selector
	told  map[string]string   // what Skipped was told, by node
}

type nodePool struct {
	read  time.Time
	wwpns []string
	err   error
}

// New makes Pools that have read nothing yet.
func New(client kubernetes.Interface) *Pools {
	return &Pools{client: client, pools: map[string]nodePool{}, told: map[string]string{}}
}

// Of lists the port names of all nodes with the labels, sorted. A pool without port names
// is an error: the array would mask the volume to no port. A node writes its annotation
// itself, so one that is invalid must not keep the others from their volumes: the node is
// left out.
func (n *Pools) Of(ctx context.Context, selected map[string]string) ([]string, error) {
	selector := labels.SelectorFromSet(selected).String()
	if pool, ok := n.known(selector); ok {
		return pool.wwpns, pool.err
	}
	answer := n.reading.DoChan(selector, func() (any, error) {
		if pool, ok := n.known(selector); ok {
			return pool.wwpns, pool.err
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), nodesTimeout)
		defer cancel()
		found, err := n.collect(bounded, selector)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.pools[selector] = nodePool{time.Now(), found, err}
		return found, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case result := <-answer:
		return result.Val.([]string), result.Err
	}
}

// known returns the result of a recent reading of a pool.
func (n *Pools) known(selector string) (nodePool, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	pool, ok := n.pools[selector]
	return pool, ok && time.Since(pool.read) < nodesFresh
}

// nodesPage bounds how many nodes are in memory at once: they are large, and
// only one annotation of each is needed.
const nodesPage = 200

// portNames holds the nodes' port names, and the number of nodes.
type portNames struct {
	nodes int
	names []string
	// wrong is about a node that was left out.
	wrong error
}

func (n *Pools) collect(ctx context.Context, selector string) ([]string, error) {
	found, err := n.read(ctx, metav1.ListOptions{LabelSelector: selector, Limit: nodesPage})
	if apierrors.IsResourceExpired(err) {
		// The server no longer knows where the page ended.
		found, err = n.read(ctx, metav1.ListOptions{LabelSelector: selector})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the nodes with labels %s: %w", selector, err)
	}
	if len(found.names) == 0 && found.wrong != nil {
		return nil, found.wrong
	}
	if len(found.names) == 0 {
		return nil, fmt.Errorf("none of the %d nodes with labels %s has the annotation %s; annotate them, or name the ports in the policy (connector.wwpns)", found.nodes, selector, annotationWWPNs)
	}
	slices.Sort(found.names)
	return slices.Compact(found.names), nil
}

// read reads the nodes page by page.
func (n *Pools) read(ctx context.Context, options metav1.ListOptions) (portNames, error) {
	var found portNames
	for {
		list, err := n.client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return found, err
		}
		found.nodes += len(list.Items)
		for i := range list.Items {
			names, err := portNamesOf(&list.Items[i])
			n.tell(list.Items[i].Name, err)
			if err != nil {
				found.wrong = err
			}
			found.names = append(found.names, names...)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

// tell reports what is wrong with a node's annotation, unless it is known.
func (n *Pools) tell(node string, wrong error) {
	if n.Skipped == nil {
		return
	}
	n.mu.Lock()
	known := n.told[node]
	if wrong == nil {
		delete(n.told, node)
	} else {
		n.told[node] = wrong.Error()
	}
	n.mu.Unlock()
	if wrong != nil && wrong.Error() != known {
		n.Skipped(node, wrong.Error())
	}
}

func portNamesOf(node *corev1.Node) ([]string, error) {
	var names []string
	for _, written := range strings.FieldsFunc(node.Annotations[annotationWWPNs], func(r rune) bool { return r == ',' || r == ' ' }) {
		name := strings.TrimPrefix(strings.ToLower(strings.ReplaceAll(written, ":", "")), "0x")
		if !portName.MatchString(name) {
			return nil, fmt.Errorf("node %s: annotation %s has %.40q, which is not a Fibre Channel port name of 16 hexadecimal digits", node.Name, annotationWWPNs, name)
		}
		names = append(names, name)
	}
	if len(names) > maxNames {
		return nil, fmt.Errorf("node %s: annotation %s has %d port names; at most %d are used", node.Name, annotationWWPNs, len(names), maxNames)
	}
	return names, nil
}
