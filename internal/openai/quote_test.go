package openai

import "testing"

func TestHalvesOfCharactersAreFound(t *testing.T) {
	f := func(raw string, want bool) {
		t.Helper()
		if got := HasLoneSurrogate([]byte(raw)); got != want {
			t.Errorf("%s: %v", raw, got)
		}
	}
	f(`""`, false)
	f(`"plain \n \\ud83e \u00e9"`, false)
	f(`"\ud83e\udd23"`, false)
	f(`"\uD83E\uDD23 \\"`, false)
	f(`"\ud83e"`, true)
	f(`"\ud83e and more"`, true)
	f(`"\ud83e\n"`, true)
	f(`"\ud83e\u00e9"`, true)
	f(`"\ud83e\ud83e\udd23"`, true)
	f(`"\udd23\ud83e"`, true)
	f(`"\\\udd23"`, true)
	f(`"\ud83e\udd23\udd23"`, true)
}
