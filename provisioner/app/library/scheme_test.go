package library

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestCoreTypesAreRegisteredOnceWithTheGlobalScheme(t *testing.T) {
	KeepSchemeStill()
	if !scheme.Scheme.Recognizes(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")) {
		t.Fatal("client-go's scheme no longer knows claims by itself; skipping the registration would break the clients")
	}
	// A scheme that ignores changes is not enough: nothing may write to this one at
	// all.
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			scheme.Scheme.Recognizes(corev1.SchemeGroupVersion.WithKind("Pod"))
		}
	}()
	for range 100 {
		if err := corev1.AddToScheme(scheme.Scheme); err != nil {
			t.Fatal(err)
		}
	}
	<-done

	other := runtime.NewScheme()
	if err := corev1.AddToScheme(other); err != nil || !other.Recognizes(corev1.SchemeGroupVersion.WithKind("Pod")) {
		t.Errorf("another scheme is no longer registered with: %v", err)
	}
}
