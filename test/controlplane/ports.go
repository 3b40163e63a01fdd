package controlplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are picked below the ranges that operating systems hand out for
// outgoing connections (from 32768 on Linux, 49152 elsewhere). From within
// them, a client that keeps dialing the port of an API server that is down may
// be given that very port as its own, reach itself, and keep the server from
// coming back.
const (
	firstPort = 20000
	lastPort  = 32000
)

const (
	// portTries is how many ports to try.
	portTries = 100

	// startTries is how often to start a component on a port that was just free
	// and then is not.
	startTries = 5
)

// freePort finds a loopback port that is not in use.
func freePort() (int, error) {
	var last error
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort)
		listener, err := net.Listen("tcp", loopback(port))
		if err != nil {
			last = err
			continue
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("free port: %w", err)
		}
		return port, nil
	}
	return 0, fmt.Errorf("no free port among %d looked at from %d to %d: %w", portTries, firstPort, lastPort, last)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// withFreePorts calls start with that many ports until it does not fail for an
// address in use.
func withFreePorts(count int, start func(ports []int) error) error {
	var errs []error
	for range startTries {
		ports := make([]int, count)
		for i := range ports {
			var err error
			if ports[i], err = freePort(); err != nil {
				return err
			}
		}
		err := start(ports)
		if err == nil || !addressInUse(err) {
			return err
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("free ports were taken in between %d times: %w", startTries, errors.Join(errs...))
}
