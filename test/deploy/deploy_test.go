package deploy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/nodegrow"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/plugin"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

var update = flag.Bool("update", false, "rewrite what is made from the chart")

// existing is a policy of the user's own, the only value without a default.
var existing = []string{"--set", "policy.existingConfigMap=standalone-cinder-policy"}

// fromTheChart names the files of the kustomizations that the chart renders.
var fromTheChart = map[string]string{
	"serviceaccount.yaml":      "base",
	"rbac.yaml":                "base",
	"deployment.yaml":          "base",
	"poddisruptionbudget.yaml": "base",
	"admissionpolicy.yaml":     "base",
	"networkpolicy.yaml":       "components/network-policy",
	"podmonitor.yaml":          "components/pod-monitor",
	"prometheusrule.yaml":      "components/prometheus-rule",
	"dashboards.yaml":          "components/grafana-dashboards",
}

// helmOnly are labels that say how an object was installed.
var helmOnly = regexp.MustCompile(`(?m)^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n`)

// TestKustomizationsAreTheChart keeps a single source of truth: the
// kustomizations contain what the chart renders.
func TestKustomizationsAreTheChart(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "networkPolicy.enabled=true", "--set", "monitoring.podMonitor.enabled=true",
		"--set", "monitoring.prometheusRule.enabled=true", "--set", "monitoring.dashboards.enabled=true")...)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, document := range bytes.Split(rendered, []byte("---\n")) {
		source, content, found := strings.Cut(string(document), "\n")
		name, ok := strings.CutPrefix(source, "# Source: standalone-cinder/templates/")
		if !found || !ok {
			continue
		}
		if len(files[name]) > 0 {
			files[name] = append(files[name], "---\n"...)
		}
		files[name] = append(files[name], helmOnly.ReplaceAllString(content, "")...)
	}
	for name, directory := range fromTheChart {
		path := Path(directory, name)
		if *update {
			if err := os.WriteFile(path, files[name], 0o644); err != nil {
				t.Fatal(err)
			}
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(content, files[name]) {
			t.Errorf("%s is not what the chart renders; run go test ./test/deploy -update", path)
		}
		delete(files, name)
	}
	for name := range files {
		t.Errorf("the chart renders %s, which belongs to no kustomization", name)
	}
}

// TestComponentOfModeCSIIsTheChart: the values also change other files, so the
// component's own file has a test of its own, and the admission policies are compared
// as a whole.
func TestComponentOfModeCSIIsTheChart(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "csi.enabled=true")...)
	if err != nil {
		t.Fatal(err)
	}
	compareFile(t, rendered, "csi.yaml", "csi")
	policies := func(objects []*unstructured.Unstructured) map[string]string {
		found := map[string]string{}
		for _, object := range objects {
			if object.GetKind() == "ValidatingAdmissionPolicy" {
				found[object.GetName()] = fmt.Sprint(object.Object["spec"])
			}
		}
		return found
	}
	fromChart, fromOverlay := policies(decode(t, rendered)), policies(overlay(t, "csi"))
	if len(fromChart) != 6 || !maps.Equal(fromChart, fromOverlay) {
		t.Errorf("the overlay's admission policies differ from the chart's:\n%v\n%v", fromOverlay, fromChart)
	}
	for _, object := range overlay(t, "csi") {
		if object.GetKind() != "DaemonSet" {
			continue
		}
		nodes := &appsv1.DaemonSet{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, nodes, true); err != nil {
			t.Fatal(err)
		}
		if nodes.Namespace != NodeNamespace {
			t.Errorf("the DaemonSet is in namespace %s", nodes.Namespace)
		}
		pod, replicas := nodes.Spec.Template, deployment(t, overlay(t, "csi"))
		if token := pod.Spec.AutomountServiceAccountToken; token == nil || !*token || !pod.Spec.HostNetwork || pod.Spec.Containers[0].Image != replicas.Spec.Template.Spec.Containers[0].Image {
			t.Errorf("the pods of the nodes are %s", pod.Spec.String())
		}
		if selector, err := metav1.LabelSelectorAsSelector(replicas.Spec.Selector); err != nil || selector.Matches(labels.Set(pod.Labels)) {
			t.Errorf("what selects the replicas selects the pods of the nodes, too (%v)", err)
		}
	}
}

