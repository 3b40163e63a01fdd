// Package node is the CSI Node service: the order in which a volume is brought to the
// node and taken away again, and the record that survives a restart of the plugin.
// Package host does the work on the node. Whatever depends on how the storage is
// reached is behind protocol, with a file for each protocol.
//
// Staging either succeeds or leaves nothing behind, because the kubelet does not
// unstage a volume whose staging failed for good. One function, takeDown, removes
// everything, whether staging failed, was interrupted by a crash, or is undone by
// unstaging.
package node
