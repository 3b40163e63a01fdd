package commands

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// What a connection alone does not determine. The names are as long as real ones,
// because Kubernetes limits the length of some of them together with addresses of the
// connection.
const (
	placeholderUID      = "00000000-0000-0000-0000-000000000000"
	placeholderPV       = "pvc-" + placeholderUID
	placeholderSize     = "1Gi"
	defaultMapNamespace = "standalone-cinder"
	maxDocumentSize     = 1 << 20
	hiddenSecretValue   = "(hidden)"
	formatYAML          = "yaml"
)

// MapOptions are the options for mapping a connection.
type MapOptions struct {
	// Protocols are the protocols that are mapped.
	Protocols mappers.Protocols
	// PolicyFile and Backend provide the mapping and the connector; without them
	// there is no mapping.
	PolicyFile, Backend string
	// Namespace is where the Secret would be.
	Namespace  string
	AccessMode string
	VolumeMode string
	FSType     string
	// MultiAttach is the volume's own attribute.
	MultiAttach bool
	// Mode is native or csi. If it is empty, the rules of the policy determine it;
	// without a policy, it is native.
	Mode string
}

// Mapped is what a connection becomes, or why it cannot be mapped.
type Mapped struct {
	PersistentVolume *mappedVolume `json:"persistentVolume,omitempty"`
	Secret           *mappedSecret `json:"secret,omitempty"`
	// Node is what a node gets, in mode csi.
	Node     *mappedNode    `json:"node,omitempty"`
	Warnings []string       `json:"warnings,omitempty"`
	Refused  *mappedRefusal `json:"refused,omitempty"`
}

type mappedVolume struct {
	APIVersion string                      `json:"apiVersion"`
	Kind       string                      `json:"kind"`
	Metadata   mappedName                  `json:"metadata"`
	Spec       corev1.PersistentVolumeSpec `json:"spec"`
}

// mappedSecret is a Secret without its values.
type mappedSecret struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   mappedName        `json:"metadata"`
	Type       corev1.SecretType `json:"type"`
	Data       map[string]string `json:"data"`
}

type mappedName struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// mappedNode describes how a single node reaches the volume.
type mappedNode struct {
	Protocol    string       `json:"protocol"`
	Paths       []mappedPath `json:"paths"`
	Identities  []string     `json:"identities,omitempty"`
	ReadOnly    bool         `json:"readOnly,omitempty"`
	Credentials string       `json:"credentials,omitempty"`
}

type mappedPath struct {
	Portal string `json:"portal"`
	Target string `json:"target"`
	LUN    int    `json:"lun"`
}

type mappedRefusal struct {
	Reason  mappers.Reason `json:"reason"`
	Message string         `json:"message"`
}

