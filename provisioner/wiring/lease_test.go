package wiring

import "testing"

func TestTheLeaderOfALeaseIsFound(t *testing.T) {
	for identity, want := range map[string]string{
		Identity("standalone-cinder-7d-x2", "0503a643"): "standalone-cinder-7d-x2",
		Identity("a_b", "1"):                            "a_b",
		"no-pod":                                        "",
		"_1":                                            "",
		"":                                              "",
	} {
		if got := PodOf(identity); got != want {
			t.Errorf("the pod of %q is %q, want %q", identity, got, want)
		}
	}
	if got := LeaseName("openstack.org/standalone-cinder"); got != "openstack.org-standalone-cinder" {
		t.Error(got)
	}
}
