package config

import (
	"strings"
	"testing"
)

// The lookahead is automatic: 32 where requests wait in lanes for workers that are chosen by
// their caches. Where it is 1 and they are chosen so, the remedy is named.
func TestLookahead(t *testing.T) {
	slots := "--pd-disaggregation --prefill-max-inflight-requests-per-worker 4 "
	for _, c := range []struct {
		args   string
		want   int
		advice string
	}{
		{"", 1, ""}, // nobody waits for room
		{slots, 1, "--queue-order lanes, or --affinity-lookahead 32"},
		{slots + "--queue-order lanes", 32, ""},
		{slots + "--queue-order lanes --prefill-policy power_of_two", 1, ""},
		{slots + "--queue-order lanes --decode-policy power_of_two", 32, ""},
		{slots + "--prefill-policy prefix_hash", 1, ""},
		{slots + "--affinity-lookahead 16", 16, ""},
		{slots + "--queue-order lanes --affinity-lookahead 1", 1, "--affinity-lookahead 32"},
		{slots + "--affinity-lookahead 16 --prefill-policy power_of_two", 16, "has no effect"},
		{slots + "--affinity-lookahead 1 --prefill-policy power_of_two", 1, ""},
		{"--router-queue-threshold 1", 32, ""},
		{"--router-queue-threshold 1 --queue-order strict", 1, "--queue-order lanes, or --affinity-lookahead 32"},
		{"--router-queue-threshold 1 --policy least_load", 1, ""},
	} {
		cfg := mustLoad(t, c.args, nil, nil)
		advice := cfg.LookaheadAdvice()
		if cfg.Lookahead() != c.want || (advice == "") != (c.advice == "") || !strings.Contains(advice, c.advice) {
			t.Errorf("%s: lookahead %d, want %d; advice %q", c.args, cfg.Lookahead(), c.want, advice)
		}
	}
}
