package main

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

const (
	ofProgram    = `{"verb":"create","userAgent":"standalone-cinder","user":{"username":"system:serviceaccount:standalone-cinder:provisioner-x"},"objectRef":{"resource":"persistentvolumes"}}` + "\n"
	ofController = `{"verb":"update","userAgent":"kube-controller-manager","user":{"username":"system:serviceaccount:kube-system:persistent-volume-binder"},"objectRef":{"resource":"persistentvolumeclaims","subresource":"status"}}` + "\n"
	ofLoop       = `{"verb":"patch","userAgent":"bare-loop","user":{"username":"admin"},"objectRef":{"resource":"persistentvolumes"}}` + "\n"
	ofBenchmark  = `{"verb":"create","userAgent":"controlplane-test","user":{"username":"admin"},"objectRef":{"resource":"persistentvolumeclaims"}}` + "\n"
	ofNothing    = `{"verb":"get","user":{"username":"system:serviceaccount:standalone-cinder:x"},"requestURI":"/version"}` + "\n"
)

func TestRequestsAreCountedByParty(t *testing.T) {
	counted := countRequests([]byte(ofProgram + ofController + ofLoop + ofBenchmark + ofNothing + ofProgram + "{half"))
	for who, want := range map[party]requests{
		theProgram:     {"create persistentvolumes": 2},
		theControllers: {"update persistentvolumeclaims/status": 1},
		theLoop:        {"patch persistentvolumes": 1},
	} {
		if !maps.Equal(counted[who], want) {
			t.Errorf("%s: %v, want %v", who, counted[who], want)
		}
	}
	if len(counted) != 3 {
		t.Errorf("others are counted: %v", counted)
	}
	if n := counted[theProgram].sum(); n != 2 {
		t.Errorf("the sum is %d", n)
	}
}

func TestHalfWrittenLinesAreReadLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write := func(text string) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	log := &auditLog{path: path}
	next := func(want int) {
		t.Helper()
		counted, err := log.next()
		if err != nil || counted[theProgram].sum() != want {
			t.Errorf("%v, %v; want %d", counted, err, want)
		}
	}
	write(ofProgram + ofProgram[:20])
	next(1)
	next(0)
	write(ofProgram[20:] + ofProgram)
	next(2)
	next(0)
}
