package schema

import (
	"maps"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/mappers/template"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/selectors"
)

// fields describes each field, by type and key. An entry with only a type's name
// describes the object as a whole. The constraints are those checked by the packages
// policy and mapping.
func fields(protocols mapping.Protocols) map[string]field {
	all := map[string]field{}
	for _, part := range []map[string]field{policyFields(), backendFields(protocols), connectionFields(), mappingFields(), tenantFields(), sharedFields()} {
		maps.Copy(all, part)
	}
	return all
}

func policyFields() map[string]field {
	return map[string]field{
		"Policy.apiVersion": {description: "The version of the policy language.", required: true, rules: object{"const": policy.APIVersion}},
		"Policy.kind":       {description: "The kind of the file.", required: true, rules: object{"const": policy.Kind}},
		"Policy.clusterID": {description: "Stamped on every volume; distinguishes clusters that share a Cinder project. Default: the UID of the namespace kube-system.",
			rules: object{"pattern": policy.ClusterIDPattern}},
		"Policy.defaults": {description: "Defaults for backends and tenants. A value that they set replaces the default, whether narrower or wider."},
		"Policy.audit":    {description: "How the leader compares PersistentVolumes with volumes at Cinder."},
		"Policy.backends": {description: "The Cinder endpoints that volumes may come from.", required: true},
		"Policy.tenants":  {description: "Who may have volumes. A namespace that no tenant matches gets nothing.", required: true},

		"Policy.populators": {description: "Namespaces of volume populators. A claim there whose name ends in the UID of another claim, such as prime-<UID>, gets its volume on behalf of that claim: its tenant, rules and quotas count. The other claim must ask for the content of another API group (dataSourceRef) and have no volume. Default: none."},

		"Populator.namespace": {description: "Name of a namespace that no tenant lists. Only the populator may make claims there.", required: true,
			rules: both(entryRules(namespacePattern), object{"not": object{"pattern": `\*`}})},

		"Audit.interval": {description: "Pause between two comparisons. Default: 10m.", rules: notZero()},
		"Audit.grace":    {description: "The audit ignores anything younger. Default: 10m.", rules: notZero()},
		"Audit.delete":   {description: "true: remove volumes and Secrets that no PersistentVolume ever named, if that can be proven. Default: false, only report them."},

		"Defaults.volumeSize": {description: "For tenants: bounds of a single volume's size."},
		"Defaults.metadata":   {description: "For tenants: metadata written on their volumes in Cinder.", rules: metadataRules(), entries: metadataValues()},
		"Defaults.region":     {description: "For backends: region of the service catalog.", rules: textRules()},
		"Defaults.interface":  {description: "For backends: endpoint of the service catalog.", rules: choice(policy.InterfacePublic, policy.InterfaceInternal, policy.InterfaceAdmin)},
		"Defaults.workflow":   {description: "For backends: how the program connects volumes.", rules: choice(policy.WorkflowReserve, policy.WorkflowAttachment, policy.WorkflowAuto)},
		"Defaults.mode":       {description: "For backends: how volumes reach the nodes.", rules: choice(policy.Modes()...)},
		"Defaults.limits":     {description: "For backends: limits for all tenants together."},
		"Defaults.timeouts":   {description: "For backends: how long the program waits."},
		"Defaults.connector":  {description: "For backends: the host that Cinder exports volumes to."},
	}
}

