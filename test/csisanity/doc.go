// Package csisanity runs the CSI specification's own test suite, csi-sanity. The node
// service is tested on a node for tests (test/csinode); a controller for tests beside it
// makes the volumes that the suite asks for. The controller is tested in a running
// replica, which test/integration and test/e2e start.
package csisanity
