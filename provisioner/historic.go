package provisioner

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// locateHistoric finds the backend of a volume that the historic provisioner
// made, which knew only one and wrote down none. Only a volume that is found
// can be deleted: that no backend has it proves nothing, since its backend may
// be missing from the policy.
func (p *Provisioner) locateHistoric(ctx context.Context, origin *Origin) (string, error) {
	var holders []string
	names := p.Backends.Names()
	for _, name := range names {
		volumes, err := p.Backends.Volumes(name)
		if err != nil {
			return "", err
		}
		has, err := volumes.Has(ctx, origin.VolumeID)
		if err != nil {
			return "", fmt.Errorf("looking for volume %s of the historic provisioner: %w", origin.VolumeID, err)
		}
		if has {
			holders = append(holders, name)
		}
	}
	switch len(holders) {
	case 1:
		return holders[0], nil
	case 0:
		return "", &damagedError{fmt.Sprintf(
			"volume %s of the historic provisioner is at none of the policy's backends (%s); add its backend, or, if the volume is gone, remove PersistentVolume %s by hand",
			origin.VolumeID, strings.Join(names, ", "), origin.PVName)}
	}
	// Several entries of the policy lead to one Cinder; any of them will do.
	return holders[0], nil
}

// pinHistoric writes down where the volume was found before anything is deleted,
// so that a later attempt knows that a volume it does not find is gone.
func (p *Provisioner) pinHistoric(ctx context.Context, pv *corev1.PersistentVolume, origin *Origin, backend string) error {
	volumes, err := p.Backends.Volumes(backend)
	if err != nil {
		return err
	}
	at := volumes.Place()
	annotations := map[string]string{annotationBackend: backend}
	maps.Copy(annotations, placeAnnotations(at))
	if err := p.annotate(ctx, pv.Name, annotations); err != nil {
		return fmt.Errorf("cannot note backend %s on PersistentVolume %s: %w", backend, pv.Name, err)
	}
	origin.Backend, origin.Place = backend, at
	return nil
}
