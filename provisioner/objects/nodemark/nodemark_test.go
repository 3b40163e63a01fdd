package nodemark

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
)

func TestMarksAreReadBack(t *testing.T) {
	since := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		text string
		want Mark
	}{
		"taking":           {"taking b1 2026-11-29T10:00:00Z", Mark{Taking, "b1", since}},
		"taken":            {"taken b1 2026-11-29T10:00:00Z", Mark{Taken, "b1", since}},
		"returned":         {"returned b1 2026-11-29T10:00:00Z", Mark{Returned, "b1", since}},
		"a wrong time":     {"taken b1 yesterday", Mark{Taken, "b1", time.Time{}}},
		"by a person":      {"never", Mark{Returned, "present", time.Time{}}},
		"an unknown state": {"lost b1 2026-11-29T10:00:00Z", Mark{Returned, "present", time.Time{}}},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{Annotation: c.text, "other": "x"}}}
		node.Status.NodeInfo.BootID = "present"
		got, has := Of(node)
		if !has || got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		Set(node, got)
		if again, _ := Of(node); again.State != got.State || again.Boot != got.Boot {
			t.Errorf("%s: written and read again it is %+v", name, again)
		}
		if kept := Only(node.Annotations); len(kept) != 1 {
			t.Errorf("%s: the cache keeps %v", name, kept)
		}
		Remove(node)
		if _, has := Of(node); has || node.Annotations["other"] != "x" {
			t.Errorf("%s: the annotations are %v", name, node.Annotations)
		}
	}
}

func TestOnlyItsOwnTaintIsTheProgram(t *testing.T) {
	person := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{person, Taint(), {Key: "x"}}}}
	if !HasTaint(node) || !staged.IsOff(node) {
		t.Error("one of the taints is not seen")
	}
	RemoveTaint(node)
	if HasTaint(node) || !staged.IsOff(node) || len(node.Spec.Taints) != 2 {
		t.Errorf("the taints are %v", node.Spec.Taints)
	}
	node.Spec.Taints = []corev1.Taint{Taint()}
	if staged.IsOff(node) {
		t.Error("the program's own taint says that the machine is off")
	}
}

func TestWhichNodesAreBarred(t *testing.T) {
	for name, c := range map[string]struct {
		state   State
		ready   corev1.ConditionStatus
		tainted bool
		want    bool
	}{
		"being taken":                        {Taking, corev1.ConditionUnknown, false, true},
		"heard of again":                     {Taking, corev1.ConditionTrue, false, false},
		"taken":                              {Taken, corev1.ConditionUnknown, true, true},
		"taken, and back":                    {Taken, corev1.ConditionTrue, true, true},
		"whose taint a person removed":       {Taken, corev1.ConditionTrue, false, false},
		"that came back":                     {Returned, corev1.ConditionTrue, false, false},
		"that has a taint, but not the mark": {"", corev1.ConditionTrue, true, true},
		"that has a taint, and another mark": {Returned, corev1.ConditionTrue, true, true},
	} {
		node := &corev1.Node{}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c.ready}}
		if c.state != "" {
			Set(node, Mark{State: c.state, Boot: "b1"})
		}
		if c.tainted {
			node.Spec.Taints = []corev1.Taint{Taint()}
		}
		if got := Bars(node); got != c.want {
			t.Errorf("a node %s is barred: %t", name, got)
		}
	}
}
