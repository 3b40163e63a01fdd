package staged

import (
	"path"
	"strings"
)

// Kubelet mounts native iSCSI and Fibre Channel volumes itself, and a kubelet that was
// restarted forgets what it only staged, as it does for the driver's. So a node plugin
// also reports these mounts. A volume's name is the directory that kubelet gives it below
// plugins/kubernetes.io, after the name of kubelet's plugin (makePDNameInternal and
// makeVDPDNameInternal in pkg/volume/iscsi/iscsi_util.go and pkg/volume/fc/fc_util.go).

// ISCSIMount returns the name of an iSCSI volume that kubelet mounts. portal is the first
// one.
func ISCSIMount(portal, target, lun string) string {
	if !strings.Contains(portal, ":") {
		portal += ":3260"
	}
	return "iscsi/" + portal + "-" + target + "-lun-" + lun
}

// FCMount returns the name of a Fibre Channel volume that kubelet mounts, by its target
// ports and its LUN, or if there are no ports, by its WWIDs.
func FCMount(ports []string, lun string, wwids []string) string {
	if len(ports) == 0 {
		return "fc/" + strings.Join(wwids, "-")
	}
	return "fc/" + strings.Join(ports, "-") + "-lun-" + lun
}

// MountAt returns the name of the volume that kubelet has mounted at a path; empty if it
// is nothing of these kinds. kubeletDir must not lead through links.
func MountAt(kubeletDir, at string) string {
	below, _ := strings.CutPrefix(at, path.Join(kubeletDir, "plugins/kubernetes.io")+"/")
	for _, plugin := range []string{"iscsi", "fc"} {
		rest, found := strings.CutPrefix(below, plugin+"/")
		if !found {
			continue
		}
		// A raw volume is mounted as a file for each of its pods.
		rest = strings.TrimPrefix(rest, "volumeDevices/")
		if strings.HasPrefix(rest, "iface-") {
			_, rest, _ = strings.Cut(rest, "/")
		}
		volume, _, _ := strings.Cut(rest, "/")
		if name := plugin + "/" + volume; isMount(name) {
			return name
		}
	}
	return ""
}

// isMount reports whether a text can be the name of a mounted volume, which a report
// separates by spaces. A target's name has at most 223 bytes (RFC 7143).
func isMount(name string) bool {
	plugin, volume, _ := strings.Cut(name, "/")
	return (plugin == "iscsi" || plugin == "fc") && volume != "" && len(name) <= 400 && !strings.ContainsAny(name, " \t\n")
}
