// Package nodemark is what the program writes on a Node that it takes out of service: a
// mark in an annotation, and a taint. The mark comes first, so that whoever leads next
// goes on, and it outlasts the taint, so that a node that was only slow is not taken out
// of service again.
package nodemark

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
)

// Annotation has the mark.
const Annotation = "standalone-cinder.openstack.org/out-of-service"

// State says how far it came.
type State string

const (
	// Taking means that the attachments of the node are being ended. It has no taint yet.
	Taking State = "taking"
	// Taken means that they have ended, and that the taint was set.
	Taken State = "taken"
	// Returned means that the node came back without a reboot.
	Returned State = "returned"
)

// Mark is what the annotation says.
type Mark struct {
	State State
	// Boot is the boot of the machine that was lost.
	Boot string
	// Since is when it got the state.
	Since time.Time
}

// String returns the annotation's value.
func (m Mark) String() string {
	return strings.Join([]string{string(m.State), m.Boot, m.Since.UTC().Format(time.RFC3339)}, " ")
}

// Of returns the mark of a node; false if it has none. A mark that nobody can read counts
// as one of a node that came back: a person must have written it. The program sets its taint
// and the mark that belongs to it together, so a node with the taint is taken, whatever
// became of the mark; then nothing tells that it has rebooted since.
func Of(node *corev1.Node) (Mark, bool) {
	mark, has := written(node)
	if HasTaint(node) && (!has || mark.State != Taken) {
		return Mark{State: Taken, Boot: node.Status.NodeInfo.BootID}, true
	}
	return mark, has
}

// written returns the mark that a node's annotation says.
func written(node *corev1.Node) (Mark, bool) {
	text, has := node.Annotations[Annotation]
	if !has {
		return Mark{}, false
	}
	fields := strings.Fields(text)
	if len(fields) != 3 || !slices.Contains([]State{Taking, Taken, Returned}, State(fields[0])) {
		return Mark{State: Returned, Boot: node.Status.NodeInfo.BootID}, true
	}
	since, err := time.Parse(time.RFC3339, fields[2])
	if err != nil {
		since = time.Time{}
	}
	return Mark{State: State(fields[0]), Boot: fields[1], Since: since}, true
}

// Set writes a mark on a Node.
func Set(node *corev1.Node, m Mark) {
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[Annotation] = m.String()
}

// Remove removes the mark from a Node.
func Remove(node *corev1.Node) { delete(node.Annotations, Annotation) }

// Only keeps of a Node's annotations what this package reads.
func Only(annotations map[string]string) map[string]string {
	if text, has := annotations[Annotation]; has {
		return map[string]string{Annotation: text}
	}
	return nil
}

// Taint is the one that the program sets.
func Taint() corev1.Taint {
	return corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: staged.OwnTaint, Effect: corev1.TaintEffectNoExecute}
}

// isOurs reports whether the program set a taint.
func isOurs(taint corev1.Taint) bool {
	return taint.Key == corev1.TaintNodeOutOfService && taint.Value == staged.OwnTaint
}

// HasTaint reports whether a node has the program's taint.
func HasTaint(node *corev1.Node) bool { return slices.ContainsFunc(node.Spec.Taints, isOurs) }

// RemoveTaint removes the program's taint, and no other.
func RemoveTaint(node *corev1.Node) {
	node.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), isOurs)
}

// Bars reports whether a node gets no volumes, because its own were or are being taken.
func Bars(node *corev1.Node) bool {
	mark, has := Of(node)
	switch {
	case !has:
		return false
	case mark.State == Taken:
		return HasTaint(node)
	}
	return mark.State == Taking && !IsReady(node)
}

// IsReady reports whether a node is Ready.
func IsReady(node *corev1.Node) bool { return ready(node) == corev1.ConditionTrue }

// IsSilent reports whether nothing was heard from a node's kubelet for so long that
// Kubernetes does not know whether it is Ready. A kubelet that says that it is not Ready
// runs, and may unmount what it has.
func IsSilent(node *corev1.Node) bool { return ready(node) == corev1.ConditionUnknown }

func ready(node *corev1.Node) corev1.ConditionStatus {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status
		}
	}
	return ""
}