func backendFields(protocols mapping.Protocols) map[string]field {
	return map[string]field{
		"Backend.name":       {description: "The name that class rules refer to.", required: true, rules: nameRules()},
		"Backend.auth":       {description: "How to log in: exactly one of cloud, noauth, cloudConfig, environment.", required: true},
		"Backend.region":     {description: "Region of the service catalog. Default: what the cloud configuration says.", rules: textRules()},
		"Backend.endpoint":   {description: "Block Storage's address beside Keystone, such as https://cinder.example:8776/v3, if that in the service catalog cannot be reached from here. Default: what the cloud configuration says, else the service catalog.", rules: object{"pattern": endpointPattern}},
		"Backend.interface":  {description: "Endpoint of the service catalog. Default: what the cloud configuration says.", rules: choice(policy.InterfacePublic, policy.InterfaceInternal, policy.InterfaceAdmin)},
		"Backend.workflow":   {description: "How the program connects volumes: reserve (volume actions), attachment (attachments API) or auto. Default: auto.", rules: choice(policy.WorkflowReserve, policy.WorkflowAttachment, policy.WorkflowAuto)},
		"Backend.mode":       {description: "For rules that set no mode: how volumes reach the nodes, native (kubelets mount them without a driver of this program) or csi (this program's CSI driver attaches them to each node that uses them). Default: native.", rules: choice(policy.Modes()...)},
		"Backend.csi":        {description: "Settings for volumes in mode csi. Default: fencing: export, and any number of volumes on a node."},
		"Backend.suspended":  {description: "true: no new volumes here, and so no snapshots, copies and restores of those that exist; deletions and expansions continue. Default: false."},
		"Backend.volumeSize": {description: "Sizes that this backend accepts, regardless of the tenant's bounds."},
		"Backend.limits":     {description: "Limits for all tenants together."},
		"Backend.timeouts":   {description: "How long the program waits."},
		"Backend.connector":  {description: "The host that Cinder exports the volumes to."},
		"Backend.zones":      {description: "Availability zones of Cinder with the nodes that use their volumes. A volume is made in a zone that reaches the claim's node and topologies, and its PersistentVolume is bound to the zone's nodes. Default: the connector's nodes use all volumes.", rules: object{"minItems": 1}},
		"Backend.mapping":    {description: "What a connection becomes, by Cinder's driver_volume_type.", rules: mappingRules(protocols)},

		"CSI.fencing":           {description: "What Cinder's driver for the array does to a node whose attachment is deleted: initiator (it masks volumes by initiator, so the node stays out) or export (the node may get in again when the volume is exported to another node, so the volume stays attached until the node is known to be clean or off). Default: export.", rules: choice(policy.FencingModes()...)},
		"CSI.cephSecret":        {description: "Secret in the program's namespace with userID and userKey, for RBD volumes. It takes precedence over a connection's key."},
		"CSI.encryption":        {description: "Where the keys of encrypted volumes come from. Default: the key manager (Barbican) in the service catalog."},
		"CSI.maxVolumesPerNode": {description: "How many of the backend's volumes a node can have attached. The program attaches no more, and their pods wait; the scheduler does not know the limit. Default: no limit.", rules: object{"minimum": 1, "maximum": policy.MaxVolumesPerNode}},

		"Encryption.fixedKeySecret": {description: "Secret in the program's namespace with fixedKey, the fixed_key of a Cinder that uses its own key manager.", required: true},

		"Zone.name":       {description: "Name of the availability zone in Cinder.", required: true, rules: textRules()},
		"Zone.nodeLabels": {description: "Labels of the nodes that use the zone's volumes, besides those of the connector's nodeLabels.", required: true, rules: both(labelKeyNames(), object{"minProperties": 1}), entries: labelValueRules()},

		"Auth":             {rules: object{"minProperties": 1, "maxProperties": 1}},
		"Auth.cloud":       {description: "An entry of clouds.yaml.", rules: textRules()},
		"Auth.noauth":      {description: "A Cinder with auth_strategy = noauth."},
		"Auth.cloudConfig": {description: "File with an INI cloud configuration, as the historic provisioner read it; a relative name starts from the policy's directory.", rules: textRules()},
		"Auth.environment": {description: "true: the OS_* variables of the process.", rules: object{"const": true}},

		"NoAuth.endpoint": {description: "URL of Cinder's API, such as http://cinder.example:8776/v3.", required: true, rules: object{"pattern": endpointPattern}},
		"NoAuth.user":     {description: "User in the token. Default: " + policy.DefaultNoAuthUser + ".", rules: both(textRules(), object{"pattern": withoutColonPattern})},
		"NoAuth.project":  {description: "Project in the token; current Cinder releases require hexadecimal digits and hyphens. Default: " + policy.DefaultNoAuthProject + ".", rules: both(textRules(), object{"pattern": withoutColonPattern})},
	}
}

