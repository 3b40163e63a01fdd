package wire

import "strings"

// Bounded keeps an error, as JSON, below the 4096 bytes of a termination message, of which the
// kubelet would cut the end. It cuts the middle: the cause comes last.
func Bounded(text string) string {
	const most = 300 // at each end; JSON may take six bytes for one
	if len(text) <= 2*most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + " ... " + strings.ToValidUTF8(text[len(text)-most:], "")
}
