package fields

import (
	"encoding/json"
	"testing"
)

func TestSizesAreIntegersOrDigits(t *testing.T) {
	for _, test := range []struct {
		value any
		want  int
		fails string
	}{
		{json.Number("5"), 5, ""},
		{"05", 5, ""},
		{nil, 0, ""},
		{json.Number("0"), 0, "Invalid input for field/attribute size. Value: 0. 0 is less than the minimum of 1"},
		{json.Number("1.0"), 0, "Invalid input for field/attribute size. Value: 1.0. 1.0 is not of type 'integer', 'string', 'null'"},
		{"-1", 0, "Invalid input for field/attribute size. Value: -1. '-1' does not match '^[0-9]+$'"},
		{"2147483648", 0, "Invalid input for field/attribute size. Value: 2147483648. 2147483648 is greater than the maximum of 2147483647"},
	} {
		got, err := Size(map[string]any{"size": test.value}, "size", true)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if got != test.want || message != test.fails {
			t.Errorf("%v: %d, %q; want %d, %q", test.value, got, message, test.want, test.fails)
		}
	}
}
