package turns

import "context"

// Admission is what a request must pass before it is sent. Its checks run at the last
// moment, since a request may wait long for its turn. The zero Admission admits
// everything.
type Admission struct {
	// Waiter ends when the caller stops waiting. Requests waiting for their turn then
	// leave the queue; those under way continue. Nil means the request's own context,
	// which also cancels a request under way.
	Waiter context.Context
	// Outage is called before a request waits for its turn, and again when its turn
	// comes. While requests are rejected it returns an error; otherwise it returns a
	// context that ends when an outage begins, with the error as its cause. Nil disables
	// the check.
	Outage func() (context.Context, error)
	// Fence is called last; on an error the request is not sent. Nil permits every
	// request.
	Fence func() error
}

// Admit waits for the turn of the context's caller and makes the admission's checks. The
// wait ends with the context, with the waiter, or when an outage begins. After an error
// the request must not be sent; otherwise the caller ends the turn with Release.
func (q *Queue) Admit(ctx context.Context, a Admission) error {
	if a.Waiter == nil {
		a.Waiter = ctx
	}
	if a.Outage == nil {
		a.Outage = func() (context.Context, error) { return nil, nil }
	}
	outage, err := a.Outage()
	if err != nil {
		return err
	}
	if err := q.acquire(CallerOf(ctx), patience{ctx, a.Waiter, outage}); err != nil {
		return err
	}
	err = a.Waiter.Err()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		_, err = a.Outage()
	}
	if err == nil && a.Fence != nil {
		err = a.Fence()
	}
	if err != nil {
		q.pass()
	}
	return err
}
