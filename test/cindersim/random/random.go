// Package random makes IDs, credentials and chances that one seed reproduces.
package random

import (
	"encoding/hex"
	"math/rand/v2"
	"sync"
)

// credentialAlphabet is the alphabet from which Cinder draws CHAP credentials:
// letters and digits that do not look alike.
const credentialAlphabet = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"

// Source draws from one seed. Several goroutines may use it.
type Source struct {
	mu  sync.Mutex
	rng *rand.Rand
}

// New makes a source from a seed.
func New(seed uint64) *Source {
	return &Source{rng: rand.New(rand.NewPCG(seed, 0x6369_6e64_6572))}
}

// Bytes returns n random bytes.
func (s *Source) Bytes(n int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]byte, n)
	for i := 0; i < n; i += 8 {
		word := s.rng.Uint64()
		for j := i; j < n && j < i+8; j++ {
			out[j] = byte(word)
			word >>= 8
		}
	}
	return out
}

// UUID returns a random (version 4) UUID.
func (s *Source) UUID() string {
	raw := s.Bytes(16)
	raw[6] = raw[6]&0x0f | 0x40
	raw[8] = raw[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[0:8], raw[0:4])
	text[8] = '-'
	hex.Encode(text[9:13], raw[4:6])
	text[13] = '-'
	hex.Encode(text[14:18], raw[6:8])
	text[18] = '-'
	hex.Encode(text[19:23], raw[8:10])
	text[23] = '-'
	hex.Encode(text[24:36], raw[10:16])
	return string(text[:])
}

// Hex returns a Keystone ID: a UUID without dashes.
func (s *Source) Hex() string { return hex.EncodeToString(s.Bytes(16)) }

// Secret returns a random word of n characters.
func (s *Source) Secret(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]byte, n)
	for i := range out {
		out[i] = credentialAlphabet[s.rng.IntN(len(credentialAlphabet))]
	}
	return string(out)
}

// Chance returns true with the given probability.
func (s *Source) Chance(probability float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.Float64() < probability
}