// compareFile compares the file of a component with what the chart makes of the template
// of that name.
func compareFile(t *testing.T, rendered []byte, name, component string) {
	t.Helper()
	var own []byte
	for _, document := range bytes.Split(rendered, []byte("---\n")) {
		source, content, _ := strings.Cut(string(document), "\n")
		if source != "# Source: standalone-cinder/templates/"+name {
			continue
		}
		if len(own) > 0 {
			own = append(own, "---\n"...)
		}
		own = append(own, helmOnly.ReplaceAllString(content, "")...)
	}
	path := Path("components", component, name)
	if *update {
		if err := os.WriteFile(path, own, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(path)
	if err != nil || len(own) == 0 || !bytes.Equal(content, own) {
		t.Errorf("%s is not what the chart renders (%v); run go test ./test/deploy -update", path, err)
	}
}

// TestComponentOfTenantStatusIsTheChart: a tenant may read the objects, and the program may
// write them, without a right on anything else.
func TestComponentOfTenantStatusIsTheChart(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "tenantStatus.enabled=true")...)
	if err != nil {
		t.Fatal(err)
	}
	compareFile(t, rendered, "tenantstatus.yaml", "tenant-status")
	found := map[string]string{}
	for _, object := range overlay(t, "tenant-status") {
		if object.GetKind() != "ClusterRole" || object.GetName() == Release {
			continue
		}
		role := &rbacv1.ClusterRole{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, role, true); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			found[role.Name] += fmt.Sprint(rule.APIGroups, rule.Resources, rule.Verbs)
		}
	}
	want := map[string]string{
		Release + "-tenant-status":        "[standalone-cinder.openstack.org] [tenantstatuses] [list create patch delete]",
		Release + "-tenant-status-reader": "[standalone-cinder.openstack.org] [tenantstatuses] [get list watch]",
	}
	if !maps.Equal(found, want) {
		t.Errorf("the roles are %v, want %v", found, want)
	}
}

// TestComponentsOfSnapshotsAreTheChart: with schedules, the account may create and delete
// VolumeSnapshots and VolumeGroupSnapshots; with groups, create the former; and it gets nothing
// else.
func TestComponentsOfSnapshotsAreTheChart(t *testing.T) {
	const schedules = "map[apiGroups:[snapshot.storage.k8s.io] resources:[volumesnapshots] verbs:[create delete]] map[apiGroups:[groupsnapshot.storage.k8s.io] resources:[volumegroupsnapshots] verbs:[create delete]]"
	for component, test := range map[string]struct{ value, file, rules string }{
		"snapshot-schedules": {"snapshotSchedules.enabled=true", "snapshotschedules.yaml", schedules},
		"group-snapshots":    {"groupSnapshots.enabled=true", "groupsnapshots.yaml", "map[apiGroups:[snapshot.storage.k8s.io] resources:[volumesnapshots] verbs:[create]]"},
	} {
		t.Run(component, func(t *testing.T) {
			rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", test.value)...)
			if err != nil {
				t.Fatal(err)
			}
			compareFile(t, rendered, test.file, component)
			var found []string
			for _, object := range overlay(t, component) {
				if object.GetName() != Release+"-"+component {
					continue
				}
				what := object.GetKind()
				if what == "ClusterRole" {
					rules, _, _ := unstructured.NestedSlice(object.Object, "rules")
					what += fmt.Sprint(" ", rules)
				}
				found = append(found, what)
			}
			want := []string{"ClusterRole [" + test.rules + "]", "ClusterRoleBinding"}
			if slices.Sort(found); !slices.Equal(found, want) {
				t.Errorf("there are %q, want %q", found, want)
			}
		})
	}
}

// TestComponentOfLostNodesIsTheChart: the account may read pods and the Leases of kubelets,
// change Nodes and delete evicted pods under admission policies of its own, and gets nothing
// else.
func TestComponentOfLostNodesIsTheChart(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "csi.enabled=true", "--set", "taintLostNodes.enabled=true", "--set", "taintLostNodes.sharePercent=25")...)
	if err != nil {
		t.Fatal(err)
	}
	compareFile(t, rendered, "taintlostnodes.yaml", "taint-lost-nodes")
	if args := deployment(t, decode(t, rendered)).Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--taint-lost-nodes") || !slices.Contains(args, "--taint-lost-nodes-share=25") {
		t.Errorf("the arguments are %q", args)
	}
	found := map[string]string{}
	for _, object := range overlay(t, "csi", "taint-lost-nodes") {
		if !strings.HasPrefix(object.GetName(), Release+"-taint-lost-nodes") {
			continue
		}
		if found[object.GetKind()] += "there"; !slices.Contains([]string{"Role", "ClusterRole"}, object.GetKind()) {
			continue
		}
		role := &rbacv1.ClusterRole{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, role, true); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			found[object.GetKind()] += fmt.Sprint(" ", object.GetNamespace(), rule.Resources, rule.Verbs)
		}
	}
	want := map[string]string{"ClusterRole": "there [nodes] [patch] [pods] [list delete]", "ClusterRoleBinding": "there", "Role": "there kube-node-lease[leases] [list]", "RoleBinding": "there", "ValidatingAdmissionPolicy": "therethere", "ValidatingAdmissionPolicyBinding": "therethere"}
	if !maps.Equal(found, want) {
		t.Errorf("the component has %v, want %v", found, want)
	}
}

