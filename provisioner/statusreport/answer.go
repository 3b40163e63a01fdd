package statusreport

// Question is what a person asks about a claim, which need not exist.
type Question struct{ Namespace, StorageClass, Size string }

// Answer is the policy's decision about a Question.
type Answer struct {
	Question
	// Mistake is why the question cannot be answered; empty if it can.
	Mistake string

	Granted bool
	Tenant  string
	// Rule is the path of the rule that decides; Backend is the first one with room.
	Rule, Backend string
	// Reason and Message are those of a denial.
	Reason, Message string
	Considered      []Consideration
	Notes           []string
}

// Consideration is a tenant, rule or backend that was considered.
type Consideration struct {
	Path, Name, Detail string
	Matched            bool
}
