package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// TestLostNodeScenarios runs the steps in testdata, about nodes n1 and n2 and volumes gold/1,
// gold/2 and silver/3. A step prints what Cinder is asked, how a call is answered, and what
// the leader changes in the nodes' reports. "begin" takes several steps in a new world, and
// "then" more of them, and says what follows. The flag -rewrite replaces what they print.
func TestLostNodeScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			var s *scenario
			var began string
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "begin":
					s, began = newScenario(t), d.Input
					return s.steps(t, began)
				case "then":
					return follows(t, began, d.Input)
				}
				return s.step(t, d.FullCmd())
			})
		})
	})
}

// follows says what the leader does next, and which node gets what; also what the next
// leader does, if that is something else.
func follows(t *testing.T, began, happened string) (answers string) {
	for _, then := range []struct{ question, prepare, steps string }{
		{"two rounds", "", "tidy\ntidy"},
		{"silver/3 to n1", "want silver/3 n1", "publish silver/3 n1"},
		{"gold/1 to n2, and a round", "want gold/1 n2", "publish gold/1 n2\ntidy"},
	} {
		for _, leader := range [][]string{{"", began, happened}, {", if the next leader saw it happen", began, "next-leader\ntidy", happened}, {", if the next leader did not see it", began, happened, "next-leader"}} {
			s := newScenario(t)
			s.steps(t, strings.Join(append(leader[1:], then.prepare), "\n"))
			var did []string
			for line := range strings.Lines(s.steps(t, then.steps)) {
				gist, _, _ := strings.Cut(strings.TrimSpace(line), ",")
				did = append(did, gist)
			}
			answer := ": " + cmp.Or(strings.Join(did, "; "), "nothing") + "\n"
			if !strings.HasSuffix(answers, answer) {
				answers += then.question + leader[0] + answer
			}
		}
	}
	return answers
}

// scenario is a world whose Cinder keeps what it is asked for.
type scenario struct {
	*world
	cinder  *keeping
	refused string              // by the API server
	ended   map[string][]string // attachments, by the reports of the nodes
}

func newScenario(t *testing.T) *scenario {
	t.Helper()
	s := &scenario{world: newWorld(t, otherPV(1, "gold"), otherPV(2, "gold"), otherPV(3, "silver")), ended: map[string][]string{}}
	s.cinder = &keeping{volumes: s.volumes, kept: map[string]cinder.Volume{}}
	for _, id := range []string{"1", "2", "3"} {
		metadata := stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: "other-" + id, Tenant: "team-a"}.Metadata(nil)
		metadata[stamps.KeyMode] = stamps.ModeCSI
		s.cinder.kept[id] = cinder.Volume{ID: id, SizeGiB: 2, Metadata: metadata}
	}
	s.Volumes = func(string) (Volumes, error) { return s.cinder, nil }
	s.client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.GetVerb()+"-"+a.GetResource().Resource == s.refused, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "x", errors.New("no right"))
	})
	return s
}

func (s *scenario) steps(t *testing.T, lines string) (said string) {
	for line := range strings.Lines(lines) {
		if strings.TrimSpace(line) != "" {
			said += s.step(t, line)
		}
	}
	return said
}

// step does what a line says.
func (s *scenario) step(t *testing.T, line string) (said string) {
	command, arguments, err := datadriven.ParseLine(line)
	must(t, err)
	var volume wire.Handle
	var names []string
	of := datadriven.TestData{CmdArgs: arguments}
	for _, argument := range arguments {
		if handle, err := wire.ParseHandle(argument.Key); err == nil {
			volume = handle
		} else if len(argument.Vals) == 0 {
			names = append(names, argument.Key)
		}
	}
	name := append(names, "")[0]
	s.cinder.asked = ""
	switch command {
	case "node":
		var boot string
		of.MaybeScanArgs(t, "boot", &boot)
		node := machine(name, boot)
		for flag, change := range map[string]func(*corev1.Node){"ready": ready, "silent": silent, "marked": marked, "taken": takenByUs, "tainted": outOfService, "another-machine": otherMachine, "anew": anew} {
			if of.HasArg(flag) {
				change(node)
			}
		}
		if _, err := s.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			s.becomes(t, node)
		} else {
			must(t, err)
			must(t, s.machines.Add(node))
		}
	case "delete-node":
		s.vanishes(t, name)
	case "hide-node":
		must(t, s.machines.Delete(machine(name, "")))
	case "read", "unread":
		*map[string]*func() bool{"nodes": &s.Nodes.Known, "reports": &s.Reports.Known, "attachments": &s.Attachments.Known}[name] = func() bool { return command == "read" }
	case "report":
		var boot string
		var has []string
		of.MaybeScanArgs(t, "boot", &boot)
		of.MaybeScanArgs(t, "staged", &has)
		var handles []wire.Handle
		for _, text := range has {
			handle, err := wire.ParseHandle(text)
			must(t, err)
			handles = append(handles, handle)
		}
		s.reportsStaged(t, name, boot, handles...)
	case "want":
		s.wants(t, "other-"+volume.ID, volume, name, !of.HasArg("waiting"))
	case "hide-attachment":
		must(t, s.attachments.Delete(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName(volume, name)}}))
	case "publish":
		var connection wire.Connection
		connection, err = s.Publish(t.Context(), controller.PublishRequest{Volume: volume, Node: map[string]wire.Node{"n1": n1, "n2": n2}[name]})
		said = "attached by " + connection.Attachment + "\n"
	case "unpublish":
		err = s.Unpublish(t.Context(), volume, idOf(t, map[string]wire.Node{"n1": n1, "n2": n2}[name]))
		said = "answered\n"
	case "bar":
		FenceOf(s.Engine).Bar(name)
	case "unbar":
		FenceOf(s.Engine).Unbar(name)
	case "take":
		var boot string
		of.MaybeScanArgs(t, "boot", &boot)
		var taken bool
		taken, err = FenceOf(s.Engine).Take(t.Context(), volume, name, boot)
		said = fmt.Sprintf("taken: %t\n", taken)
	case "tidy":
		s.rounds.tidy(t.Context())
	case "next-leader":
		s.Engine = New(s.Options)
	case "wait":
		pause, err := time.ParseDuration(name)
		must(t, err)
		time.Sleep(pause)
	case "fenced-by-initiator":
		s.rules.FencedByInitiator = true
	case "cinder":
		s.cinder.silent = name == "silent"
	case "refuse":
		s.refused = name
	case "forget":
		delete(s.cinder.kept[volume.ID].Metadata, stamps.NodeRecordPrefix+wire.NodeKey(name))
	case "record":
		s.cinder.kept[volume.ID].Metadata[stamps.NodeRecordPrefix+wire.NodeKey(name)] = stamps.NodeRecord{AttachmentID: "earlier", Node: append(names, name)[1]}.String()
	default:
		t.Fatalf("unknown step %q", line)
	}
	if failed := (*controller.Failure)(nil); errors.As(err, &failed) {
		said = failed.Kind + ": " + failed.Message + "\n"
	} else if err != nil {
		said = err.Error() + "\n"
	}
	return s.cinder.asked + s.reported(t) + said
}

