// Package policy defines the language in which operators specify which Kubernetes
// namespaces may have which OpenStack Cinder volumes from which backends, and makes the
// decisions that everything else obeys.
//
// Load reads a policy file. If anything in it is wrong, Load rejects the whole
// file and lists every mistake with its line, its path and a remedy.
// Policy.Decide decides about one claim: the tenant and class rule that apply,
// the backends to try in order, the properties of the volume, the quotas it
// counts against, or a Denial; and a Trace of everything that was considered.
//
// A policy may also be the files of a directory, for example one for each team, read in the
// order of their names as if their lists were joined in one file. All other keys may stand
// in one of them only, and what is refused twice in a file is refused twice in the
// directory. Everything in the directory must be such a file, unless its name begins with a
// dot: nobody's rules are left out because of a name like team-a.yaml.bak. A directory of one
// file is that file, also by its revision.
//
// The package only reads these files and keeps no state. A Policy never changes once parsed,
// so goroutines may share it. The caller determines backends' health and quotas' usage;
// the arithmetic of quotas is here.
package policy

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

const (
	// APIVersion is the apiVersion of every policy file.
	APIVersion = "standalone-cinder.openstack.org/v1alpha1"
	// Kind is the kind of every policy file.
	Kind = "Policy"

	// StampPrefix begins the metadata keys that the provisioner itself writes
	// on volumes; a policy may not use it.
	StampPrefix = "standalone-cinder.openstack.org/"
)

// Defaults for omitted values. A request may take as long as Cinder's own call to its
// volume service (rpc_response_timeout, 60 s), since os-initialize_connection waits for
// the storage array.
const (
	DefaultConcurrency    = 16
	DefaultCreateTimeout  = 5 * time.Minute
	DefaultDeleteTimeout  = 10 * time.Minute
	DefaultRequestTimeout = 75 * time.Second
	DefaultAuditInterval  = 10 * time.Minute
	DefaultAuditGrace     = 10 * time.Minute
	DefaultConnectorHost  = "standalone-cinder"
	DefaultFSType         = "ext4"
	DefaultNoAuthUser     = "admin"
	DefaultNoAuthProject  = "admin"
)

// Policy is a checked policy file with every default filled in. Load and Parse create it,
// and it must not be changed afterwards.
type Policy struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// ClusterID is stamped on every volume to distinguish clusters that share a Cinder
	// project. If it is empty, the caller uses the UID of the kube-system namespace.
	ClusterID string `json:"clusterID"`

	// Defaults is the file's value under that key; backends and tenants have already
	// inherited from it.
	Defaults Defaults  `json:"defaults"`
	Audit    Audit     `json:"audit"`
	Backends []Backend `json:"backends"`
	Tenants  []Tenant  `json:"tenants"`
	// Populators are the namespaces whose claims serve other claims.
	Populators []Populator `json:"populators,omitempty"`

	// Warnings do not keep the policy from taking effect, for example a rule that can
	// never be reached. They are sorted by line.
	Warnings ErrorList `json:"-"`

	// Source is the name under which the file, or the directory, was parsed.
	Source string `json:"-"`

	// Manifest is the ConfigMap whose manifest has the policy; empty without one.
	Manifest Manifest `json:"-"`

	index    index
	revision string
	files    Files
	// directory is where the files are, if there are several.
	directory string
	// positions holds the position of each value in the files; see Line and FileOf.
	positions map[string]document.Position
}

// Defaults are inherited, value by value, by tenants (VolumeSize, Metadata) and backends
// (the rest). A tenant's or backend's own value replaces the default, whether narrower or
// wider.
type Defaults struct {
	VolumeSize VolumeSize        `json:"volumeSize"`
	Metadata   map[string]string `json:"metadata"`

	Region    string    `json:"region"`
	Interface Interface `json:"interface"`
	Workflow  Workflow  `json:"workflow"`
	Mode      Mode      `json:"mode,omitempty"`
	Limits    Limits    `json:"limits"`
	Timeouts  Timeouts  `json:"timeouts"`
	Connector Connector `json:"connector"`
}

// Audit configures how the leader compares Kubernetes' records with Cinder's volumes.
type Audit struct {
	// Interval is the time between the end of one comparison and the next.
	Interval time.Duration `json:"interval"`
	// Grace is the age at which something is reported or removed.
	Grace time.Duration `json:"grace"`
	// Delete removes volumes and Secrets that provably no PersistentVolume
	// ever named, rather than only reporting them.
	Delete bool `json:"delete"`
}

