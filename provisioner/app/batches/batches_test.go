package batches

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// source returns pieces of data, each at its time, and counts how often it is read.
type source struct {
	net.Conn
	pieces []piece
	began  time.Time
	reads  int
	closed bool
}

type piece struct {
	at   time.Duration
	text []byte
}

// Read blocks until there is a piece, and then returns all that there is.
func (s *source) Read(into []byte) (int, error) {
	s.reads++
	if len(s.pieces) == 0 {
		return 0, io.EOF
	}
	time.Sleep(time.Until(s.began.Add(s.pieces[0].at)))
	n := 0
	for len(s.pieces) > 0 && n < len(into) && time.Since(s.began) >= s.pieces[0].at {
		took := copy(into[n:], s.pieces[0].text)
		n += took
		if s.pieces[0].text = s.pieces[0].text[took:]; len(s.pieces[0].text) == 0 {
			s.pieces = s.pieces[1:]
		}
	}
	return n, nil
}

func (s *source) Close() error { s.closed = true; return nil }

// connect makes a connection that is no longer young.
func connect(t *testing.T, s *source) (*Dialer, net.Conn) {
	t.Helper()
	d := New(Options{Pause: time.Second, Young: 5 * time.Second, Dial: func(context.Context, string, string) (net.Conn, error) { return s, nil }})
	c, err := d.DialContext(t.Context(), "tcp", "x")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(6 * time.Second)
	s.began = time.Now()
	return d, c
}

// events returns n pieces of ten bytes, one every tenth of a second.
func events(n int) []piece {
	var all []piece
	for i := range n {
		all = append(all, piece{time.Duration(i) * 100 * time.Millisecond, bytes.Repeat([]byte{byte('a' + i%26)}, 10)})
	}
	return all
}

func TestWhatArrivesLittleByLittleIsReadInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{pieces: events(50)}
		d, c := connect(t, s)
		d.StartBatching()
		got, err := io.ReadAll(c)
		if err != nil || len(got) != 500 || got[0] != 'a' || got[499] != byte('a'+49%26) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		// The first is read at once, then one batch every second, and finally the end.
		if s.reads < 6 || s.reads > 8 {
			t.Errorf("%d reads for 50 events in 5 s", s.reads)
		}
	})
}

func TestNothingWaitsUntilItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{pieces: events(20)}
		_, c := connect(t, s)
		if _, err := io.ReadAll(c); err != nil || s.reads != 21 {
			t.Errorf("%d reads for 20 events, %v", s.reads, err)
		}
	})
}

func TestHurryEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{pieces: []piece{{0, []byte("a")}, {time.Millisecond, []byte("b")}, {2 * time.Millisecond, []byte("c")}}}
		d, c := connect(t, s)
		d.StartBatching()
		began := time.Now()
		time.AfterFunc(300*time.Millisecond, d.StopBatching)
		if got, err := io.ReadAll(c); string(got) != "abc" || err != nil || time.Since(began) != 300*time.Millisecond {
			t.Errorf("%q, %v after %s", got, err, time.Since(began))
		}
		d.StopBatching()
		d.StartBatching()
		d.StartBatching()
		d.StopBatching()
	})
}

// TestALongAnswerDoesNotWait: a list is many times as large as a batch.
func TestALongAnswerDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 10<<20 + 1
		s := &source{pieces: []piece{{0, bytes.Repeat([]byte("x"), size)}}}
		d, c := connect(t, s)
		d.StartBatching()
		began := time.Now()
		// Only the read that finds the end of the stream comes after a pause.
		if got, err := io.ReadAll(c); err != nil || len(got) != size || time.Since(began) != time.Second {
			t.Errorf("%d bytes, %v, after %s", len(got), err, time.Since(began))
		}
	})
}

func TestAYoungConnectionDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{pieces: events(20), began: time.Now()}
		d := New(Options{Pause: time.Second, Young: 5 * time.Second, Dial: func(context.Context, string, string) (net.Conn, error) { return s, nil }})
		d.StartBatching()
		c, err := d.DialContext(t.Context(), "tcp", "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err != nil || s.reads != 21 {
			t.Errorf("%d reads for 20 events, %v", s.reads, err)
		}
	})
}

func TestCloseEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{pieces: []piece{{0, []byte("a")}, {time.Millisecond, []byte("b")}}}
		d, c := connect(t, s)
		d.StartBatching()
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		time.AfterFunc(100*time.Millisecond, func() { _, _ = c.Close(), c.Close() })
		_, err := c.Read(make([]byte, 1))
		took := time.Since(began)
		synctest.Wait()
		if err != nil || took != 100*time.Millisecond || !s.closed {
			t.Errorf("%v after %s", err, took)
		}
	})
}

func TestFailedDialsAreReported(t *testing.T) {
	refused := errors.New("refused")
	d := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, refused }})
	if _, err := d.DialContext(t.Context(), "tcp", "x"); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
}
