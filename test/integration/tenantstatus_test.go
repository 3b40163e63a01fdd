package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// tenantStatus is what a test reads of a TenantStatus.
type tenantStatus struct {
	Metadata metav1.ObjectMeta
	Status   struct {
		Tenant string
		Quota  map[string]struct {
			Used int64
			Hard *int64
		}
		WaitingTotal int64
		Waiting      []struct{ Kind, Name, State, Reason, Message string }
	}
}

func tenantStatuses(w *world, config *rest.Config) dynamic.NamespaceableResourceInterface {
	client, err := dynamic.NewForConfig(config)
	w.must(err)
	return client.Resource(schema.GroupVersionResource{Group: "standalone-cinder.openstack.org", Version: "v1alpha1", Resource: "tenantstatuses"})
}

// shows waits until the object of a namespace is as wanted, and logs for how long.
func (w *world) shows(namespace, what string, wanted func(tenantStatus) bool) (found tenantStatus, text string) {
	w.Helper()
	began := time.Now()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		object, err := tenantStatuses(w, suite.Config).Namespace(w.name+"-"+namespace).Get(w.ctx, w.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "there is no object", nil
		}
		if err != nil {
			return "", err
		}
		content, err := json.Marshal(object)
		if err != nil {
			return "", err
		}
		found, text = tenantStatus{}, string(content)
		if err := json.Unmarshal(content, &found); err != nil || wanted(found) {
			return "", err
		}
		return "it does not show that " + what + ": " + text, nil
	}))
	w.Logf("%s's object showed that %s after %s", namespace, what, time.Since(began).Round(time.Millisecond))
	return found, text
}

func uses(volumes int64) func(tenantStatus) bool {
	return func(s tenantStatus) bool { return s.Status.Quota["volumes"].Used == volumes }
}

// TestTenantsReadTheirOwnStatus: what developers read in their namespace follows claims,
// denials, leaders and the policy, and is nobody else's.
func TestTenantsReadTheirOwnStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "view", cindersim.Options{})
	w.policy = strings.Replace(w.policy, `    namespaces: ["view-a"]`, "    namespaces: [\"view-a\"]\n    quota: {volumes: 1, gigabytes: 50}", 1)
	w.must(suite.AllowTenantStatus(w.ctx, w.provisioner))
	replicas := []*harness.Replica{w.start("--tenant-status"), w.start("--tenant-status")}
	leader := w.leader(replicas)

	w.shows("a", "it exists", func(s tenantStatus) bool {
		return s.Status.Tenant == "tenant-a" && *s.Status.Quota["volumes"].Hard == 1
	})
	w.shows("b", "it exists", func(s tenantStatus) bool { return s.Status.Tenant == "tenant-b" })
	if _, err := tenantStatuses(w, suite.Config).Namespace("view-stranger").Get(w.ctx, w.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a namespace without a tenant has an object (%v)", err)
	}

	w.claim("a", "one", "gold", "1Gi")
	_, err := suite.WaitBound(w.ctx, "view-a", 1)
	w.must(err)
	w.shows("a", "a volume is used", uses(1))
	w.claim("a", "two", "gold", "1Gi")
	_, err = suite.WaitEvent(w.ctx, "view-a", "two", "QuotaExceeded", "2 of 1 volumes")
	w.must(err)
	_, text := w.shows("a", "a claim is denied", func(s tenantStatus) bool {
		return s.Status.WaitingTotal == 1 && s.Status.Waiting[0].Name == "two" && s.Status.Waiting[0].Reason == "QuotaExceeded" && strings.Contains(s.Status.Waiting[0].Message, "2 of 1 volumes")
	})
	if strings.Contains(text, "tenant-b") || strings.Contains(text, `"lab"`) {
		t.Errorf("the object of tenant-a has something of tenant-b:\n%s", text)
	}
	before, _ := w.shows("b", "nothing waits there", func(s tenantStatus) bool { return s.Status.WaitingTotal == 0 })
	w.onlyTheirOwnMayBeRead()

	// The next leader goes on, and leaves alone what has not changed.
	w.must(leader.Stop(w.ctx))
	for i, replica := range replicas {
		if replica == leader {
			replicas[i] = w.start("--tenant-status")
		}
	}
	w.leader(replicas)
	w.must(suite.DeleteClaims(w.ctx, "view-a"))
	w.shows("a", "nothing is used or waits", func(s tenantStatus) bool { return uses(0)(s) && s.Status.WaitingTotal == 0 })
	after, _ := w.shows("b", "nothing waits there", func(s tenantStatus) bool { return s.Status.WaitingTotal == 0 })
	if before.Metadata.ResourceVersion != after.Metadata.ResourceVersion {
		t.Errorf("the next leader wrote the object of tenant-b, which has not changed: %v, then %v", before, after)
	}

	// Namespace b moves to tenant a, and then to nobody.
	moved := strings.NewReplacer(`["view-a"]`, `["view-a", "view-b"]`, `["view-b"]`, `["view-other"]`).Replace(w.policy)
	for _, replica := range replicas {
		w.must(replica.WritePolicy(moved))
	}
	w.shows("b", "it is tenant-a's", func(s tenantStatus) bool {
		return s.Status.Tenant == "tenant-a" && *s.Status.Quota["volumes"].Hard == 1
	})
	for _, replica := range replicas {
		w.must(replica.WritePolicy(strings.Replace(w.policy, `["view-b"]`, `["view-other"]`, 1)))
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := tenantStatuses(w, suite.Config).Namespace("view-b").Get(w.ctx, w.name, metav1.GetOptions{})
		if err == nil {
			return "the object of a namespace that has no tenant any more is still there", nil
		}
		return "", nil
	}))
	w.noResidue()
}

