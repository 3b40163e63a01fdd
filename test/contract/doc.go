// Package contract is a suite of cases that define how Cinder and Keystone
// behave where this project relies on it. The cases check raw requests and
// answers, without a client library in between.
//
// They always run against the simulator in test/cindersim, in noauth mode and
// behind Keystone. They also run against a real Cinder when environment
// variables name it:
//
//	CONTRACT_NOAUTH_ENDPOINT      http://host:8776/v3 of a Cinder in noauth mode
//	CONTRACT_NOAUTH_PROJECT       a hexadecimal project to use there
//	CONTRACT_KEYSTONE_URL         http://host:5000/v3
//	CONTRACT_USER, CONTRACT_PASSWORD, CONTRACT_PROJECT
//	                              a project member
//	CONTRACT_DOMAIN               the domain of all users and projects (Default)
//	CONTRACT_REGION               the region of the volume service (RegionOne)
//	CONTRACT_OTHER_USER, CONTRACT_OTHER_PASSWORD, CONTRACT_OTHER_PROJECT
//	                              a member of another project
//	CONTRACT_ADMIN_USER, CONTRACT_ADMIN_PASSWORD, CONTRACT_ADMIN_PROJECT
//	                              an administrator
//	CONTRACT_CREDENTIAL_ID, CONTRACT_CREDENTIAL_SECRET
//	                              an application credential of the member
//	CONTRACT_TYPE_ISCSI           a volume type with one portal and CHAP (iscsi)
//	CONTRACT_TYPE_ISCSI_MULTIPATH a volume type with two portals
//	CONTRACT_TYPE_SHARED          a volume type with multiattach
//	CONTRACT_TYPE_RBD             a volume type on Ceph
//	CONTRACT_TYPE_FAIL            a volume type whose volumes end in error
//	CONTRACT_TYPE_LUKS            a volume type that nodes encrypt with luks
//	CONTRACT_TYPE_LIMITED         like iscsi, with the front-end QoS total_bytes_sec=524288 and total_iops_sec=20
//	CONTRACT_GROUP_TYPE           a group type with the spec consistent_group_snapshot_enabled
//	CONTRACT_WAIT                 how long to wait for a state (60s)
//
// Against the same targets, TestAdapter checks the program's own client with
// the table in test/cindercontract, like the in-memory Cinder of the
// lifecycle's tests.
//
// TestHostileTable, TestHostileTableOfNodes and TestHostileServerBeforeRealCinder put a server in front of
// the same targets that answers like a broken or malicious one (test/hostile), and
// let the program's lifecycle meet it.
//
// Cases whose variables are not set are skipped, with the reason. Cases
// tolerate other users of the same server: they look only at volumes that they
// created themselves, under unique names, and remove these.
//
// Where the simulator and a real Cinder differ, the simulator is wrong.
package contract