// NewMapCommand returns the map subcommand. It exits with 0 when the connection can be
// mapped, with 1 when it is refused, and with 2 on wrong usage or when a file cannot be
// read.
func NewMapCommand(protocols mappers.Protocols) *cobra.Command {
	options := MapOptions{Protocols: protocols}
	output := formatYAML
	var native, others []string
	described := protocols.Describe()
	for _, protocol := range described.Mapped() {
		if described[protocol].Native {
			native = append(native, protocol)
		} else {
			others = append(others, protocol)
		}
	}
	command := &cobra.Command{
		Use:   "map FILE",
		Short: "Show what a Cinder connection becomes in Kubernetes",
		Long: `Show what a Cinder connection becomes in Kubernetes: the PersistentVolume, and
the Secret with its values hidden, or the message that the claim's event would
carry. It contacts neither a cluster nor Cinder.

FILE is JSON, - for standard input: the answer of os-initialize_connection or
the attachments API, bare or inside connection_info. Other keys next to
connection_info are ignored, except connector_used, which is taken as the
connector that the answer was made for. Without it, the connector is that of the
policy's backend, if there is one.

Without a policy, connections of ` + strings.Join(native, ", ") + `
become native sources. That of rbd is for information: Kubernetes mounts it only
up to 1.30, and run refuses rbd without a mapping. Connections of ` + strings.Join(others, ", ") + `
and of other protocols need the mapping of a policy. With --policy and --backend,
the connection is mapped as the rules of the policy would have it: in mode native
by the mapping of the backend, in mode csi for the nodes of the CSI driver. Where
rules have both modes, it is native; --mode csi shows the other one. Values that a
connection does not contain (size, names) are placeholders.

Exit codes: 0 mapped, 1 refused, 2 wrong usage, or a file cannot be read.`,
		Example: `  standalone-cinder map connection.json
  standalone-cinder map --policy policy.yaml --backend gold --access-mode ROX - < connection.json`,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) != 1 {
				return volumeUsage("map takes one FILE, or - for standard input, but was given %d", len(args))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if output != formatYAML && output != outputJSON {
				return volumeUsage("--output must be %s or %s, not %q", formatYAML, outputJSON, output)
			}
			if args[0] == "-" && options.PolicyFile == "-" {
				return volumeUsage("only one file can be - for standard input, not 2")
			}
			document, err := readDocument(args[0], command.InOrStdin())
			if err != nil {
				return policycli.Exit(policycli.ExitUsage, err)
			}
			mapped, refusal, err := Map(options, document, command.InOrStdin())
			if err == nil {
				err = mapped.print(command.OutOrStdout(), output)
			}
			if err != nil {
				return policycli.Exit(policycli.ExitUsage, err)
			}
			return policycli.Exit(policycli.ExitFailed, refusal)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.PolicyFile, "policy", "", "policy `file` or directory, which gives mapping and connector; - for standard input")
	flags.StringVar(&options.Backend, "backend", "", "`name` of the policy's backend; may be omitted if there is only one")
	flags.StringVar(&options.Namespace, "namespace", defaultMapNamespace, "`namespace` of the Secret")
	flags.StringVar(&options.AccessMode, "access-mode", "RWO", "access `mode` of the claim: RWO, ROX, RWOP or RWX, or their long names")
	flags.StringVar(&options.VolumeMode, "volume-mode", string(corev1.PersistentVolumeFilesystem), "volume `mode` of the claim: Filesystem or Block")
	flags.StringVar(&options.FSType, "fs-type", "", "`filesystem` that the rule or StorageClass selects; default is "+policy.DefaultFSType)
	flags.StringVar(&options.Mode, "mode", "", "`mode` of the rule: native or csi (default: that of the policy's rules for the backend)")
	flags.BoolVar(&options.MultiAttach, "multiattach", false, "the volume's type allows several hosts at once")
	flags.StringVarP(&output, "output", "o", output, "`format` of the output: yaml or json")
	return command
}

func readDocument(file string, stdin io.Reader) ([]byte, error) {
	from := stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read connection: %w", err)
		}
		defer opened.Close() //nolint:errcheck // Nothing was written.
		from = opened
	}
	// One byte beyond the limit is enough to get the document refused.
	document, err := io.ReadAll(io.LimitReader(from, maxDocumentSize+1))
	if err != nil {
		return nil, fmt.Errorf("read connection: %w", err)
	}
	return document, nil
}

// Map maps a document as the provisioner does. refusal is the message of the claim's
// event; err is why there is no result.
func Map(options MapOptions, document []byte, stdin io.Reader) (mapped Mapped, refusal, err error) {
	mode, err := accessMode(options.AccessMode)
	if err != nil {
		return Mapped{}, nil, err
	}
	volumeMode := corev1.PersistentVolumeMode(options.VolumeMode)
	if volumeMode != corev1.PersistentVolumeFilesystem && volumeMode != corev1.PersistentVolumeBlock {
		return Mapped{}, nil, fmt.Errorf("--volume-mode must be %s or %s, not %q", corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock, options.VolumeMode)
	}
	if options.Mode != "" && !slices.Contains(policy.Modes(), options.Mode) {
		return Mapped{}, nil, fmt.Errorf("--mode must be %s, not %q", strings.Join(policy.Modes(), " or "), options.Mode)
	}
	from, err := mapBackend(options, stdin)
	if err != nil {
		return Mapped{}, nil, err
	}
	backend, connector, mappings := from.name, from.connector, from.mappings
	if captured, ok := capturedConnector(document); ok {
		connector = captured
	}
	if options.Namespace == "" {
		return Mapped{}, nil, errors.New("--namespace is empty; name the provisioner's own namespace")
	}
	if options.Mode == string(policy.ModeCSI) || options.Mode == "" && !slices.Contains(from.modes, policy.ModeNative) {
		return mapForNodes(options, document, from, mode, volumeMode)
	}
	registry, err := mappers.New(mappers.Options{SecretNamespace: options.Namespace, Protocols: options.Protocols})
	if err != nil {
		return Mapped{}, nil, err
	}

	var result mappers.Result
	connection, err := mappers.ParseConnection(document)
	if err == nil {
		request := objects.MapRequest(connection, placeholderPV, connector)
		request.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
		request.FSType = options.FSType
		request.Block = volumeMode == corev1.PersistentVolumeBlock
		request.MultiAttach = options.MultiAttach
		request.Backend = backend
		request.Mappings = mappings
		request.Volume = mappers.Volume{ID: placeholderUID, Name: placeholderPV, SizeGiB: 1, Type: "type", Zone: "zone"}
		request.Claim = mappers.Claim{Namespace: "namespace", Name: "claim", UID: placeholderUID}
		request.Tenant = "tenant"
		result, err = registry.Map(request)
	}
	if err != nil {
		return notMapped(backend, err)
	}
	if options.PolicyFile == "" && result.Source.RBD != nil {
		result.Warnings = append(result.Warnings, "without a policy rbd is shown as the native source, which Kubernetes mounts only up to 1.30; a policy's mapping.rbd names the cluster for ceph-csi, and without it such volumes are refused")
	}
	if options.Mode == "" && len(from.modes) > 1 {
		result.Warnings = append(result.Warnings, fmt.Sprintf("this is mode native; rules make volumes in mode csi on backend %s, too, which --mode csi shows", backend))
	}
	return newMapped(result, mode, volumeMode), nil, nil
}

