package secrets

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestOnlyTheSecretOfTheVolumeIsDeleted: it is deleted by its UID if that is known,
// otherwise by its marks.
func TestOnlyTheSecretOfTheVolumeIsDeleted(t *testing.T) {
	secrets := corev1.Resource("secrets")
	ours := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: "own", Name: objects.SecretName("pvc-1"), UID: "secret-1",
		Labels: map[string]string{objects.LabelManagedBy: objects.ManagedBy}, Annotations: map[string]string{objects.AnnotationForPV: "pvc-1"},
	}}
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: ours.Name, UID: "secret-1"}}
	for name, c := range map[string]struct {
		exists   *corev1.Secret
		recorded types.UID
		did      []string
		stays    bool
	}{
		"the recorded one":                    {ours, "secret-1", []string{"delete"}, false},
		"gone":                                {nil, "secret-1", []string{"delete"}, false},
		"none recorded":                       {ours, "", []string{"get", "delete"}, false},
		"ours, restored from a backup":        {ours, "secret-0", []string{"delete", "get", "delete"}, false},
		"somebody else's of that name":        {foreign, "secret-0", []string{"delete", "get"}, true},
		"somebody else's, and none recorded":  {foreign, "", []string{"get"}, true},
		"none recorded, and none there to go": {nil, "", []string{"get"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			if c.exists != nil {
				client = fake.NewClientset(c.exists)
			}
			// The fake client ignores preconditions.
			client.PrependReactor("delete", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
				wanted := action.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions.UID
				if c.exists != nil && *wanted != c.exists.UID {
					return true, nil, apierrors.NewConflict(secrets, ours.Name, errors.New("precondition failed"))
				}
				return false, nil, nil
			})
			if err := deleteNamed(t.Context(), client, "own", ours.Name, "pvc-1", c.recorded); err != nil {
				t.Fatal(err)
			}
			var did []string
			for _, action := range client.Actions() {
				did = append(did, action.GetVerb())
			}
			if !slices.Equal(did, c.did) {
				t.Errorf("requests %q, want %q", did, c.did)
			}
			if _, err := client.CoreV1().Secrets("own").Get(t.Context(), ours.Name, metav1.GetOptions{}); (err == nil) != c.stays {
				t.Errorf("the Secret is there: %t", err == nil)
			}
		})
	}
}

// TestSecretThatSomebodyTookOverIsKept: the admission policies let the account
// delete no Secret without its marks.
func TestSecretThatSomebodyTookOverIsKept(t *testing.T) {
	client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: objects.SecretName("pvc-1"), UID: "secret-1"}})
	client.PrependReactor("delete", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), objects.SecretName("pvc-1"), errors.New("the account may change only Secrets that it made"))
	})
	if err := deleteNamed(t.Context(), client, "own", objects.SecretName("pvc-1"), "pvc-1", "secret-1"); err != nil {
		t.Errorf("the PersistentVolume waits for ever: %v", err)
	}
}
