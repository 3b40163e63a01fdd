// Package node is the CSI Node service: the order in which a volume is staged and
// unstaged, and the record that survives a restart of the plugin. Package host does the
// work on the node. Everything protocol-specific is behind the interface protocol, with a
// file for each protocol.
//
// Staging either succeeds or leaves nothing behind, because the kubelet does not
// unstage a volume whose staging failed for good. One function, takeDown, removes
// everything, whether staging failed, was interrupted by a crash, or is undone by
// unstaging.
package node
