package mapping

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// Initiator matches the iSCSI names under which nodes can log in. It is
// narrower than what the API server accepts as a PersistentVolume's initiatorName
// (pkg/apis/core/validation in Kubernetes) and than RFC 3722, because kubelet
// builds file names and globs from it.
var Initiator = regexp.MustCompile(`^(iqn\.[0-9]{4}-[0-9]{2}\.[a-z0-9.-]+:[a-z0-9._:-]+|eui\.[0-9A-Fa-f]{16}|naa\.[0-9A-Fa-f]{32})$`)

// LongestInitiator is the length of the longest iSCSI name (RFC 7143, section
// 4.2.7.2).
const LongestInitiator = 223

// InitiatorProblem describes why nodes cannot log in under a name, completing a sentence.
// It is empty if they can. Both the policy and the mappers use it, so that no policy is
// accepted under which every claim would fail.
func InitiatorProblem(name string) string {
	foreign := strings.IndexFunc(name, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLower(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._:-", r)
	})
	switch {
	case len(name) > LongestInitiator:
		return fmt.Sprintf("is longer than %d characters", LongestInitiator)
	case Initiator.MatchString(name):
		return ""
	case strings.HasPrefix(name, "eui."):
		return "is not eui. and 16 hexadecimal digits"
	case strings.HasPrefix(name, "naa."):
		return "is not naa. and 32 hexadecimal digits, the only form that Kubernetes accepts"
	case strings.HasPrefix(name, "iqn.") && foreign >= 0:
		return fmt.Sprintf("has the character %q, but only lower-case letters, digits and \"._:-\" are allowed", []rune(name[foreign:])[0])
	default:
		return "is not of the form iqn.<year>-<month>.<reversed domain>:<name>"
	}
}