func TestComponentClaimPolicyIsTheChart(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "claimPolicy.enabled=true")...)
	if err != nil {
		t.Fatal(err)
	}
	compareFile(t, rendered, "claimpolicy.yaml", "claim-policy")
}

// TestComponentNodeGrowIsTheChart: the pods have the program's image, whatever an overlay
// makes of it, and no rights.
func TestComponentNodeGrowIsTheChart(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "nodeGrow.enabled=true")...)
	if err != nil {
		t.Fatal(err)
	}
	compareFile(t, rendered, "nodegrow.yaml", "node-grow")
	objects := overlay(t, "node-grow")
	image, of := deployment(t, objects).Spec.Template.Spec.Containers[0].Image, map[string]int{}
	for _, object := range objects {
		if object.GetNamespace() == GrowNamespace || strings.HasPrefix(object.GetName(), GrowNamespace) {
			of[object.GetKind()]++
		}
		if object.GetKind() != "PodTemplate" {
			continue
		}
		template := &corev1.PodTemplate{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, template, true); err != nil {
			t.Fatal(err)
		}
		container := template.Template.Spec.Containers[0]
		var options nodegrow.Options
		flags := pflag.NewFlagSet("grow", pflag.ContinueOnError)
		options.AddFlags(flags)
		arguments := append(container.Args[2:], wire.Growth{PersistentVolume: "pvc-1", Disks: []string{"iqn.x/1"}, Pods: []string{"u1"}, Bytes: 1}.Arguments()...)
		if err := errors.Join(flags.Parse(arguments), options.Complete()); err != nil || options.HostRoot != container.VolumeMounts[0].MountPath || options.ResultFile != corev1.TerminationMessagePathDefault {
			t.Errorf("the arguments %q: %+v (%v)", arguments, options, err)
		}
		if container.Image != image {
			t.Errorf("the image is %s, and the program's %s", container.Image, image)
		}
	}
	want := map[string]int{"Namespace": 1, "ResourceQuota": 1, "ServiceAccount": 1, "PodTemplate": 1, "ValidatingAdmissionPolicy": 2, "ValidatingAdmissionPolicyBinding": 2, "Role": 1, "ClusterRole": 2}
	if !maps.Equal(of, want) {
		t.Errorf("the objects are %v", of)
	}
}

// TestNodesGetTheirFlags: every path of the plugin follows the kubelet's directory, and
// the operator may add flags.
func TestNodesGetTheirFlags(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "csi.enabled=true", "--set", "csi.node.kubeletDirectory=/data/kubelet", "--set", "csi.node.extraArgs={--mkfs-xfs-options=-i nrext64=0}")...)
	if err != nil {
		t.Fatal(err)
	}
	nodes := &appsv1.DaemonSet{}
	for _, object := range decode(t, rendered) {
		if object.GetKind() != "DaemonSet" {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, nodes, true); err != nil {
			t.Fatal(err)
		}
	}
	container := nodes.Spec.Template.Spec.Containers[0]
	var options plugin.Options
	flags := pflag.NewFlagSet("node", pflag.ContinueOnError)
	options.AddFlags(flags)
	if err := flags.Parse(container.Args[1:]); err != nil || container.Args[0] != "node" || flags.NArg() > 0 {
		t.Fatalf("the arguments are %q (%v)", container.Args, err)
	}
	err = options.Complete(func(name string) string {
		for _, variable := range container.Env {
			if variable.Name == name && variable.ValueFrom != nil && variable.ValueFrom.FieldRef != nil {
				return variable.ValueFrom.FieldRef.FieldPath
			}
		}
		return ""
	})
	want := plugin.Options{
		Endpoint: "/data/kubelet/plugins/standalone-cinder.openstack.org/csi.sock", KubeletDir: "/data/kubelet", RegistrationDir: "/data/kubelet/plugins_registry",
		HostRoot: container.VolumeMounts[0].MountPath, StateDir: "/var/lib/standalone-cinder", NodeName: "spec.nodeName", Listen: "127.0.0.1:9809",
		DrainTimeout: options.DrainTimeout, MakeXFS: "-i nrext64=0", Report: true, Namespace: Namespace,
	}
	if err != nil || options != want {
		t.Errorf("the options are %+v (%v), want %+v", options, err, want)
	}
}

