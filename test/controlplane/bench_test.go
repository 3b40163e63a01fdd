package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// BenchmarkStart measures the time until a new control plane binds claims, with
// the binary already built.
func BenchmarkStart(b *testing.B) {
	if _, err := Binary(b.Context(), benchmarkLog{b}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		plane, err := Start(b.Context(), Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := plane.Stop(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkBindStaticVolumes measures the limit that the controller manager
// sets for any provisioner: it writes 200 claims at once, each followed by a
// volume in a provisioner's form, and waits for them. claims/s counts until the
// last one is bound.
func BenchmarkBindStaticVolumes(b *testing.B) {
	for _, qps := range []int{20, DefaultControllerManagerQPS} {
		b.Run(fmt.Sprintf("qps=%d", qps), func(b *testing.B) {
			plane, err := Start(b.Context(), Options{ControllerManagerQPS: qps, Log: benchmarkLog{b}})
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := plane.Stop(); err != nil {
					b.Error(err)
				}
			}()
			client, err := kubernetes.NewForConfig(plane.RESTConfig())
			if err != nil {
				b.Fatal(err)
			}
			// Its provisioner is this benchmark.
			class := &storage.StorageClass{ObjectMeta: meta.ObjectMeta{Name: benchmarkClass}, Provisioner: "example.org/benchmark"}
			if _, err := client.StorageV1().StorageClasses().Create(b.Context(), class, meta.CreateOptions{}); err != nil {
				b.Fatal(err)
			}
			const claims = 200
			var rounds int
			var total time.Duration
			for b.Loop() {
				rounds++
				took, err := bindMany(b.Context(), client, fmt.Sprintf("round-%d-", rounds), claims)
				if err != nil {
					b.Fatal(err)
				}
				total += took
			}
			b.ReportMetric(float64(rounds*claims)/total.Seconds(), "claims/s")
		})
	}
}

type benchmarkLog struct{ b *testing.B }

func (l benchmarkLog) Write(p []byte) (int, error) {
	l.b.Logf("%s", p)
	return len(p), nil
}

const benchmarkClass = "benchmark"

// bindMany writes count claims and their volumes and returns the time from the
// first write until the last claim was bound.
func bindMany(ctx context.Context, client kubernetes.Interface, prefix string, count int) (time.Duration, error) {
	claims, volumes := client.CoreV1().PersistentVolumeClaims("default"), client.CoreV1().PersistentVolumes()
	events, err := claims.Watch(ctx, meta.ListOptions{})
	if err != nil {
		return 0, err
	}
	defer events.Stop()

	begin := time.Now()
	const parallel = 8
	errs := make(chan error, parallel)
	var writers sync.WaitGroup
	defer writers.Wait()
	for worker := range parallel {
		writers.Go(func() {
			for i := worker; i < count; i += parallel {
				name := fmt.Sprint(prefix, i)
				volume, claim := staticVolume(name, "default", name)
				class := benchmarkClass
				claim.Spec.StorageClassName, claim.Spec.VolumeName = &class, ""
				volume.Spec.StorageClassName = class
				claim, err := claims.Create(ctx, claim, meta.CreateOptions{})
				if err == nil {
					volume.Spec.ClaimRef.UID = claim.UID
					_, err = volumes.Create(ctx, volume, meta.CreateOptions{})
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	bound := map[string]bool{}
	for len(bound) < count {
		select {
		case err := <-errs:
			return 0, err
		case <-ctx.Done():
			return 0, ctx.Err()
		case event, ok := <-events.ResultChan():
			if !ok {
				return 0, errors.New("the watch ended")
			}
			claim, ok := event.Object.(*core.PersistentVolumeClaim)
			if ok && claim.Status.Phase == core.ClaimBound && strings.HasPrefix(claim.Name, prefix) {
				bound[claim.Name] = true
			}
		}
	}
	return time.Since(begin), nil
}
