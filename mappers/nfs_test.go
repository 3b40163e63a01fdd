package mappers_test

import (
	"fmt"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// TestNFSNames: what reaches a driver on the nodes is a plain path and a plain
// name.
func TestNFSNames(t *testing.T) {
	request := plainRequest()
	request.Mappings = map[string]mapping.Mapping{"nfs": {As: mapping.CSI, Driver: "nfs.example.org", Attributes: map[string]string{"export": "{{ .nfs.export }}", "file": "{{ .nfs.file }}"}}}
	for export, sound := range map[string]bool{
		"192.0.2.9:/export/cinder": true, "[2001:db8::1]:/a": true, "nas.example.org:/vol_1/a.b-c@d": true, "nas:/": true,
		"192.0.2.9:/a b": false, "192.0.2.9:/a,soft": false, "192.0.2.9:/../a": false, "192.0.2.9:/a/./b": false, "192.0.2.9:/$(id)": false,
		"192.0.2.9:/a{b}": false, "192.0.2.9:/\u00e4": false, "192.0.2.9:/a#b": false, "-o:/a": false, "192.0.2.9:/a!": false,
	} {
		_, err := mapData(t, "nfs", fields{"export": export, "name": "volume-1"}, request)
		if sound && err != nil {
			t.Errorf("%s: %v", export, err)
		}
		if !sound {
			expectRefusal(t, err, mappers.InvalidConnection, fmt.Sprintf(`export is %q, expected host:/path with a path of letters, digits and "_./@:+=-"; correct the backend's shares in cinder.conf`, export))
		}
	}
	for _, name := range []string{"-p", ".hidden", "a/b", "a b", "a;b", ".."} {
		_, err := mapData(t, "nfs", fields{"export": "nas:/a", "name": name}, request)
		expectRefusal(t, err, mappers.InvalidConnection, fmt.Sprintf("name is %q, expected the name of a file without a path; check the cinder-volume log, because this backend's driver failed to describe the connection", name))
	}
	_, err := mapData(t, "nfs", fields{"export": "nas:/a", "name": "volume-1", "format": "raw --x"}, request)
	expectRefusal(t, err, mappers.InvalidConnection, `format is "raw --x", expected the name of an image format such as "raw" or "qcow2"; check the cinder-volume log, because this backend's driver failed to describe the connection`)
}
