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

// testRank is a rank of which everything is known.
type testRank struct {
	dp, dpSize int
	host       string
	port       int
	connector  string
	peer       Peer
}

func (r testRank) DPRank() int                    { return r.dp }
func (r testRank) DPSize() int                    { return r.dpSize }
func (r testRank) Bootstrap() (string, int, bool) { return r.host, r.port, r.port != 0 }
func (r testRank) Connector() string              { return r.connector }
func (r testRank) Peer() Peer                     { return r.peer }

// planned makes both legs' bodies as the dialect plans them. rooms are the same each
// time.
func planned(t *testing.T, d Dialect, route openai.Route, body string, prefill, decode testRank, handOff []byte) (plan Plan, legs [2]map[string]any, err error) {
	t.Helper()
	rooms := NewRooms()
	rooms.seed(1)
	legs[0] = spliced(t, route, body, func(s *openai.Splicer, p *openai.Peeked) {
		pair := Pair{Request: p, RequestID: "req", Attempt: 1, Prefill: prefill, Decode: decode, Rooms: rooms, NewID: func() string { return "new" }}
		if plan, err = d.Plan(&pair); err != nil {
			return
		}
		plan.Legs.EditPrefill(s)
		legs[1] = spliced(t, route, body, func(s *openai.Splicer, _ *openai.Peeked) { plan.Legs.EditDecode(s, handOff) })
		plan.Legs.Release()
	})
	if n := rooms.Live(); n != 0 {
		t.Errorf("%d rooms are left", n)
	}
	return plan, legs, err
}

func TestSGLangBootstrapForms(t *testing.T) {
	whole := testRank{dp: -1, dpSize: 1, host: "[::1]", port: 8998}
	plan, legs, _ := planned(t, SGLang{}, openai.RouteChatCompletions, `{"messages":[]}`, whole, whole, nil)
	room := legs[0]["bootstrap_room"]
	want := map[string]any{"messages": []any{}, "bootstrap_host": "[::1]", "bootstrap_port": 8998.0, "bootstrap_room": room}
	if d := cmp.Diff([2]map[string]any{want, want}, legs); d != "" || room.(float64) < minRoom || plan.Shape != Together || !plan.SameBody {
		t.Errorf("scalar form (-want +got):\n%s\n%+v", d, plan)
	}

	whole.port = 0
	_, legs, _ = planned(t, SGLang{}, openai.RouteCompletions, `{"prompt":["a","b"]}`, whole, whole, nil)
	rooms, _ := legs[0]["bootstrap_room"].([]any)
	want = map[string]any{"prompt": []any{"a", "b"}, "bootstrap_host": []any{"[::1]", "[::1]"},
		"bootstrap_port": []any{nil, nil}, "bootstrap_room": rooms}
	if d := cmp.Diff(want, legs[0]); d != "" || len(rooms) != 2 || rooms[0] == rooms[1] {
		t.Errorf("list form (-want +got):\n%s", d)
	}
}

func TestSGLangRanks(t *testing.T) {
	plan, legs, _ := planned(t, SGLang{}, openai.RouteGenerate, `{}`, testRank{dp: 3, dpSize: 4, host: "h", port: 1}, testRank{dp: 1, dpSize: 2}, nil)
	room := legs[0]["bootstrap_room"]
	want := [2]map[string]any{
		{"bootstrap_host": "h", "bootstrap_port": 1.0, "bootstrap_room": room, "routed_dp_rank": 3.0},
		{"bootstrap_host": "h", "bootstrap_port": 1.0, "bootstrap_room": room, "routed_dp_rank": 1.0, "disagg_prefill_dp_rank": 3.0},
	}
	if d := cmp.Diff(want, legs); d != "" || plan.SameBody {
		t.Error(d)
	}
}

// The room decides the prefill rank where the engine follows it; a room that
// disagrees with the rank asked for is refused (sgl-project/sglang#29725).
func TestRoomAgreesWithRank(t *testing.T) {
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
