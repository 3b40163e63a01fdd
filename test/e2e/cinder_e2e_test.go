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

// ourVolumes lists the volumes of every project that claims were made into.
func ourVolumes(ctx context.Context, env rig.Env) ([]volume, error) {
	var answer struct {
		Volumes []volume `json:"volumes"`
	}
	if err := ask(ctx, env, "/volumes/detail?all_tenants=1", &answer); err != nil {
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

// attachment is one of the attachments API's. Attaching by the volume actions
// makes one, too.
type attachment struct {
	ID       string `json:"id"`
	VolumeID string `json:"volume_id"`
	Status   string `json:"status"`
}

func attachmentsByVolume(ctx context.Context, env rig.Env) (map[string][]attachment, error) {
	var answer struct {
		Attachments []attachment `json:"attachments"`
	}
	if err := ask(ctx, env, "/attachments/detail?all_tenants=1", &answer); err != nil {
		return nil, err
	}
	byVolume := map[string][]attachment{}
	for _, a := range answer.Attachments {
		byVolume[a.VolumeID] = append(byVolume[a.VolumeID], a)
	}
	return byVolume, nil
}

// ask asks Cinder past the program, by the endpoint that lets everybody see
// all.
func ask(ctx context.Context, env rig.Env, path string, answer any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, env.Noauth.Endpoint+"/"+env.Noauth.Project+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("X-Auth-Token", env.Noauth.User+":"+env.Noauth.Project)
	// The first version in which attachments can be completed.
	request.Header.Set("OpenStack-API-Version", "volume 3.44")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// notInUse complains until so many volumes are in use and there are no others.
func notInUse(ctx context.Context, env rig.Env, want int) (string, error) {
	volumes, err := ourVolumes(ctx, env)
	inUse := 0
	for _, v := range volumes {
		if v.Status == "in-use" {
			inUse++
		}
	}
	if err != nil || inUse == want && len(volumes) == want {
		return "", err
	}
	return fmt.Sprintf("%d of %d volumes are in use, want %d", inUse, len(volumes), want), nil
}

func volumesLeft(ctx context.Context, env rig.Env) (string, error) {
	volumes, err := ourVolumes(ctx, env)
	if err != nil || len(volumes) == 0 {
		return "", err
	}
	return fmt.Sprintf("%d volumes are left at Cinder, such as %s (%s)", len(volumes), volumes[0].Name, volumes[0].Status), nil
}
