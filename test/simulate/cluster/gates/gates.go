// Package gates lets the external-attacher and Kubernetes' controllers be one program:
// both register the same feature gate, and Kubernetes panics if it is there already. Go
// initializes packages in the order of their paths, so this one comes after the
// external-attacher's and before all of Kubernetes' that register gates.
package gates

import (
	"github.com/kubernetes-csi/external-attacher/v4/pkg/features"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

func init() { //nolint:gochecknoinits // its place among those of others is what the package is for
	fresh := featuregate.NewFeatureGate()
	utilruntime.Must(fresh.Add(map[featuregate.Feature]featuregate.FeatureSpec{features.ReleaseLeaderElectionOnExit: {PreRelease: featuregate.Alpha}}))
	feature.DefaultMutableFeatureGate, feature.DefaultFeatureGate = fresh, fresh
}
