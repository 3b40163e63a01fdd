package provisioner

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

func TestAdmission(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*corev1.PersistentVolumeClaim)
		admit  bool
		event  string // the start of the event; empty for none
	}{
		{name: "granted", admit: true},
		{name: "of another provisioner", change: func(c *corev1.PersistentVolumeClaim) { c.Annotations[objects.AnnotationStorageProvisioner] = "other" }},
		{name: "by the old annotation", admit: true, change: func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{objects.AnnotationBetaStorageProvisioner: "test"}
		}},
		{name: "too large", event: "Warning VolumeTooLarge ", change: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("11Gi")
		}},
		{name: "of a stranger", event: "Warning NoMatchingTenant ", change: func(c *corev1.PersistentVolumeClaim) { c.Namespace = "stranger" }},
		{name: "selector", event: "Warning UnsupportedSelector spec.selector cannot be honored for a volume that is yet to be created; remove the selector, or bind an existing PersistentVolume with spec.volumeName",
			change: func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }},
		{name: "data source", event: `Warning UnsupportedDataSource spec.dataSource asks for the content of Thing "other", which is not supported; the claim is not given an empty volume instead; remove the data source`,
			change: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "Thing", Name: "other"}
			}},
		{name: "claim of another namespace", event: `Warning UnsupportedDataSource spec.dataSourceRef asks for the content of PersistentVolumeClaim "other" in namespace team-b, but content is copied only within one namespace`,
			change: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "other", Namespace: new("team-b")}
			}},
		{name: "claim that does not exist", event: `Warning SourceNotFound claim team-a/other, whose content this claim asks for, does not exist`,
			change: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
			}},
		{name: "the claim itself", event: `Warning SourceNotFound claim team-a/data, whose content this claim asks for, is this claim itself`,
			change: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
			}},
		{name: "clone by annotation without smartclone", event: `Warning UnsupportedDataSource annotation k8s.io/CloneRequest asks for a copy of "other", but the StorageClass does not have the parameter smartclone: "true"; name the claim in spec.dataSource instead`,
			change: func(c *corev1.PersistentVolumeClaim) { c.Annotations[objects.HistoricClone] = "other" }},
		{name: "clone of another tenant's claim by annotation", event: "Warning UnsupportedDataSource annotation k8s.io/CloneRequest ",
			change: func(c *corev1.PersistentVolumeClaim) { c.Annotations[objects.HistoricClone] = "team-b/data" }},
		{name: "many writers", event: "Warning UnsupportedAccessMode ", change: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}},
		{name: "volume attributes class", event: `Warning UnsupportedVolumeAttributesClass the claim names the VolumeAttributesClass "quick", but tenants[0].classes[1] makes native volumes, which cannot have one; replace the claim with one that names none, or give the rule mode: csi`,
			change: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = new("quick") }},
		{name: "no volume attributes class", admit: true, change: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = new("") }},
		{name: "of a StorageClass that does not exist", event: `Warning StorageClassNotFound StorageClass "none" does not exist; create it, or replace the claim with one that names another`,
			change: func(c *corev1.PersistentVolumeClaim) {
				none := "none"
				c.Spec.StorageClassName = &none
			}},
		{name: "without a StorageClass name", event: "Warning StorageClassNotFound the claim names no StorageClass; replace it with a claim that does", change: func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			if got := f.admits(f.claim(c.change)); got != c.admit {
				t.Errorf("admitted: %t", got)
			}
			events := f.newEvents()
			switch {
			case c.event == "" && len(events) > 0:
				t.Errorf("events %q", events)
			case c.event != "" && (len(events) != 1 || !strings.HasPrefix(events[0], c.event)):
				t.Errorf("events %q, want one that begins with %q", events, c.event)
			}
		})
	}
}

