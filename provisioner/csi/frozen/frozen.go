// Package frozen is how the leader has the filesystems of volumes frozen on a node: the
// order and the node plugin's answer, both in a Lease of that node, and the plugin's side,
// which follows the Lease.
//
// All of an order holds by the node's own clock, from when the plugin sees it. What a node
// answers concerns nothing but its own filesystems.
package frozen

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// leasePrefix begins the names of the Leases. The admission policy of the manifests allows a
// node plugin no other than that of its own node.
const leasePrefix = "frozen-volumes."

// LeaseName returns the name of the Lease of a node.
func LeaseName(node string) string { return leasePrefix + node }

// The annotations of a Lease.
const (
	// AnnotationOrder is an Order, written by the leader, as JSON.
	AnnotationOrder = "standalone-cinder.openstack.org/freeze-order"
	// AnnotationAnswer is an Answer, written by the node plugin, as JSON.
	AnnotationAnswer = "standalone-cinder.openstack.org/freeze-answer"
)

const (
	// Longest bounds how long a node plugin keeps filesystems frozen, whatever it is told.
	Longest = 20 * time.Second
	// MaxVolumes bounds the volumes of an order.
	MaxVolumes = 128
	// maxText bounds what is read of the texts of an answer, in bytes.
	maxText = 300
)

// Order is what the leader wants.
type Order struct {
	// ID is of one hold of one term.
	ID string `json:"id"`
	// Volumes are the handles of the volumes. The node need not have them.
	Volumes []string `json:"volumes,omitempty"`
	// AtMost is how long they may stay frozen.
	AtMost time.Duration `json:"atMostNanoseconds,omitempty"`
	// Thaw ends it.
	Thaw bool `json:"thaw,omitempty"`
}

// State is what a node plugin has done.
type State string

const (
	// Frozen means that all filesystems of the volumes that the node has are frozen, and
	// that it gets none of the others.
	Frozen State = "frozen"
	// Thawed means that the leader asked for it, and that they were frozen until then.
	Thawed State = "thawed"
	// Refused means that nothing was frozen.
	Refused State = "refused"
	// Lost means that they were thawed before the leader asked for it.
	Lost State = "lost"
)

// Answer is what a node plugin says.
type Answer struct {
	// ID is that of the order.
	ID    string `json:"id"`
	State State  `json:"state"`
	// Reason, Volume and Message say why an order was refused, or a freeze lost.
	Reason  Reason `json:"reason,omitempty"`
	Volume  string `json:"volume,omitempty"`
	Message string `json:"message,omitempty"`
	// Pause is how long the filesystems were frozen.
	Pause time.Duration `json:"pauseNanoseconds,omitempty"`
}

// Reason is why a volume cannot be frozen.
type Reason string

const (
	// Raw means that pods may write to the volume without a filesystem.
	Raw Reason = "raw"
	// Foreign means that somebody else has frozen its filesystem.
	Foreign Reason = "foreign"
	// Busy means that it may be frozen later: it is just being staged, for example.
	Busy Reason = "busy"
	// Failed is any other reason.
	Failed Reason = "failed"
)

// Refusal is why filesystems are not frozen.
type Refusal struct {
	Reason Reason
	// Volume is a handle; empty if it concerns all.
	Volume string
	Text   string
}

// Error returns the volume and the text.
func (r *Refusal) Error() string {
	if r.Volume == "" {
		return r.Text
	}
	return fmt.Sprintf("volume %s: %s", r.Volume, r.Text)
}

// Refuse returns a Refusal.
func Refuse(reason Reason, volume, format string, values ...any) error {
	return &Refusal{reason, volume, fmt.Sprintf(format, values...)}
}

// OrderOf reads a Lease's order; it has no ID if there is none that can be read.
func OrderOf(lease *coordinationv1.Lease) Order {
	var o Order
	if json.Unmarshal([]byte(lease.Annotations[AnnotationOrder]), &o) != nil || len(o.Volumes) > MaxVolumes || len(o.ID) > maxText {
		return Order{}
	}
	o.AtMost = min(o.AtMost, Longest)
	o.Volumes = slices.DeleteFunc(o.Volumes, func(handle string) bool {
		_, err := wire.ParseHandle(handle)
		return err != nil
	})
	return o
}

// AnswerOf reads a node plugin's answer. It reads little of it, since a node may have
// written anything.
func AnswerOf(lease *coordinationv1.Lease) Answer {
	var a Answer
	if json.Unmarshal([]byte(lease.Annotations[AnnotationAnswer]), &a) != nil {
		return Answer{}
	}
	if !slices.Contains([]Reason{Raw, Foreign, Busy}, a.Reason) {
		a.Reason = Failed
	}
	if _, err := wire.ParseHandle(a.Volume); err != nil {
		a.Volume = ""
	}
	a.Pause = min(max(a.Pause, 0), 2*Longest)
	a.Message = printable(a.Message)
	return a
}

// printable returns the beginning of a text without what would not be one line.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return text
}

// Write puts an order or an answer into a copy of a Lease.
func Write[T Order | Answer](lease *coordinationv1.Lease, what T) *coordinationv1.Lease {
	key := AnnotationOrder
	if _, ok := any(what).(Answer); ok {
		key = AnnotationAnswer
	}
	content, _ := json.Marshal(what) // Its fields always have a form.
	lease = lease.DeepCopy()
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, key, string(content))
	return lease
}

// LeaseOf returns the Lease of a node, without an order. It goes with the Node object.
func LeaseOf(namespace string, node *corev1.Node) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: LeaseName(node.Name),
		Labels:          map[string]string{"app.kubernetes.io/name": "standalone-cinder-node", "app.kubernetes.io/component": "frozen-volumes"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
	}}
}