// TestExampleOverlay renders what README tells a user to copy.
func TestExampleOverlay(t *testing.T) {
	objects := overlay(t)
	of := map[string]bool{}
	for _, object := range objects {
		of[object.GetKind()+"/"+object.GetName()] = true
		if namespace := object.GetNamespace(); namespace != "" && namespace != Namespace {
			t.Errorf("%s %s is in namespace %s", object.GetKind(), object.GetName(), namespace)
		}
	}
	pod := deployment(t, objects).Spec.Template.Spec
	checkMounts(t, pod)
	checkHealthPort(t, pod.Containers[0])
	for _, volume := range pod.Volumes {
		if volume.ConfigMap != nil && !of["ConfigMap/"+volume.ConfigMap.Name] {
			t.Errorf("there is no ConfigMap %s", volume.ConfigMap.Name)
		}
		if volume.Secret != nil && !of["Secret/"+volume.Secret.SecretName] {
			t.Errorf("there is no Secret %s", volume.Secret.SecretName)
		}
	}
	text, err := os.ReadFile(Path("overlays", "example", "policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := policy.Parse(text, "policy.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	for _, warning := range parsed.Warnings {
		t.Errorf("the example's policy: %s", warning.Error())
	}
}

// TestComponents renders the example with components, and compares the
// Deployment with the chart's for the same settings.
func TestComponents(t *testing.T) {
	for component, values := range map[string][]string{
		"":                     nil,
		"prometheus-rule":      {"--set", "monitoring.prometheusRule.enabled=true"},
		"grafana-dashboards":   {"--set", "monitoring.dashboards.enabled=true"},
		"noauth":               {"--set", "clouds.enabled=false"},
		"extra-ca":             {"--set", "extraCA.existingConfigMap=standalone-cinder-ca"},
		"policy-directory":     {"--set", "policy.directory=true"},
		"network-policy":       {"--set", "networkPolicy.enabled=true"},
		"pod-monitor":          {"--set", "monitoring.podMonitor.enabled=true"},
		"historic-volumes":     {"--set", "historicVolumes.namespaces={team-a}"},
		"web-config":           {"--set", "webConfig.existingSecret=standalone-cinder-web"},
		"csi":                  {"--set", "csi.enabled=true"},
		"claim-policy":         {"--set", "claimPolicy.enabled=true"},
		"tenant-status":        {"--set", "tenantStatus.enabled=true"},
		"snapshot-schedules":   {"--set", "snapshotSchedules.enabled=true"},
		"group-snapshots":      {"--set", "groupSnapshots.enabled=true"},
		"node-grow":            {"--set", "nodeGrow.enabled=true"},
		"csi taint-lost-nodes": {"--set", "csi.enabled=true", "--set", "taintLostNodes.enabled=true"},
		"web-config csi":       {"--set", "webConfig.existingSecret=standalone-cinder-web", "--set", "csi.enabled=true"},
		// Each of these changes the container, three of them its arguments.
		"policy-directory extra-ca noauth web-config": {"--set", "policy.directory=true", "--set", "extraCA.existingConfigMap=standalone-cinder-ca", "--set", "clouds.enabled=false", "--set", "webConfig.existingSecret=standalone-cinder-web"},
	} {
		t.Run(component, func(t *testing.T) {
			fromOverlay := deployment(t, overlay(t, strings.Fields(component)...)).Spec.Template.Spec
			checkMounts(t, fromOverlay)
			rendered, err := Chart(t.Context(), append(slices.Clone(existing), values...)...)
			if err != nil {
				t.Fatal(err)
			}
			fromChart := deployment(t, decode(t, rendered)).Spec.Template.Spec
			for _, pod := range []*corev1.PodSpec{&fromOverlay, &fromChart} {
				slices.SortFunc(pod.Volumes, func(a, b corev1.Volume) int { return strings.Compare(a.Name, b.Name) })
				container := &pod.Containers[0]
				slices.SortFunc(container.VolumeMounts, func(a, b corev1.VolumeMount) int { return strings.Compare(a.Name, b.Name) })
				slices.SortFunc(container.Ports, func(a, b corev1.ContainerPort) int { return strings.Compare(a.Name, b.Name) })
				slices.SortFunc(container.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
			}
			if a, b := fmt.Sprint(fromOverlay.String()), fmt.Sprint(fromChart.String()); a != b {
				t.Errorf("the overlay's pods differ from the chart's:\n%s\n%s", a, b)
			}
		})
	}
}

// TestChartRefusesWrongValues: each mistake is found before anything is installed.
func TestChartRefusesWrongValues(t *testing.T) {
	for name, test := range map[string]struct {
		values []string
		want   string
	}{
		"no policy":                       {nil, "there is no policy; add --set-file policy.content=policy.yaml, or set policy.existingConfigMap"},
		"two policies":                    {append(slices.Clone(existing), "--set", "policy.content=x"), "policy.content and policy.existingConfigMap are both set; set only one of them"},
		"a ConfigMap without a name":      {append(slices.Clone(existing), "--set", "policy.moreConfigMaps={}"), "moreConfigMaps"},
		"an unknown value":                {append(slices.Clone(existing), "--set", "replica=5"), "replica"},
		"no memory limit":                 {append(slices.Clone(existing), "--set", "resources.limits=null"), "limits"},
		"a digest cut short":              {append(slices.Clone(existing), "--set", "image.digest=sha256:12"), "digest"},
		"a tag as digest":                 {append(slices.Clone(existing), "--set", "image.digest=v1"), "digest"},
		"a memory limit without a number": {append(slices.Clone(existing), "--set", "resources.limits.memory=Gi"), "memory"},
		"a memory limit in words":         {append(slices.Clone(existing), "--set", "resources.limits.memory=512MB"), "memory"},
		"an argument twice":               {append(slices.Clone(existing), "--set", "extraArgs={--policy=/x}"), "extraArgs: the chart sets --policy itself"},
		"a variable twice":                {append(slices.Clone(existing), "--set", "extraEnv[0].name=POD_NAMESPACE"), "extraEnv: the chart sets POD_NAMESPACE itself"},
		"the pod's name twice":            {append(slices.Clone(existing), "--set", "extraEnv[0].name=POD_NAME"), "extraEnv: the chart sets POD_NAME itself"},
		"callers to be trusted":           {append(slices.Clone(existing), "--set", "extraArgs={--csi-trust-parameters}"), "extraArgs: --csi-trust-parameters needs rights that the chart does not give"},
		"tenants' objects by a flag":      {append(slices.Clone(existing), "--set", "extraArgs={--tenant-status}"), "extraArgs: the chart sets --tenant-status itself"},
		"lost nodes by a flag":            {append(slices.Clone(existing), "--set", "extraArgs={--taint-lost-nodes}"), "extraArgs: the chart sets --taint-lost-nodes itself"},
		"lost nodes without the driver":   {append(slices.Clone(existing), "--set", "taintLostNodes.enabled=true"), "taintLostNodes: only nodes whose volumes are in mode csi"},
		"more nodes than there are":       {append(slices.Clone(existing), "--set", "csi.enabled=true", "--set", "taintLostNodes.sharePercent=101"), "sharePercent"},
		"an endpoint of the driver":       {append(slices.Clone(existing), "--set", "extraArgs={--csi-endpoint=unix:///x}"), "extraArgs: the chart sets --csi-endpoint itself"},
		"a relative kubelet directory":    {append(slices.Clone(existing), "--set", "nodeGrow.kubeletDirectory=kubelet"), "kubeletDirectory"},
		"no replicas":                     {append(slices.Clone(existing), "--set", "replicas=0"), "replicas"},
		// What helm upgrade --reuse-values has of a chart without them.
		"values of an earlier chart":     {append(slices.Clone(existing), "--set", "admissionPolicy.csiDrivers=null"), "use --reset-then-reuse-values instead of --reuse-values"},
		"a token as the type of Secrets": {append(slices.Clone(existing), "--set", "admissionPolicy.secretTypes={kubernetes.io/service-account-token}"), "secretTypes"},
		"a driver that ends the list":    {append(slices.Clone(existing), "--set", "admissionPolicy.csiDrivers={a'}"), "csiDrivers"},
		"an alert that does not exist":   {append(slices.Clone(existing), "--set", "monitoring.prometheusRule.enabled=true", "--set", "monitoring.prometheusRule.disabled={NoLeader}"), "there is no alert NoLeader; docs/runbooks.md lists them"},
		"an alert with another name":     {append(slices.Clone(existing), "--set", "monitoring.prometheusRule.rules.StandaloneCinderNoLeader.alert=StandaloneCinderOtherName"), "StandaloneCinderNoLeader"},
		"a StorageClass's provisioner":   {append(slices.Clone(existing), "--set", "storageClasses[0].name=gold", "--set", "storageClasses[0].provisioner=x"), `storageClasses: gold has the provisioner "x"; it can be openstack.org/standalone-cinder or standalone-cinder.openstack.org`},
		// It would seem to protect the status page of all tenants, and would not.
		"a policy for a node's network": {append(slices.Clone(existing), "--set", "hostNetwork=true"), "hostNetwork: no NetworkPolicy applies to the network of a node"},
		// An empty list of peers would admit everybody.
		"no sources": {append(slices.Clone(existing), "--set-json", "networkPolicy.ingressFrom=[]"), "ingressFrom"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Chart(t.Context(), test.values...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error about %s", err, test.want)
			}
		})
	}
	if err := Lint(t.Context(), existing...); err != nil {
		t.Error(err)
	}
}

// TestUserOfThePlatform: OpenShift refuses pods that ask for another user than it gives
// them, and gives none if they ask for none.
func TestUserOfThePlatform(t *testing.T) {
	for fixed, want := range map[string]bool{"true": true, "false": false} {
		rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "fixedUser="+fixed)...)
		if err != nil {
			t.Fatal(err)
		}
		context := deployment(t, decode(t, rendered)).Spec.Template.Spec.SecurityContext
		if context.RunAsNonRoot == nil || !*context.RunAsNonRoot || context.SeccompProfile == nil {
			t.Errorf("fixedUser=%s: the pods may run as root: %s", fixed, context.String())
		}
		if has := context.RunAsUser != nil && context.RunAsGroup != nil && context.FSGroup != nil; has != want || !want && context.RunAsUser != nil {
			t.Errorf("fixedUser=%s: the context is %s", fixed, context.String())
		}
	}
}

