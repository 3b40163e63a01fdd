package auth

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"go.yaml.in/yaml/v3"
)

// cloud reads one entry of clouds.yaml, for the given region or the entry's
// own.
//
// The types are gophercloud's. Its Parse is not used: it fills gaps from the
// environment, prefers certificates from there even to the entry's, and ignores
// the values of regions. Its merge, through JSON, loses a `verify: false` to a
// more general true.
func (s Sources) cloud(name, region string) (clouds.Cloud, error) {
	path, err := s.cloudsFile()
	if err != nil {
		return clouds.Cloud{}, err
	}
	return cloudFiles{path: path, files: s.files}.cloud(name, region)
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
	candidates := []string{"clouds.yaml", "clouds.yml"}
	if dir, err := os.UserConfigDir(); err == nil {
		candidates = append(candidates, filepath.Join(dir, "openstack", "clouds.yaml"), filepath.Join(dir, "openstack", "clouds.yml"))
	}
	candidates = append(candidates, "/etc/openstack/clouds.yaml", "/etc/openstack/clouds.yml")
	for _, candidate := range candidates {
		if _, err := os.Stat(candidate); err == nil {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("no clouds.yaml was found (looked at %s); name one with --clouds-file", strings.Join(candidates, ", "))
}

// cloudFiles reads clouds.yaml and the files next to it.
type cloudFiles struct {
	path  string
	files fileSet
}

// cloud merges what the files contain for one entry. The most specific place
// that sets a value wins: first the region's values, then secure.yaml, the
// entry, the profile.
func (f cloudFiles) cloud(name, region string) (clouds.Cloud, error) {
	var document clouds.Clouds
	if err := f.files.readYAML(f.path, &document); err != nil {
		return clouds.Cloud{}, err
	}
	entry, ok := document.Clouds[name]
	if !ok {
		return clouds.Cloud{}, fmt.Errorf("%s has no cloud %q; it has %s", f.path, name, quotedNames(document.Clouds))
	}
	profile, err := f.profile(cmp.Or(entry.Profile, entry.Cloud))
	if err != nil {
		return clouds.Cloud{}, fmt.Errorf("%s: cloud %q: %w", f.path, name, err)
	}
	secure, err := f.secure(name)
	if err != nil {
		return clouds.Cloud{}, fmt.Errorf("%s: cloud %q: %w", f.path, name, err)
	}
	return withRegion(mergeCloud(mergeCloud(profile, entry), secure), region), nil
}

// profile reads an entry of clouds-public.yaml, which is only needed for
// entries with a profile.
func (f cloudFiles) profile(name string) (clouds.Cloud, error) {
	if name == "" {
		return clouds.Cloud{}, nil
	}
	var document clouds.PublicClouds
	if err := f.readBeside("clouds-public.yaml", &document); err != nil {
		return clouds.Cloud{}, err
	}
	profile, ok := document.Clouds[name]
	if !ok {
		return clouds.Cloud{}, fmt.Errorf("%s does not exist in clouds-public.yaml", named("cloud", name))
	}
	return profile, nil
}

// secure reads an entry of secure.yaml, which may lack it.
func (f cloudFiles) secure(name string) (clouds.Cloud, error) {
	var document clouds.Clouds
	err := f.readBeside("secure.yaml", &document)
	return document.Clouds[name], err
}

// readBeside reads a file in the directory of clouds.yaml; the file may be
// missing.
func (f cloudFiles) readBeside(name string, into any) error {
	err := f.files.readYAML(filepath.Join(filepath.Dir(f.path), name), into)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unable to load %s: %w", name, err)
	}
	return nil
}

// withRegion overlays an entry with the values of a region. If none is
// requested of an entry that lists regions, it uses region_name or the first of
// the list, like the OpenStack clients.
func withRegion(cloud clouds.Cloud, region string) clouds.Cloud {
	if region == "" && len(cloud.Regions) > 0 {
		region = cmp.Or(cloud.RegionName, cloud.Regions[0].Name)
	}
	if region == "" {
		return cloud
	}
	// The list begins with the most specific file's regions. If two files have
	// values for one region, both count: a password from secure.yaml belongs to
	// the auth_url from clouds.yaml.
	for _, candidate := range slices.Backward(cloud.Regions) {
		if candidate.Name == region {
			cloud = mergeCloud(cloud, candidate.Values)
		}
	}
	cloud.RegionName = region
	return cloud
}

// mergeCloud overlays a general cloud with a specific one. Lists of regions are
// joined, the specific ones first.
func mergeCloud(general, specific clouds.Cloud) clouds.Cloud {
	merged := overlay(general, specific)
	if general.AuthInfo != nil && specific.AuthInfo != nil {
		auth := overlay(*general.AuthInfo, *specific.AuthInfo)
		merged.AuthInfo = &auth
	}
	merged.Regions = slices.Concat(specific.Regions, general.Regions)
	return merged
}

// overlay returns a struct with the fields that the specific one sets, and the
// general one's others. An empty string counts as not set; a pointer to false,
// as in `verify: false`, counts as set. Reflection covers the fields that
// gophercloud may add to its types.
func overlay[T clouds.Cloud | clouds.AuthInfo](general, specific T) T {
	into, from := reflect.ValueOf(&general).Elem(), reflect.ValueOf(specific)
	for i := range from.NumField() {
		if field := from.Field(i); !field.IsZero() {
			into.Field(i).Set(field)
		}
	}
	return general
}

// yamlLine finds the line number in a YAML parser's message, the only part that
// is safe to show: the rest may quote a password.
var yamlLine = regexp.MustCompile(`line (\d+)`)

func (f fileSet) readYAML(path string, into any) error {
	content, err := f.read(path)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", path, unwrapPath(err))
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		if line := yamlLine.FindStringSubmatch(err.Error()); line != nil {
			hint := ""
			if strings.Contains(err.Error(), "cannot start any token") { // such as a tab
				hint = "; indent with spaces, not tabs, and quote values that begin with a special character"
			}
			return fmt.Errorf("%s:%s: not a valid clouds file%s", path, line[1], hint)
		}
		return fmt.Errorf("%s: not a valid clouds file", path)
	}
	return nil
}

// unwrapPath drops the path, which os errors repeat.
func unwrapPath(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

func quotedNames(entries map[string]clouds.Cloud) string {
	if len(entries) == 0 {
		return "none"
	}
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, fmt.Sprintf("%q", name))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
