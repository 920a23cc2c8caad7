package suggest

import "testing"

func TestSuggestions(t *testing.T) {
	names := []string{"port", "host", "prefill-queue-size", "policy"}
	for word, want := range map[string]string{"prot": "port", "prefill-queue-sizes": "prefill-queue-size", "policies": "", "x": "", "": "", "polcy": "policy"} {
		if got := Nearest(word, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
