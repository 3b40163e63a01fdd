package apply

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

func place() policycli.Place {
	return policycli.Place{Namespace: "storage", ConfigMap: "policy", Key: "policy.yaml", Selector: "app=cinder", Provisioner: "cinder.example"}
}

// answers are the reports of replicas, by POD:PORT.
type answers map[string]statusreport.Report

func (a answers) Ask(_ context.Context, pod string, port int) (*statusreport.Report, error) {
	report, ok := a[fmt.Sprintf("%s:%d", pod, port)]
	if !ok {
		return nil, fmt.Errorf("nobody\nlistens at port %d", port)
	}
	return &report, nil
}

func newInstallation(to policycli.Place, asker Asker, objects ...runtime.Object) (*Installation, *fake.Clientset) {
	client := fake.NewClientset(objects...)
	return New(Options{Client: client, Asker: asker, Place: to}), client
}

func TestHeld(t *testing.T) {
	at := metav1.ObjectMeta{Namespace: "storage", Name: "policy", UID: "uid", ResourceVersion: "7"}
	managed := at
	managed.Labels = map[string]string{"app.kubernetes.io/managed-by": "Helm"}
	marked := func(labels, annotations map[string]string) metav1.ObjectMeta {
		meta := at
		meta.Labels, meta.Annotations = labels, annotations
		return meta
	}
	owned, yes := at, true
	owned.OwnerReferences = []metav1.OwnerReference{{Kind: "Cinder", Name: "main", Controller: &yes}}
	for name, c := range map[string]struct {
		object *corev1.ConfigMap
		want   policycli.Held
		err    string
	}{
		"a policy":     {&corev1.ConfigMap{ObjectMeta: at, Data: map[string]string{"policy.yaml": "text"}}, policycli.Held{UID: "uid", Version: "7", Files: policy.Files{{Name: "policy.yaml", Text: []byte("text")}}}, ""},
		"bytes":        {&corev1.ConfigMap{ObjectMeta: at, BinaryData: map[string][]byte{"policy.yaml": []byte("text")}}, policycli.Held{UID: "uid", Version: "7", Files: policy.Files{{Name: "policy.yaml", Text: []byte("text")}}}, ""},
		"no key":       {&corev1.ConfigMap{ObjectMeta: at, Data: map[string]string{"other": "text"}, BinaryData: map[string][]byte{"a": []byte("b")}}, policycli.Held{UID: "uid", Version: "7", Files: policy.Files{{Name: "a", Text: []byte("b")}, {Name: "other", Text: []byte("text")}}}, ""},
		"no ConfigMap": {nil, policycli.Held{}, "there is no ConfigMap storage/policy: give --namespace and --configmap or, if replicas mount it, create it with kubectl -n storage create configmap policy --from-file=policy.yaml=FILE"},
		"Helm's":       {&corev1.ConfigMap{ObjectMeta: managed}, policycli.Held{UID: "uid", Version: "7", Manager: "Helm"}, ""},
		"Argo CD's":    {&corev1.ConfigMap{ObjectMeta: marked(nil, map[string]string{"argocd.argoproj.io/tracking-id": "x"})}, policycli.Held{UID: "uid", Version: "7", Manager: "Argo CD"}, ""},
		"Flux's":       {&corev1.ConfigMap{ObjectMeta: marked(map[string]string{"kustomize.toolkit.fluxcd.io/name": "x"}, nil)}, policycli.Held{UID: "uid", Version: "7", Manager: "Flux"}, ""},
		"an object's":  {&corev1.ConfigMap{ObjectMeta: owned}, policycli.Held{UID: "uid", Version: "7", Manager: "Cinder main"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			if c.object != nil {
				objects = append(objects, c.object)
			}
			i, _ := newInstallation(place(), nil, objects...)
			got, err := i.Held(t.Context())
			if !reflect.DeepEqual(got, c.want) || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("%+v, %v\nwant %+v, %s", got, err, c.want, c.err)
			}
		})
	}
}

// TestAWriteReplacesOneKey: also one that is held as bytes, which may not be held twice.
func TestAWriteReplacesOneKey(t *testing.T) {
	for name, held := range map[string]*corev1.ConfigMap{
		"text":  {Data: map[string]string{"policy.yaml": "before", "other": "stays"}},
		"bytes": {Data: map[string]string{"other": "stays"}, BinaryData: map[string][]byte{"policy.yaml": []byte("before"), "bytes": {0xff}}},
	} {
		held.ObjectMeta = metav1.ObjectMeta{Namespace: "storage", Name: "policy"}
		wantBytes := len(held.BinaryData) / 2
		i, client := newInstallation(place(), nil, held)
		const text = "\ufeff# comment\r\nkind: Policy\r\n"
		if err := i.Write(t.Context(), policycli.Held{}, map[string][]byte{"policy.yaml": []byte(text)}, false); err != nil {
			t.Fatal(err)
		}
		now, err := client.CoreV1().ConfigMaps("storage").Get(t.Context(), "policy", metav1.GetOptions{})
		if err != nil || now.Data["policy.yaml"] != text || now.Data["other"] != "stays" || len(now.BinaryData) != wantBytes {
			t.Errorf("%s: %+v, %v", name, now, err)
		}
	}
}

