package provisioner

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// memory is what the term knows about claims and their volumes: what it began, what
// counts, and what the caches show.
type memory struct {
	journal *journal.Journal
	ledger  *ledger.Ledger
	secrets *secrets.Keeper
	// records is the cache of PersistentVolumes, indexedClaims that of claims.
	records, indexedClaims cache.Indexer
}

// mayHaveVolume reports whether an attempt began for the claim, or a listing
// showed a volume of it.
func (m *memory) mayHaveVolume(uid types.UID) bool {
	_, begun := m.journal.Beginning(uid)
	position, counts := m.ledger.PositionOf(uid)
	return begun || counts && !position.NothingSeen
}

// claimExists reports whether the cache has a claim.
func (m *memory) claimExists(uid types.UID) bool {
	return objects.ClaimByUID(m.indexedClaims, uid) != nil
}

// isWanted reports whether a claim is in the cache, has an unfinished attempt, or
// counts in the ledger, perhaps for a volume that is younger than the listings.
func (m *memory) isWanted(uid types.UID) bool {
	_, begun := m.journal.Beginning(uid)
	_, counts := m.ledger.PositionOf(uid)
	return begun || counts || m.claimExists(uid)
}

// recordedBy returns the PersistentVolume that names a volume according to the cache,
// or named it earlier in this term; empty if there is none.
func (m *memory) recordedBy(v cinder.Volume) string {
	if found := objects.ByVolumeID(m.records, v.ID); len(found) > 0 {
		return found[0].Name
	}
	if stamp := stamps.Of(v); m.ledger.WasRecorded(types.UID(stamp.ClaimUID), v.ID) {
		return stamp.PV + ", which is gone"
	}
	return ""
}

// useOf returns what nodes may list for a volume whose PersistentVolume may have been
// saved; nil if this term created the volume and has not handed over its PersistentVolume
// yet.
func (m *memory) useOf(stamp stamps.Volume) *nodeuse.Volume {
	begun, ok := m.journal.Beginning(types.UID(stamp.ClaimUID))
	if position, _ := m.ledger.PositionOf(types.UID(stamp.ClaimUID)); ok && (begun.HandedOver != nil || position.NothingSeen) {
		return begun.HandedOver
	}
	return &nodeuse.Volume{PV: stamp.PV, MayAttach: true}
}
