package mappers_test

import (
	"slices"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// TestLimitsOfNodes reads front-end QoS as Cinder sends it: as texts, or as numbers that
// it computed.
func TestLimitsOfNodes(t *testing.T) {
	partly := "a part of the volume type's front-end QoS ("
	bursts := ") is not enforced: nodes hold total_, read_ and write_ of bytes_sec and iops_sec, and no bursts"
	values := ") is not enforced: the values are not whole numbers from 0 on; correct them with cinder qos-key"
	for name, test := range map[string]struct {
		specs    string
		want     mappers.Limits
		warnings []string
	}{
		"none":                        {specs: `null`},
		"an empty object":             {specs: `{}`},
		"a total is each direction's": {specs: `{"total_bytes_sec": "2097152", "total_iops_sec": 50}`, want: mappers.Limits{ReadBytes: 2097152, WriteBytes: 2097152, ReadOperations: 50, WriteOperations: 50}},
		"one direction":               {specs: `{"read_bytes_sec": "1", "write_iops_sec": " 7 "}`, want: mappers.Limits{ReadBytes: 1, WriteOperations: 7}},
		"the lower of two":            {specs: `{"total_iops_sec": "50", "read_iops_sec": "20", "write_iops_sec": "80"}`, want: mappers.Limits{ReadOperations: 20, WriteOperations: 50}},
		"0 is none":                   {specs: `{"total_iops_sec": "0", "read_iops_sec": "20", "total_bytes_sec": 0}`, want: mappers.Limits{ReadOperations: 20}},
		"bursts": {specs: `{"read_iops_sec": "20", "read_iops_sec_max": "40", "read_iops_sec_max_length": "3", "size_iops_sec": "4096"}`, want: mappers.Limits{ReadOperations: 20},
			warnings: []string{partly + `"read_iops_sec_max, read_iops_sec_max_length, size_iops_sec"` + bursts}},
		"a key of a vendor":  {specs: `{"maxIOPS": "20"}`, warnings: []string{partly + `"maxIOPS"` + bursts}},
		"no number":          {specs: `{"read_iops_sec": "many"}`, warnings: []string{partly + `"read_iops_sec"` + values}},
		"a negative number":  {specs: `{"read_iops_sec": -1}`, warnings: []string{partly + `"read_iops_sec"` + values}},
		"a fraction":         {specs: `{"read_iops_sec": 1.5}`, warnings: []string{partly + `"read_iops_sec"` + values}},
		"more than a number": {specs: `{"read_iops_sec": 99999999999999999999}`, warnings: []string{partly + `"read_iops_sec"` + values}},
		"an object as value": {specs: `{"read_iops_sec": {}}`, warnings: []string{partly + `"read_iops_sec"` + values}},
		"a credential as name": {specs: `{"hunter2": "1"}, "auth_method": "CHAP", "auth_username": "u", "auth_password": "hunter2"`,
			warnings: []string{partly + `a value that contains a credential` + bursts}},
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := mappers.ParseConnection([]byte(`{"driver_volume_type": "iscsi", "target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume-1", "target_lun": 1, "qos_specs": ` + test.specs + `}`))
			if err != nil {
				t.Fatal(err)
			}
			found, err := mappers.ForNode(connection, mappers.NodeRequest{})
			if err != nil || found.Limits != test.want || !slices.Equal(found.Unenforced, test.warnings) || !slices.Equal(found.Warnings, test.warnings) {
				t.Errorf("got  %+v, %q (%q), %v\nwant %+v, %q", found.Limits, found.Unenforced, found.Warnings, err, test.want, test.warnings)
			}
		})
	}
}