func connectionFields() map[string]field {
	atLeast := func(n int) object { return object{"minimum": n} }
	positive := notZero()
	concurrency := object{"minimum": 1, "maximum": policy.MaxConcurrency}
	rate := object{"anyOf": []object{{"const": 0}, {"minimum": policy.MinRate}}}
	return map[string]field{
		"Limits.volumes":           {description: "Volumes on the backend; 0 allows none. Default: no limit.", rules: atLeast(0)},
		"Limits.gigabytes":         {description: "GiB on the backend; 0 allows none. Default: no limit.", rules: atLeast(0)},
		"Limits.concurrency":       {description: "Concurrent requests to the backend. Default: 16.", rules: concurrency},
		"Limits.requestsPerSecond": {description: "Requests to the backend per second; 0 means no limit. Default: 0.", rules: rate},

		"TenantLimits.concurrency":       {description: "The tenant's claims, and as many of its deletions, snapshots, expansions and imports, in progress at once. Default: no limit.", rules: concurrency},
		"TenantLimits.requestsPerSecond": {description: "Requests to Cinder per second on the tenant's behalf, across all backends; 0 means no limit. Default: 0.", rules: rate},

		"Timeouts.create":  {description: "For making a volume, such as 5m. Default: 5m.", rules: positive},
		"Timeouts.delete":  {description: "For deleting a volume, such as 10m. Default: 10m.", rules: positive},
		"Timeouts.request": {description: "For one request to Cinder, such as 75s. Default: 75s.", rules: positive},

		"Connector.host":       {description: "Host name that volumes are attached to. Default: " + policy.DefaultConnectorHost + ".", rules: object{"pattern": policy.HostPattern, "maxLength": policy.MaxTextLength}},
		"Connector.initiator":  {description: "iSCSI initiator name under which the nodes log in. Default: derived from the cluster's ID.", rules: object{"pattern": mapping.Initiator.String(), "maxLength": mapping.LongestInitiator}},
		"Connector.ip":         {description: "IP address of the nodes, for drivers that ask for one.", rules: object{"pattern": `^[0-9A-Fa-f.:]+$`, "anyOf": []object{{"format": "ipv4"}, {"format": "ipv6"}}}},
		"Connector.wwpns":      {description: "Fibre Channel port names of the nodes.", entries: object{"pattern": policy.WWPNPattern}},
		"Connector.nqn":        {description: "NVMe-oF host name.", rules: object{"pattern": policy.NQNPattern, "maxLength": policy.MaxQualifiedName}},
		"Connector.nodeLabels": {description: "Labels of the nodes that mount the volumes. PersistentVolumes are bound to these nodes. Without wwpns, the program collects their port names from the annotation standalone-cinder.openstack.org/wwpns.", rules: labelKeyNames(), entries: labelValueRules()},
		"Connector.multipath":  {description: "Ask Cinder for all portals. Default: false."},
	}
}

