package node

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// answer converts an error for kubelet, and counts it if it is a refusal.
func (s *Service) answer(err error) error {
	var refusal *host.Refusal
	if errors.As(err, &refusal) {
		s.observer.Refused(string(refusal.Reason))
	}
	return answer(err)
}

// answer converts an error for kubelet. Codes other than Unavailable, Aborted and
// DeadlineExceeded tell kubelet that the call has left nothing on the node.
func answer(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codeOf(err), err.Error())
}

func codeOf(err error) codes.Code {
	var refusal *host.Refusal
	var rest *remainder
	switch {
	case errors.As(err, &rest):
		return codes.Unavailable
	case errors.Is(err, host.ErrLocked):
		return codes.Aborted
	case errors.As(err, &refusal):
		switch refusal.Reason {
		case host.LoginRefused:
			return codes.Unauthenticated
		case host.Malformed:
			return codes.InvalidArgument
		}
		return codes.FailedPrecondition
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return codes.DeadlineExceeded
	}
	return codes.Internal
}

// remainder is an error of a call that left something on the node.
type remainder struct{ err error }

func (r *remainder) Error() string { return r.err.Error() }
func (r *remainder) Unwrap() error { return r.err }

func invalid(format string, values ...any) error {
	return status.Errorf(codes.InvalidArgument, format, values...)
}

func refused(format string, values ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, values...)
}
