//go:build realengine

package main

import (
	"testing"
	"time"
)

// What all comparisons of texts rest on: decode with the cache of another prompt
// of the same length answers 200, with another text.
func TestWrongCacheShows(t *testing.T) {
	needPair(t)
	const pairs = 5
	right, wrong := 0, 0
	// Other prompts each time: decode keeps what it has computed once.
	seed := int(time.Now().Unix() % 10_000)
	for i := range pairs {
		// 96 tokens, three whole blocks, that nobody else asks.
		ids := func(n int) []int {
			list := make([]int, 3*BlockSize)
			for k := range list {
				list[k] = 100 + (n*131+k*(17+n)+k*k)%350
			}
			return list
		}
		ask := func(e *Engine, prompt []int, extra map[string]any) answer {
			t.Helper()
			q := request{route: completions, tokens: 24, extra: map[string]any{"prompt": prompt}}
			for k, v := range extra {
				q.extra[k] = v
			}
			a := q.ask(t, e.URL())
			if missing := a.whole(completions); missing != "" {
				t.Fatal(missing)
			}
			return a
		}
		handOff := func(prompt []int) map[string]any {
			t.Helper()
			a := ask(prefill, prompt, map[string]any{"max_tokens": 1, "kv_transfer_params": map[string]any{"do_remote_decode": true}})
			params, ok := a.json["kv_transfer_params"].(map[string]any)
			if !ok {
				t.Fatalf("prefill hands nothing over: %s", a)
			}
			return params
		}
		mine, other := ids(seed+2*i), ids(seed+2*i+1)
		a, b := handOff(mine), handOff(other)
		if ask(decode, mine, map[string]any{"kv_transfer_params": a}).text(completions) == ask(one, mine, nil).text(completions) {
			right++
		}
		b["remote_block_ids"] = a["remote_block_ids"]
		if ask(decode, other, map[string]any{"kv_transfer_params": b}).text(completions) != ask(one, other, nil).text(completions) {
			wrong++
		}
	}
	if right != pairs || wrong != pairs {
		t.Errorf("of %d texts with the right cache %d are the engine's own, of %d with a wrong one %d are not", pairs, right, pairs, wrong)
	}
	report.say(t, "with the right cache %d of %d texts are the engine's own, with another prompt's %d of %d are not", right, pairs, wrong, pairs)
}
