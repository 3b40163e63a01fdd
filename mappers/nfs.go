package mappers

import (
	"path"
	"regexp"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// nfs describes protocol nfs.
func nfs() protocol {
	return protocol{
		about: mapping.Protocol{
			Facts:  []string{"export", "server", "path", "file", "format", "options"},
			Fields: []string{"export", "name", "options", "format"},

			IdentityFacts: []string{"file"},
		},
		builtIn: mapNFS,
		facts:   nfsFacts,
	}
}

// mapNFS refuses protocol nfs: a volume of Cinder's NFS drivers is an image file on an
// export that all volumes of the backend share. The native source would hand the whole
// export to a pod.
func mapNFS(r request) (Result, error) {
	if _, _, err := nfsFacts(r); err != nil {
		return Result{}, err
	}
	return Result{}, refuse(MappingRequired, "a Cinder volume on NFS is an image file on an export shared by many volumes, which Kubernetes cannot mount by itself without handing the whole export to the pod; name in mapping.nfs of the backend a CSI or FlexVolume driver that attaches the one file")
}

// imageFileName matches the name of a volume's image, which the driver derives from the
// IDs of the volume and its snapshot (volume_name_template).
var imageFileName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,254}$`)

// imageFormat matches the name of an image's format, which callers of losetup and
// qemu-nbd compare.
var imageFormat = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)

// nfsFacts reads a connection of an NFS driver (cinder/volume/drivers/nfs.py,
// initialize_connection). A path outside the export, or a name with a path in it, would
// reach another tenant's volume.
func nfsFacts(r request) (facts, *Refusal, error) {
	c := r.Connection
	export, err := c.text("export")
	if err != nil {
		return nil, nil, err
	}
	name, err := c.text("name")
	if err != nil {
		return nil, nil, err
	}
	format, err := c.text("format")
	if err != nil {
		return nil, nil, err
	}
	options, err := c.text("options")
	if err != nil {
		return nil, nil, err
	}
	server, directory, ok := cutExport(export)
	switch {
	case export == "":
		return nil, nil, refuse(InvalidConnection, "export is missing; check the cinder-volume log, because this backend's driver failed to describe the connection")
	case !ok:
		return nil, nil, refuse(InvalidConnection, "export is %s, expected host:/path with a path of letters, digits and \"_./@:+=-\"; correct the backend's shares in cinder.conf", c.quote(export))
	case name == "":
		return nil, nil, refuse(InvalidConnection, "name is missing, and without the name of its file the volume is the whole export; check the cinder-volume log, because this backend's driver failed to describe the connection")
	case !imageFileName.MatchString(name):
		return nil, nil, refuse(InvalidConnection, "name is %s, expected the name of a file without a path; check the cinder-volume log, because this backend's driver failed to describe the connection", c.quote(name))
	}
	if format != "" && !imageFormat.MatchString(format) {
		return nil, nil, refuse(InvalidConnection, "format is %s, expected the name of an image format such as \"raw\" or \"qcow2\"; check the cinder-volume log, because this backend's driver failed to describe the connection", c.quote(format))
	}
	return facts{
		"export": export, "server": server, "path": directory, "file": name, "format": known(format),
		// The driver includes the "-o" of a mount command.
		"options": known(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(options), "-o"))),
	}, nil, nil
}

// cutExport splits "host:/path". IPv6 addresses stand in brackets.
func cutExport(export string) (server, directory string, ok bool) {
	position := strings.Index(export, ":/")
	if position <= 0 {
		return "", "", false
	}
	server, directory = export[:position], export[position+1:]
	bare, bracketed := strings.CutPrefix(server, "[")
	if bracketed {
		if bare, ok = strings.CutSuffix(bare, "]"); !ok {
			return "", "", false
		}
	}
	// The port does not matter: it only turns the host into an address that can be
	// checked.
	if _, err := newAddress(bare, "2049", bracketed); err != nil {
		return "", "", false
	}
	clean := path.Clean(directory) == strings.TrimRight(directory, "/") || directory == "/"
	return server, directory, clean && exportDirectory.MatchString(directory)
}

// exportDirectory matches a path that means the same in a mount command, a URL and a file
// name; a comma would begin another mount option.
var exportDirectory = regexp.MustCompile(`^/[A-Za-z0-9_./@:+=-]*$`)
