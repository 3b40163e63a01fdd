// Package copies finds the volume whose content a claim wants, or says why it
// cannot be used, and keeps it from being deleted while it is copied. For a claim of a
// volume populator, it finds the claim that is to be filled.
package copies
