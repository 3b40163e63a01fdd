package stamps

import (
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// FilesystemUUIDsOf returns the recorded UUIDs that a volume's filesystem may have
// besides the volume's own ID. They were recorded by the program, when it created the
// volume as a copy or imported it, or by an administrator of the project. Values that are
// not UUIDs are ignored.
func FilesystemUUIDsOf(v cinder.Volume) []string {
	var found []string
	for n := 0; ; n++ {
		recorded, exists := v.Metadata[filesystemsKey(n)]
		if !exists {
			return found
		}
		for text := range strings.SplitSeq(recorded, ",") {
			if id, err := uuid.Parse(strings.TrimSpace(text)); err == nil && id != uuid.Nil && !slices.Contains(found, id.String()) {
				found = append(found, id.String())
			}
		}
	}
}

// filesystemsKey returns the nth of the keys for filesystem UUIDs.
func filesystemsKey(n int) string {
	if n == 0 {
		return KeyFilesystemUUIDs
	}
	return KeyFilesystemUUIDs + "." + strconv.Itoa(n)
}

// uuidsPerKey is how many comma-separated UUIDs fit in a value.
const uuidsPerKey = (LongestValue + 1) / 37

// RecordFilesystems adds UUIDs to a volume's metadata.
func RecordFilesystems(metadata map[string]string, uuids []string) {
	n := 0
	for some := range slices.Chunk(uuids, uuidsPerKey) {
		metadata[filesystemsKey(n)] = strings.Join(some, ",")
		n++
	}
}
