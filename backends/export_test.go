package backends

// NewMemoryCinder gives tests outside the package the Cinder that those inside
// run on. A member is an account that is no administrator.
func NewMemoryCinder(member bool) Cinder {
	memory := newMemoryCinder()
	memory.member = member
	return memory
}

// FailingType is the volume type whose volumes end in error.
const FailingType = failingType