// VolumeSize bounds the size of a single volume; nil means no bound. It applies to the
// volume's actual size, which is the claim's request rounded up to whole GiB.
type VolumeSize struct {
	Min *Size `json:"min"`
	Max *Size `json:"max"`
}

// Backend is one Cinder endpoint with the credentials to use it.
type Backend struct {
	Name string `json:"name"`
	Auth Auth   `json:"auth"`

	// Region and Interface choose the endpoint in the service catalog; empty means the
	// cloud configuration's.
	Region    string    `json:"region"`
	Interface Interface `json:"interface"`
	// Endpoint is Block Storage's address, if not the service catalog's.
	Endpoint string `json:"endpoint,omitempty"`

	Workflow Workflow `json:"workflow"`
	// Mode is for rules without their own; empty means ModeNative.
	Mode Mode `json:"mode,omitempty"`
	// CSI is for volumes in mode csi; nil means its defaults.
	CSI *CSI `json:"csi,omitempty"`

	// Suspended keeps new volumes away; existing ones are still deleted.
	Suspended bool `json:"suspended"`

	// VolumeSize narrows what tenants may request on this backend. It is not inherited
	// from the defaults, which apply to tenants.
	VolumeSize VolumeSize `json:"volumeSize"`

	Limits    Limits    `json:"limits"`
	Timeouts  Timeouts  `json:"timeouts"`
	Connector Connector `json:"connector"`

	// Zones map Cinder's availability zones to nodes. Without any, the connector's nodes
	// use all volumes of the backend.
	Zones []Zone `json:"zones,omitempty"`

	// Mapping determines, by Cinder's driver_volume_type, what a connection becomes if
	// the built-in mapping is not wanted or does not exist.
	Mapping map[string]mapping.Mapping `json:"mapping"`

	scope QuotaScope
}

// CSI configures the CSI driver for a backend.
type CSI struct {
	// Fencing is what keeps a lost node from a volume; empty means FencingExport.
	Fencing Fencing `json:"fencing,omitempty"`
	// MaxVolumesPerNode is how many of the backend's volumes can be attached to a node;
	// nil means any number.
	MaxVolumesPerNode *int64 `json:"maxVolumesPerNode,omitempty"`
	// CephSecret is the name of a Secret in the program's namespace with the user and the
	// key for images of Ceph; empty if Cinder sends the key.
	CephSecret string `json:"cephSecret,omitempty"`
	// Encryption says where the keys of encrypted volumes come from; nil means from the key
	// manager in the service catalog.
	Encryption *Encryption `json:"encryption,omitempty"`
}

// Encryption says where the keys of encrypted volumes come from.
type Encryption struct {
	// FixedKeySecret is the name of a Secret in the program's namespace with the key of
	// Cinder's own key manager, which has one for all volumes.
	FixedKeySecret string `json:"fixedKeySecret,omitempty"`
}

// Auth says how to log in; exactly one of its fields is set.
type Auth struct {
	// Cloud names an entry of clouds.yaml.
	Cloud string `json:"cloud"`
	// NoAuth talks to a Cinder that trusts every caller.
	NoAuth *NoAuth `json:"noauth"`
	// CloudConfig is the path of an INI cloud configuration in the form of
	// the OpenStack cloud provider, as written; see Policy.ResolveFile.
	CloudConfig string `json:"cloudConfig"`
	// Environment reads the OS_* variables of the process.
	Environment bool `json:"environment"`
}

// NoAuth describes the access to a Cinder with auth_strategy = noauth.
type NoAuth struct {
	// Endpoint is the URL of Cinder's v3 API, http://host:8776/v3.
	Endpoint string `json:"endpoint"`
	User     string `json:"user"`
	// Project is sent in the token. Current Cinder releases accept it in a
	// URL only when it is made of hexadecimal digits and hyphens.
	Project string `json:"project"`
}

// Interface is the kind of endpoint to take from the service catalog.
type Interface string

// The interfaces of Keystone's catalog.
const (
	InterfacePublic   Interface = "public"
	InterfaceInternal Interface = "internal"
	InterfaceAdmin    Interface = "admin"
)

// Workflow is the sequence of Cinder calls that connects a volume.
type Workflow string

