package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// clusterReview is policy check's report about a cluster.
type clusterReview struct {
	// Kubeconfig and Provisioner identify what was reviewed, and Against the policy it is
	// compared with.
	Kubeconfig  string          `json:"kubeconfig"`
	Provisioner string          `json:"provisioner"`
	Against     *policyIdentity `json:"against,omitempty"`
	review.Review

	source string
}

// review reads the cluster and asks the policy about it. It first reads the file to
// compare with, which is faster than reading the cluster.
func (o checkOptions) review(cmd *cobra.Command, p *policy.Policy) (*clusterReview, error) {
	var earlier *policy.Policy
	if o.against != "" {
		var err error
		if earlier, err = readPolicy(o.against, cmd.InOrStdin(), o.Protocols); err != nil {
			return nil, reportMistakes(cmd, o.output, o.against, err, ExitUsage)
		}
	}
	return o.reviewSince(cmd.Context(), earlier, p)
}

// reviewSince reads the cluster and asks the policy about it; with an earlier policy, only
// about what changes.
func (o checkOptions) reviewSince(ctx context.Context, earlier, p *policy.Policy) (*clusterReview, error) {
	r := &clusterReview{Kubeconfig: o.kubeconfig, Provisioner: o.ProvisionerName, source: p.Source}
	if earlier != nil {
		r.Against = &policyIdentity{earlier.Source, earlier.Revision()}
	}
	existing, err := o.ReadCluster(ctx, o.kubeconfig, o.ProvisionerName)
	if err != nil {
		return nil, &ExitError{Code: ExitUsage, Err: fmt.Errorf("cannot say what the policy means for the cluster: %w", err)}
	}
	existing.Places = o.Places(p, o.cloudsFile)
	if p.UsesCSI() && o.ReadCSI != nil {
		if existing.CSI, err = o.ReadCSI(ctx, o.kubeconfig); err != nil {
			return nil, &ExitError{Code: ExitUsage, Err: fmt.Errorf("cannot say whether the cluster is ready for mode csi: %w", err)}
		}
	}
	if earlier == nil {
		r.Review = review.Of(p, existing)
		return r, nil
	}
	before := existing
	before.Places = o.Places(earlier, o.cloudsFile)
	r.Review = review.Change(earlier, p, before, existing)
	return r, nil
}

// headings introduce the findings of a kind.
var headings = map[review.FindingKind]string{
	review.BackendGone:         "volumes that cannot be deleted",
	review.BackendElsewhere:    "volumes whose backend points to another place",
	review.BackendChanged:      "volumes whose backend may point to another place",
	review.RetainedBackendGone: "retained volumes without their backend",
	review.ClusterChanged:      "volumes of another cluster's id",
	review.DamagedVolume:       "volumes that cannot be deleted under any policy",
	review.TenantGone:          "volumes that no tenant's quota counts",
	review.RuleGone:            "volumes that no rule's quota counts",
	review.EncryptionDiffers:   "volumes that are encrypted, or not, unlike new ones",
	review.OverQuota:           "limits that are exceeded already",
	review.NewlyDenied:         "claims with a volume that would be denied today; they keep it",
	review.MovedTenant:         "claims whose volume still counts against another tenant",
	review.StorageClassGone:    "pending claims without a StorageClass",
	review.DriverMissing:       "what mode csi lacks",
	review.ClassNotHonored:     "StorageClasses whose claims do not get what they promise",
	review.PendingDenied:       "pending claims that are denied",
	review.PendingGranted:      "pending claims that are granted",
	review.PendingLeft:         "pending claims that are left to another program",
}

// maxShown bounds the findings of a kind in the text; a policy may deny the claims of a
// thousand namespaces for one reason.
const maxShown = 10

func (r *clusterReview) text(w *textWriter) {
	looked := fmt.Sprintf("%s and %s of %s", count(r.Claims, "claim"), count(r.Volumes, "PersistentVolume"), r.Provisioner)
	compared := ""
	if r.Against != nil {
		compared = fmt.Sprintf(", compared with %s (revision %s)", r.Against.Source, r.Against.Revision)
	}
	switch {
	case len(r.Findings)+len(r.Ended) > 0:
		w.line("\nWhat the policy means for %s%s:", looked, compared)
	case r.Against != nil:
		w.line("\nNothing changes for %s%s.", looked, compared)
	default:
		w.line("\nNothing to report about %s.", looked)
	}
	kinds := group(r.Findings)
	for _, findings := range kinds {
		w.line("%6d  %-19s  %s", len(findings), findings[0].Kind, headings[findings[0].Kind])
	}
	if len(r.Ended) > 0 {
		w.line("%6d  %-19s  reported for %s only", len(r.Ended), "no longer", r.Against.Source)
	}
	for _, findings := range kinds {
		w.line("\n%s", findings[0].Kind)
		writeFindings(w, r.source, findings, func(f review.Finding) string { return f.Subject })
	}
	if len(r.Ended) > 0 {
		w.line("\nno longer")
		writeFindings(w, r.Against.Source, r.Ended, func(f review.Finding) string { return string(f.Kind) + " " + f.Subject })
	}
}

// group splits findings, which are sorted by kind.
func group(findings []review.Finding) [][]review.Finding {
	var kinds [][]review.Finding
	for i, f := range findings {
		if i == 0 || f.Kind != findings[i-1].Kind {
			kinds = append(kinds, nil)
		}
		kinds[len(kinds)-1] = append(kinds[len(kinds)-1], f)
	}
	return kinds
}

func writeFindings(w *textWriter, source string, findings []review.Finding, subject func(review.Finding) string) {
	for i, f := range findings {
		if i == maxShown {
			w.line("  and %d more (--output json has all)", len(findings)-maxShown)
			return
		}
		place := ""
		if f.Line > 0 {
			place = fmt.Sprintf(" (%s:%d)", cmp.Or(f.File, source), f.Line)
		}
		w.line("  %s%s: %s", subject(f), place, f.Message)
	}
}