// mapForNodes shows what a connection becomes in mode csi, as if a node had it.
func mapForNodes(options MapOptions, document []byte, from mapFrom, mode corev1.PersistentVolumeAccessMode, volumeMode corev1.PersistentVolumeMode) (mapped Mapped, refusal, err error) {
	fsType := cmp.Or(options.FSType, policy.DefaultFSType)
	block := volumeMode == corev1.PersistentVolumeBlock
	if !block && !slices.Contains(policy.CSIFileSystems(), fsType) {
		return Mapped{}, nil, fmt.Errorf("--fs-type must be %s in mode csi, not %q", strings.Join(policy.CSIFileSystems(), " or "), fsType)
	}
	var found mappers.NodeConnection
	var result mappers.Result
	connection, err := mappers.ParseConnection(document)
	if err == nil {
		request := mappers.NodeRequest{CephUser: from.cephUser}
		if encrypted, _ := connection.Encrypted(); encrypted { // ForNode returns the error
			// The document does not say how.
			request.Encryption = &mappers.Encryption{LUKS: 1}
		}
		found, err = mappers.ForNode(connection, request)
	}
	if err == nil {
		result, err = objects.MapCSI(objects.CSIVolume{
			PVName: placeholderPV, Backend: cmp.Or(from.name, "backend"), VolumeID: placeholderUID, SecretNamespace: options.Namespace,
			AccessModes: []corev1.PersistentVolumeAccessMode{mode}, Block: block, FSType: fsType, MultiAttach: options.MultiAttach,
		})
	}
	if err != nil {
		return notMapped(from.name, err)
	}
	mapped = newMapped(result, mode, volumeMode)
	mapped.Warnings = found.Warnings
	if found.Encryption != nil {
		mapped.Warnings = append(mapped.Warnings, "the volume is encrypted: its nodes get its key with its credentials, and open it if its encryption is LUKS")
	}
	mapped.Node = &mappedNode{Protocol: found.Protocol, Identities: found.Identities, ReadOnly: found.ReadOnly || result.ReadOnly}
	for _, path := range found.Paths {
		mapped.Node.Paths = append(mapped.Node.Paths, mappedPath(path))
	}
	if found.Credentials != nil {
		mapped.Node.Credentials = hiddenSecretValue
	}
	return mapped, nil, nil
}

// notMapped distinguishes a refused connection from one that cannot be read.
func notMapped(backend string, err error) (mapped Mapped, refusal, failure error) {
	var refused *mappers.Refusal
	if errors.As(err, &refused) {
		return Mapped{Refused: &mappedRefusal{refused.Reason, refused.Message}}, objects.RefusalError(backend, refused), nil
	}
	return Mapped{}, nil, err
}

