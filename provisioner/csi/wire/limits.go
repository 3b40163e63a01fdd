package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits are the rates that a node holds for each pod that uses a volume, per second. 0
// means none.
type Limits struct {
	ReadBytes       int64 `json:"readBytes,omitempty"`
	WriteBytes      int64 `json:"writeBytes,omitempty"`
	ReadOperations  int64 `json:"readOperations,omitempty"`
	WriteOperations int64 `json:"writeOperations,omitempty"`
}

func (l Limits) rates() []int64 {
	return []int64{l.ReadBytes, l.WriteBytes, l.ReadOperations, l.WriteOperations}
}

// encode and parseLimits use one text for a publish context, which has little room.
// Plugins that do not know it ignore it.
func (l Limits) encode() string { return strings.Trim(fmt.Sprint(l.rates()), "[]") }

func parseLimits(text string) (*Limits, error) {
	fields := strings.Fields(text)
	if len(fields) != len(Limits{}.rates()) {
		return nil, fmt.Errorf("%.80q is not a list of limits", text)
	}
	var rates [4]int64
	for i, field := range fields {
		rate, err := strconv.ParseInt(field, 10, 64)
		if err != nil || rate < 0 {
			return nil, fmt.Errorf("%.80q is not a limit", field)
		}
		rates[i] = rate
	}
	return &Limits{rates[0], rates[1], rates[2], rates[3]}, nil
}
