// Package csi is the floor of the CSI driver. The leader's half answers the sidecars
// (controller, socket); the node's half brings volumes to a node (node, host, plugin,
// registration); both exchange what staged and wire define. Only this floor knows the
// specification and gRPC. It reaches the rest of the program through interfaces of its
// own, which package features/attach implements.
package csi
