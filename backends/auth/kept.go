package auth

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
)

// keptEntry is an entry that needs no file: profile, secure.yaml and region are merged,
// and certificates and keys are inlined. It holds only this backend's entry, regardless
// of what else the files contain.
type keptEntry struct {
	// For is the fingerprint of the configuration that the entry was read for. A field
	// that a later release adds to Config must be omitted from JSON while it is empty, or
	// that release could not use anything that this one kept.
	For    string   `json:"for"`
	Cloud  *account `json:"cloud,omitempty"`
	Noauth *Noauth  `json:"noauth,omitempty"`
}

// keep returns the text of an entry that was just read completely. What the policy and
// the environment contain is not kept: it cannot be lost with a file.
func (f fileSet) keep(config Config, read entry) ([]byte, error) {
	if config.Source.Cloud == "" && config.Source.CloudConfig == "" {
		return nil, nil
	}
	kept := keptEntry{For: fingerprint.Of(config), Noauth: read.noauth}
	if read.cloud != nil {
		cloud := *read.cloud
		cloud.Profile, cloud.Cloud.Cloud = "", "" // which are merged into the entry
		for _, file := range []*string{&cloud.CACertFile, &cloud.ClientCertFile, &cloud.ClientKeyFile} {
			if *file == "" {
				continue
			}
			text, err := f.certificateText(*file)
			if err != nil {
				return nil, err
			}
			*file = string(text)
		}
		kept.Cloud = &cloud
	}
	// JSON, since YAML cannot read back every text that it writes. A certificate is one
	// line, which a store can share between backends.
	text, err := json.MarshalIndent(kept, "", " ")
	if err != nil {
		return nil, errors.New("the credentials cannot be written as JSON")
	}
	return text, nil
}

// ErrOtherConfig means that the credentials were kept for another configuration of the
// backend.
var ErrOtherConfig = errors.New("they were read for another configuration of the backend")

// Restore rebuilds a reading from its Kept, with the same checks as
// for a file. The next Reread always prefers the files. Its errors never quote the text.
func Restore(config Config, text []byte) (*Reading, error) {
	var kept keptEntry
	if err := json.Unmarshal(text, &kept); err != nil || (kept.Cloud == nil) == (kept.Noauth == nil) {
		return nil, errors.New("they are damaged")
	}
	if kept.For != fingerprint.Of(config) {
		return nil, ErrOtherConfig
	}
	if cloud := kept.Cloud; cloud != nil {
		for _, value := range []string{cloud.CACertFile, cloud.ClientCertFile, cloud.ClientKeyFile} {
			if value != "" && !inlinePEM(value) {
				return nil, errors.New("they are damaged: they name a file")
			}
		}
	}
	found, err := fileSet{}.complete(config, entry{cloud: kept.Cloud, noauth: kept.Noauth})
	if err != nil {
		return nil, fmt.Errorf("they are unusable: %w", err)
	}
	return &Reading{Credentials: found, Kept: text, Restored: true}, nil
}
