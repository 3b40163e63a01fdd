package auth

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// merged returns what the files contain for one entry. The most specific source wins: the
// region's values, then secure.yaml, the entry and the profile.
//
// The files are not read into gophercloud's types, which drop alternative spellings and
// locations of keys. Its Parse also fills gaps from the environment, prefers certificates
// from there even over the entry's, and ignores region values. Its merge, through JSON,
// loses a `verify: false` to a more general true.
func (s Sources) merged(name, region string) (settings, error) {
	path, err := s.cloudsFile()
	if err != nil {
		return settings{}, err
	}
	listed, err := s.files.readYAML(path)
	if err != nil {
		return settings{}, err
	}
	file := &yamlFile{path: path}
	clouds, err := file.find(listed, "clouds")
	if err != nil {
		return settings{}, err
	}
	node, err := file.find(clouds, name)
	if err != nil {
		return settings{}, err
	}
	if node == nil {
		if clouds == nil && listed != nil {
			return settings{}, fmt.Errorf("%s has no key clouds, which holds the entries; its keys are %s", path, file.quotedNames(listed))
		}
		return settings{}, fmt.Errorf("%s has no cloud %q; it has %s", path, name, file.quotedNames(clouds))
	}
	entry, err := file.settings(node)
	if err != nil {
		return settings{}, err
	}
	secure, _, err := s.beside(path, "secure", "clouds", name)
	if err != nil {
		return settings{}, fmt.Errorf("%s: cloud %q: %w", path, name, err)
	}
	profile := settings{}
	specific := merge(entry, secure)
	if vendor := cmp.Or(specific.top["profile"].text, specific.top["cloud"].text); vendor != "" {
		found, given, err := s.beside(path, "clouds-public", "public-clouds", vendor)
		if err == nil && !given {
			err = fmt.Errorf("%s does not exist in clouds-public.yaml, and no profile is built in", named("cloud", vendor))
		}
		if err != nil {
			return settings{}, fmt.Errorf("%s: cloud %q: %w", path, name, err)
		}
		profile = found
	}
	merged, err := withRegion(merge(profile, specific), region)
	if err != nil {
		return settings{}, fmt.Errorf("%s: cloud %q: %w", path, name, err)
	}
	return merged, nil
}

// cloudsFile finds clouds.yaml like the OpenStack clients: the variable
// OS_CLIENT_CONFIG_FILE, the working directory, the user's and the system's
// configuration directory.
func (s Sources) cloudsFile() (string, error) {
	if s.CloudsFile != "" {
		return s.CloudsFile, nil
	}
	if path := s.getenv("OS_CLIENT_CONFIG_FILE"); path != "" {
		return path, nil
	}
	directories := []string{""}
	if dir, err := os.UserConfigDir(); err == nil {
		directories = append(directories, filepath.Join(dir, "openstack"))
	}
	var candidates []string
	for _, directory := range append(directories, "/etc/openstack") {
		for _, suffix := range suffixes {
			candidate := filepath.Join(directory, "clouds"+suffix)
			if _, err := os.Stat(candidate); err == nil {
				return candidate, nil
			}
			candidates = append(candidates, candidate)
		}
	}
	return "", fmt.Errorf("no clouds.yaml was found (looked at %s); name one with --clouds-file", strings.Join(candidates, ", "))
}

// suffixes are the file extensions; JSON is also YAML.
var suffixes = []string{".yaml", ".yml", ".json"}

// beside reads an entry from a file in the directory of clouds.yaml; the file or the entry
// may be missing.
func (s Sources) beside(clouds, file, section, name string) (found settings, given bool, err error) {
	for _, suffix := range suffixes {
		path := filepath.Join(filepath.Dir(clouds), file+suffix)
		if file == "secure" && s.CloudsFile == "" {
			path = cmp.Or(s.getenv("OS_CLIENT_SECURE_FILE"), path)
		}
		root, err := s.files.readYAML(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var node *yaml.Node
		read := &yamlFile{path: path}
		if err == nil {
			node, err = read.find(root, section)
		}
		if err == nil {
			node, err = read.find(node, name)
		}
		if err == nil {
			found, err = read.settings(node)
		}
		if err != nil {
			return settings{}, false, fmt.Errorf("unable to load %s: %w", filepath.Base(path), err)
		}
		return found, node != nil, nil
	}
	return settings{}, false, nil
}

// withRegion overlays an entry with the values of a region. If none is requested but the
// entry lists regions, it uses region_name or the first in the list, like the OpenStack
// clients. region_name is also an old form of the list.
func withRegion(cloud settings, region string) (settings, error) {
	own := cloud.top["region_name"]
	if len(own.list) > 0 || strings.Contains(own.text, ",") {
		names := own.list
		if names == nil {
			names = strings.Split(own.text, ",")
		}
		for _, name := range names {
			cloud.regions = append(cloud.regions, regionEntry{name: name})
		}
		own = setting{}
	}
	if region == "" && len(cloud.regions) > 0 {
		region = cmp.Or(own.text, cloud.regions[0].name)
		if !slices.ContainsFunc(cloud.regions, func(listed regionEntry) bool { return listed.name == region }) {
			return settings{}, errors.New("region_name is not in the list of regions; remove one of the two, or give the backend's region")
		}
	}
	if region == "" {
		return cloud, nil
	}
	// The list begins with the most specific file's regions. If two files have
	// values for one region, both count: a password from secure.yaml belongs to
	// the auth_url from clouds.yaml.
	for _, candidate := range slices.Backward(cloud.regions) {
		if candidate.name == region {
			cloud = merge(cloud, candidate.values)
		}
	}
	cloud = merge(cloud, settings{top: map[string]setting{"region_name": {key: "region_name", text: region}}})
	return cloud, nil
}

// yamlLine finds the line number in a YAML parser's message, the only part that
// is safe to show: the rest may quote a password.
var yamlLine = regexp.MustCompile(`line (\d+)`)

// readYAML returns the root of a file's first document; nil if it has none.
func (f fileSet) readYAML(path string) (*yaml.Node, error) {
	content, err := f.read(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, unwrapPath(err))
	}
	var document yaml.Node
	err = yaml.Unmarshal(content, &document)
	if isMapping := err == nil && (len(document.Content) == 0 || document.Content[0].Kind == yaml.MappingNode); !isMapping && bytes.Contains(content, []byte("OS_AUTH_URL=")) {
		return nil, fmt.Errorf("%s is an openrc script, not a clouds file; download clouds.yaml instead, or set auth.environment in the policy and the script's variables in the pods", path)
	}
	if err != nil {
		if line := yamlLine.FindStringSubmatch(err.Error()); line != nil {
			hint := ""
			if strings.Contains(err.Error(), "cannot start any token") { // such as a tab
				hint = "; indent with spaces, not tabs, and quote values that begin with a special character"
			}
			return nil, fmt.Errorf("%s:%s: not a valid clouds file%s", path, line[1], hint)
		}
		return nil, fmt.Errorf("%s: not a valid clouds file", path)
	}
	if len(document.Content) == 0 {
		return nil, nil
	}
	return document.Content[0], nil
}

// unwrapPath drops the path, which os errors repeat.
func unwrapPath(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}

// quotedNames lists the keys of a mapping.
func (f *yamlFile) quotedNames(node *yaml.Node) string {
	var names []string
	if node != nil && !isNull(node) {
		members, _ := f.members(node)
		for _, m := range members {
			names = append(names, fmt.Sprintf("%q", m.key.Value))
		}
	}
	slices.Sort(names)
	return cmp.Or(strings.Join(slices.Compact(names), ", "), "none")
}