// TestChartOfAnUnusualCluster: its pods need the node's network, other limits of their rights
// and further files.
func TestChartOfAnUnusualCluster(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "hostNetwork=true", "--set", "networkPolicy.enabled=false", "--set", "podSecurityContext.fsGroupChangePolicy=OnRootMismatch",
		"--set", "securityContext.seLinuxOptions.level=s0:c1", "--set-json", `extraVolumes=[{"name": "keys", "secret": {"secretName": "client-keys"}}]`,
		"--set-json", `extraVolumeMounts=[{"name": "keys", "mountPath": "/keys", "readOnly": true}]`)...)
	if err != nil {
		t.Fatal(err)
	}
	pod := deployment(t, decode(t, rendered)).Spec.Template.Spec
	checkMounts(t, pod)
	if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSClusterFirstWithHostNet {
		t.Errorf("the network is %t, %s", pod.HostNetwork, pod.DNSPolicy)
	}
	if c := pod.SecurityContext; c.FSGroupChangePolicy == nil || c.RunAsUser == nil || c.RunAsNonRoot == nil || !*c.RunAsNonRoot {
		t.Errorf("the pods' context is %s", c.String())
	}
	program := pod.Containers[0]
	if c := program.SecurityContext; c.SELinuxOptions == nil || c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem || len(c.Capabilities.Drop) != 1 {
		t.Errorf("the container's context is %s", c.String())
	}
	if !slices.ContainsFunc(program.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/keys" }) {
		t.Errorf("the container mounts %v", program.VolumeMounts)
	}
}

