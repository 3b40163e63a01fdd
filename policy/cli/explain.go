package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// explainOptions are the flags of policy explain.
type explainOptions struct {
	protocols mapping.Protocols

	policy string
	output string
	claim  claimFlags
	files  []string
	used   []string
}

func newExplainCommand(from Options) *cobra.Command {
	options := explainOptions{protocols: from.Protocols}
	cmd := &cobra.Command{
		Use:   "explain --policy FILE (--namespace NS --storage-class SC --size SIZE | MANIFEST...)",
		Short: "Say what a policy decides about claims, and why",
		Long: `Say what a policy decides about claims, and why: which tenant and rule apply and
why the others do not, the volume that would be created, the backends in the order
in which they are tried, the connector that each gets, and the quotas. The
running program decides in the same way. The command needs no cluster.

Describe the claim with flags, or give YAML manifests in files (- is standard
input). The command reads manifests as kubectl apply does, and explains every
PersistentVolumeClaim, with the labels of its Namespace, its StorageClass, its
VolumeAttributesClass and the Node selected for its pod, if they are among the manifests.

Quotas depend on what is already used. Give it with --used, once for each tenant,
rule or backend:
  --used tenant=team-a,volumes=18,gigabytes=480
  --used backend=gold,volumes=4999
  --used 'rule=tenants[0].classes[1],gigabytes=50'
Everything else counts as unused. If there are several claims, each granted one
counts for those after it.

A claim is granted, denied by the policy, or refused: the provisioner refuses some
claims before it asks the policy, such as those with a selector. A claim whose
dataSourceRef names another API group is left to a volume populator. The policy
decides about the populator's own claim; in a namespace that the policy lists under
populators, it does so on behalf of the claim whose UID ends the name. With manifests,
that claim must be among them; without, give it with --populates.

Exit codes: 0 the claims are explained, granted, denied or left; 1 the policy has
errors, which are listed; 2 wrong usage or an unreadable file; 3 the claims are
explained, and the provisioner refuses one of them. To make a pipeline fail on a
denial, use policy test.`,
		Example: `  standalone-cinder policy explain --policy policy.yaml --namespace team-a --storage-class fast --size 10Gi
  kubectl get ns,sc,vac,pvc -n team-a -o yaml | standalone-cinder policy explain --policy policy.yaml -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			options.files = append(options.files, args...)
			return options.run(cmd)
		},
		ValidArgsFunction: completeFiles,
	}
	flags := cmd.Flags()
	flags.StringVar(&options.policy, "policy", "", "policy `file` or directory; - for standard input")
	flags.StringArrayVar(&options.files, "manifests", nil, "`file` of YAML manifests; - for standard input; may be repeated")
	flags.StringVarP(&options.claim.namespace, "namespace", "n", "", "`namespace` of the claim; with manifests, of claims that name none (default \"default\")")
	flags.StringVar(&options.claim.name, "name", "", "`name` of the claim, for rules with pick: spread")
	flags.StringToStringVar(&options.claim.namespaceLabels, "namespace-labels", nil, "labels of the namespace, as `KEY=VALUE,...`; with manifests, if they lack the Namespace")
	flags.StringVar(&options.claim.populates, "populates", "", "`claim` on whose behalf a populator's claim asks, as NAMESPACE/NAME; --namespace-labels are those of its namespace then")
	flags.StringVar(&options.claim.storageClass, "storage-class", "", "`name` of the claim's StorageClass")
	flags.StringArrayVar(&options.claim.parameters, "parameter", nil, "parameter of the StorageClass, as `KEY=VALUE`; may be repeated; with manifests, if they lack it")
	flags.StringArrayVar(&options.claim.attributes, "attribute", nil, "parameter of the claim's VolumeAttributesClass, as `KEY=VALUE`; may be repeated; without manifests")
	flags.StringVar(&options.claim.size, "size", "", "`size` that the claim asks for, such as 10Gi")
	flags.StringVar(&options.claim.limit, "limit", "", "largest `size` (the claim's resources.limits.storage)")
	flags.StringVar(&options.claim.volumeMode, "volume-mode", string(policy.Filesystem), "volume `mode` of the claim: Filesystem or Block")
	flags.StringSliceVar(&options.claim.accessModes, "access-mode", nil, "access `mode` of the claim: RWO, ROX, RWX or RWOP; may be repeated")
	flags.StringArrayVar(&options.used, "used", nil, "usage of a quota `scope`; may be repeated (see above)")
	outputFlag(cmd, &options.output)
	completeValues(cmd, "volume-mode", string(policy.Filesystem), string(policy.Block))
	completeValues(cmd, "access-mode", "RWO", "ROX", "RWX", "RWOP")
	completeYAML(cmd, "policy", "manifests")
	for _, free := range []string{"namespace", "name", "namespace-labels", "populates", "storage-class", "parameter", "attribute", "size", "limit", "used"} {
		completeValues(cmd, free)
	}
	return cmd
}

func (o explainOptions) run(cmd *cobra.Command) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	listed, err := parseUsed(o.used)
	if err != nil {
		return err
	}
	p, err := loadPolicy(cmd, o.policy, o.output, o.protocols)
	if err != nil {
		return err
	}
	claims, ignored, err := o.claims(cmd.InOrStdin(), p)
	if err != nil {
		return err
	}
	usages, err := p.Usages(listed)
	if err != nil {
		return usageError("--used: %w", err)
	}
	e := explain(p, claims, usages)
	e.Ignored = ignored
	e.assumed = len(o.used) == 0
	if err := answer(cmd, o.output, e); err != nil {
		return err
	}
	if n := e.refusedClaims(); n > 0 {
		return &ExitError{Code: ExitRefused, Err: fmt.Errorf("the provisioner refuses %d of %s regardless of the policy", n, count(len(e.Claims), "claim"))}
	}
	return nil
}

// check rejects combinations of flags that make no sense.
func (o explainOptions) check(cmd *cobra.Command) error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	if mode := policy.VolumeMode(o.claim.volumeMode); mode != policy.Filesystem && mode != policy.Block {
		return usageError("--volume-mode must be Filesystem or Block, not %q", mode)
	}
	if sentence := policy.CheckLabels(o.claim.namespaceLabels); sentence != "" {
		return usageError("--namespace-labels: %s", sentence)
	}
	var missing []string
	for _, flag := range []string{"policy", "namespace", "storage-class", "size"} {
		given := cmd.Flags().Changed(flag)
		if !given && (flag == "policy" || len(o.files) == 0) {
			missing = append(missing, "--"+flag)
		}
	}
	if len(missing) > 0 {
		hint := ""
		if len(o.files) == 0 && !slices.Equal(missing, []string{"--policy"}) {
			hint = "; claims may also be given as files of manifests"
		}
		return usageError("%s needs %s%s (see %s --help)", cmd.CommandPath(), strings.Join(missing, ", "), hint, cmd.CommandPath())
	}
	if len(o.files) > 0 {
		for _, flag := range []string{"name", "populates", "storage-class", "attribute", "size", "limit", "volume-mode", "access-mode"} {
			if cmd.Flags().Changed(flag) {
				return usageError("--%s describes a claim on the command line and does not go with manifests; remove one of them", flag)
			}
		}
	}
	return checkStdin(append([]string{o.policy}, o.files...)...)
}

// claims returns the claims of the manifests, or the one from the flags; ignored names
// the manifests' other objects.
func (o explainOptions) claims(stdin io.Reader, p *policy.Policy) (claims []claim, ignored []string, err error) {
	if len(o.files) == 0 {
		c, err := o.claim.claim()
		return []claim{c}, nil, err
	}
	parameters, err := readParameters("parameter", o.claim.parameters)
	if err != nil {
		return nil, nil, err
	}
	reader, err := newManifestReader(o.claim.namespace)
	if err != nil {
		return nil, nil, err
	}
	for _, file := range o.files {
		if err := reader.readFile(file, stdin); err != nil {
			return nil, nil, &ExitError{Code: ExitUsage, Err: err}
		}
	}
	if len(reader.found.claims) == 0 {
		return nil, nil, usageError("the manifests have no PersistentVolumeClaim to explain")
	}
	return reader.found.resolve(p, o.claim.namespaceLabels, parameters), reader.found.ignored, nil
}

// parseUsed reads values of --used.
func parseUsed(values []string) ([]policy.ScopeUsage, error) {
	var listed []policy.ScopeUsage
	for _, text := range values {
		var u policy.ScopeUsage
		names := map[string]*string{"tenant": &u.Tenant, "rule": &u.Rule, "backend": &u.Backend}
		amounts := map[string]*int64{"volumes": &u.Volumes, "gigabytes": &u.Gigabytes}
		scopes, seen := 0, map[string]bool{}
		for _, part := range strings.Split(text, ",") {
			key, value, _ := strings.Cut(part, "=")
			if seen[key] {
				return nil, usageError("--used %s: %s is given twice", text, key)
			}
			seen[key] = true
			switch {
			case names[key] != nil && value != "":
				scopes++
				*names[key] = value
			case amounts[key] != nil:
				n, err := strconv.ParseInt(value, 10, 64)
				if err != nil || n < 0 {
					return nil, usageError("--used %s: %s must be a whole number, not %q", text, key, value)
				}
				*amounts[key] = n
			default:
				return nil, usageError("--used %s: %q is none of tenant=, rule=, backend=, volumes=, gigabytes=", text, part)
			}
		}
		if scopes != 1 || len(seen) < 2 {
			return nil, usageError("--used %s: write one of tenant=, rule=, backend= with volumes=, gigabytes= or both, such as tenant=team-a,volumes=18", text)
		}
		listed = append(listed, u)
	}
	return listed, nil
}
