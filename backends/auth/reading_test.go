package auth

import (
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// TestReadingIsOneStateOfEachFile: a file replaced during a reading does not
// mix old and new content.
func TestReadingIsOneStateOfEachFile(t *testing.T) {
	dir := authtest.WriteFiles(t, map[string]string{"clouds.yaml": "old"})
	files := fileSet{}
	first, err := files.read(dir + "/clouds.yaml")
	equal(t, err, nil)
	authtest.WriteFile(t, dir+"/clouds.yaml", "new")
	again, err := files.read(dir + "/clouds.yaml")
	equal(t, err, nil)
	equal(t, string(first)+string(again), "oldold")
}
