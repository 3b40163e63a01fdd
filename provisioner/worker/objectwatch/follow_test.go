package objectwatch

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata/fake"
)

func TestChangesAreNoticed(t *testing.T) {
	scheme := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	secret := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "followed"},
	}
	client := fake.NewSimpleMetadataClient(scheme, secret)
	secrets := corev1.SchemeGroupVersion.WithResource("secrets")
	ctx, end := context.WithCancel(t.Context())
	f := Start(ctx, client, Object{secrets, "own", "followed"})
	noticed := func(what string, exists bool) {
		t.Helper()
		select {
		case <-f.Changed:
		case <-time.After(30 * time.Second):
			t.Fatalf("that it %s was not noticed", what)
		}
		if f.Exists() != exists {
			t.Errorf("after it %s: it exists: %t, want %t", what, f.Exists(), exists)
		}
	}
	noticed("exists", true)
	// The fake client has no history: a change before its watch begins is lost.
	for len(client.Actions()) < 2 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond)
	changed := secret.DeepCopy()
	changed.Labels = map[string]string{"by": "somebody"}
	if err := client.Tracker().Update(secrets, changed, "own"); err != nil {
		t.Fatal(err)
	}
	noticed("changed", true)
	if err := client.Tracker().Delete(secrets, "own", "followed"); err != nil {
		t.Fatal(err)
	}
	noticed("was removed", false)
	end()
	<-f.Stopped
}
