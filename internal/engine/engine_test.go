package engine

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-router/sluice/internal/openai"
)

func spliced(t *testing.T, route openai.Route, body string, f func(*openai.Splicer, *openai.Peeked)) map[string]any {
	t.Helper()
	p, err := openai.Peek(route, []byte(body), openai.PeekOptions{Refuse: openai.ControlledFields})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	var s openai.Splicer
	s.Reset(p)
	f(&s, p)
	var got map[string]any
	if err := json.Unmarshal(s.AppendBytes(nil), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestSGLangBootstrapForms(t *testing.T) {
	at := Bootstrap{Host: "[::1]", Port: 8998}
	got := spliced(t, openai.RouteChatCompletions, `{"messages":[]}`, func(s *openai.Splicer, p *openai.Peeked) {
		SGLangBootstrap(s, p, at, []int64{1 << 21})
	})
	want := map[string]any{"messages": []any{}, "bootstrap_host": "[::1]", "bootstrap_port": 8998.0, "bootstrap_room": float64(1 << 21)}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("scalar form (-want +got):\n%s", d)
	}

	at.NoPort = true
	got = spliced(t, openai.RouteCompletions, `{"prompt":["a","b"]}`, func(s *openai.Splicer, p *openai.Peeked) {
		SGLangBootstrap(s, p, at, []int64{1 << 21, 1 << 22})
	})
	want = map[string]any{"prompt": []any{"a", "b"}, "bootstrap_host": []any{"[::1]", "[::1]"},
		"bootstrap_port": []any{nil, nil}, "bootstrap_room": []any{float64(1 << 21), float64(1 << 22)}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("list form (-want +got):\n%s", d)
	}
}

func TestSGLangRanks(t *testing.T) {
	r := DPRanks{Prefill: 3, Decode: 1}
	got := spliced(t, openai.RouteGenerate, `{}`, func(s *openai.Splicer, _ *openai.Peeked) { SGLangDecodeRanks(s, r) })
	want := map[string]any{"routed_dp_rank": 1.0, "disagg_prefill_dp_rank": 3.0}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got = spliced(t, openai.RouteGenerate, `{}`, func(s *openai.Splicer, _ *openai.Peeked) { SGLangPrefillRanks(s, r) })
	if d := cmp.Diff(map[string]any{"routed_dp_rank": 3.0}, got); d != "" {
		t.Error(d)
	}
}

// The room decides the prefill rank where the engine follows it; a room that
// disagrees with the rank asked for is refused (sgl-project/sglang#29725).
func TestCase_B065_RoomAgreesWithRank(t *testing.T) {
	rooms := NewRooms()
	for dp := 1; dp <= 9; dp++ {
		for rank := range dp {
			room := rooms.Mint(rank, dp)
			if room < minRoom || room%int64(dp) != int64(rank) {
				t.Fatalf("room %d for rank %d of %d", room, rank, dp)
			}
		}
	}
}

func TestRoomsAreUniqueWhileLive(t *testing.T) {
	rooms := NewRooms()
	rooms.seed(1)
	seen := map[int64]bool{}
	for range 100 {
		// All shards have the same seed: they would mint the same numbers.
		room := rooms.Mint(0, 1)
		if seen[room] {
			t.Fatalf("room %d is in use twice", room)
		}
		seen[room] = true
	}
	if rooms.Live() != 100 {
		t.Fatalf("%d rooms live, want 100", rooms.Live())
	}
	for room := range seen {
		rooms.Free(room)
	}
	if rooms.Live() != 0 {
		t.Fatalf("%d rooms left", rooms.Live())
	}
}
