package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// lineWatcher collects output and closes ready once it contains a text.
type lineWatcher struct {
	text  strings.Builder
	until string
	ready chan struct{}
	done  bool
}

func (w *lineWatcher) Write(p []byte) (int, error) {
	w.text.Write(p)
	if !w.done && strings.Contains(w.text.String(), w.until) {
		w.done = true
		close(w.ready)
	}
	return len(p), nil
}

func TestRunPrintsItsEndpointsAndServesUntilStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := &lineWatcher{until: "region_name", ready: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{
			"-noauth-port=0", "-cinder-port=0", "-keystone-port=0", "-user=eve:secret:lab", "-seed=7",
		}, out, io.Discard)
	}()
	select {
	case <-out.ready:
	case err := <-ended:
		t.Fatalf("it ended early: %v", err)
	case <-time.After(30 * time.Second):
		t.Fatal("it printed no clouds.yaml")
	}
	url := regexp.MustCompile(`Keystone: +(\S+)`).FindStringSubmatch(out.text.String())
	if url == nil {
		t.Fatalf("no Keystone address in %s", out.text.String())
	}
	response, err := http.Post(url[1]+"/auth/tokens", "application/json", strings.NewReader(`{"auth": {
		"identity": {"methods": ["password"], "password": {"user": {"name": "eve", "domain": {"id": "default"}, "password": "secret"}}},
		"scope": {"project": {"name": "lab", "domain": {"id": "default"}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		t.Errorf("the user of the flags got status %d for a token", response.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestRunRefusesWrongUse(t *testing.T) {
	for _, test := range []struct {
		name      string
		arguments []string
		want      string
	}{
		{"a user without project", []string{"-user=eve:secret"}, `invalid value "eve:secret" for flag -user: want name:password:project`},
		{"a stray argument", []string{"start"}, `unexpected argument "start"`},
		{"a microversion that is none", []string{"-max-microversion=4"}, `option MaxMicroversion: "4" is not of the form 3.N`},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := run(context.Background(), test.arguments, io.Discard, io.Discard)
			if err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	if err := run(context.Background(), []string{"-h"}, io.Discard, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}