func TestADryRunIsOneForTheAPIServer(t *testing.T) {
	i, client := newInstallation(place(), nil)
	var asked []string
	client.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		asked = action.(clienttesting.PatchActionImpl).GetPatchOptions().DryRun
		return true, &corev1.ConfigMap{}, nil
	})
	if err := i.Write(t.Context(), policycli.Held{}, map[string][]byte{"policy.yaml": []byte("text")}, true); err != nil || !reflect.DeepEqual(asked, []string{metav1.DryRunAll}) {
		t.Errorf("%v, %v", asked, err)
	}
}

// TestWhatAFailedWriteMeans: only an answer of the API server says that nothing is written.
func TestWhatAFailedWriteMeans(t *testing.T) {
	resource := corev1.Resource("configmaps")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"somebody was faster": {apierrors.NewConflict(resource, "policy", errors.New("changed")), "somebody has changed ConfigMap storage/policy since it was read, so nothing is written; run"},
		"it was deleted":      {apierrors.NewNotFound(resource, "policy"), "somebody has changed ConfigMap storage/policy since it was read, so nothing is written; run"},
		"no right":            {apierrors.NewForbidden(resource, "policy", errors.New("no\nright")), `ConfigMap storage/policy is not written: configmaps "policy" is forbidden: no right`},
		"a webhook refuses":   {apierrors.NewBadRequest("admission webhook denied the request"), "ConfigMap storage/policy is not written: admission webhook denied the request"},
		"it takes too long":   {apierrors.NewTimeoutError("too slow", 1), "it is not known whether ConfigMap storage/policy is written: "},
		"no answer":           {errors.New("connection lost"), "it is not known whether ConfigMap storage/policy is written: connection lost; run the same command again"},
	} {
		t.Run(name, func(t *testing.T) {
			i, client := newInstallation(place(), nil)
			client.PrependReactor("patch", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.err })
			err := i.Write(t.Context(), policycli.Held{}, map[string][]byte{"policy.yaml": []byte("text")}, false)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%v\nwant %s", err, c.want)
			}
		})
	}
}

func TestReplicas(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase, change func(*corev1.Pod)) runtime.Object {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: name, Labels: map[string]string{"app": "cinder"}}, Status: corev1.PodStatus{Phase: phase},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "health", ContainerPort: 1}, {Name: "http", ContainerPort: 9000}}}}},
		}
		if change != nil {
			change(p)
		}
		return p
	}
	report := func(provisioner string, of statusreport.Policy) statusreport.Report {
		return statusreport.Report{Replica: statusreport.Replica{ProvisionerName: provisioner}, Policy: of}
	}
	objects := []runtime.Object{
		pod("runs", corev1.PodRunning, nil),
		pod("refuses", corev1.PodRunning, nil),
		pod("silent", corev1.PodRunning, nil),
		pod("pending", corev1.PodPending, nil),
		pod("another-program", corev1.PodRunning, nil),
		pod("no-port", corev1.PodRunning, func(p *corev1.Pod) { p.Spec.Containers[0].Ports = nil }),
		pod("failed", corev1.PodFailed, nil),
		pod("leaving", corev1.PodRunning, func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &metav1.Time{}, []string{"x/y"} }),
		pod("other-labels", corev1.PodRunning, func(p *corev1.Pod) { p.Labels = nil }),
		pod("elsewhere", corev1.PodRunning, func(p *corev1.Pod) { p.Namespace = "other" }),
	}
	asker := answers{
		"runs:9000":            report("cinder.example", statusreport.Policy{Revision: "new"}),
		"refuses:9000":         report("cinder.example", statusreport.Policy{Revision: "old", RefusedRevision: "new", Refused: []string{"a\x1b[31m", "b", "c", "d", "e"}}),
		"another-program:9000": report("other.example", statusreport.Policy{}),
		"no-port:8080":         report("cinder.example", statusreport.Policy{Revision: "old"}),
		"runs:7000":            report("cinder.example", statusreport.Policy{Revision: "at 7000"}),
	}
	i, _ := newInstallation(place(), asker, objects...)
	got, err := i.Replicas(t.Context())
	want := []policycli.Replica{
		{Pod: "no-port", Revision: "old"},
		{Pod: "pending", Silent: "its pod is Pending"},
		{Pod: "refuses", Revision: "old", Refused: "new", Why: []string{"a [31m", "b", "c", "and 2 more"}},
		{Pod: "runs", Revision: "new"},
		{Pod: "silent", Silent: "nobody listens at port 9000"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}

	at7000 := place()
	at7000.Port = 7000
	i, _ = newInstallation(at7000, asker, objects[0])
	if got, err := i.Replicas(t.Context()); err != nil || len(got) != 1 || got[0].Revision != "at 7000" {
		t.Errorf("at another port: %+v, %v", got, err)
	}
}
