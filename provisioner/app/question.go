package app

import (
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// answer returns what the policy in force decides about the claim that the page's form
// describes; nil if nothing was asked. It uses the labels and parameters of the
// cluster's own namespaces and StorageClasses.
func (s *server) answer(query url.Values) *statusreport.Answer {
	q := statusreport.Question{Namespace: query.Get("namespace"), StorageClass: query.Get("storageClass"), Size: query.Get("size")}
	if q == (statusreport.Question{}) {
		return nil
	}
	answer := &statusreport.Answer{Question: q}
	size, err := parseSize(q.Size)
	switch {
	case q.Namespace == "" || q.StorageClass == "":
		answer.Mistake = "give a namespace and a StorageClass"
		return answer
	case err != nil:
		answer.Mistake = "the size must be a quantity such as 10Gi"
		return answer
	}
	class := s.classToAsk(q.StorageClass, answer)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: q.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &q.StorageClass,
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
		},
	}
	inForce := s.policy.Load()
	decision := inForce.Explain(objects.RequestOf(claim, class, s.namespaceLabels(q.Namespace)))
	room := decision.Room(s.usedBy(answer))
	answer.Granted, answer.Tenant, answer.Rule = room.Denial == nil, decision.Tenant, decision.Rule
	if room.Denial != nil {
		answer.Reason, answer.Message = string(room.Denial.Reason), room.Denial.Message
	} else {
		answer.Backend = room.Backends[0]
	}
	for _, step := range decision.Trace {
		answer.Considered = append(answer.Considered, statusreport.Consideration{Path: step.Path, Name: step.Name, Detail: step.Detail, Matched: step.Matched})
	}
	return answer
}

// parseSize reads a quantity from a request, which anybody may send. It refuses long
// ones and exponents of several digits: a quantity such as 1e-2147483648 has billions
// of digits, which would keep the processor busy forever.
func parseSize(text string) (resource.Quantity, error) {
	const longest, maxUnit = 30, len("Ki")
	if len(text) > longest || len(strings.TrimLeft(text, "0123456789.")) > maxUnit {
		return resource.Quantity{}, resource.ErrFormatWrong
	}
	return resource.ParseQuantity(text)
}

// classToAsk returns a StorageClass of the cluster; nil if it does not exist.
func (s *server) classToAsk(name string, answer *statusreport.Answer) *storagev1.StorageClass {
	class, err := s.factory.Storage().V1().StorageClasses().Lister().Get(name)
	if err != nil {
		answer.Notes = append(answer.Notes, fmt.Sprintf("The cluster has no StorageClass %s, so it is assumed to have no parameters.", name))
		return nil
	}
	if !objects.IsServed(class.Provisioner, s.options.ProvisionerName) {
		answer.Notes = append(answer.Notes, fmt.Sprintf("StorageClass %s belongs to the provisioner %s, so this program leaves its claims alone.", name, class.Provisioner))
	}
	return class
}

// usedBy returns what counts against a quota, which only the leader knows.
func (s *server) usedBy(answer *statusreport.Answer) func(policy.QuotaScope) policy.Usage {
	term := s.term()
	if term == nil {
		answer.Notes = append(answer.Notes, "Only the leader knows what is used of the quotas; here they count as unused.")
		return func(policy.QuotaScope) policy.Usage { return policy.Usage{} }
	}
	census := term.provisioner.Census()
	return func(scope policy.QuotaScope) policy.Usage {
		return census.Sums[ledger.Scope{Kind: scope.Kind, Name: scope.Name}]
	}
}
