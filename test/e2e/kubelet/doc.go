// Package kubelet makes a virtual machine a node of a cluster: containerd and a real
// kubelet, with no more rights than a node has. There is no registry: the images of the
// pods are made here and brought along.
package kubelet
