package controlplane

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

var errServerDown = errors.New("the API server is down")

// KillAPIServer ends the API server without grace: connections are cut,
// watches end, and nothing answers until RestartAPIServer. What it had
// acknowledged is in etcd. It does nothing if the server is down already.
func (c *ControlPlane) KillAPIServer() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.running(); err != nil {
		return fmt.Errorf("kill API server: %w", err)
	}
	c.endAPIServer()
	return nil
}

// RestartAPIServer starts the API server again, on the same port and with the
// same credentials, and returns when it is ready. If it still runs it is killed
// first.
func (c *ControlPlane) RestartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.running(); err != nil {
		return fmt.Errorf("restart API server: %w", err)
	}
	c.endAPIServer()
	// Clients know the port, so unlike at the first start it cannot be changed:
	// if another program uses it briefly, wait for that to end.
	for range startTries {
		err := c.runAPIServer(ctx)
		if err == nil {
			return nil
		}
		if !addressInUse(err) {
			return fmt.Errorf("restart API server: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return fmt.Errorf("restart API server: port %d stays in use by another program", c.serverPort)
}

// PauseAPIServer stops the API server from running without ending it: from the
// return of this call until ResumeAPIServer it accepts connections, since the
// kernel does that, and answers nothing.
func (c *ControlPlane) PauseAPIServer(ctx context.Context) error {
	err := c.withAPIServer(func(p *process) error { return p.pause(ctx) })
	if err != nil {
		return fmt.Errorf("pause API server: %w", err)
	}
	return nil
}

// ResumeAPIServer resumes a paused API server. It does nothing to one that is
// not paused.
func (c *ControlPlane) ResumeAPIServer() error {
	err := c.withAPIServer(func(p *process) error { return p.signal(syscall.SIGCONT) })
	if err != nil {
		return fmt.Errorf("resume API server: %w", err)
	}
	return nil
}

// PauseControllerManager stops all controllers from running without ending them: until
// ResumeControllerManager nothing is bound, protected or let go.
func (c *ControlPlane) PauseControllerManager(ctx context.Context) error {
	err := c.withControllerManager(func(p *process) error { return p.pause(ctx) })
	if err != nil {
		return fmt.Errorf("pause controller manager: %w", err)
	}
	return nil
}

// ResumeControllerManager resumes the paused controllers.
func (c *ControlPlane) ResumeControllerManager() error {
	err := c.withControllerManager(func(p *process) error { return p.signal(syscall.SIGCONT) })
	if err != nil {
		return fmt.Errorf("resume controller manager: %w", err)
	}
	return nil
}

func (c *ControlPlane) withControllerManager(do func(*process) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.running(); err != nil {
		return err
	}
	for _, p := range c.processes {
		if p.name == controllerManager {
			return do(p)
		}
	}
	return errors.New("there is none")
}

func (c *ControlPlane) withAPIServer(do func(*process) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.running(); err != nil {
		return err
	}
	if c.apiServer == nil {
		return errServerDown
	}
	return do(c.apiServer)
}

// endAPIServer kills the API server, if it runs. The caller must hold mu.
func (c *ControlPlane) endAPIServer() {
	if c.apiServer != nil {
		c.apiServer.kill()
		c.apiServer = nil
	}
}

// running returns an error if the control plane is stopped. The caller must
// hold mu.
func (c *ControlPlane) running() error {
	if c.stopped {
		return errors.New("the control plane is stopped")
	}
	return nil
}
