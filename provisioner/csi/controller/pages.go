package controller

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// tokenAfter is the token of the page that comes after the one that ends with a handle,
// whether or not that still exists. It names the leader, too: only the leader that made
// a list can continue it, and another one's may be older.
func (s *Server) tokenAfter(last string) string { return s.term + ":" + last }

// pageAfter reads a token; empty is the first page.
func (s *Server) pageAfter(token string) (last string, err error) {
	if token == "" {
		return "", nil
	}
	last, own := strings.CutPrefix(token, s.tokenAfter(""))
	if !own || last == "" {
		return "", status.Errorf(codes.Aborted, "starting_token %.150q is not from this leader; list from the beginning", token)
	}
	return last, nil
}
