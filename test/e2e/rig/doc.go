// Package rig is the Go side of the end-to-end rig: a real Cinder with
// Keystone, database, message queue and iSCSI target on this machine, which the
// script rig.sh beside this file starts and stops.
//
// [Load] reads what the script wrote about the rig that it started, [Env.Targets]
// asks the iSCSI target what it exports, and a [Disk] reads and writes the bytes
// of a volume as a node would, but in user space: neither a kernel initiator nor
// a block device is needed.
package rig
