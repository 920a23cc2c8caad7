// Package suggest finds what a misspelt word was most likely meant to be.
package suggest

import "strings"

// maxWord bounds the words that are compared, in bytes: the time grows with the
// product of their lengths.
const maxWord = 128

// Nearest returns the candidate a misspelt word most likely means, or "".
func Nearest(word string, candidates []string) string {
	if whole := beginning(word, candidates); whole != "" {
		return whole
	}
	best, bestDistance := "", max(min(len(word)/2, 2), min(len(word)/3, 4))+1
	for _, c := range candidates {
		if len(c) > maxWord || len(word) > maxWord {
			continue
		}
		if d := editDistance(word, c); d < bestDistance && alike(word, c) {
			best, bestDistance = c, d
		}
	}
	return best
}

// beginning returns the one candidate that only goes on where the word ends: a unit
// that was left out, as in max_wait for max_wait_secs.
func beginning(word string, candidates []string) string {
	found := ""
	for _, c := range candidates {
		rest, ok := strings.CutPrefix(c, word)
		if word == "" || !ok || rest == "" || !isSeparator(rune(rest[0])) {
			continue
		}
		if found != "" {
			return ""
		}
		found = c
	}
	return found
}

func isSeparator(r rune) bool { return r == '-' || r == '_' }

// alike tells whether each of the parts of two names could be a slip for the other's,
// where they have as many: "queue-timeout" is not "request-timeout", and neither is
// "encode" "decode".
func alike(a, b string) bool {
	as, bs := strings.FieldsFunc(a, isSeparator), strings.FieldsFunc(b, isSeparator)
	if len(as) != len(bs) {
		return true
	}
	for i := range as {
		longer := max(len(as[i]), len(bs[i]))
		most := max((longer-1)/3, 1)
		if longer <= 4 {
			most = 2
		}
		if editDistance(as[i], bs[i]) > most {
			return false
		}
	}
	return true
}

// editDistance counts what has to be changed, left out, added or exchanged with its
// neighbour to make b of a.
func editDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