// TestChartWithValuesThatAreMissing: a key without a value in a file, and the values of a
// chart before these, have none.
func TestChartWithValuesThatAreMissing(t *testing.T) {
	values := append(slices.Clone(existing), "--set", "monitoring.prometheusRule.enabled=true", "--set", "monitoring.prometheusRule.runbookURL=https://example.org")
	for _, name := range []string{"podSecurityContext", "securityContext", "hostNetwork", "extraVolumes", "extraVolumeMounts", "storageClasses", "claimPolicy", "tenantStatus", "snapshotSchedules", "groupSnapshots", "nodeGrow", "policy.directory",
		"policy.moreConfigMaps", "monitoring.prometheusRule.disabled", "monitoring.prometheusRule.rules"} {
		values = append(values, "--set", name+"=null")
	}
	if _, err := Chart(t.Context(), values...); err != nil {
		t.Error(err)
	}
}

// TestChartMakesStorageClasses of the program's own name, or the driver's.
func TestChartMakesStorageClasses(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "provisionerName=example.org/cinder",
		"--set-json", `storageClasses=[{"name": "gold", "default": true, "annotations": {"note": "fast"}, "allowVolumeExpansion": true, "parameters": {"type": "gold"}}, {"name": "plain"},
			{"name": "csi", "provisioner": "standalone-cinder.openstack.org"}, {"name": "named", "provisioner": "example.org/cinder"}]`)...)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]storagev1.StorageClass{}
	for _, object := range decode(t, rendered) {
		if object.GetKind() != "StorageClass" {
			continue
		}
		var class storagev1.StorageClass
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &class, true); err != nil {
			t.Fatal(err)
		}
		found[class.Name] = class
	}
	gold, plain := found["gold"], found["plain"]
	if gold.Provisioner != "example.org/cinder" || plain.Provisioner != "example.org/cinder" || gold.Parameters["type"] != "gold" || gold.AllowVolumeExpansion == nil ||
		gold.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" || gold.Annotations["note"] != "fast" || len(plain.Annotations) > 0 {
		t.Errorf("got %+v", found)
	}
	if found["csi"].Provisioner != policy.CSIDriver || found["named"].Provisioner != "example.org/cinder" {
		t.Errorf("with a provisioner: %+v", found)
	}
}

