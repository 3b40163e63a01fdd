package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// program measures the provisioner itself: one replica, default flags.
func program(ctx context.Context, suite *harness.Suite, o options) (f figures, err error) {
	f.name = "standalone-cinder"
	s, err := newScene(ctx, suite, o, "program")
	if err != nil {
		return f, err
	}
	defer s.sim.Close()
	replica, err := suite.StartReplica(ctx, harness.ReplicaOptions{Policy: policyFor(s), Provisioner: s.provisioner})
	if err != nil {
		return f, err
	}
	defer replica.Kill()
	if err := harness.Eventually(ctx, func() (string, error) {
		if replica.Leads(ctx) {
			return "", nil
		}
		return "the replica does not lead", nil
	}); err != nil {
		return f, err
	}
	before := cpuSeconds(replica.PID())
	start := time.Now()
	if err := s.createClaims(ctx, o.claims); err != nil {
		return f, err
	}
	if err := s.waitRecorded(ctx, o.claims); err != nil {
		return f, err
	}
	f.recorded = time.Since(start)
	if _, err := suite.WaitBound(ctx, s.namespace, o.claims); err != nil {
		return f, err
	}
	f.bound = time.Since(start)
	if err := harness.Eventually(ctx, func() (string, error) {
		for _, v := range s.sim.Volumes() {
			if v.Status != "in-use" {
				return "volume " + v.Name + " is " + v.Status, nil
			}
		}
		return "", nil
	}); err != nil {
		return f, err
	}
	f.cpu, f.resident = cpuSeconds(replica.PID())-before, residentMiB(replica.PID())
	all, lists := s.requests()
	f.createdBy, f.listsToCreate = float64(all)/float64(o.claims), lists

	s.sim.ResetJournal()
	start = time.Now()
	if err := suite.DeleteClaims(ctx, s.namespace); err != nil {
		return f, err
	}
	if err := suite.WaitNoPersistentVolumes(ctx, s.provisioner); err != nil {
		return f, err
	}
	f.gone = time.Since(start)
	all, _ = s.requests()
	f.deletedBy = float64(all) / float64(o.claims)
	return f, nil
}

// limit sends in a bare loop what every provisioner needs: the requests of a
// claim's life, one shared listing for all waits, and the PersistentVolume. It
// checks nothing, adopts nothing and undoes nothing.
func limit(ctx context.Context, suite *harness.Suite, o options) (f figures, err error) {
	f.name = "bare loop (limit)"
	s, err := newScene(ctx, suite, o, "limit")
	if err != nil {
		return f, err
	}
	defer s.sim.Close()
	cinder := &bareClient{base: s.sim.NoauthEndpoint() + "/" + cindersim.DefaultNoauthProject, token: "admin:" + cindersim.DefaultNoauthProject}
	start := time.Now()
	if err := s.createClaims(ctx, o.claims); err != nil {
		return f, err
	}
	claims, err := suite.Client.CoreV1().PersistentVolumeClaims(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return f, err
	}
	ids := make([]string, o.claims)
	if err := parallel(ctx, o.claims, 64, func(i int) (err error) {
		ids[i], err = cinder.create(ctx, string(claims.Items[i].UID))
		return err
	}); err != nil {
		return f, err
	}
	if err := cinder.awaitCount(ctx, "available", o.claims); err != nil {
		return f, err
	}
	if err := parallel(ctx, o.claims, 64, func(i int) error {
		for _, action := range []string{`{"os-reserve":{}}`, `{"os-initialize_connection":{"connector":{"host":"h","initiator":"iqn.2026-01.example:x"}}}`} {
			if err := cinder.post(ctx, "/volumes/"+ids[i]+"/action", action, nil); err != nil {
				return err
			}
		}
		if err := s.record(ctx, &claims.Items[i]); err != nil {
			return err
		}
		return cinder.post(ctx, "/volumes/"+ids[i]+"/action", `{"os-attach":{"host_name":"h","mountpoint":"/dev/x"}}`, nil)
	}); err != nil {
		return f, err
	}
	f.recorded = time.Since(start)
	if _, err := suite.WaitBound(ctx, s.namespace, o.claims); err != nil {
		return f, err
	}
	f.bound = time.Since(start)
	all, lists := s.requests()
	f.createdBy, f.listsToCreate = float64(all)/float64(o.claims), lists

	s.sim.ResetJournal()
	start = time.Now()
	if err := suite.DeleteClaims(ctx, s.namespace); err != nil {
		return f, err
	}
	if err := parallel(ctx, o.claims, 64, func(i int) error {
		for _, action := range []string{`{"os-terminate_connection":{"connector":{"host":"h","initiator":"iqn.2026-01.example:x"}}}`, `{"os-detach":{}}`} {
			if err := cinder.post(ctx, "/volumes/"+ids[i]+"/action", action, nil); err != nil {
				return err
			}
		}
		return cinder.send(ctx, http.MethodDelete, "/volumes/"+ids[i], "", nil)
	}); err != nil {
		return f, err
	}
	if err := cinder.awaitCount(ctx, "", 0); err != nil {
		return f, err
	}
	if err := parallel(ctx, o.claims, 64, func(i int) error {
		return suite.Client.CoreV1().PersistentVolumes().Delete(ctx, "pvc-"+string(claims.Items[i].UID), metav1.DeleteOptions{})
	}); err != nil {
		return f, err
	}
	if err := suite.WaitNoPersistentVolumes(ctx, s.provisioner); err != nil {
		return f, err
	}
	f.gone = time.Since(start)
	all, _ = s.requests()
	f.deletedBy = float64(all) / float64(o.claims)
	return f, nil
}

// record creates the PersistentVolume of a claim.
func (s *scene) record(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := s.suite.Client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID), Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": s.provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              s.class,
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
				TargetPortal: "127.0.0.1:3260", IQN: "iqn.2010-10.org.openstack:x", Lun: 1,
			}},
		},
	}, metav1.CreateOptions{})
	return err
}

// bareClient talks to noauth Cinder with nothing in between.
type bareClient struct {
	base, token string
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

// awaitCount polls one listing until that many volumes have the status; an
// empty status counts all.
func (c *bareClient) awaitCount(ctx context.Context, status string, want int) error {
	return harness.Eventually(ctx, func() (string, error) {
		var answer struct {
			Volumes []struct {
				Status string `json:"status"`
			} `json:"volumes"`
		}
		if err := c.send(ctx, http.MethodGet, "/volumes/detail?limit=1000", "", &answer); err != nil {
			return "", err
		}
		count := 0
		for _, v := range answer.Volumes {
			if status == "" || v.Status == status {
				count++
			}
		}
		if count == want {
			return "", nil
		}
		time.Sleep(150 * time.Millisecond)
		return fmt.Sprintf("%d volumes are %s, want %d", count, status, want), nil
	})
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
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	if into != nil {
		return json.NewDecoder(response.Body).Decode(into)
	}
	return nil
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

// cpuSeconds and residentMiB read /proc; elsewhere they are 0.
func cpuSeconds(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// After the command's name, which may contain blanks: fields 14 and 15 of
	// proc(5) are the 12th and 13th.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	const ticks = 100
	return (user + system) / ticks
}

func residentMiB(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(status), "\n") {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.Atoi(strings.Fields(value)[0])
			return kib / 1024
		}
	}
	return 0
}