// reported says what the leader has changed in the reports of the nodes.
func (s *scenario) reported(t *testing.T) (said string) {
	for _, name := range []string{"n1", "n2"} {
		lease, err := s.client.Tracker().Get(coordinationv1.SchemeGroupVersion.WithResource("leases"), own, staged.LeaseName(name))
		if err != nil {
			if _, reported := s.ended[name]; reported {
				said += "the report of " + name + " is removed\n"
			}
			delete(s.ended, name)
			continue
		}
		report := staged.Of(lease.(*coordinationv1.Lease))
		for _, attachment := range report.Ended {
			if !slices.Contains(s.ended[name], attachment) {
				said += name + " may not stage with " + attachment + "\n"
			}
		}
		s.ended[name] = report.Ended
	}
	return said
}

// keeping fakes a Cinder that keeps its volumes' records of nodes.
type keeping struct {
	*volumes
	kept   map[string]cinder.Volume
	silent bool
	asked  string
	made   int
}

func (k *keeping) Publish(ctx context.Context, target backends.Target, to backends.PublishRequest) (backends.Published, error) {
	k.asked += "cinder: publish " + target.VolumeID + " to " + to.Node + "\n"
	v := k.kept[target.VolumeID]
	published := backends.Published{Volume: v, Document: []byte(plain + "}")}
	records := stamps.NodeRecordsOf(v)
	if k.silent {
		return published, k.silence()
	}
	if record, has := records[to.Key]; has {
		published.AttachmentID = record.AttachmentID
		return published, to.HandOut(ctx, published)
	}
	for key, record := range records {
		released, err := to.Release(ctx, record.Node, key)
		if err != nil {
			return published, err
		}
		if !released {
			return published, &cinder.Error{Backend: "gold", Kind: backends.KindOnOtherNode, Message: "attached to node " + record.Node}
		}
		k.asked += "cinder: take " + target.VolumeID + " from " + record.Node + "\n"
		delete(v.Metadata, stamps.NodeRecordPrefix+key)
	}
	if err := to.Admit(ctx); err != nil {
		return published, err
	}
	k.made++
	published.AttachmentID = fmt.Sprintf("attachment-%d", k.made)
	v.Metadata[stamps.NodeRecordPrefix+to.Key] = stamps.NodeRecord{AttachmentID: published.AttachmentID, Node: to.Node}.String()
	return published, to.HandOut(ctx, published)
}

func (k *keeping) Unpublish(_ context.Context, target backends.Target, from backends.UnpublishRequest) error {
	k.asked += "cinder: unpublish " + target.VolumeID + " from " + from.Node + map[bool]string{true: ", which has had it"}[from.Attached] + "\n"
	if k.silent {
		return k.silence()
	}
	delete(k.kept[target.VolumeID].Metadata, stamps.NodeRecordPrefix+from.Key)
	return nil
}

func (k *keeping) silence() error {
	return &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "no answer"}
}

func (k *keeping) Find(_ context.Context, id string) (cinder.Volume, bool, error) {
	v, found := k.kept[id]
	return v, found, nil
}

func (k *keeping) Volumes(context.Context) ([]cinder.Volume, error) {
	return slices.Collect(maps.Values(k.kept)), nil
}

func (k *keeping) Relist(ctx context.Context) ([]cinder.Volume, error) { return k.Volumes(ctx) }
