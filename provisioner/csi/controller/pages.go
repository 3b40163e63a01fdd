package controller

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// longestPage bounds the entries of an answer, regardless of the request: sidecars accept
// no answers of more than 4 MiB, and follow tokens.
const longestPage = 1000

// pageOf returns how many entries the answer to a request may have.
func pageOf(maxEntries int32) int {
	if maxEntries == 0 {
		return longestPage
	}
	return min(int(maxEntries), longestPage)
}

// tokenAfter returns the token of the page after the one that ends with a handle, which
// need not exist anymore. It also names the leader, because only the leader that created
// a list can continue it: another leader's list may be older.
func (s *Server) tokenAfter(last string) string { return s.term + ":" + last }

// pageAfter reads a token; an empty token stands for the first page.
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
