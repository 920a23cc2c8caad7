package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// heldGate is a gate at which so many wait.
type heldGate struct{ n int }

func (g *heldGate) Waiting() int { return g.n }
func (g *heldGate) Snapshot() admission.Stats {
	return admission.Stats{Queues: []admission.QueueStats{{Models: []string{"m"}, Depth: g.n, Classes: []admission.ClassStats{
		{Class: "idle"},
		{Class: "long", Depth: g.n, HeldUp: 3, HeldUpFor: 7 * time.Second, OldestWait: 19600 * time.Millisecond, ClosedBy: admission.ResourceDecodeBlocks,
			Short: []admission.RankShortage{{Rank: "http://d", Shortage: admission.Shortage{Resource: admission.ResourceDecodeBlocks, Short: 836, Of: 8000}}}},
	}}}}
}

// TestClosedGateIsLogged keeps away a minute of a closed gate of which the log has
// nothing but single requests, and a line for each of them.
func TestClosedGateIsLogged(t *testing.T) {
	var out bytes.Buffer
	g := &heldGate{}
	c := &closedWatch{gate: g, log: slog.New(slog.NewTextHandler(&out, nil))}
	now := time.Unix(1000, 0)
	// pass looks once a second and returns what was logged.
	pass := func(d time.Duration) string {
		out.Reset()
		for end := now.Add(d); now.Before(end); {
			now = now.Add(time.Second)
			c.check(now)
		}
		return out.String()
	}
	if got := pass(time.Hour); got != "" {
		t.Errorf("an open gate is told: %s", got)
	}
	g.n = 40
	pass(20 * time.Second)
	g.n = 0 // it opened between: it counts anew, and was not told
	if got := pass(5 * time.Second); got != "" {
		t.Errorf("told of a short time: %s", got)
	}
	g.n = 40
	if got := pass(30 * time.Second); got != "" {
		t.Errorf("told early: %s", got)
	}
	got := pass(time.Second)
	for _, want := range []string{"level=WARN", "for=30s", "models=[m]", "class=long", "resource=decode_blocks", "waiting=40", "oldest=19.6s",
		"short.rank=http://d", "short.by=836", "short.of=8000", "held_up.requests=3", "held_up.for=7s", `held_up.remedy="--queue-order lanes"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	if n := strings.Count(got, "\n"); n != 1 {
		t.Errorf("%d lines, want 1: %s", n, got)
	}
	if n := strings.Count(pass(3*time.Minute), "\n"); n != 3 {
		t.Errorf("%d lines in three minutes, want 3", n)
	}
	g.n = 0
	if got := pass(time.Minute); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=INFO") || !strings.Contains(got, "open again") {
		t.Errorf("its opening is told as %q", got)
	}
}
