package cinder

import "context"

// Admission is what the requests of one call must pass before they leave. All
// of it belongs to the last moment, since a request's turn may be long in
// coming.
type Admission struct {
	// Waiter ends when nobody waits for the call any more. Requests that wait
	// for their turn then leave the queue; those under way go on.
	Waiter context.Context
	// Outage is asked before a request waits for its turn, and again when that
	// has come. It returns an error while requests are held back, and else a
	// context that ends with the beginning of an outage, whose cause is the
	// error. Nil means that nobody watches the backend's health.
	Outage func() (context.Context, error)
	// Fence is asked last; its error keeps the request here. Nil means that
	// every request may leave.
	Fence func() error
}

type admissionKey struct{}

// WithAdmission has the requests that are made with the context pass the
// admission. The context itself cuts requests under way.
func WithAdmission(ctx context.Context, a Admission) context.Context {
	return context.WithValue(ctx, admissionKey{}, a)
}

// AdmissionOf is the admission that the context carries. Without one, whoever
// made the context is who waits.
func AdmissionOf(ctx context.Context) Admission {
	a, _ := ctx.Value(admissionKey{}).(Admission)
	if a.Waiter == nil {
		a.Waiter = ctx
	}
	if a.Outage == nil {
		a.Outage = func() (context.Context, error) { return nil, nil }
	}
	if a.Fence == nil {
		a.Fence = func() error { return nil }
	}
	return a
}

// admit waits for the caller's turn. The waiting ends with the request's
// context, with the waiter's, and when requests begin to be held back. An error
// means that the request was not sent.
func (t *transport) admit(ctx context.Context) error {
	a := AdmissionOf(ctx)
	outage, err := a.Outage()
	if err != nil {
		return notSent{err}
	}
	if err := t.turns.acquire(CallerOf(ctx), patience{ctx, a.Waiter, outage}); err != nil {
		return notSent{err}
	}
	err = a.Waiter.Err()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		_, err = a.Outage()
	}
	if err == nil {
		err = a.Fence()
	}
	if err != nil {
		t.turns.pass()
		return notSent{err}
	}
	return nil
}
