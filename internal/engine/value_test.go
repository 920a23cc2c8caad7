package engine

import (
	"encoding/json"
	"strings"
	"testing"
)

// Values are read without a decoder only where that is the same.
func TestValuesAreWhatADecoderReads(t *testing.T) {
	for _, raw := range []string{
		`"h"`, `"127.0.0.1"`, `""`, `"a\"b"`, `"a\u0062"`, `"é"`, "\"\xff\"", `"a b~"`, "\"\x7f\"", `"\n"`,
		`"` + strings.Repeat("x", MaxName+1) + `"`, `null`, `7`, `{}`, ``,
	} {
		var want string
		if json.Unmarshal([]byte(raw), &want) != nil || !ValidName(want) {
			want = ""
		}
		if got := nameIn([]byte(raw)); got != want {
			t.Errorf("the name in %s is %q, want %q", raw, got, want)
		}
	}
	for raw, want := range map[string]int64{
		"0": 0, "5600": 5600, "9007199254740991": 1<<53 - 1, "9007199254740992": 1 << 53, "9007199254740994": 0, "1e3": 1000, "1.0": 1, "1.5": 0,
		"-1": 0, `"5"`: 0, "null": 0, "": 0, "99999999999999999999999": 0,
	} {
		if got := wholeIn([]byte(raw)); got != want {
			t.Errorf("the number in %s is %d, want %d", raw, got, want)
		}
	}
}
