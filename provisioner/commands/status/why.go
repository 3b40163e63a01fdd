package status

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// maxEvents is how many events why shows.
const maxEvents = 5

// maxListed bounds how many related objects why names.
const maxListed = 5

// whyAnswer is the output of why.
type whyAnswer struct {
	// Kind is what people call the object: claim, PersistentVolume, pod, snapshot, group of
	// snapshots, attachment or node.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Phase     string `json:"phase"`
	// Explained is false if nothing says what the object waits for.
	Explained bool `json:"explained"`
	// Because says what the object waits for, in full sentences.
	Because []string `json:"because"`
	// Pending is what the program reports about the claim or the deletion.
	Pending *statusreport.Pending `json:"pending,omitempty"`
	// Events are the last warnings about the object, newest first.
	Events []whyEvent `json:"events"`
}

type whyEvent struct {
	Time    time.Time `json:"time,omitzero"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

// inquiry looks for what one object waits for.
type inquiry struct {
	*connection
	client    kubernetes.Interface
	snapshots snapshotclient.Interface
	// asked is what the program reports; nil until it is asked.
	asked *statusreport.Report
	// attached are all VolumeAttachments of the cluster; nil until they are needed.
	attached *storagev1.VolumeAttachmentList
	whyAnswer
}

// subject is a kind of object that why can be asked about.
type subject struct {
	kind       string
	namespaced bool
	explain    func(q *inquiry, ctx context.Context) error
}

// subjectOf returns the subject of a kind, in any form that kubectl takes.
func subjectOf(kind string) (subject, bool) {
	switch strings.ToLower(kind) {
	case "pvc", "pvcs", "persistentvolumeclaim", "persistentvolumeclaims":
		return subject{"claim", true, (*inquiry).explainClaim}, true
	case "pv", "pvs", "persistentvolume", "persistentvolumes":
		return subject{"PersistentVolume", false, (*inquiry).explainVolume}, true
	case "po", "pod", "pods":
		return subject{"pod", true, (*inquiry).explainPod}, true
	case "vs", "volumesnapshot", "volumesnapshots":
		return subject{"snapshot", true, (*inquiry).explainSnapshot}, true
	case "vgs", "volumegroupsnapshot", "volumegroupsnapshots":
		return subject{"group of snapshots", true, (*inquiry).explainGroup}, true
	case "volumeattachment", "volumeattachments":
		return subject{"attachment", false, (*inquiry).explainAttachment}, true
	case "no", "node", "nodes":
		return subject{"node", false, (*inquiry).explainNode}, true
	}
	return subject{}, false
}

// parseSubject reads NAME, KIND/NAME, or KIND NAME.
func parseSubject(args []string) (asked subject, name string, err error) {
	written := strings.Join(args, "/")
	kind, name, found := strings.Cut(written, "/")
	if !found {
		kind, name = "pvc", written
	}
	asked, known := subjectOf(kind)
	if !known || name == "" || strings.Contains(name, "/") {
		hint := ""
		if parts := strings.Split(written, "/"); len(parts) > 1 && !slices.Contains(parts, "") {
			last := len(parts) - 1
			hint = fmt.Sprintf("%s -n %s if %[2]s is a namespace, else ", strings.Join(append(parts[:last-1:last-1], parts[last]), "/"), parts[last-1])
		}
		return asked, "", usageError("%q names no object that can be asked about; write %sthe NAME of a claim, or pvc, pod, pv, volumesnapshot, volumegroupsnapshot, volumeattachment or node, a slash, and the NAME", written, hint)
	}
	return asked, name, nil
}

func newWhyCommand() *cobra.Command {
	options := connection{}
	output := output{}
	c := newCommand(&cobra.Command{
		Use:   "why [KIND/]NAME",
		Short: "Say what a claim, pod, PersistentVolume, snapshot, group of snapshots, attachment or node waits for",
		Long: `Say what an object waits for, since when, and who can help. KIND is pvc (the
default), pod, pv, volumesnapshot, volumegroupsnapshot, volumeattachment or node.

For a PersistentVolumeClaim, the command shows what the program says about it, what
the claim itself shows, and its last warnings; for a bound one, how far its growth is
and which pods use it. For a pod, it follows each claim to the pod's node. For a
PersistentVolume, it says who uses it, or what delays its deletion.

Besides the rights of status, the command needs the rights to get the object and those
that belong to it, and to list the events of its namespace. It says what it may not
read, and relies on the rest.

Exit codes: 0 the object waits for nothing, or the reason is given; 1 nothing says
what it waits for; 2 wrong usage, or the object cannot be read.`,
		Example: "  kubectl cinder why data -n team-a\n  kubectl cinder why pod/web-0 -n team-a\n  kubectl cinder why node/worker-1",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return usageError("%s needs the name of one object, such as data or pod/web-0 (see %s --help)", c.CommandPath(), c.CommandPath())
			}
			_, _, err := parseSubject(args)
			return err
		},
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		asked, name, err := parseSubject(args)
		if err != nil {
			return err
		}
		return output.print(c, func() (reply, error) {
			found, err := options.why(c.Context(), asked, name)
			if err != nil {
				return reply{}, usageError("%w", err)
			}
			answer := reply{value: found, text: found.write}
			if !found.Explained {
				answer.verdict = failed("nothing says what %s waits for", found.title())
			}
			return answer, nil
		})
	}
	c.Flags().StringVarP(&options.overrides.Context.Namespace, "namespace", "n", "", "`namespace` of the object; default is that of the kubeconfig's context")
	options.addFlags(c, "provisioner-namespace", "")
	output.addFlags(c, outputText)
	return c
}

func (o *connection) why(ctx context.Context, asked subject, name string) (*whyAnswer, error) {
	config, err := o.config()
	if err != nil {
		return nil, err
	}
	q := &inquiry{connection: o}
	if q.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	if q.snapshots, err = snapshotclient.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	namespace, _, err := wiring.KubectlConfig(o.kubeconfig, &o.overrides).Namespace()
	if err != nil {
		return nil, err
	}
	return q.about(ctx, asked, namespace, name)
}

// about answers the inquiry.
func (q *inquiry) about(ctx context.Context, asked subject, namespace, name string) (*whyAnswer, error) {
	q.whyAnswer = whyAnswer{Kind: asked.kind, Name: name, Because: []string{}, Events: []whyEvent{}}
	if asked.namespaced {
		q.Namespace = namespace
	}
	if err := asked.explain(q, ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", q.title(), err)
	}
	return &q.whyAnswer, nil
}

func (a *whyAnswer) title() string {
	if a.Namespace == "" {
		return a.Kind + " " + a.Name
	}
	return a.Kind + " " + a.Namespace + "/" + a.Name
}

func (a *whyAnswer) because(format string, args ...any) {
	a.Explained = true
	a.note(format, args...)
}

// note adds text that does not explain the object by itself.
func (a *whyAnswer) note(format string, args ...any) {
	a.Because = append(a.Because, fmt.Sprintf(format, args...))
}

// explainDeletionOf says since when an object is being deleted, and what keeps it.
func (a *whyAnswer) explainDeletionOf(object metav1.Object) {
	deletion := object.GetDeletionTimestamp()
	if deletion == nil {
		return
	}
	// The time is the end of the grace period.
	since := deletion.Time
	if grace := object.GetDeletionGracePeriodSeconds(); grace != nil {
		since = since.Add(-time.Duration(*grace) * time.Second)
	}
	keeps := ""
	if finalizers := object.GetFinalizers(); len(finalizers) > 0 {
		keeps = "; what keeps it are its finalizers: " + strings.Join(finalizers, ", ")
	}
	a.because("it is being deleted since %s%s", at(since), keeps)
}

// addEvents adds the last warnings about an object. They explain it only if nothing else
// does.
func (q *inquiry) addEvents(ctx context.Context, kind, namespace, name string, uid types.UID) {
	q.readEvents(ctx, kind, namespace, name, uid)
	q.explainByEvents()
}

// readEvents adds the last warnings about an object, and returns the newest one that the
// program wrote; nil if there is none.
func (q *inquiry) readEvents(ctx context.Context, kind, namespace, name string, uid types.UID) (own *whyEvent) {
	selector := fields.Set{"involvedObject.kind": kind, "involvedObject.name": name}
	if uid != "" {
		selector["involvedObject.uid"] = string(uid)
	}
	list, err := q.client.CoreV1().Events(cmp.Or(namespace, metav1.NamespaceDefault)).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		q.note("the events about it cannot be read: %s", err)
		return nil
	}
	for _, event := range list.Items {
		if event.Type == corev1.EventTypeWarning {
			last := cmp.Or(event.LastTimestamp.Time, event.EventTime.Time, event.CreationTimestamp.Time)
			if event.Series != nil && event.Series.LastObservedTime.After(last) {
				last = event.Series.LastObservedTime.Time
			}
			one := whyEvent{last.UTC(), event.Reason, event.Message}
			q.Events = append(q.Events, one)
			if event.Source.Component == wiring.EventSource && (own == nil || own.Time.Before(one.Time)) {
				own = &one
			}
		}
	}
	slices.SortFunc(q.Events, func(x, y whyEvent) int { return y.Time.Compare(x.Time) })
	q.Events = q.Events[:min(len(q.Events), maxEvents)]
	return own
}

// explainByEvents lets the last warning explain the object if nothing else does.
func (a *whyAnswer) explainByEvents() {
	if !a.Explained && len(a.Events) > 0 {
		a.because("its last warning says: %s: %s", a.Events[0].Reason, a.Events[0].Message)
	}
}

func (a *whyAnswer) write(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s\n", statusreport.OneLine(a.title()), statusreport.OneLine(cmp.Or(a.Phase, "Pending")))
	for _, sentence := range a.Because {
		fmt.Fprintf(&text, "  %s\n", statusreport.OneLine(sentence))
	}
	if len(a.Events) > 0 {
		fmt.Fprintln(&text, "warnings, newest first:")
	}
	for _, event := range a.Events {
		fmt.Fprintf(&text, "  %s  %s: %s\n", at(event.Time), statusreport.OneLine(event.Reason), statusreport.OneLine(event.Message))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }
