package budgets

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// mapping returns a function that maps Cinder's answer about an iSCSI volume to
// a source.
func mapping(tb testing.TB) func() {
	tb.Helper()
	registry, err := mappers.New(mappers.Options{SecretNamespace: "standalone-cinder", Protocols: mappers.BuiltIn()})
	if err != nil {
		tb.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join("..", "..", "mappers", "testdata", "iscsi", "lvm-decorated-by-manager.json"))
	if err != nil {
		tb.Fatal(err)
	}
	var answer struct{ Document json.RawMessage }
	if err := json.Unmarshal(content, &answer); err != nil {
		tb.Fatal(err)
	}
	request := mappers.Request{
		PVName: "pvc-5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d0001", SecretName: "pvc-5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d0001-credentials", Backend: "gold",
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Connector:   mappers.Connector{Host: "node", Initiator: "iqn.2026-01.org.example:kubernetes"},
		Volume:      mappers.Volume{ID: "7c1f8b52-3d6e-4a0b-9a51-2f0c6f4be001", SizeGiB: 10},
		Claim:       mappers.Claim{Namespace: "team-a", Name: "data", UID: "5f0c1f0e-8a51-4e0f-9f5a-3f1f3c1d0001"},
		Tenant:      "team-a",
	}
	return func() {
		connection, err := mappers.ParseConnection(answer.Document)
		if err != nil {
			tb.Fatal(err)
		}
		request.Connection = connection
		result, err := registry.Map(request)
		if err != nil || result.Source.ISCSI == nil {
			tb.Fatalf("%+v, %v", result, err)
		}
	}
}

func TestMappingStaysWithinItsBudget(t *testing.T) {
	within(t, "mapping a connection", 330, mapping(t))
}

func BenchmarkMap(b *testing.B) {
	run := mapping(b)
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
}
