//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
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

// ask asks Cinder directly, by the endpoint that lets everybody see everything.
func ask(ctx context.Context, env rig.Env, path string, answer any) error {
	return askProject(ctx, env, env.Noauth.Project, path, answer)
}

// askProject asks about one project.
func askProject(ctx context.Context, env rig.Env, project, path string, answer any) error {
	return send(ctx, env, http.MethodGet, project, path, nil, answer)
}

// createVolume makes a volume of one GiB, as somebody would who does not know the
// program, and waits until it is available.
func createVolume(ctx context.Context, env rig.Env, name, volumeType string) (id string, err error) {
	var made struct {
		Volume struct{ ID, Status string } `json:"volume"`
	}
	body := map[string]any{"volume": map[string]any{"name": name, "size": 1, "volume_type": volumeType}}
	if err := send(ctx, env, http.MethodPost, env.Noauth.Project, "/volumes", body, &made); err != nil {
		return "", err
	}
	id = made.Volume.ID
	return id, harness.Eventually(ctx, func() (string, error) {
		err := ask(ctx, env, "/volumes/"+id, &made)
		if err != nil || made.Volume.Status == "available" {
			return "", err
		}
		return "volume " + id + " is " + made.Volume.Status, nil
	})
}

func send(ctx context.Context, env rig.Env, method, project, path string, body, answer any) error {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, env.Noauth.Endpoint+"/"+project+path, content)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Auth-Token", env.Noauth.User+":"+project)
	// The first version in which attachments can be completed.
	request.Header.Set("OpenStack-API-Version", "volume 3.44")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// notInUse complains until that many volumes are in use and there are no
// others.
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
