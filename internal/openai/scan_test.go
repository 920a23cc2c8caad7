package openai

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// validJSON is the scanner used as a validator of any value.
func validJSON(b []byte) bool {
	s := new(scanner)
	s.reset(b, maxScanDepth)
	i := s.skip(0, 0)
	return i >= 0 && s.space(i) == len(b)
}

// randomJSON writes a random value with odd white space, escapes and numbers.
func randomJSON(r *rand.Rand, b []byte, depth int) []byte {
	space := func() {
		for r.IntN(6) == 0 {
			b = append(b, " \t\r\n"[r.IntN(4)])
		}
	}
	str := func() {
		pieces := []string{"a", "model", `\n`, `\"`, `\\`, `\/`, `\u00e9`, `\ud83d\ude42`, `\ud800`, "é", "模", "plain text that is longer than a word ", " ", "{", "]", ","}
		b = append(b, '"')
		for r.IntN(4) > 0 {
			b = append(b, pieces[r.IntN(len(pieces))]...)
		}
		b = append(b, '"')
	}
	space()
	kind := r.IntN(8)
	if depth <= 0 {
		kind = r.IntN(5)
	}
	switch kind {
	case 0, 1:
		str()
	case 2, 3:
		numbers := []string{"0", "-0", "1", "42", "-17", "1.5", "0.10", "1e3", "1E+400", "2e-7", "9007199254740993", "123456789012345678901234567890"}
		b = append(b, numbers[r.IntN(len(numbers))]...)
	case 4:
		b = append(b, []string{"true", "false", "null"}[r.IntN(3)]...)
	case 5:
		b = append(b, '[')
		for i := range r.IntN(5) {
			if i > 0 {
				b = append(b, ',')
			}
			b = randomJSON(r, b, depth-1)
		}
		space()
		b = append(b, ']')
	case 6:
		b = append(b, '[')
		for i := range r.IntN(12) {
			if i > 0 {
				b = append(b, ',')
				space()
			}
			b = fmt.Appendf(b, "%d", r.IntN(200000)-1000*r.IntN(2))
		}
		b = append(b, ']')
	case 7:
		b = append(b, '{')
		for i := range r.IntN(5) {
			if i > 0 {
				b = append(b, ',')
			}
			space()
			str()
			space()
			b = append(b, ':')
			b = randomJSON(r, b, depth-1)
		}
		space()
		b = append(b, '}')
	}
	space()
	return b
}

// The scanner and encoding/json must agree on what JSON is, for valid values and for
// values with a few bytes changed.
func TestScannerAgreesWithEncodingJSON(t *testing.T) {
	const alphabet = "{}[],:\"\\ \n0123456789-+.eEtrufalsn\x00\x1f\x7fé"
	rounds := 60000
	if testing.Short() {
		rounds = 5000
	}
	r := rand.New(rand.NewPCG(1, 2))
	valid := 0
	for range rounds {
		b := randomJSON(r, nil, 4)
		if !validJSON(b) {
			t.Fatalf("refused %q", b)
		}
		for range 3 {
			switch at := r.IntN(len(b) + 1); r.IntN(4) {
			case 0:
				b = b[:at]
			case 1:
				if at < len(b) {
					b = append(b[:at:at], b[at+1:]...)
				}
			case 2:
				b = append(b[:at:at], append([]byte{alphabet[r.IntN(len(alphabet))]}, b[at:]...)...)
			case 3:
				if at < len(b) {
					b[at] = alphabet[r.IntN(len(alphabet))]
				}
			}
			want := json.Valid(b)
			if got := validJSON(b); got != want {
				t.Fatalf("%q: valid %t, encoding/json says %t", b, got, want)
			}
			if want {
				valid++
			}
		}
	}
	if valid == 0 || valid == 3*rounds {
		t.Errorf("%d of %d changed values are valid: this proves nothing", valid, 3*rounds)
	}
}

// The scanner reads 32 bytes at once: each byte is tried at each place of a string.
func TestScannerStringsAtEachAlignment(t *testing.T) {
	for size := range 70 {
		for at := range size + 1 {
			for c := range 256 {
				b := []byte(`"` + strings.Repeat("x", at) + string([]byte{byte(c)}) + strings.Repeat("y", size-at) + `"`)
				want := c >= 0x20 && c != '"' && c != '\\'
				if got := validJSON(b); got != want {
					t.Fatalf("byte 0x%02x at %d of %d: valid %t", c, at, size, got)
				}
			}
		}
	}
}

func TestScannerDepthIsExact(t *testing.T) {
	for _, c := range []struct {
		depth int
		ok    bool
	}{{maxScanDepth, true}, {maxScanDepth + 1, false}} {
		for _, form := range []string{"[]", `{}`} {
			b := strings.Repeat("[", c.depth-1) + form + strings.Repeat("]", c.depth-1)
			if got := validJSON([]byte(b)); got != c.ok {
				t.Errorf("%d levels: valid %t", c.depth, got)
			}
		}
	}
}

// Levels are stored in two places, depending on the bound, which may change when a scanner
// is reused.
func TestReusedScannerMayHaveAnotherDepth(t *testing.T) {
	s := new(scanner)
	for _, bound := range []int{DefaultMaxDepth, maxScanDepth, 8, DefaultMaxDepth + 1, DefaultMaxDepth} {
		for depth := bound - 1; depth <= bound+1; depth++ {
			b := []byte(strings.Repeat(`{"a":[`, depth/2) + strings.Repeat("[", depth%2) + "1" + strings.Repeat("]", depth%2) + strings.Repeat("]}", depth/2))
			s.reset(b, bound)
			end := s.skip(0, 0)
			if ok := end == len(b); ok != (depth <= bound) || !ok && s.fault != faultDepth {
				t.Errorf("%d levels with the bound %d: ended at %d of %d, fault %d", depth, bound, end, len(b), s.fault)
			}
		}
	}
}