func newMapped(result mappers.Result, mode corev1.PersistentVolumeAccessMode, volumeMode corev1.PersistentVolumeMode) Mapped {
	mapped := Mapped{Warnings: result.Warnings, PersistentVolume: &mappedVolume{
		APIVersion: "v1",
		Kind:       "PersistentVolume",
		Metadata:   mappedName{Name: placeholderPV},
		Spec: objects.PersistentVolumeSpec(result, corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(placeholderSize)},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{mode},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			VolumeMode:                    &volumeMode,
		}),
	}}
	if secret := result.Secret; secret != nil {
		mapped.Secret = &mappedSecret{
			APIVersion: "v1",
			Kind:       "Secret",
			Metadata:   mappedName{Name: secret.Name, Namespace: secret.Namespace},
			Type:       secret.Type,
			Data:       map[string]string{},
		}
		for key := range secret.Data {
			mapped.Secret.Data[key] = hiddenSecretValue
		}
	}
	return mapped
}

// mapFrom holds what the policy says about a backend.
type mapFrom struct {
	name      string
	connector cinder.Connector
	mappings  map[string]mapping.Mapping
	modes     []policy.Mode
	// cephUser stands for the Secret of the operator's with a key for Ceph.
	cephUser *mappers.NodeCredentials
}

// mapBackend reads a backend from the policy.
func mapBackend(options MapOptions, stdin io.Reader) (mapFrom, error) {
	protocols := options.Protocols.Describe()
	if options.PolicyFile == "" {
		if options.Backend != "" {
			return mapFrom{}, errors.New("--backend is about a policy and needs --policy")
		}
		// ceph-csi, the default, needs a name that only a policy contains.
		mappings := map[string]mapping.Mapping{}
		for protocol, about := range protocols {
			if about.CephCSI && about.Native {
				mappings[protocol] = mapping.Mapping{As: mapping.Native}
			}
		}
		return mapFrom{mappings: mappings, modes: []policy.Mode{policy.ModeNative}}, nil
	}
	var loaded *policy.Policy
	var err error
	if options.PolicyFile == "-" {
		loaded, err = policy.Read(stdin, "standard input", protocols)
	} else {
		loaded, err = policy.Load(options.PolicyFile, protocols)
	}
	if err != nil {
		return mapFrom{}, err
	}
	name := options.Backend
	if name == "" && len(loaded.Backends) == 1 {
		name = loaded.Backends[0].Name
	}
	backend, ok := loaded.Backend(name)
	if !ok {
		var names []string
		for _, b := range loaded.Backends {
			names = append(names, b.Name)
		}
		if name == "" {
			return mapFrom{}, fmt.Errorf("--backend is missing; the policy has %s", strings.Join(names, ", "))
		}
		return mapFrom{}, fmt.Errorf("the policy has no backend %q; it has %s", name, strings.Join(names, ", "))
	}
	cluster := loaded.ClusterID
	cluster = cmp.Or(cluster, placeholderUID)
	return mapFrom{name, wiring.BackendConfig(loaded, backend, cluster).Connector, backend.Mapping, loaded.ModesOn(name), placeholderUser(backend.CephSecret())}, nil
}

// capturedConnector returns the connector for which a document says it was made. An
// unreadable connector is ignored, because the document is about the connection.
func capturedConnector(document []byte) (cinder.Connector, bool) {
	var captured struct {
		Connector struct {
			Host      string   `json:"host"`
			Initiator string   `json:"initiator"`
			WWPNs     []string `json:"wwpns"`
			NQN       string   `json:"nqn"`
		} `json:"connector_used"`
	}
	if err := json.Unmarshal(document, &captured); err != nil {
		return cinder.Connector{}, false
	}
	from := captured.Connector
	connector := cinder.Connector{Host: from.Host, Initiator: from.Initiator, NQN: from.NQN}
	for _, wwpn := range from.WWPNs {
		connector.WWPNs = append(connector.WWPNs, strings.ToLower(strings.ReplaceAll(wwpn, ":", "")))
	}
	return connector, from.Host != "" || from.Initiator != "" || from.NQN != "" || len(from.WWPNs) > 0
}

// accessMode reads an access mode by its short or long name.
func accessMode(name string) (corev1.PersistentVolumeAccessMode, error) {
	if mode, ok := mapping.ParseAccessMode(name); ok {
		return mode, nil
	}
	return "", fmt.Errorf("--access-mode must be RWO, ROX, RWX or RWOP, or a long name such as ReadWriteOnce, not %q", name)
}

func (m Mapped) print(w io.Writer, output string) error {
	if output == outputJSON {
		return printJSON(w, m)
	}
	text, err := yaml.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}