func mappingFields() map[string]field {
	return map[string]field{
		"Mapping": {rules: object{"allOf": []object{
			when(mapping.CSI, object{"properties": object{"driver": object{"pattern": csiDriverPattern, "maxLength": validation.DNS1123LabelMaxLength}}}),
			when(mapping.FlexVolume, object{"required": []string{"driver"}, "properties": object{"driver": object{"pattern": mapping.FlexDriverPattern}}}),
		}}},
		"Mapping.as":                         {description: "Kind of the PersistentVolume's source.", required: true, rules: choice(mapping.Forms()...)},
		"Mapping.driver":                     {description: "CSI driver, or FlexVolume driver as vendor/driver. Default for rbd as csi: " + mapping.DefaultCephDriver + "."},
		"Mapping.fsType":                     {description: "Filesystem; overrides the rule and the StorageClass."},
		"Mapping.readOnly":                   {description: "true: pods may only read. Default: false."},
		"Mapping.volumeHandle":               {description: "Template of the ID by which a CSI driver knows the volume. Default: {{ .volume.id }}; for rbd ceph-csi's name of the image.", rules: templateRules()},
		"Mapping.discard":                    {description: "true: nodes mount with option discard where Cinder says that the array reclaims discarded blocks. Default: false."},
		"Mapping.attributes":                 {description: "Templates for the volume attributes of a CSI source. Those that come out empty are left out.", rules: filledKeys(), entries: templateRules()},
		"Mapping.options":                    {description: "Templates for the options of a FlexVolume source. Those that come out empty are left out.", rules: filledKeys(), entries: templateRules()},
		"Mapping.secret":                     {description: "Secret that the program makes for each volume, in its namespace."},
		"Mapping.nodeStageSecretRef":         {description: "Secret with which a CSI driver stages the volume."},
		"Mapping.nodePublishSecretRef":       {description: "Secret with which a CSI driver publishes the volume to a pod."},
		"Mapping.nodeExpandSecretRef":        {description: "Secret with which a CSI driver grows the volume on a node."},
		"Mapping.controllerPublishSecretRef": {description: "Secret with which a CSI driver attaches the volume to a node."},
		"Mapping.controllerExpandSecretRef":  {description: "Secret with which a CSI driver grows the volume."},
		"Mapping.secretRef":                  {description: "Secret of a FlexVolume, whose type must be the driver's name, or of a native rbd volume."},
		"Mapping.clusterID":                  {description: "Name of the Ceph cluster in ceph-csi's configuration."},
		"Mapping.clusterName":                {description: "cluster_name that Cinder sends for the Ceph cluster of this mapping. The program refuses connections to another cluster, as after a failover. Default: any."},
		"Mapping.imageFeatures":              {description: "Comma-separated RBD image features, such as layering."},
		"Mapping.interface":                  {description: "open-iscsi interface through which nodes log in, such as that of an offload card, with the same name on all nodes. Default: default; for iser: iser.", rules: object{"pattern": mapping.InterfacePattern}},
		"Mapping.omitInitiatorName":          {description: "true: leave initiatorName out of iscsi volumes, for nodes that all have the connector's initiator as their own InitiatorName. Default: false."},
		"Mapping.wwid":                       {description: "Template of the identifier by which nodes find the disk of an fc volume, as in /dev/disk/by-id without scsi-. Default: nodes find it by target names and LUN.", rules: templateRules()},

		"MappingSecret.type":       {description: "Type of the Secret. Default: Opaque, for a FlexVolume the driver's name.", rules: object{"pattern": mapping.SecretTypePattern, "maxLength": validation.DNS1123SubdomainMaxLength}},
		"MappingSecret.data":       {description: "Templates by the Secret's keys, which may name credentials of the connection. Those that come out empty are left out.", required: true, rules: both(object{"minProperties": 1}, object{"propertyNames": object{"pattern": secretKeyPattern, "maxLength": validation.DNS1123SubdomainMaxLength}}), entries: templateRules()},
		"MappingSecret.references": {description: "Keys of a CSI source that refer to the Secret. Default: nodeStageSecretRef.", rules: object{"uniqueItems": true}, entries: choice(mapping.SecretReferenceKeys()...)},

		"SecretReference.name":      {description: "Name of the Secret.", required: true, rules: object{"pattern": subdomainPattern, "maxLength": validation.DNS1123SubdomainMaxLength}},
		"SecretReference.namespace": {description: "Namespace of the Secret.", required: true, rules: nameRules()},
	}
}

