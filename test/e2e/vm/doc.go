// Package vm runs nodes as virtual machines: Debian with its kernel, udev,
// open-iscsi and multipathd, without systemd. They need QEMU and debootstrap,
// and no hardware acceleration.
//
// A [Machine] reaches ports of this machine's loopback interface only where a
// test lets it, under the same addresses, so a test can cut a portal.
package vm