const (
	// WorkflowReserve uses the volume actions os-reserve,
	// os-initialize_connection and os-attach.
	WorkflowReserve Workflow = "reserve"
	// WorkflowAttachment uses the attachments API.
	WorkflowAttachment Workflow = "attachment"
	// WorkflowAuto chooses by what the endpoint offers.
	WorkflowAuto Workflow = "auto"
)

// Limits guards a backend against all tenants together.
type Limits struct {
	// Volumes and Gigabytes (GiB) bound what this program keeps on the
	// backend; nil means no bound.
	Volumes   *int64 `json:"volumes"`
	Gigabytes *int64 `json:"gigabytes"`
	// Concurrency is the number of requests to the backend that may be in flight
	// at once, at least 1.
	Concurrency int64 `json:"concurrency"`
	// RequestsPerSecond bounds the requests to the backend; 0 means no bound.
	RequestsPerSecond float64 `json:"requestsPerSecond"`
}

// Timeouts bound how long the program waits. Each is positive.
type Timeouts struct {
	// Create and Delete bound the creation and the deletion of one volume,
	// Request a single HTTP request.
	Create  time.Duration `json:"create"`
	Delete  time.Duration `json:"delete"`
	Request time.Duration `json:"request"`
}

// Connector describes the initiator to Cinder, which exports the volume to it.
type Connector struct {
	Host string `json:"host"`
	// Initiator is the iSCSI initiator name. Empty means that the caller
	// derives one from the cluster's id.
	Initiator string `json:"initiator"`
	IP        string `json:"ip"`
	// WWPNs are Fibre Channel port names of the nodes, normalized to 16
	// lower-case hexadecimal digits.
	WWPNs []string `json:"wwpns"`
	// NQN is the NVMe-oF host name.
	NQN       string `json:"nqn"`
	Multipath bool   `json:"multipath"`
	// NodeLabels select the nodes that mount the volumes. PersistentVolumes are
	// bound to these nodes. Without WWPNs, annotations of these nodes give them.
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
}

// Tenant is a set of namespaces with common rules and quotas.
type Tenant struct {
	Name string `json:"name"`

	// Namespaces holds names and patterns. In a pattern * stands for any run
	// of characters, including none; no other character is special. A
	// namespace belongs to the tenant when an entry or the selector matches.
	Namespaces []string `json:"namespaces"`
	// NamespaceSelector selects namespaces by label; nil selects none, the
	// empty selector every one.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`

	Quota      Quota             `json:"quota"`
	Limits     TenantLimits      `json:"limits"`
	VolumeSize VolumeSize        `json:"volumeSize"`
	Metadata   map[string]string `json:"metadata"`

	// RestoreAnySnapshot lets the tenant's claims have the content of every tenant's
	// snapshots. It is for programs that back up.
	RestoreAnySnapshot bool `json:"restoreAnySnapshot,omitempty"`

	// Classes are tried in order; the first that matches decides.
	Classes []Class `json:"classes"`

	matcher namespaceMatcher
	size    sizeLimits
	scope   QuotaScope
}

// TenantLimits keeps one tenant's work from crowding out that of the others.
// The limits of the backends apply as well.
type TenantLimits struct {
	// Concurrency is the number of the tenant's claims, and as many of its deletions,
	// snapshots, expansions and imports, that are processed at once. 0 means no limit of
	// its own.
	Concurrency int64 `json:"concurrency"`
	// RequestsPerSecond bounds the requests to Cinder on the tenant's behalf,
	// over all backends together. 0 means no limit of its own.
	RequestsPerSecond float64 `json:"requestsPerSecond"`
}

