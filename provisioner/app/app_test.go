package app

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func defaults(t *testing.T, arguments ...string) Options {
	t.Helper()
	o := Options{}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse(append([]string{"--policy=p.yaml"}, arguments...)); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestDefaultsAreValidAndHandOverInTime(t *testing.T) {
	o := defaults(t)
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	// The elector polls every retry period plus up to 1.2 of it.
	if worst := time.Duration(2.2 * float64(o.RetryPeriod)); worst > 2500*time.Millisecond {
		t.Errorf("a released lease is taken only after %s", worst)
	}
	if o.DrainTimeout >= 30*time.Second {
		t.Errorf("draining for %s exceeds the manifests' termination grace period", o.DrainTimeout)
	}
}

func TestOptionsThatContradictThemselvesAreRefused(t *testing.T) {
	for _, c := range []struct{ argument, want string }{
		{"--policy=", "--policy is required"},
		{"--workers=0", "--workers is 0, at least 1 is needed"},
		{"--renew-deadline=1s", "--renew-deadline (1s) must be more than 1.2 times --retry-period (1s)"},
		{"--lease-duration=10s", "--lease-duration (10s) must be longer than --renew-deadline (10s), or two replicas could lead at once"},
		{"--retry-period=0s", "--retry-period must be positive"},
		{"--csi-endpoint=/csi/csi.sock", `--csi-endpoint: endpoint "/csi/csi.sock" is not of the form unix:///directory/name.sock`},
		{"--cinder-read-lag=-1s", "--cinder-read-lag is -1s; give at most 1m0s, because a new leader leaves Cinder alone for so long, or 0 for none"},
		{"--cinder-read-lag=1h", "--cinder-read-lag is 1h0m0s; give at most 1m0s, because a new leader leaves Cinder alone for so long, or 0 for none"},
		{"--kube-api-qps=0", "--kube-api-qps and --kube-api-burst must be positive"},
	} {
		o := defaults(t, c.argument)
		if err := o.Validate(); err == nil || err.Error() != c.want {
			t.Errorf("%s: error %v, want %s", c.argument, err, c.want)
		}
	}
}