// onlyTheirOwnMayBeRead: somebody with the role view in one namespace reads the object
// there, and neither changes it nor reads another.
func (w *world) onlyTheirOwnMayBeRead() {
	w.Helper()
	const user = "view-developer"
	_, err := suite.Client.RbacV1().RoleBindings("view-a").Create(w.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "developer"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}, metav1.CreateOptions{})
	w.must(err)
	config := rest.CopyConfig(suite.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	statuses := tenantStatuses(w, config)
	// The role gets its rights some moments after the component was installed.
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, err := statuses.Namespace("view-a").List(w.ctx, metav1.ListOptions{}); err != nil {
			return fmt.Sprintf("the role view does not let a developer list them: %v", err), nil
		}
		return "", nil
	}))
	own := statuses.Namespace("view-a")
	if _, err := own.Get(w.ctx, w.name, metav1.GetOptions{}); err != nil {
		w.Errorf("a developer cannot read the object: %v", err)
	}
	for name, attempt := range map[string]func() error{
		"reads another's": func() error {
			_, err := statuses.Namespace("view-b").Get(w.ctx, w.name, metav1.GetOptions{})
			return err
		},
		"lists all": func() error { _, err := statuses.List(w.ctx, metav1.ListOptions{}); return err },
		"changes it": func() error {
			_, err := own.Patch(w.ctx, w.name, types.MergePatchType, []byte(`{"status": {"tenant": "me"}}`), metav1.PatchOptions{})
			return err
		},
		"deletes it": func() error { return own.Delete(w.ctx, w.name, metav1.DeleteOptions{}) },
		"makes one": func() error {
			_, err := own.Create(w.ctx, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "standalone-cinder.openstack.org/v1alpha1", "kind": "TenantStatus", "metadata": map[string]any{"name": "mine"}}}, metav1.CreateOptions{})
			return err
		},
	} {
		if err := attempt(); !apierrors.IsForbidden(err) {
			w.Errorf("that a developer %s: got %v, want it forbidden", name, err)
		}
	}
}

// TestNobodyElseWritesATenantStatus: also a field that the program leaves out is taken away.
func TestNobodyElseWritesATenantStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "forge", cindersim.Options{})
	w.must(suite.AllowTenantStatus(w.ctx, w.provisioner))
	w.start("--tenant-status")
	w.shows("a", "it exists", func(s tenantStatus) bool {
		return s.Status.Tenant == "tenant-a" && s.Status.Quota["volumes"].Hard == nil
	})
	all := tenantStatuses(w, suite.Config).Namespace("forge-a")
	_, err := all.Patch(w.ctx, w.name, types.MergePatchType, []byte(`{"status": {"quota": {"volumes": {"hard": 7}}, "rulesNotShown": 3}}`), metav1.PatchOptions{FieldManager: "somebody"})
	w.must(err)
	_, text := w.shows("a", "it is repaired", func(s tenantStatus) bool { return s.Status.Quota["volumes"].Hard == nil })
	if strings.Contains(text, "rulesNotShown") {
		t.Error(text)
	}
}
