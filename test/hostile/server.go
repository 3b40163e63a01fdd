// Package hostile makes a server answer like a broken or malicious one. It
// wraps a handler, such as a simulator or a proxy to a real server, and replaces
// the answers that a test picks by named attacks.
//
// Lies that no client can recognize without reading everything again are left out: a
// documented success without its effect, such as a 202 to os-reserve that reserves
// nothing; a rejection in Cinder's own form after the effect; a 404 itemNotFound for a
// volume that exists; a well-formed listing that lacks volumes; a well-formed document
// with a wrong state; another ID in a perfect answer to the creation of an attachment (in
// mode csi, detaching deletes only attachments that Cinder shows as the volume's); the
// connection of another volume (a second PersistentVolume with the same volumeHandle is
// refused); a token of another project; a catalog that points to another Cinder.
package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"
)

// Judge picks the attack on a request, if any.
type Judge func(*http.Request) (attack Attack, picked bool)

// Lie is an answer that a client got instead of the true one.
type Lie struct {
	Attack string
	Method string
	Path   string
	// Performed means that the request took effect before.
	Performed bool
}

// Server answers as another handler does, except for the requests that it
// attacks.
type Server struct {
	next http.Handler
	told func(Lie)
	// life ends with Close, and with it every endless answer.
	life context.Context
	end  context.CancelFunc

	mu    sync.Mutex
	judge Judge
	used  map[string]int
	// shown are objects of earlier true answers, by the name of their field.
	shown map[string][]object
}

// NewServer wraps a handler. told is called with every attack, before its
// answer leaves; several goroutines may call it at once. Nil means that nobody
// listens.
func NewServer(next http.Handler, told func(Lie)) *Server {
	if told == nil {
		told = func(Lie) {}
	}
	s := &Server{next: next, told: told, used: map[string]int{}, shown: map[string][]object{}}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Judge makes f decide every further request. Several goroutines may call f at
// once. Nil ends the hostility, except for the answers that are still under
// way.
func (s *Server) Judge(f Judge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.judge = f
}

// Used counts the attacks by name.
func (s *Server) Used() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.used)
}

// Close ends every answer that is still under way.
func (s *Server) Close() { s.end() }

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	judge := s.judge
	s.mu.Unlock()
	if judge == nil {
		s.next.ServeHTTP(w, r)
		return
	}
	content, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(content))
	attack, picked := judge(r)
	r.Body = io.NopCloser(bytes.NewReader(content))
	e := exchange{w: w, r: r}
	performed := !picked || attack.when != before
	if performed {
		if e.truth = s.perform(r); e.truth.status == 0 {
			panic(http.ErrAbortHandler)
		}
	}
	if !picked || performed && !attack.fits(e.truth) {
		e.truth.write(w)
		return
	}
	e.other = s.others(e.truth)
	s.mu.Lock()
	s.used[attack.Name]++
	s.mu.Unlock()
	s.told(Lie{Attack: attack.Name, Method: r.Method, Path: r.URL.Path, Performed: performed})
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	e.ctx = ctx
	attack.answer(e)
}

func (s *Server) perform(r *http.Request) answer {
	recorded := &recorder{answer: answer{header: http.Header{}}}
	func() {
		defer func() {
			if failure := recover(); failure != nil {
				if err, ok := failure.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
					panic(failure)
				}
				// The wrapped server gave no answer, and neither does this one.
				recorded.answer.status = 0
			}
		}()
		s.next.ServeHTTP(recorded, r)
	}()
	return recorded.answer
}

// others returns an object that differs from the answer's own, and remembers
// the answer's own.
func (s *Server) others(truth answer) object {
	name, own := truth.single()
	if own == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	const most = 16
	known := s.shown[name]
	var found object
	for _, o := range known {
		if o["id"] != own["id"] {
			found = o
		}
	}
	if len(known) == most {
		known = known[1:]
	}
	s.shown[name] = append(known, own)
	return found
}

// answer is a server's answer, read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	if a.status != http.StatusNoContent {
		_, _ = w.Write(a.body)
	}
}

type object = map[string]any

// document returns the answer's JSON, nil if it is none.
func (a answer) document() object {
	var document object
	if json.Unmarshal(a.body, &document) != nil {
		return nil
	}
	return document
}

// single returns the object that the answer is about, and the name of its
// field; nil if it is about several or none.
func (a answer) single() (name string, found object) {
	document := a.document()
	for _, name := range []string{"volume", "attachment", "token"} {
		if found, ok := document[name].(object); ok {
			return name, found
		}
	}
	return "", nil
}

// list returns the answer's list of objects, and the name of its field.
func (a answer) list() (name string, found []any) {
	document := a.document()
	for _, name := range []string{"volumes", "attachments"} {
		if found, ok := document[name].([]any); ok {
			return name, found
		}
	}
	return "", nil
}

// recorder keeps an answer.
type recorder struct{ answer answer }

func (r *recorder) Header() http.Header { return r.answer.header }

func (r *recorder) WriteHeader(status int) {
	if r.answer.status == 0 && status >= http.StatusOK {
		r.answer.status = status
	}
}

func (r *recorder) Write(content []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.answer.body = append(r.answer.body, content...)
	return len(content), nil
}
