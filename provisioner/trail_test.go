package provisioner

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// trailOf returns the lines that the work writes to the log, by message.
func trailOf(t *testing.T, f *fixture, work func()) map[string]map[string]any {
	t.Helper()
	var log bytes.Buffer
	f.log.Handler = slog.NewJSONHandler(&log, nil)
	work()
	lines := map[string]map[string]any{}
	for decoder := json.NewDecoder(&log); decoder.More(); {
		line := map[string]any{}
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines[line["msg"].(string)] = line
	}
	return lines
}

// TestTheAuditTrailNamesTheRequests: the ID in a line leads to Cinder's log.
func TestTheAuditTrailNamesTheRequests(t *testing.T) {
	f, followup, _ := newCountedFixture(t)
	claim := f.claim(nil)
	lines := trailOf(t, f, func() {
		pv, err := f.provision(claim)
		f.must(err)
		pv.UID = "pv-uid"
		other := pv.DeepCopy()
		other.UID, other.Spec.ClaimRef = "deleted-by-hand", &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
		other.Annotations[objects.AnnotationProvisionedBy] = f.Name
		followup.VolumeGone(other)
		f.must(f.delete(pv))
	})
	for message, requestID := range map[string]any{"Provisioned a volume": "req-create", "Deleted a volume": "req-delete", "Kept the volume of a PersistentVolume that was deleted": nil} {
		line, ok := lines[message]
		if !ok {
			t.Errorf("no line %q among %v", message, lines)
			continue
		}
		want := map[string]any{"tenant": "a", "claim": claim.Namespace + "/" + claim.Name, "claimUID": string(claim.UID), "persistentVolume": "pvc-" + string(claim.UID),
			"backend": "gold", "volume": "volume-1", "protocol": "iscsi", "sizeGiB": float64(2), "requestID": requestID}
		for key, value := range want {
			if line[key] != value {
				t.Errorf("%s: %s is %v, want %v", message, key, line[key], value)
			}
		}
		if _, ok := line["durationSeconds"].(float64); ok == (requestID == nil) {
			t.Errorf("%s: durationSeconds is %v", message, line["durationSeconds"])
		}
	}
}

// TestTheAuditTrailNeedsNoAnswerFromKubernetes: the volume is gone, whatever becomes of
// the object. If only the answer to its deletion was lost, Delete is not called again.
func TestTheAuditTrailNeedsNoAnswerFromKubernetes(t *testing.T) {
	f := newFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	pv.UID = "pv-uid"
	f.keepPersistentVolumes()
	lines := trailOf(t, f, func() { f.wantObjectKept(f.delete(pv)) })
	if line := lines["Deleted a volume"]; line["requestID"] != "req-delete" {
		t.Errorf("the line is %v", line)
	}
	lines = trailOf(t, f, func() { f.wantObjectKept(f.deleteReleased(pv)) })
	if line, again := lines["Deleted a volume"]; again {
		t.Errorf("a second line: %v", line)
	}
}
