package backends

// NewMemoryCinder gives tests outside the package the Cinder of the tests
// inside. A member is an account that is not an administrator.
func NewMemoryCinder(member bool) memoryClient {
	memory := newMemoryCinder()
	memory.member = member
	return memory.client()
}

// SharedType is the volume type for volumes that several hosts may attach.
const SharedType = sharedType

// FailingType is the volume type whose volumes end in error.
const FailingType = failingType
