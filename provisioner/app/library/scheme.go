package library

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// KeepSchemeStill makes it safe to build the library's controller, as every term does,
// while clients work. The controller's constructor registers the core types with
// client-go's global scheme, which already has them, and so writes to maps that every
// request reads: the race detector reports it, and an unlucky process would crash with
// "concurrent map read and map write". KeepSchemeStill turns this registration into a
// no-op for the global scheme only.
var KeepSchemeStill = sync.OnceFunc(func() {
	register := corev1.AddToScheme
	corev1.AddToScheme = func(s *runtime.Scheme) error {
		if s == scheme.Scheme {
			return nil
		}
		return register(s)
	}
})
