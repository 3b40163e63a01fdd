//go:build !linux

package nodecopy

import (
	"context"
	"errors"
)

func (c *copier) run(context.Context, string, string) error {
	return errors.New("volumes are copied on Linux only")
}