// TestTopologies uses the StorageClass "both", which has the backends gold, for all
// nodes, and silver, for nodes with storage=fc.
func TestTopologies(t *testing.T) {
	topology := func(key string, values ...string) corev1.TopologySelectorTerm {
		return corev1.TopologySelectorTerm{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: key, Values: values}}}
	}
	for name, c := range map[string]struct {
		class   string
		allowed []corev1.TopologySelectorTerm
		node    string
		backend string
		event   string
	}{
		"no restriction":                    {class: "both", backend: "gold"},
		"a backend within them":             {class: "both", allowed: []corev1.TopologySelectorTerm{topology("zone", "b"), topology("storage", "fc", "iscsi")}, backend: "silver"},
		"a node that the first one reaches": {class: "both", node: "plain", backend: "gold"},
		"a node that both reach":            {class: "only", node: "fc-1", backend: "silver"},
		"a node that is not in the cache":   {class: "only", node: "unknown", backend: "silver"},
		"no backend within them":            {class: "one", allowed: []corev1.TopologySelectorTerm{topology("zone", "a")}, event: "Warning UnsupportedTopology StorageClass one has allowedTopologies, but the volumes of backend gold can be used on every node (backends[0].connector.nodeLabels); remove allowedTopologies, or give the backend nodeLabels that are among them"},
		"a backend of other nodes":          {class: "only", allowed: []corev1.TopologySelectorTerm{topology("storage", "iscsi")}, event: "Warning UnsupportedTopology StorageClass only has allowedTopologies, but the volumes of backend silver can be used on nodes with the labels storage=fc (backends[1].connector.nodeLabels); "},
		"a topology without labels":         {class: "one", allowed: []corev1.TopologySelectorTerm{{}}, event: "Warning UnsupportedTopology "},
		"a node that no backend exports to": {class: "only", node: "plain", event: "Warning NodeNotReached the claim's pod was scheduled to node plain, but backend silver exports volumes only to nodes with the labels storage=fc (backends[1].connector.nodeLabels); give StorageClass only allowedTopologies with these labels, so that no pod is scheduled elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.current.Store(parsePolicy(t, strings.Replace(strings.Replace(testPolicy, "auth: {cloud: silver}", "auth: {cloud: silver}\n    connector: {nodeLabels: {storage: fc}}", 1),
				"      - {storageClasses: [one]", "      - {storageClasses: [only], backends: [silver]}\n      - {storageClasses: [one]", 1)))
			f.labelsOfNode = map[string]map[string]string{"plain": {"zone": "a"}, "fc-1": {"storage": "fc"}}
			f.class.Name, f.class.AllowedTopologies = c.class, c.allowed
			f.must(f.factory.Storage().V1().StorageClasses().Informer().GetStore().Add(f.class))
			claim := f.claim(func(claim *corev1.PersistentVolumeClaim) {
				claim.Spec.StorageClassName = &c.class
				if c.node != "" {
					claim.Annotations[admission.SelectedNodeAnnotation] = c.node
				}
			})
			f.count()
			admitted := f.admits(claim)
			events := strings.Join(f.newEvents(), "\n")
			if admitted != (c.event == "") || !strings.HasPrefix(events, c.event) || admitted && events != "" {
				t.Fatalf("admitted: %t, events %q, want %q", admitted, events, c.event)
			}
			if position, _ := f.ledger.PositionOf(claim.UID); position.Backend != c.backend {
				t.Errorf("backend %q, want %q", position.Backend, c.backend)
			}
		})
	}
}

func TestDenialIsReportedOnceAndLiftedByTheNamespace(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(func(c *corev1.PersistentVolumeClaim) { c.Namespace = "stranger" })
	for range 5 {
		f.admits(claim)
	}
	if events := f.newEvents(); len(events) != 1 {
		t.Errorf("an unchanged denial was reported %d times", len(events))
	}
	f.publish(parking.Namespace, "team-a")
	if len(f.requeued) != 0 {
		t.Errorf("claims %v came back because of another namespace", f.requeued)
	}
	f.publish(parking.Namespace, "stranger")
	if strings.Join(f.requeued, " ") != "data" {
		t.Errorf("claims that came back: %v", f.requeued)
	}
	// Another reason gets another event.
	claim = claim.DeepCopy()
	claim.Spec.Selector = &metav1.LabelSelector{}
	f.admits(claim)
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Warning UnsupportedSelector ") {
		t.Errorf("events %q", events)
	}
}

func TestPolicyIsAppliedAgainAfterAdmission(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(nil)
	if !f.admits(claim) {
		t.Fatal("not admitted")
	}
	f.class.Name = "unknown"
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Warning NoMatchingClass ") {
		t.Errorf("events %q", events)
	}
	wantCalls(t, f.backends["gold"])
}

// TestClaimsWithoutAClassRequestNothing: whoever may create claims may write one in a loop.
func TestClaimsWithoutAClassRequestNothing(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("none") })
	f.client.ClearActions()
	for range 100 {
		if f.admits(claim) {
			t.Fatal("admitted")
		}
	}
	if actions := f.client.Actions(); len(actions) > 0 {
		t.Errorf("%d requests, the first is %v", len(actions), actions[0])
	}
}
