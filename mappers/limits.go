package mappers

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Limits are the rates that Cinder leaves the consumer of a volume to hold, per second.
// 0 means none.
type Limits struct {
	ReadBytes, WriteBytes, ReadOperations, WriteOperations int64
}

// qosSpecs returns the front-end QoS of the volume's type. Cinder sends qos_specs only
// when their consumer is "front-end" or "both" (_parse_connection_options in
// cinder/volume/manager.py), with the rates per GiB already multiplied.
func (c Connection) qosSpecs() (map[string]any, error) {
	value, present := c.value("qos_specs")
	if !present {
		return nil, nil
	}
	specs, ok := value.(map[string]any)
	if !ok {
		return nil, c.wrongType("qos_specs", value, "an object")
	}
	return specs, nil
}

// qosWarnings reports limits that a kubelet does not have.
func (c Connection) qosWarnings() ([]string, error) {
	specs, err := c.qosSpecs()
	if err != nil || len(specs) == 0 {
		return nil, err
	}
	return []string{fmt.Sprintf("the volume type's front-end QoS (%s) is not enforced: kubelet has no such limits; move them to the back end if the driver can enforce them",
		c.names(specs))}, nil
}

func (c Connection) names(specs map[string]any) string {
	return c.quote(strings.Join(slices.Sorted(maps.Keys(specs)), ", "))
}

// limits reads what the nodes of the CSI driver hold. The kernel limits reading and
// writing apart, so each of them gets a total: half of it would deny a volume that is only
// read what its type promises. What nodes cannot hold is a warning and stops no pod.
func (c Connection) limits() (Limits, []string, error) {
	specs, err := c.qosSpecs()
	if err != nil {
		return Limits{}, nil, err
	}
	var found Limits
	meanings := map[string][]*int64{
		"total_bytes_sec": {&found.ReadBytes, &found.WriteBytes}, "read_bytes_sec": {&found.ReadBytes}, "write_bytes_sec": {&found.WriteBytes},
		"total_iops_sec": {&found.ReadOperations, &found.WriteOperations}, "read_iops_sec": {&found.ReadOperations}, "write_iops_sec": {&found.WriteOperations},
	}
	unknown, unread := map[string]any{}, map[string]any{}
	for name, value := range specs {
		fields, known := meanings[name]
		rate, ok := readRate(value)
		switch {
		case !known:
			unknown[name] = value
			continue
		case !ok:
			unread[name] = value
			continue
		}
		for _, field := range fields {
			// Of a total and a rate of one direction, the lower holds.
			if rate > 0 && (*field == 0 || rate < *field) {
				*field = rate
			}
		}
	}
	var warnings []string
	if len(unknown) > 0 {
		warnings = append(warnings, fmt.Sprintf("a part of the volume type's front-end QoS (%s) is not enforced: nodes hold total_, read_ and write_ of bytes_sec and iops_sec, and no bursts", c.names(unknown)))
	}
	if len(unread) > 0 {
		warnings = append(warnings, fmt.Sprintf("a part of the volume type's front-end QoS (%s) is not enforced: the values are not whole numbers from 0 on; correct them with cinder qos-key", c.names(unread)))
	}
	return found, warnings, nil
}

// readRate reads a text or a number.
func readRate(value any) (int64, bool) {
	var text string
	switch typed := value.(type) {
	case string:
		text = strings.TrimSpace(typed)
	case json.Number:
		text = typed.String()
	}
	rate, err := strconv.ParseInt(text, 10, 64)
	return rate, err == nil && rate >= 0
}