// TestAlertsAreChangedOneByOne: what the values do not name stays.
func TestAlertsAreChangedOneByOne(t *testing.T) {
	alerts := func(values ...string) map[string]map[string]any {
		rendered, err := Chart(t.Context(), slices.Concat(existing, []string{"--set", "monitoring.prometheusRule.enabled=true"}, values)...)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]map[string]any{}
		for _, object := range decode(t, rendered) {
			if object.GetKind() != "PrometheusRule" {
				continue
			}
			groups, _, _ := unstructured.NestedSlice(object.Object, "spec", "groups")
			for _, group := range groups {
				for _, rule := range group.(map[string]any)["rules"].([]any) {
					found[rule.(map[string]any)["alert"].(string)] = rule.(map[string]any)
				}
			}
		}
		return found
	}
	all := alerts()
	changed := alerts("--set", "monitoring.prometheusRule.disabled={StandaloneCinderAbsent}", "--set", "monitoring.prometheusRule.runbookURL=https://wiki.example/cinder",
		"--set-json", `monitoring.prometheusRule.rules={"StandaloneCinderNoLeader": {"for": "10m", "labels": {"team": "storage"}}}`)
	if len(all) < 10 || len(changed) != len(all)-1 || changed["StandaloneCinderAbsent"] != nil {
		t.Fatalf("%d alerts of %d", len(changed), len(all))
	}
	for name, rule := range changed {
		want := all[name]
		want["annotations"].(map[string]any)["runbook_url"] = "https://wiki.example/cinder#" + strings.ToLower(name)
		if name == "StandaloneCinderNoLeader" {
			want["for"] = "10m"
			want["labels"].(map[string]any)["team"] = "storage"
		}
		if !reflect.DeepEqual(rule, want) {
			t.Errorf("%s is %v, want %v", name, rule, want)
		}
	}
}

// TestChartValues sets what users set most, and looks for it in the result.
func TestChartValues(t *testing.T) {
	content := filepath.Join(t.TempDir(), "policy.yaml")
	text, err := os.ReadFile(Path("overlays", "example", "policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(content, text, 0o600); err != nil {
		t.Fatal(err)
	}
	rendered, err := Chart(t.Context(), "--set-file", "policy.content="+content, "--set", "image.repository=registry.example/sc",
		"--set", "image.digest=sha256:"+strings.Repeat("0a", 32), "--set", "provisionerName=example.org/cinder", "--set", "extraArgs={--workers=50}",
		"--set", "tolerations[0].operator=Exists", "--set", "historicVolumes.namespaces={old-a,old-b}", "--set", "admissionPolicy.enabled=false")
	if err != nil {
		t.Fatal(err)
	}
	objects := decode(t, rendered)
	container := deployment(t, objects).Spec.Template.Spec.Containers[0]
	if want := "registry.example/sc@sha256:" + strings.Repeat("0a", 32); container.Image != want {
		t.Errorf("the image is %s, want %s", container.Image, want)
	}
	if arguments := strings.Join(container.Args, " "); !strings.HasSuffix(arguments, "--provisioner-name=example.org/cinder --workers=50") {
		t.Errorf("the arguments are %s", arguments)
	}
	found := map[string]int{}
	for _, object := range objects {
		found[object.GetKind()]++
		if object.GetKind() == "ConfigMap" {
			data, _, err := unstructured.NestedString(object.Object, "data", "policy.yaml")
			if err != nil || data != string(text) {
				t.Errorf("the policy is %q (%v), want the file's text", data, err)
			}
		}
	}
	if found["RoleBinding"] != 3 || found["ValidatingAdmissionPolicy"] != 0 || found["ConfigMap"] != 1 {
		t.Errorf("the objects are %v", found)
	}
	if !strings.Contains(string(rendered), "resourceNames: [example.org-cinder]") {
		t.Error("no rule names the Lease example.org-cinder")
	}
}

// TestChartMountsSeveralConfigMaps into the one directory that is the policy.
func TestChartMountsSeveralConfigMaps(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "policy.moreConfigMaps={team-a,team-b}")...)
	if err != nil {
		t.Fatal(err)
	}
	pod := deployment(t, decode(t, rendered)).Spec.Template.Spec
	checkMounts(t, pod)
	if !slices.Contains(pod.Containers[0].Args, "--policy=/etc/standalone-cinder/policy") {
		t.Errorf("the arguments are %s", pod.Containers[0].Args)
	}
	var names []string
	for _, source := range pod.Volumes[0].Projected.Sources {
		names = append(names, source.ConfigMap.Name)
		if optional := source.ConfigMap.Optional != nil && *source.ConfigMap.Optional; optional != (len(names) == 1) {
			t.Errorf("%s is optional: %t", source.ConfigMap.Name, optional)
		}
	}
	if want := []string{"standalone-cinder-policy", "team-a", "team-b"}; !slices.Equal(names, want) {
		t.Errorf("the ConfigMaps are %s", names)
	}
}

