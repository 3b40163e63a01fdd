package provisioner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// locateHistoric finds the backend of a volume that the historic provisioner created.
// That provisioner knew only one backend and recorded none. Only a volume that is found
// can be deleted: that no backend has it proves nothing, because its backend may be
// missing from the policy.
func (p *Provisioner) locateHistoric(ctx context.Context, origin *record.Origin) (string, error) {
	names := p.Backends.Names()
	var silent []error
	for _, name := range names {
		volumes, err := p.Backends.Volumes(name)
		has := false
		if err == nil {
			has, err = volumes.HasVolume(ctx, origin.VolumeID)
		}
		if has {
			// If several backends of the policy share one Cinder, any of them will do.
			return name, nil
		}
		silent = append(silent, err)
	}
	if err := errors.Join(silent...); err != nil {
		return "", fmt.Errorf("looking for volume %s of the historic provisioner: %w", origin.VolumeID, err)
	}
	return "", &record.DamagedError{Message: fmt.Sprintf(
		"volume %s of the historic provisioner is at none of the policy's backends (%s); add its backend, or, if the volume is gone, remove PersistentVolume %s by hand",
		origin.VolumeID, strings.Join(names, ", "), origin.PVName)}
}

// pinHistoric records on the PersistentVolume where its volume was found, before
// anything is deleted. A later attempt that does not find the volume there knows
// that it is gone.
func (p *Provisioner) pinHistoric(ctx context.Context, pv *corev1.PersistentVolume, origin *record.Origin, backend string) error {
	volumes, err := p.Backends.Volumes(backend)
	if err != nil {
		return err
	}
	at := volumes.Place()
	annotations := map[string]string{record.AnnotationBackend: backend}
	maps.Copy(annotations, record.PlaceAnnotations(at))
	if err := record.Annotate(ctx, p.Client, pv, annotations); err != nil {
		return fmt.Errorf("cannot record backend %s on PersistentVolume %s: %w", backend, pv.Name, err)
	}
	origin.Backend, origin.Place = backend, at
	return nil
}
