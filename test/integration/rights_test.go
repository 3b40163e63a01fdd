package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// auditPolicy writes down what the accounts of the program ask the API server for.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: Metadata, userGroups: ["system:serviceaccounts:` + harness.Namespace + `"]}
  - {level: None}
`

// right is a verb that a role allows on a resource.
type right struct{ group, resource, verb string }

func (r right) String() string {
	return strings.TrimSuffix(fmt.Sprintf("%s %s.%s", r.verb, r.resource, r.group), ".")
}

// compareRights reports rights that the manifests grant and that no replica or sidecar of
// any test used, and requests that were refused for lack of a right. Together they show
// that the granted rights are the least that suffice.
func compareRights() error {
	used, refused, err := usedRights(suite.ControlPlane().AuditPath())
	if err != nil {
		return err
	}
	unseen := []right{
		// Only csi-snapshotter needs it, whose tests are among those of make faults.
		{"snapshot.storage.k8s.io", "volumesnapshotcontents/status", "update"},
		// Needed to apply an object that does not exist, which the audit log calls a patch.
		{"standalone-cinder.openstack.org", "tenantstatuses", "create"},
	}
	var problems []string
	for _, file := range []struct {
		path  string
		least int // as many rights are found at least
	}{{"deploy/base/rbac.yaml", 20}, {"deploy/components/csi/csi.yaml", 10}, {"deploy/components/tenant-status/tenantstatus.yaml", 4}, {"deploy/components/snapshot-schedules/snapshotschedules.yaml", 2}, {"deploy/components/group-snapshots/groupsnapshots.yaml", 1}, {"deploy/components/taint-lost-nodes/taintlostnodes.yaml", 4}} {
		granted, err := grantedRights(filepath.Join("..", "..", file.path))
		if err != nil {
			return err
		}
		if len(granted) < file.least {
			return fmt.Errorf("%s: only %d rights were found", file.path, len(granted))
		}
		for r := range granted {
			// Informers list where a server does not stream the objects that exist.
			streamed := r.verb == "list" && used[right{r.group, r.resource, "watch"}]
			if !used[r] && !streamed && !slices.Contains(unseen, r) {
				problems = append(problems, fmt.Sprintf("%s: no test used the right %s", file.path, r))
			}
		}
	}
	slices.Sort(problems)
	if len(refused) > 0 {
		problems = append(problems, fmt.Sprintf("refused were the requests %s", refused))
	}
	if len(problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(problems, "\n"))
}

func grantedRights(path string) (map[right]bool, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	granted := map[right]bool{}
	for _, document := range bytes.Split(content, []byte("\n---\n")) {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal(document, &role); err != nil {
			return nil, err
		}
		if role.Labels["rbac.authorization.k8s.io/aggregate-to-view"] != "" {
			continue // not the program's
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						granted[right{group, resource, verb}] = true
					}
				}
			}
		}
	}
	return granted, nil
}

func usedRights(path string) (used map[right]bool, refused []string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	used = map[right]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb      string
			ObjectRef struct {
				Resource, Subresource, APIGroup string
			}
			Annotations map[string]string
			RequestURI  string
			User        struct{ Username string }
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, nil, err
		}
		switch event.Annotations["authorization.k8s.io/decision"] {
		case "allow":
			resource := event.ObjectRef.Resource
			if event.ObjectRef.Subresource != "" {
				resource += "/" + event.ObjectRef.Subresource
			}
			used[right{event.ObjectRef.APIGroup, resource, event.Verb}] = true
		case "forbid":
			if event.Verb == "create" && event.ObjectRef.Resource == "volumesnapshots" {
				continue // TestSchedulesTakeAndDeleteSnapshots begins without the right
			}
			refused = append(refused, fmt.Sprintf("%s %s by %s", event.Verb, event.RequestURI, event.User.Username))
		}
	}
	return used, refused, lines.Err()
}

// allTestsRan reports whether no flag left out tests, except those of make faults.
func allTestsRan() bool {
	return flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.list").Value.String() == ""
}