func tenantFields() map[string]field {
	return map[string]field{
		"Tenant":      {rules: both(object{"anyOf": []object{{"required": []string{"namespaces"}}, {"required": []string{"namespaceSelector"}}}}, ofRestorers())},
		"Tenant.name": {description: "Name of the tenant.", required: true, rules: nameRules()},
		"Tenant.namespaces": {description: "Names of namespaces, or patterns in which * stands for any run of characters. A name wins over a pattern, a pattern over namespaceSelector.",
			rules: object{"minItems": 1}, entries: entryRules(namespacePattern)},
		"Tenant.namespaceSelector":  {description: "Selects namespaces by label, as well as or instead of namespaces."},
		"Tenant.quota":              {description: "What the tenant may have in total."},
		"Tenant.limits":             {description: "Keep the tenant's work from crowding out that of others. The limits of the backends apply as well."},
		"Tenant.volumeSize":         {description: "Bounds of a single volume's size; override the defaults."},
		"Tenant.metadata":           {description: "Metadata written on the tenant's volumes in Cinder.", rules: metadataRules(), entries: metadataValues()},
		"Tenant.restoreAnySnapshot": {description: "true: the tenant's claims may have the content of every tenant's snapshots, never that of other tenants' claims, and its VolumeSnapshots may take over snapshots that other tenants kept. For backup programs in namespaces of their own: the tenant's namespaces are listed by their names, and quota.volumes or quota.gigabytes is given. Default: false."},
		"Tenant.classes":            {description: "Rules by StorageClass; the first that lists a claim's StorageClass decides.", required: true, rules: object{"minItems": 1}},

		"Class.storageClasses": {description: "Names of StorageClasses, or patterns in which * stands for any run of characters.", required: true,
			rules: object{"minItems": 1}, entries: entryRules(storageClassPattern)},
		"Class.backends":         {description: "Backends in the order in which the program tries them: the first that is not suspended, is healthy and has room takes the volume.", required: true, rules: object{"minItems": 1}},
		"Class.pick":             {description: "Where the program begins in the order of backends and zones. first: with the first one. spread: at a different place for each claim; replicas of a StatefulSet take successive places. Default: first.", rules: choice(policy.Picks()...)},
		"Class.mode":             {description: "How volumes reach the nodes, native or csi. Existing volumes never change. Default: the mode of the backend.", rules: choice(policy.Modes()...)},
		"Class.volumeType":       {description: "Volume type in Cinder. Default: the StorageClass's parameter type, or Cinder's default.", rules: textRules()},
		"Class.volumeTypes":      {description: "Volume types that a VolumeAttributesClass may give the volumes of claims in mode csi. Default: none.", entries: both(textRules(), object{"minLength": 1})},
		"Class.availabilityZone": {description: "Availability zone in Cinder. Default: the StorageClass's parameter availability, or Cinder's default.", rules: textRules()},
		"Class.fsType":           {description: "Filesystem. Default: the StorageClass's parameter fsType, or " + policy.DefaultFSType + ".", rules: choice(policy.FileSystems()...)},
		"Class.quota":            {description: "What the tenant may have under this rule."},
		"Class.volumeSize":       {description: "Narrows the tenant's bounds of a single volume's size."},
		"Class.import":           {description: "Grants volumes that exist at Cinder to claims that ask for one, and snapshots to VolumeSnapshotContents that name one. All conditions must hold. Default: grants none."},

		"Class.encrypt": {description: "Nodes encrypt the rule's volumes with LUKS2, in mode csi only. Default: they do not."},

		"Encrypt.keySecret": {description: "Secret in the program's namespace with key-encryption keys, labeled standalone-cinder.openstack.org/key-encryption=true.", required: true, rules: object{"pattern": subdomainPattern, "maxLength": policy.LongestKeyName - 1}},
		"Encrypt.entry":     {description: "Entry of the Secret that wraps the keys of new volumes: 64 hexadecimal digits. Existing volumes keep theirs until volume rewrap.", required: true, rules: object{"pattern": policy.SecretEntryPattern, "maxLength": policy.LongestKeyName - 1}},

		"Class.backups": {description: "true: VolumeSnapshots of a VolumeSnapshotClass with the parameter type backup make Cinder backups of the rule's volumes. Not with encrypt. Default: false."},
		"Class.groups":  {description: "true: VolumeGroupSnapshots may take snapshots of the rule's volumes together. Default: false."},

		"Class.protect": {description: "Schedules of snapshots of the rule's volumes. The program needs the rights of the chart's value snapshotSchedules.enabled. Default: none.", rules: object{"minItems": 1, "maxItems": policy.MostSchedules}},

		"Schedule.name":          {description: "Name of the schedule, which snapshots have in their names and labels.", required: true, rules: nameRules()},
		"Schedule.every":         {description: "Time between two snapshots of a volume, in whole minutes, such as 6h. Volumes take turns at different minutes.", required: true, rules: notZero()},
		"Schedule.keep":          {description: "How many good snapshots of a volume stay. An older one is deleted when a newer one is good.", required: true, rules: object{"minimum": 1, "maximum": policy.MostKept}},
		"Schedule.snapshotClass": {description: "VolumeSnapshotClass of the snapshots. Default: the default one of the volume's driver. Required with as: backup, whose class has type: backup, and with as: group, a VolumeGroupSnapshotClass.", rules: object{"pattern": subdomainPattern, "maxLength": validation.DNS1123SubdomainMaxLength}},
		"Schedule.as":            {description: "snapshot: of each volume. backup: a backup of each; the rule needs backups: true. group: a VolumeGroupSnapshot of all claims of a namespace with the same label standalone-cinder.openstack.org/protect-group; their rules need groups: true. Default: snapshot.", rules: choice(policy.ScheduleKinds()...)},
		"Schedule.onRequest":     {description: "true: only for claims whose label standalone-cinder.openstack.org/protect has the schedule's name; several names are separated by dots. Default: false, for all volumes of the rule."},

		"ImportFilter":          {rules: object{"minProperties": 1}},
		"ImportFilter.names":    {description: "Names of volumes and snapshots, or patterns in which * stands for any run of characters; [\"*\"] grants everything in the backends' projects.", rules: object{"minItems": 1}, entries: both(textRules(), object{"not": object{"pattern": `\*\*`}})},
		"ImportFilter.types":    {description: "Names of volume types; the type of a snapshot is that of its volume.", rules: object{"minItems": 1}, entries: both(textRules(), object{"not": object{"pattern": `\*`}})},
		"ImportFilter.metadata": {description: "Metadata that the volume or the snapshot must have; it may have more.", rules: both(metadataRules(), object{"minProperties": 1}), entries: metadataValues()},
	}
}

