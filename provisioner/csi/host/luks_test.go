package host

import (
	"log/slog"
	"strings"
	"testing"
)

// TestNoAdviceDestroysAHeader: whoever overwrites the beginning of an encrypted volume loses
// all its data. A header that the node cannot read, because the volume is being encrypted
// anew or the header is larger than what is read, is no remains of an interrupted format.
func TestNoAdviceDestroysAHeader(t *testing.T) {
	crypt := NewCrypt(New(Root{}, slog.New(slog.DiscardHandler)))
	for name, change := range map[string]func([]byte){
		"a volume that is being encrypted anew": func(c []byte) {
			copy(c[luks2JSON:], `{"keyslots": {"0": {}}, "segments": {"0": {"offset": "16777216"}, "1": {"offset": "26777216"}}}`+"\x00")
		},
		"a header with more metadata": func(c []byte) { copy(c[luks2Size:], []byte{0, 0, 0, 0, 0, 0x40, 0, 0}) }, // 4 MiB
		"a header of a later version": func(c []byte) { c[7] = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			content := make([]byte, beginning)
			copy(content, luksMagic)
			content[7], content[14] = 2, 0x40
			copy(content[luksUUID:], volume)
			copy(content[luks2JSON:], `{"keyslots": {"0": {}}, "segments": {"0": {"offset": "16777216"}}}`)
			change(content)
			for _, node := range map[string]func() error{
				"encrypted": func() error {
					_, err := crypt.Judge(t.Context(), "sdb", recognize(content), Wanted{Volume: volume}, 2)
					return err
				},
				"not encrypted": func() error { _, err := Judge("sdb", recognize(content), Wanted{Volume: volume}); return err },
			} {
				if err := node(); err == nil || strings.Contains(err.Error(), "MiB with zeros") {
					t.Errorf("a LUKS header is refused with %v", err)
				}
			}
		})
	}
}
