package objects

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
)

func TestPersistentVolumeSpecJoinsMountOptions(t *testing.T) {
	for name, test := range map[string]struct{ class, mapped, want []string }{
		"none":          {},
		"of the class":  {class: []string{"noatime"}, want: []string{"noatime"}},
		"of the volume": {mapped: []string{"discard"}, want: []string{"discard"}},
		"of both":       {class: []string{"noatime"}, mapped: []string{"discard"}, want: []string{"noatime", "discard"}},
		"twice":         {class: []string{"discard", "noatime"}, mapped: []string{"discard"}, want: []string{"discard", "noatime"}},
	} {
		t.Run(name, func(t *testing.T) {
			// A class's list has spare capacity after decoding.
			class := append(make([]string, 0, 8), test.class...)
			spec := PersistentVolumeSpec(mappers.Result{MountOptions: test.mapped}, corev1.PersistentVolumeSpec{MountOptions: class})
			if len(spec.MountOptions) != len(test.want) || len(test.want) > 0 && !reflect.DeepEqual(spec.MountOptions, test.want) {
				t.Errorf("mount options are %v, expected %v", spec.MountOptions, test.want)
			}
			if spare := class[:len(class)+1]; spare[len(class)] != "" {
				t.Error("the StorageClass's own list was written to")
			}
		})
	}
}
