package suggest

import "testing"

func TestSuggestions(t *testing.T) {
	names := []string{"port", "host", "prefill-queue-size", "policy", "decode", "request-timeout-secs", "max_wait_secs", "max_waiting"}
	for word, want := range map[string]string{"prot": "port", "prefill-queue-sizes": "prefill-queue-size", "policies": "", "x": "", "": "", "polcy": "policy",
		"prefill-queue": "prefill-queue-size", "encode": "", "queue-timeout-secs": "", "deocde": "decode", "max_wait": "max_wait_secs"} {
		if got := Nearest(word, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
