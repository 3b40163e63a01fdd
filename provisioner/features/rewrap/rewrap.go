// Package rewrap replaces the key-encryption keys that wrap the keys of volumes, beside the
// leader and with the rights of an operator. The keys of the volumes, and what they encrypt,
// stay as they are, so volumes may be in use.
//
// Each record is replaced in one request. Whatever interrupts a run, each volume is opened
// by one of the two entries, and the next run does the rest.
package rewrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/volumekeys"
)

// Keys has the records of one backend's keys; backends.Keys implements it.
type Keys interface {
	Recorded(ctx context.Context) ([]backends.RecordedKey, error)
	Replace(ctx context.Context, former backends.RecordedKey, next stamps.KeyRecords) error
	// Volumes lists the volumes among Recorded.
	Volumes(ctx context.Context) ([]backends.KeyedVolume, error)
}

// Backend is a backend of the policy.
type Backend struct {
	Name string
	Keys Keys
}

// Entry is an entry of a Secret with key-encryption keys.
type Entry struct{ Secret, Entry string }

// String returns the entry in the form of the command's flags.
func (e Entry) String() string { return e.Secret + "/" + e.Entry }

func (e Entry) record() stamps.EncryptionRecord {
	return stamps.EncryptionRecord{Secret: e.Secret, Entry: e.Entry}
}

// Use is how many volumes and snapshots of a backend an entry opens. Of an unreadable
// record, the entry is empty. What gets a new key has two records, perhaps under two entries.
type Use struct {
	Backend            string
	Entry              Entry
	Volumes, Snapshots int
	// Changing counts those of them that get a new key, or are copies of such volumes.
	Changing int
}

// Rewrapper rewraps the keys of a cluster.
type Rewrapper struct {
	Keeper   volumekeys.Keeper
	Backends []Backend
	// Say tells what was done, and what failed.
	Say func(what string)
}

// Uses counts what each entry opens. A backend that cannot be listed is an error: what it
// has may need any entry.
func (r *Rewrapper) Uses(ctx context.Context) ([]Use, error) {
	var uses []Use
	var errs []error
	for _, b := range r.Backends {
		recorded, err := b.Keys.Recorded(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("backend %s: %w", b.Name, err))
			continue
		}
		for _, key := range recorded {
			for _, entry := range entriesOf(key.KeyRecords) {
				i := slices.IndexFunc(uses, func(u Use) bool { return u.Backend == b.Name && u.Entry == entry })
				if i < 0 {
					i, uses = len(uses), append(uses, Use{Backend: b.Name, Entry: entry})
				}
				if key.IsSnapshot {
					uses[i].Snapshots++
				} else {
					uses[i].Volumes++
				}
				if key.IsChanging() {
					uses[i].Changing++
				}
			}
		}
	}
	slices.SortFunc(uses, func(a, b Use) int {
		return cmp.Or(cmp.Compare(a.Entry.String(), b.Entry.String()), cmp.Compare(a.Backend, b.Backend))
	})
	return uses, errors.Join(errs...)
}

// entriesOf returns the entries that records need, each once.
func entriesOf(records stamps.KeyRecords) (entries []Entry) {
	texts := records.All()
	if records.Main == "" {
		texts = append(texts, records.Main) // which cannot be read
	}
	for _, text := range texts {
		var entry Entry
		if record, err := stamps.ParseEncryptionRecord(text); err == nil {
			entry = Entry{record.Secret, record.Entry}
		}
		if !slices.Contains(entries, entry) {
			entries = append(entries, entry)
		}
	}
	return entries
}

// rewrapped rewraps those of the records that an entry wraps.
func rewrapped(records stamps.KeyRecords, from Entry, rewrap func(stamps.EncryptionRecord) (stamps.EncryptionRecord, error)) (stamps.KeyRecords, error) {
	for _, text := range []*string{&records.Main, &records.Next, &records.Former} {
		record, err := stamps.ParseEncryptionRecord(*text)
		if err != nil || (Entry{record.Secret, record.Entry}) != from {
			continue
		}
		next, err := rewrap(record)
		if err != nil {
			return stamps.KeyRecords{}, err
		}
		*text = next.String()
	}
	return records, nil
}

// Rewrap wraps every key that an entry wraps with another one, and returns how many it was,
// or would be unless apply is set. What fails does not stop the rest.
func (r *Rewrapper) Rewrap(ctx context.Context, from, to Entry, apply bool) (done int, err error) {
	rewrap, err := r.Keeper.Rewrapper(ctx, from.record(), to.record())
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, b := range r.Backends {
		recorded, err := b.Keys.Recorded(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("backend %s: %w", b.Name, err))
			continue
		}
		for _, key := range recorded {
			next, err := rewrapped(key.KeyRecords, from, rewrap)
			if err == nil && next == key.KeyRecords {
				continue // Uses shows what cannot be read
			}
			if err == nil && apply {
				err = b.Keys.Replace(ctx, key, next)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s of backend %s: %w", key, b.Name, err))
				continue
			}
			done++
			if apply {
				r.Say(fmt.Sprintf("%s of backend %s is opened by entry %s now", key, b.Name, to))
			}
		}
	}
	return done, errors.Join(errs...)
}
