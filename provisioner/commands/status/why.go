package status

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// maxEvents is how many events why shows.
const maxEvents = 5

// whyAnswer is the output of why.
type whyAnswer struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Phase     string `json:"phase"`
	// Explained is false if nothing says why the claim waits, or has not grown.
	Explained bool `json:"explained"`
	// Because says why the claim waits, in full sentences.
	Because []string `json:"because"`
	// Pending is what the program reports about the claim.
	Pending *statusreport.Pending `json:"pending,omitempty"`
	// Events are the last warnings about the claim, newest first.
	Events []claimEvent `json:"events"`
}

type claimEvent struct {
	Time    time.Time `json:"time,omitzero"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

func newWhyCommand() *cobra.Command {
	options := connection{}
	output, namespace := "", ""
	c := newCommand(&cobra.Command{
		Use:   "why PVC",
		Short: "Say why a claim is pending, or has not grown",
		Long: `Say why a PersistentVolumeClaim is pending: what the program says about it, what
the claim itself shows, and its last warnings. For a bound claim that asks for more
than it has, say how far the growth is and what is in its way.

Besides the rights of status, the command needs the rights to get the claim and
its StorageClass and to list the events of its namespace. Without the right to ask
the program, it relies on the claim and its events.

Exit codes: 0 the claim has what it asks for, or the reason is given; 1 nothing says
why the claim is pending or has not grown; 2 wrong usage, or the claim cannot be read.`,
		Example: "  kubectl cinder why data -n team-a",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("%s needs the name of one PersistentVolumeClaim (see %s --help)", c.CommandPath(), c.CommandPath())
			}
			return nil
		},
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		if output != outputText && output != outputJSON {
			return usageError("--output must be text or json, not %q", output)
		}
		answer, err := options.why(c.Context(), namespace, strings.TrimPrefix(strings.TrimPrefix(args[0], "pvc/"), "persistentvolumeclaim/"))
		if err != nil {
			return usageError("%w", err)
		}
		if err := printed(c, output, outputText, answer, answer.write); err != nil {
			return err
		}
		switch {
		case answer.Explained:
		case answer.Phase == string(corev1.ClaimBound):
			return failed("nothing says yet why claim %s/%s has not grown", answer.Namespace, answer.Name)
		default:
			return failed("nothing says why claim %s/%s is pending", answer.Namespace, answer.Name)
		}
		return nil
	}
	c.Flags().StringVarP(&namespace, "namespace", "n", "", "`namespace` of the claim; default is that of the kubeconfig's context")
	options.addFlags(c, "provisioner-namespace", "")
	outputFlag(c, &output, outputText)
	return c
}

func (o *connection) why(ctx context.Context, namespace, name string) (*whyAnswer, error) {
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	if namespace == "" {
		if namespace, _, err = wiring.KubectlConfig(o.kubeconfig, o.context).Namespace(); err != nil {
			return nil, err
		}
	}
	return o.whyIn(ctx, client, namespace, name)
}

// whyIn says why a claim of the cluster is pending.
func (o *connection) whyIn(ctx context.Context, client kubernetes.Interface, namespace, name string) (*whyAnswer, error) {
	claim, err := client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("claim %s/%s: %w", namespace, name, err)
	}
	a := &whyAnswer{Namespace: namespace, Name: name, Phase: string(claim.Status.Phase), Because: []string{}, Events: []claimEvent{}}
	switch {
	case isGrowing(claim):
		explainGrowth(ctx, client, claim, a)
		return a, nil
	case claim.Status.Phase == corev1.ClaimBound:
		a.because("it is not pending: it is bound to PersistentVolume %s", claim.Spec.VolumeName)
		// The policy may not grant it the volume.
		addEvents(ctx, client, claim, a)
		return a, nil
	case claim.DeletionTimestamp != nil:
		a.because("it is being deleted")
		return a, nil
	case claim.Spec.VolumeName != "":
		a.because("it names PersistentVolume %s (spec.volumeName), so nothing is provisioned for it: it waits until that can be bound", claim.Spec.VolumeName)
	}
	if populator := admission.PopulatorOf(claim); populator != "" && !a.Explained {
		// What the populator does is in its events.
		a.because("it waits for a volume populator of %s, which has its volume made for a claim of its own", populator)
		addEvents(ctx, client, claim, a)
		return a, nil
	}
	o.askProgram(ctx, a)
	if a.Pending == nil && !a.Explained {
		o.askClass(ctx, client, claim, a)
	}
	addEvents(ctx, client, claim, a)
	return a, nil
}

func (a *whyAnswer) because(format string, args ...any) {
	a.Explained = true
	a.Because = append(a.Because, fmt.Sprintf(format, args...))
}

// note adds text that does not explain the claim by itself.
func (a *whyAnswer) note(format string, args ...any) {
	a.Because = append(a.Because, fmt.Sprintf(format, args...))
}

// askProgram adds what the program reports. If it cannot be asked, or the replica does
// not lead, it adds a note.
func (o *connection) askProgram(ctx context.Context, a *whyAnswer) {
	report, err := o.report(ctx, selection{a.Namespace, a.Name})
	if err != nil {
		a.note("could not ask the program: %s", err)
		return
	}
	if report.LeaderOnly != "" {
		a.note("%s", report.LeaderOnly)
	}
	if report.Claims == nil {
		return
	}
	for i := range report.Claims.Pending {
		pending := &report.Claims.Pending[i]
		a.Pending = pending
		switch pending.State {
		case "waiting":
			a.because("it has been waiting for a free worker since %s: no tenant and no backend may use more workers than are free", pending.Since.Format(time.RFC3339))
		case "failing":
			a.because("the last attempt failed (the first one at %s), and the program tries again: %s", pending.Since.Format(time.RFC3339), pending.Why())
		default:
			a.because("it has been %s since %s: %s", pending.State, pending.Since.Format(time.RFC3339), pending.Why())
		}
	}
	for _, step := range report.Claims.InFlight {
		if step.Count > 0 && a.Pending == nil {
			a.because("the program is working on it (step: %s), and has been for %s", step.Step, time.Duration(step.OldestSeconds*float64(time.Second)).Round(time.Second))
		}
	}
}

// askClass looks for reasons why no provisioner works on the claim yet.
func (o *connection) askClass(ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim, a *whyAnswer) {
	if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName == "" {
		a.because("it names no StorageClass, so no provisioner serves it: it waits for a PersistentVolume made by hand, or for a default StorageClass")
		return
	}
	class, err := client.StorageV1().StorageClasses().Get(ctx, *claim.Spec.StorageClassName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		a.because("StorageClass %s does not exist", *claim.Spec.StorageClassName)
	case err != nil:
		a.note("StorageClass %s cannot be read: %s", *claim.Spec.StorageClassName, err)
	case class.Provisioner != o.provisionerName && class.Provisioner != policy.CSIDriver:
		a.because("StorageClass %s belongs to another provisioner, %s", class.Name, class.Provisioner)
	case class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && admission.SelectedNode(claim) == "":
		a.because("StorageClass %s has volumeBindingMode: WaitForFirstConsumer, and no pod that uses the claim is scheduled yet", class.Name)
	}
}

// addEvents adds the last warnings. They explain a claim only if nothing else does.
func addEvents(ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim, a *whyAnswer) {
	selector := fields.Set{"involvedObject.kind": "PersistentVolumeClaim", "involvedObject.name": claim.Name, "involvedObject.uid": string(claim.UID)}
	list, err := client.CoreV1().Events(claim.Namespace).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		a.note("the claim's events cannot be read: %s", err)
		return
	}
	for _, event := range list.Items {
		if event.Type == corev1.EventTypeWarning {
			at := cmp.Or(event.LastTimestamp.Time, event.EventTime.Time, event.CreationTimestamp.Time)
			a.Events = append(a.Events, claimEvent{at.UTC(), event.Reason, event.Message})
		}
	}
	slices.SortFunc(a.Events, func(x, y claimEvent) int { return y.Time.Compare(x.Time) })
	a.Events = a.Events[:min(len(a.Events), maxEvents)]
	if !a.Explained && len(a.Events) > 0 {
		a.because("its last warning says: %s: %s", a.Events[0].Reason, a.Events[0].Message)
	}
}

func (a *whyAnswer) write(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "claim %s/%s: %s\n", a.Namespace, a.Name, cmp.Or(a.Phase, "Pending"))
	for _, sentence := range a.Because {
		fmt.Fprintf(&text, "  %s\n", statusreport.OneLine(sentence))
	}
	if len(a.Events) > 0 {
		fmt.Fprintln(&text, "warnings, newest first:")
	}
	for _, event := range a.Events {
		fmt.Fprintf(&text, "  %s  %s: %s\n", event.Time.Format(time.RFC3339), statusreport.OneLine(event.Reason), statusreport.OneLine(event.Message))
	}
	_, err := io.WriteString(w, text.String())
	return err
}
