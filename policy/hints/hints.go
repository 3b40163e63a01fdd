// Package hints knows policy keys that are often misplaced or misnamed, and where they
// belong.
package hints

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// anyKey stands in Keys for every key that is unknown there.
const anyKey = "*"

// Keys has hints, by type and key, about keys that are often misplaced or misnamed.
func Keys() map[string]map[string]string {
	const (
		ofRule      = "it belongs to a rule, under classes"
		underQuota  = "it belongs under quota"
		underAuth   = "it belongs under auth"
		underLimits = "it belongs under limits"
		holdings    = "what a tenant may have belongs under quota"
		pace        = "how fast a tenant is served belongs under the tenant's limits"
		backendHas  = "what a backend may hold belongs under limits"
		ofRules     = "it belongs to the rules that use the backend, under tenants[].classes"
		credentials = "credentials and addresses belong in clouds.yaml, in the entry that cloud names; for a Cinder without authentication use noauth"
		onBehalf    = "what a populator asks for belongs to the tenant whose claim it fills, which has the quota and the rules"
		byLabel     = "namespaces are selected by label with namespaceSelector: {matchLabels: {...}}"
	)
	return map[string]map[string]string{
		"Backend": {
			"cloud": underAuth, "noauth": underAuth, "cloudConfig": underAuth, "environment": underAuth,
			"quota": backendHas, "volumes": backendHas, "gigabytes": backendHas,
			"concurrency": underLimits, "requestsPerSecond": underLimits,
			"volumeType": ofRules, "availabilityZone": ofRules, "fsType": ofRules, "pick": ofRules,
			"nodeLabels":        "it belongs under connector, or under an entry of zones",
			"availabilityZones": `did you mean "zones"?`,
		},
		"Auth": {
			"user": credentials, "username": credentials, "password": credentials, "token": credentials, "project": credentials,
			"auth_url": credentials, "authURL": credentials, "endpoint": credentials,
		},
		"Tenant": {
			"storageClasses": ofRule, "backends": ofRule, "volumeType": ofRule, "availabilityZone": ofRule, "fsType": ofRule, "pick": ofRule,
			"volumes": underQuota, "gigabytes": underQuota, "snapshots": underQuota, "snapshotGigabytes": underQuota, "backups": underQuota, "backupGigabytes": underQuota,
			"concurrency": underLimits, "requestsPerSecond": underLimits,
			"labels": byLabel, "matchLabels": byLabel, "matchExpressions": byLabel,
		},
		"Populator": {
			"name":   `did you mean "namespace"?`,
			"tenant": onBehalf, "tenants": onBehalf, "quota": onBehalf, "classes": onBehalf,
		},
		"TenantLimits": {"volumes": holdings, "gigabytes": holdings, "snapshots": holdings, "snapshotGigabytes": holdings, "backups": holdings, "backupGigabytes": holdings},
		"Quota":        {"concurrency": pace, "requestsPerSecond": pace},
		"Class": {
			"type":         `did you mean "volumeType"?`,
			"availability": `did you mean "availabilityZone"?`, "zone": `did you mean "availabilityZone"?`,
			"zones": "zones are mapped to nodes at the backend; a rule fixes one with availabilityZone",
			"order": `did you mean "pick"?`, "spread": `write pick: spread`,
			"parameters": "a rule sets volumeType, availabilityZone and fsType as keys of its own; there are no other parameters",
			"volumes":    underQuota, "gigabytes": underQuota, "snapshots": underQuota, "snapshotGigabytes": underQuota, "backupGigabytes": underQuota,
			"limits": "limits belong to the tenant; what a rule may hold belongs under quota",
		},
		"Zone": {
			"labels": `did you mean "nodeLabels"?`, "availabilityZone": `did you mean "name"?`, "zone": `did you mean "name"?`,
		},
		"Mapping": {
			"volumeAttributes": `did you mean "attributes"?`, "parameters": `did you mean "attributes"?`,
			"mountOptions": "mount options are those of the StorageClass; discard has a key of its own",
		},
		"LabelSelector": {anyKey: "labels belong under matchLabels or matchExpressions"},
	}
}

// Misplaced returns what to do about an unknown key of a policy type; empty if there is
// no hint.
func Misplaced(typeName, key string) string {
	of := Keys()[typeName]
	if remedy := of[key]; remedy != "" {
		return remedy
	}
	if near, ok := document.Suggest(key, slices.Sorted(maps.Keys(of))); ok && near != anyKey && !strings.HasPrefix(of[near], "did you mean") {
		return fmt.Sprintf("did you mean %q? %s", near, of[near])
	}
	return of[anyKey]
}
