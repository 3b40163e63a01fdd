package auth

import (
	"cmp"
	"maps"
	"slices"
)

// UnknownKey is a key of a backend's credentials that nothing reads. Other programs may
// read it, so it is a mistake only if it resembles a known key.
type UnknownKey struct {
	At    string // file and line, or the file
	Key   string // as written
	Known []string
}

// UnknownKeys lists the keys of a backend's credentials that nothing reads. It lists none
// for unreadable credentials; Resolve reports those.
func (s Sources) UnknownKeys(config Config) []UnknownKey {
	s.files = fileSet{}
	var found settings
	known, at := knownKeys(), ""
	switch source := config.Source; {
	case source.Cloud != "":
		found, _ = s.merged(source.Cloud, config.Region)
	case source.CloudConfig != "":
		file, _ := s.readINI(source.CloudConfig)
		found, at = file.settings(), source.CloudConfig
		known = slices.AppendSeq(known, maps.Keys(globalNames))
	}
	var unknown []UnknownKey
	for _, key := range slices.Sorted(maps.Keys(found.top)) {
		v := found.top[key]
		if !slices.Contains(known, key) && tuningOf(key) == "" {
			unknown = append(unknown, UnknownKey{At: cmp.Or(v.at, at), Key: v.key, Known: known})
		}
	}
	return unknown
}