// TestChartLimitsWhoReachesTheReplicas: by default, only Prometheus reaches the metrics,
// and nobody but the node the port of the probes. What the program reaches is only
// limited if the operator says where its servers are.
func TestChartLimitsWhoReachesTheReplicas(t *testing.T) {
	for name, test := range map[string]struct {
		values  []string
		ingress int
		egress  int
		types   []networkingv1.PolicyType
	}{
		"by default":     {nil, 1, 0, []networkingv1.PolicyType{"Ingress"}},
		"with an egress": {[]string{"--set-json", `networkPolicy.egress=[{"ports":[{"port":8776}]}]`}, 1, 2, []networkingv1.PolicyType{"Ingress", "Egress"}},
	} {
		t.Run(name, func(t *testing.T) {
			rendered, err := Chart(t.Context(), append(slices.Clone(existing), test.values...)...)
			if err != nil {
				t.Fatal(err)
			}
			found := &networkingv1.NetworkPolicy{}
			for _, object := range decode(t, rendered) {
				if object.GetKind() != "NetworkPolicy" {
					continue
				}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, found, true); err != nil {
					t.Fatal(err)
				}
			}
			spec := found.Spec
			if !slices.Equal(spec.PolicyTypes, test.types) || len(spec.Ingress) != test.ingress || len(spec.Egress) != test.egress {
				t.Fatalf("the NetworkPolicy is %s", spec.String())
			}
			in := spec.Ingress[0]
			if len(in.From) != 1 || in.From[0].NamespaceSelector == nil || len(in.Ports) != 1 || in.Ports[0].Port.StrVal != "http" {
				t.Errorf("those who reach the replicas are %s", in.String())
			}
		})
	}
}

// TestChartProtectsMetrics: with a web configuration, the chart protects the
// metrics, and tells Prometheus.
func TestChartProtectsMetrics(t *testing.T) {
	rendered, err := Chart(t.Context(), append(slices.Clone(existing), "--set", "webConfig.existingSecret=web", "--set", "monitoring.podMonitor.enabled=true",
		"--set", "monitoring.podMonitor.endpoint.scheme=https")...)
	if err != nil {
		t.Fatal(err)
	}
	objects := decode(t, rendered)
	pod := deployment(t, objects).Spec.Template.Spec
	container := pod.Containers[0]
	if arguments := strings.Join(container.Args, " "); !strings.HasSuffix(arguments, "--health-listen=:8081 --web-config-file=/etc/standalone-cinder/web/web-config.yaml") {
		t.Errorf("the arguments are %s", arguments)
	}
	checkMounts(t, pod)
	checkHealthPort(t, container)
	if !strings.Contains(string(rendered), "      scheme: https\n") {
		t.Error("the PodMonitor does not use TLS")
	}
}

// overlay renders a copy of the example with components.
func overlay(t *testing.T, components ...string) []*unstructured.Unstructured {
	t.Helper()
	rendered, err := Overlay(t.Context(), t.TempDir(), components...)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, rendered)
}

func decode(t *testing.T, rendered []byte) []*unstructured.Unstructured {
	t.Helper()
	objects, err := Objects(rendered)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func deployment(t *testing.T, objects []*unstructured.Unstructured) *appsv1.Deployment {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == "Deployment" {
			decoded := &appsv1.Deployment{}
			// Strict: a misspelled field is an error.
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, decoded, true); err != nil {
				t.Fatal(err)
			}
			return decoded
		}
	}
	t.Fatal("there is no Deployment")
	return nil
}

// checkMounts compares the container's arguments with its mounts: a file in an
// argument must be in a mounted directory.
func checkMounts(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	container := pod.Containers[0]
	for _, argument := range container.Args {
		_, file, named := strings.Cut(argument, "=/")
		if !named {
			continue
		}
		mounted := false
		for _, mount := range container.VolumeMounts {
			mounted = mounted || slices.Contains([]string{"/" + file, filepath.Dir("/" + file)}, mount.MountPath) && mount.SubPath == ""
		}
		if !mounted {
			t.Errorf("argument %s names a file that no whole directory is mounted for", argument)
		}
	}
}
