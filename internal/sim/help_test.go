package sim

import (
	"regexp"
	"strings"
	"testing"
)

// The help must name keys that there are, and all of them.
func TestFaultHelp(t *testing.T) {
	named := map[string]bool{}
	for _, k := range regexp.MustCompile(`[a-z_]+(=|,| \(|  )`).FindAllString(FaultHelp, -1) {
		named[strings.TrimRight(k, "=, (")] = true
	}
	for _, k := range []string{
		"on", "path", "skip", "count", "accept_delay", "delay", "first_byte", "event_delay", "early_headers", "keep_alive", "comment", "status",
		"body", "body_size", "early", "header", "retry_after", "content_type", "reset", "close", "end", "freeze", "write_size", "write_pause", "kind",
		"echo", "token", "output_tokens", "token_size", "event", "after",
	} {
		if !named[k] {
			t.Errorf("the help does not name %s", k)
		}
		var f Fault
		if err := f.set(k, "1"); err != nil && strings.Contains(err.Error(), "unknown") {
			t.Errorf("%s: %v", k, err)
		}
	}
	for _, k := range []Kind{Garbage, Truncated, ChunkLine, HugeHeader, ErrorInside200, ErrorEvent, EventsForJSON, JSONForEvents, EOFDelimited, Surplus, Informational} {
		if !strings.Contains(FaultHelp, string(k)) {
			t.Errorf("the help does not name kind=%s", k)
		}
	}
}
