// Package suggest finds what a misspelt word was most likely meant to be.
package suggest

// maxWord bounds the words that are compared, in bytes: the time grows with the
// product of their lengths.
const maxWord = 128

// Nearest returns the candidate a misspelt word most likely means, or "".
func Nearest(word string, candidates []string) string {
	best, bestDistance := "", max(min(len(word)/2, 2), min(len(word)/3, 4))+1
	for _, c := range candidates {
		if len(c) > maxWord || len(word) > maxWord {
			continue
		}
		if d := editDistance(word, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