// Class is the rule of a tenant for some StorageClasses.
type Class struct {
	// StorageClasses holds names and patterns, as Tenant.Namespaces does.
	StorageClasses []string `json:"storageClasses"`
	// Backends are tried in order, unless Pick changes it; empty means PickFirst.
	Backends []string `json:"backends"`
	Pick     Pick     `json:"pick,omitempty"`
	// Mode wins over that of the backends; empty leaves it to them.
	Mode Mode `json:"mode,omitempty"`

	// VolumeType, AvailabilityZone and FSType fix what the StorageClass's
	// parameters may otherwise choose; empty leaves it open.
	VolumeType       string `json:"volumeType"`
	AvailabilityZone string `json:"availabilityZone"`
	FSType           string `json:"fsType"`
	// VolumeTypes are those that the VolumeAttributesClass of a claim in mode csi may
	// give its volume; empty grants none.
	VolumeTypes []string `json:"volumeTypes,omitempty"`

	// Encrypt makes nodes encrypt the rule's volumes; nil leaves that to volume types.
	Encrypt *Encrypt `json:"encrypt,omitempty"`

	Quota Quota `json:"quota"`
	// VolumeSize narrows the tenant's.
	VolumeSize VolumeSize `json:"volumeSize"`
	// Import grants volumes that exist at Cinder; nil grants none.
	Import *ImportFilter `json:"import,omitempty"`
	// Backups lets VolumeSnapshots make backups of the rule's volumes.
	Backups bool `json:"backups,omitempty"`
	// Groups lets VolumeGroupSnapshots take snapshots of the rule's volumes.
	Groups bool `json:"groups,omitempty"`
	// Protect takes snapshots of the rule's volumes.
	Protect []Schedule `json:"protect,omitempty"`

	path  string
	size  sizeLimits
	scope QuotaScope
	// entries are the StorageClasses as the trace shows them.
	entries string
}

// Encrypt names the key-encryption key that wraps the keys of new volumes: an entry of a
// Secret in the program's namespace.
type Encrypt struct {
	KeySecret string `json:"keySecret"`
	Entry     string `json:"entry"`
}

// Path returns the path of the rule in the policy, such as tenants[0].classes[1].
func (c Class) Path() string { return c.path }

// Sizes returns the bounds of the rule's volumes, with those of its tenant and the
// defaults. A backend may have narrower ones.
func (c Class) Sizes() VolumeSize { return VolumeSize{Min: c.size.min, Max: c.size.max} }

// Quota bounds what a tenant or class rule may hold. Nil means no bound, 0
// that none is allowed.
type Quota struct {
	Volumes *int64 `json:"volumes"`
	// Gigabytes counts GiB, as Cinder's quota of that name does.
	Gigabytes *int64 `json:"gigabytes"`
	Snapshots *int64 `json:"snapshots"`
	// SnapshotGigabytes counts the GiB of snapshots, which Cinder counts in its quota of
	// gigabytes.
	SnapshotGigabytes *int64 `json:"snapshotGigabytes"`
	Backups           *int64 `json:"backups,omitempty"`
	// BackupGigabytes counts the GiB of the volumes, as Cinder's quota backup_gigabytes does.
	BackupGigabytes *int64 `json:"backupGigabytes,omitempty"`
}

// Backend returns the backend of that name.
func (p *Policy) Backend(name string) (*Backend, bool) {
	if i := p.backendIndex(name); i >= 0 {
		return &p.Backends[i], true
	}
	return nil, false
}

func (p *Policy) backendIndex(name string) int {
	if i, ok := p.index.backends[name]; ok {
		return i
	}
	return -1
}

// Tenant returns the tenant of that name.
func (p *Policy) Tenant(name string) (*Tenant, bool) {
	if i, ok := p.index.tenants[name]; ok {
		return &p.Tenants[i], true
	}
	return nil, false
}

// ConcurrencyOf returns how much of one kind of a tenant's work may be done at once; 0
// means that the tenant has no limit of its own.
func (p *Policy) ConcurrencyOf(tenant string) int {
	t, ok := p.Tenant(tenant)
	if !ok {
		return 0
	}
	return int(t.Limits.Concurrency)
}

// MayUse reports whether any rule of the tenant names the backend.
func (p *Policy) MayUse(tenant, backend string) bool {
	t, ok := p.Tenant(tenant)
	return ok && slices.ContainsFunc(t.Classes, func(c Class) bool { return slices.Contains(c.Backends, backend) })
}

// Revision returns a short hash of the files: two policies of the same bytes, with the same
// names if there are several, have the same revision.
func (p *Policy) Revision() string { return p.revision }

// Files returns what the policy was read from, which Revision is a hash of.
func (p *Policy) Files() Files { return p.files }

// Manifest names a ConfigMap, as far as its manifest does.
type Manifest struct{ Namespace, Name string }

// Line returns the line of the value at a path, such as the Path of a Denial,
// or of the nearest value around it that the file gives.
func (p *Policy) Line(path string) int { return document.Nearest(p.positions, path).Line }

// FileOf returns the file that Line is a line of; empty if there is only the Source.
func (p *Policy) FileOf(path string) string {
	if at := document.Nearest(p.positions, path); at.Source != p.Source {
		return at.Source
	}
	return ""
}
