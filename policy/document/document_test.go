package document

import (
	"fmt"
	"testing"
)

func TestDidYouMean(t *testing.T) {
	known := []string{"gold", "lab", "ext2", "ext3", "volumeSize"}
	for word, want := range map[string]string{
		"golf":       `; did you mean "gold"?`,
		"GOLD":       `; did you mean "gold"?`,
		"glod":       `; did you mean "gold"?`,
		"lba":        `; did you mean "lab"?`,
		"go":         `; did you mean "gold"?`, // an ending is missing
		"old":        `; did you mean "gold"?`,
		"volumeType": "; there are ext2, ext3, gold, lab, volumeSize",
		"ext5":       "; there are ext2, ext3, gold, lab, volumeSize",
		"":           "; there are ext2, ext3, gold, lab, volumeSize",
	} {
		if got := DidYouMean(word, known, "there are"); got != want {
			t.Errorf("DidYouMean(%q) = %q, want %q", word, got, want)
		}
	}
	if got := DidYouMean("gold", nil, "there are"); got != "" {
		t.Errorf("without known words: %q", got)
	}
	var many []string
	for i := range maxSuggestible + 1 {
		many = append(many, fmt.Sprintf("backend-%04d", i))
	}
	const want = "; there are backend-0000, backend-0001, backend-0002, backend-0003, backend-0004, backend-0005, backend-0006, backend-0007, backend-0008, backend-0009, " +
		"backend-0010, backend-0011, backend-0012, backend-0013, backend-0014, backend-0015, backend-0016, backend-0017, backend-0018, backend-0019 and 981 more"
	if got := DidYouMean("backend-000", many, "there are"); got != want {
		t.Errorf("among many words: %q", got)
	}
}

func TestErrorText(t *testing.T) {
	tests := map[string]struct {
		err  Error
		want string
	}{
		"full":        {Error{"p.yaml", 14, 7, "tenants[1]", "is wrong"}, "p.yaml:14:7: tenants[1]: is wrong"},
		"no column":   {Error{"p.yaml", 14, 0, "", "is wrong"}, "p.yaml:14: is wrong"},
		"no line":     {Error{"p.yaml", 0, 0, "", "is wrong"}, "p.yaml: is wrong"},
		"only a text": {Error{Message: "is wrong"}, "is wrong"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.err.Error(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
