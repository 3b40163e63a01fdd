//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
)

type volume struct {
	Name   string `json:"name"`
	Status string `json:"status"`
}

// ourVolumes lists the volumes of every project that claims were made into,
// past the program, by the endpoint that lets everybody see all.
func ourVolumes(ctx context.Context, env rig.Env) ([]volume, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, env.Noauth.Endpoint+"/"+env.Noauth.Project+"/volumes/detail?all_tenants=1", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("X-Auth-Token", env.Noauth.User+":"+env.Noauth.Project)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("listing volumes: %s", response.Status)
	}
	var answer struct {
		Volumes []volume `json:"volumes"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	var ours []volume
	for _, v := range answer.Volumes {
		if strings.HasPrefix(v.Name, "pvc-") {
			ours = append(ours, v)
		}
	}
	return ours, nil
}

// notAll complains until the volumes of both tenants are in use.
func notAll(ctx context.Context, env rig.Env, each int) (string, error) {
	volumes, err := ourVolumes(ctx, env)
	inUse := 0
	for _, v := range volumes {
		if v.Status == "in-use" {
			inUse++
		}
	}
	if err != nil || inUse == 2*each && len(volumes) == 2*each {
		return "", err
	}
	return fmt.Sprintf("%d of %d volumes are in use, want %d", inUse, len(volumes), 2*each), nil
}

func volumesLeft(ctx context.Context, env rig.Env) (string, error) {
	volumes, err := ourVolumes(ctx, env)
	if err != nil || len(volumes) == 0 {
		return "", err
	}
	return fmt.Sprintf("%d volumes are left at Cinder, such as %s (%s)", len(volumes), volumes[0].Name, volumes[0].Status), nil
}