func sharedFields() map[string]field {
	notNegative := object{"minimum": 0}
	return map[string]field{
		"VolumeSize.min": {description: "Smallest size, such as 1Gi.", rules: notZero()},
		"VolumeSize.max": {description: "Largest size, such as 1Ti; at least 1Gi.", rules: notZero()},

		"Quota.volumes":   {description: "Volumes; 0 allows none. Default: no limit.", rules: notNegative},
		"Quota.gigabytes": {description: "GiB; 0 allows none. Default: no limit.", rules: notNegative},
		"Quota.snapshots": {description: "Snapshots; 0 allows none. Default: no limit.", rules: notNegative},

		"Quota.snapshotGigabytes": {description: "GiB of snapshots: the sizes of their volumes when they were taken, which Cinder counts in the project's quota of gigabytes; 0 allows none. Default: no limit.", rules: notNegative},

		"Quota.backups":         {description: "Backups; 0 allows none. Default: no limit.", rules: notNegative},
		"Quota.backupGigabytes": {description: "GiB of backups: the sizes of their volumes, even if incremental; 0 allows none. Default: no limit.", rules: notNegative},

		"LabelSelector.matchLabels":         {description: "Labels that the namespace must have.", rules: labelKeyNames(), entries: labelValueRules()},
		"LabelSelector.matchExpressions":    {description: "Requirements that the namespace's labels must all meet."},
		"LabelSelectorRequirement":          {rules: selectorRequirementRules()},
		"LabelSelectorRequirement.key":      {description: "The label to look at.", required: true, rules: object{"pattern": labelKeyPattern}},
		"LabelSelectorRequirement.operator": {description: "How the label is compared.", required: true, rules: choice(selectors.Operators()...)},
		"LabelSelectorRequirement.values":   {description: "Values for In and NotIn.", entries: labelValueRules()},
	}
}

// templateRules bounds the length of a template. Only policy.Parse checks its
// content.
func templateRules() object { return object{"maxLength": template.MaxLength} }

func filledKeys() object { return object{"propertyNames": object{"minLength": 1}} }

func nameRules() object {
	return object{"pattern": labelPattern, "maxLength": validation.DNS1123LabelMaxLength}
}

// ofRestorers requires names and a quota of tenants that restore any snapshot.
func ofRestorers() object {
	return object{
		"if": object{"properties": object{"restoreAnySnapshot": object{"const": true}}, "required": []string{"restoreAnySnapshot"}},
		"then": object{
			"required": []string{"quota"},
			"properties": object{
				"namespaces":        object{"items": object{"not": object{"pattern": `\*`}}},
				"namespaceSelector": false,
				"quota":             object{"anyOf": []object{{"required": []string{"volumes"}}, {"required": []string{"gigabytes"}}}},
			},
		},
	}
}

func entryRules(pattern string) object {
	return object{"pattern": pattern, "not": object{"pattern": `\*\*|\.\.`}}
}

func labelValueRules() object {
	return object{"pattern": labelValuePattern, "maxLength": validation.LabelValueMaxLength}
}

// metadataRules returns the rules for metadata keys, and metadataValues those
// for values, which may be empty.
func metadataRules() object {
	return object{"propertyNames": object{
		"pattern": textPattern, "maxLength": policy.MaxTextLength,
		"not": object{"anyOf": []object{{"pattern": ownMetadataPattern}, {"enum": []string{"readonly", "attached_mode"}}}},
	}}
}

func metadataValues() object {
	return object{"maxLength": policy.MaxTextLength, "anyOf": []object{{"const": ""}, {"pattern": textPattern}}}
}

// notZero returns a rule for sizes and durations, whose type already has a
// pattern.
func notZero() object { return object{"allOf": []object{{"pattern": notZeroPattern}}} }
