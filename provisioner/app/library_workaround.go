package app

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// keepSchemeStill makes it safe to build the library's controller while clients
// work, which every term does. Its constructor registers the core types with
// client-go's global scheme, where they are already, and so writes to maps that
// every request reads: the race detector says so, and an unlucky process would
// end with "concurrent map read and map write". Registering there again becomes
// a no-op; for every other scheme nothing changes.
var keepSchemeStill = sync.OnceFunc(func() {
	register := corev1.AddToScheme
	corev1.AddToScheme = func(s *runtime.Scheme) error {
		if s == scheme.Scheme {
			return nil
		}
		return register(s)
	}
})
