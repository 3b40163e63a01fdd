package nodecheck

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Peer is a node of the cluster, with the names that its driver has registered.
type Peer struct {
	wire.Node
	Machine staged.Machine
}

// Peers lists the nodes of the cluster.
type Peers interface {
	List(ctx context.Context) ([]Peer, error)
}

// API asks the API server for the nodes.
type API struct{ Client kubernetes.Interface }

// askLimit bounds the questions to the API server.
const askLimit = 15 * time.Second

// List returns the nodes.
func (a API) List(ctx context.Context) ([]Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	peers := map[string]*Peer{}
	nodes := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return a.Client.CoreV1().Nodes().List(ctx, o)
	})
	err := nodes.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if node, ok := object.(*corev1.Node); ok {
			peers[node.Name] = &Peer{wire.Node{Name: node.Name}, staged.MachineOf(node)}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	registered := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return a.Client.StorageV1().CSINodes().List(ctx, o)
	})
	err = registered.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		node, ok := object.(*storagev1.CSINode)
		if !ok || peers[node.Name] == nil {
			return nil
		}
		for _, driver := range node.Spec.Drivers {
			if names, err := wire.ParseNodeID(driver.NodeID); err == nil && driver.Name == wire.DriverName {
				names.Name = node.Name
				peers[node.Name].Node = names
			}
		}
		return nil
	})
	var all []Peer
	for _, name := range slices.Sorted(maps.Keys(peers)) {
		all = append(all, *peers[name])
	}
	return all, err
}

// peers returns nil if there is no account to ask with.
func (c *checker) peers() (Peers, error) {
	if c.o.Peers != nil {
		return c.o.Peers, nil
	}
	var config *rest.Config
	var err error
	if c.o.Kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", c.o.Kubeconfig)
	} else if config, err = rest.InClusterConfig(); errors.Is(err, rest.ErrNotInCluster) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	config.Timeout = askLimit
	client, err := kubernetes.NewForConfig(config)
	return API{client}, err
}

// others looks for nodes that have the same names. Nodes without the driver have none that
// could be compared but their machine's.
func (c *checker) others(ctx context.Context) {
	const what, remedy = "other nodes", "give --kubeconfig of an account that may list nodes and CSINodes"
	peers, err := c.peers()
	if err == nil && peers == nil {
		c.warn(what, "not compared: there is no account for the API server", remedy)
		return
	}
	var all []Peer
	if err == nil {
		all, err = peers.List(ctx)
	}
	if err != nil {
		c.warn(what, "not compared: "+err.Error(), remedy)
		return
	}
	if !slices.ContainsFunc(all, func(p Peer) bool { return p.Name == c.names.Name }) {
		c.warn(what, fmt.Sprintf("not compared: none of the cluster's %d nodes is named %s", len(all), c.names.Name), "give --node-name")
		return
	}
	systemUUID, machineID := c.host.MachineIDs()
	status, doubles := Warning, []string(nil)
	for _, p := range all {
		if p.Name == c.names.Name {
			continue
		}
		for kind, name := range c.names.SharedNames(p.Node) {
			doubles = append(doubles, fmt.Sprintf("node %s has the same %s name, %s", p.Name, kind, name))
			if c.o.Mode == csi {
				status = Error
			}
		}
		if machineID != "" && p.Machine.MachineID == machineID || systemUUID != "" && strings.EqualFold(p.Machine.SystemUUID, systemUUID) {
			doubles = append(doubles, fmt.Sprintf("node %s has the same machine ID or firmware UUID", p.Name))
		}
	}
	if len(doubles) == 0 {
		c.ok(what, fmt.Sprintf("none of %d has the same names", len(all)-1))
		return
	}
	slices.Sort(doubles)
	// A cluster of clones would make the line endless.
	const most = 5
	if more := len(doubles) - most; more > 0 {
		doubles = append(doubles[:most], fmt.Sprintf("and %d more", more))
	}
	c.add(status, what, strings.Join(doubles, "; "), `drain this node, then: rm /etc/machine-id && systemd-machine-id-setup; echo "InitiatorName=$(iscsi-iname)" > `+initiatorFile+"; nvme gen-hostnqn > /etc/nvme/hostnqn; reboot")
}
