// Package collation compares strings as Cinder's database, MariaDB, does.
package collation

import (
	"strings"
	"unicode/utf8"
)

// Key returns what the collation utf8 compares in a string, without case,
// accents and trailing blanks. It folds to upper case, so that "_" sorts after
// letters, as in MariaDB.
func Key(s string) string {
	s = strings.TrimRight(s, " ")
	ascii := true
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			ascii = false
			break
		}
	}
	if ascii {
		return strings.ToUpper(s)
	}
	return strings.Map(func(r rune) rune { return plainLetter(r) }, strings.ToUpper(s))
}

// plainLetter strips the accent of an upper-case Latin letter.
func plainLetter(r rune) rune {
	if r < 0xC0 || r > 0x17F {
		return r
	}
	for _, family := range [...]struct {
		plain    rune
		accented string
	}{
		{'A', "ÀÁÂÃÄÅĀĂĄ"}, {'C', "ÇĆĈĊČ"}, {'D', "ĎĐ"}, {'E', "ÈÉÊËĒĔĖĘĚ"}, {'G', "ĜĞĠĢ"},
		{'H', "ĤĦ"}, {'I', "ÌÍÎÏĨĪĬĮİ"}, {'J', "Ĵ"}, {'K', "Ķ"}, {'L', "ĹĻĽĿŁ"}, {'N', "ÑŃŅŇ"},
		{'O', "ÒÓÔÕÖŌŎŐ"}, {'R', "ŔŖŘ"}, {'S', "ŚŜŞŠß"}, {'T', "ŢŤŦ"}, {'U', "ÙÚÛÜŨŪŬŮŰŲ"},
		{'W', "Ŵ"}, {'Y', "ÝŶŸ"}, {'Z', "ŹŻŽ"},
	} {
		if strings.ContainsRune(family.accented, r) {
			return family.plain
		}
	}
	return r
}

// Like reports whether the key of a string matches the key of an SQL LIKE pattern, in
// which "%" stands for any run and "_" for any one character.
func Like(pattern, s string) bool {
	p, text := []rune(pattern), []rune(s)
	i, j, star, mark := 0, 0, -1, 0
	for j < len(text) {
		switch {
		case i < len(p) && p[i] == '%':
			star, mark = i, j
			i++
		case i < len(p) && (p[i] == '_' || p[i] == text[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '%' {
		i++
	}
	return i == len(p)
}
