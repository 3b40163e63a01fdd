package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// workers is how many requests the bare loop sends at once, the concurrency that
// the policy gives the program.
const workers = 64

// finalizer keeps a PersistentVolume until its volume is gone.
const finalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// loop sends what every provisioner needs, and nothing else: the requests of a
// claim's life at Cinder, one shared listing for all waits, the PersistentVolume
// with a finalizer, and at the end one read and the removal of it. It checks
// nothing, adopts nothing and undoes nothing.
type loop struct {
	scene      *scene
	cinder     *bareClient
	kubernetes kubernetes.Interface
	volumes    map[types.UID]string // IDs by claim
}

func newLoop(s *scene) (*loop, error) {
	config := rest.CopyConfig(s.suite.Config)
	config.UserAgent = loopAgent
	client, err := kubernetes.NewForConfig(config)
	return &loop{
		scene: s, kubernetes: client, volumes: map[types.UID]string{},
		cinder: &bareClient{
			base: s.sim.NoauthEndpoint() + "/" + cindersim.DefaultNoauthProject, token: "admin:" + cindersim.DefaultNoauthProject,
			http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}},
		},
	}, err
}

const connector = `{"connector":{"host":"h","initiator":"iqn.2026-01.example:x"}}`

// make serves claims.
func (l *loop) make(ctx context.Context, claims []*corev1.PersistentVolumeClaim) error {
	ids := make([]string, len(claims))
	if err := parallel(ctx, len(claims), workers, func(i int) (err error) {
		ids[i], err = l.cinder.create(ctx, string(claims[i].UID))
		return err
	}); err != nil {
		return err
	}
	for i, claim := range claims {
		l.volumes[claim.UID] = ids[i]
	}
	if err := l.cinder.awaitCount(ctx, "available", len(claims)); err != nil {
		return err
	}
	return parallel(ctx, len(claims), workers, func(i int) error {
		if err := l.cinder.act(ctx, ids[i], `{"os-reserve":{}}`, `{"os-initialize_connection":`+connector+`}`); err != nil {
			return err
		}
		if err := l.record(ctx, claims[i]); err != nil {
			return err
		}
		return l.cinder.act(ctx, ids[i], `{"os-attach":{"host_name":"h","mountpoint":"/dev/x"}}`)
	})
}

// record creates the PersistentVolume of a claim.
func (l *loop) record(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := l.kubernetes.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: pvOf(claim), Finalizers: []string{finalizer}, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": l.scene.provisioner},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              l.scene.class,
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
				TargetPortal: "127.0.0.1:3260", IQN: "iqn.2010-10.org.openstack:x", Lun: 1,
			}},
		},
	}, metav1.CreateOptions{})
	return err
}

// remove removes what is behind the claims, each as soon as its PersistentVolume is
// released, and then the PersistentVolumes.
func (l *loop) remove(ctx context.Context, claims []*corev1.PersistentVolumeClaim) error {
	if err := parallel(ctx, len(claims), workers, func(i int) error {
		if err := l.scene.observer.waitFor(ctx, claims[i].UID, released); err != nil {
			return err
		}
		// No volume may be removed on the word of a cache.
		if _, err := l.kubernetes.CoreV1().PersistentVolumes().Get(ctx, pvOf(claims[i]), metav1.GetOptions{}); err != nil {
			return err
		}
		id := l.volumes[claims[i].UID]
		if err := l.cinder.act(ctx, id, `{"os-terminate_connection":`+connector+`}`, `{"os-detach":{}}`); err != nil {
			return err
		}
		return l.cinder.send(ctx, http.MethodDelete, "/volumes/"+id, "", nil)
	}); err != nil {
		return err
	}
	if err := l.cinder.awaitCount(ctx, "", 0); err != nil {
		return err
	}
	return parallel(ctx, len(claims), workers, func(i int) error {
		pvs := l.kubernetes.CoreV1().PersistentVolumes()
		if err := pvs.Delete(ctx, pvOf(claims[i]), metav1.DeleteOptions{}); err != nil {
			return err
		}
		_, err := pvs.Patch(ctx, pvOf(claims[i]), types.StrategicMergePatchType, []byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["`+finalizer+`"]}}`), metav1.PatchOptions{})
		return err
	})
}

func pvOf(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// bareClient talks to noauth Cinder with nothing in between.
type bareClient struct {
	base, token string
	http        *http.Client
}

func (c *bareClient) create(ctx context.Context, name string) (string, error) {
	var answer struct {
		Volume struct {
			ID string `json:"id"`
		} `json:"volume"`
	}
	err := c.post(ctx, "/volumes", fmt.Sprintf(`{"volume":{"size":1,"name":%q}}`, name), &answer)
	return answer.Volume.ID, err
}

// pageSize is the largest page of a listing that Cinder serves by default.
const pageSize = 1000

// awaitCount lists until that many volumes have the status; an empty status counts
// all.
func (c *bareClient) awaitCount(ctx context.Context, status string, want int) error {
	for {
		count, err := c.count(ctx, status)
		if err != nil || count == want {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d volumes are %s, want %d: %w", count, status, want, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *bareClient) count(ctx context.Context, status string) (count int, err error) {
	for marker := ""; ; {
		var page struct {
			Volumes []struct{ ID, Status string } `json:"volumes"`
		}
		if err := c.send(ctx, http.MethodGet, fmt.Sprintf("/volumes/detail?limit=%d%s", pageSize, marker), "", &page); err != nil {
			return 0, err
		}
		for _, v := range page.Volumes {
			if status == "" || v.Status == status {
				count++
			}
		}
		if len(page.Volumes) < pageSize {
			return count, nil
		}
		marker = "&marker=" + page.Volumes[pageSize-1].ID
	}
}

// act sends actions on one volume, one after the other.
func (c *bareClient) act(ctx context.Context, id string, actions ...string) error {
	for _, action := range actions {
		if err := c.post(ctx, "/volumes/"+id+"/action", action, nil); err != nil {
			return err
		}
	}
	return nil
}

func (c *bareClient) post(ctx context.Context, path, body string, into any) error {
	return c.send(ctx, http.MethodPost, path, body, into)
}

func (c *bareClient) send(ctx context.Context, method, path, body string, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	request.Header.Set("X-Auth-Token", c.token)
	request.Header.Set("Content-Type", "application/json")
	// The first microversion with all of the attachments API.
	request.Header.Set("OpenStack-API-Version", "volume 3.44")
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	if into != nil {
		err = json.NewDecoder(response.Body).Decode(into)
	}
	// A connection is used again only after its answer was read.
	_, _ = io.Copy(io.Discard, response.Body)
	return err
}

// parallel runs n jobs on a number of workers, and returns the first error.
func parallel(ctx context.Context, n, workers int, job func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := range next {
				if err := job(i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	group.Wait()
	return context.Cause(ctx)
}
