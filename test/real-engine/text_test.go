//go:build realengine

package main

import (
	"fmt"
	"testing"
)

// variants are requests that differ in what a router could get wrong about the
// two legs' bodies. The prompt is longer than a KV block in all of them.
func variants(r *route) []variant {
	v := []variant{{"whole", request{route: r, tokens: 24}}, {"streamed", request{route: r, tokens: 24, stream: true}}}
	if r == chat || r == completions {
		v = append(v, variant{"streamed with usage", request{route: r, tokens: 24, stream: true, extra: map[string]any{
			"stream_options": map[string]any{"include_usage": true}, "min_tokens": 5}}})
	}
	if r == chat {
		v = append(v, variant{"max_completion_tokens", request{route: r, extra: map[string]any{
			"max_tokens": nil, "max_completion_tokens": 24}}})
		v = append(v, variant{"both limits and logprobs", request{route: r, extra: map[string]any{
			"max_tokens": 3, "max_completion_tokens": 24, "logprobs": true, "top_logprobs": 2}}})
	}
	return v
}

type variant struct {
	name string
	request
}

// What sluice answers in front of one engine is what that engine answers.
func TestWholeText(t *testing.T) {
	r := startWhole(t)
	for _, route := range routes {
		for _, v := range variants(route) {
			t.Run(route.name+"/"+v.name, func(t *testing.T) {
				q := v.request
				q.prompt = prompt(60)
				sameText(t, q, r.url)
			})
		}
	}
}

// sameText asks a router and, without it, the engine that runs whole requests.
// The two must agree in the text and in the counts.
func sameText(t *testing.T, q request, url string) (promptTokens int) {
	t.Helper()
	got := q.ask(t, url)
	if missing := got.whole(q.route); missing != "" {
		t.Fatal(missing)
	}
	direct := q
	direct.stream = false
	direct.extra = map[string]any{}
	for k, v := range q.extra {
		if k != "stream_options" {
			direct.extra[k] = v
		}
	}
	want := direct.ask(t, one.URL())
	if missing := want.whole(q.route); missing != "" {
		t.Fatalf("the engine itself: %s", missing)
	}
	if text := got.text(q.route); text == "" || text != want.text(q.route) {
		t.Errorf("the text is %q, the engine's own is %q", text, want.text(q.route))
	}
	in, out := q.route.usage(want)
	if !got.streams() {
		if gotIn, gotOut := q.route.usage(got); gotIn != in || gotOut != out {
			t.Errorf("it counts %d + %d tokens, the engine itself %d + %d", gotIn, gotOut, in, out)
		}
	}
	report.say(t, "%3d prompt tokens, %d events, text %.30q is the engine's own", in, len(got.events), got.text(q.route))
	return in
}

// Greedy text through prefill and decode is that of an engine which computed it
// all, and decode computed none of the prompts: their cache came over NIXL.
func TestPairText(t *testing.T) {
	needPair(t)
	r := startPair(t)
	waitIdle(t, decode)
	before := scrape(t, decode.URL())
	tokens, blocks, asked := 0, 0, 0
	for _, route := range routes {
		for _, v := range variants(route) {
			t.Run(route.name+"/"+v.name, func(t *testing.T) {
				q := v.request
				q.prompt = prompt(60)
				n := sameText(t, q, r.url)
				if t.Failed() {
					return
				}
				tokens += n
				blocks += (n + BlockSize - 1) / BlockSize
				asked++
			})
		}
	}
	var moved counters
	eventually(t, "decode has counted what came", func() string {
		moved = scrape(t, decode.URL()).since(before, externalHits, nixlBytes, nixlTransfers, nixlFailed, transferred, computedHere)
		want := counters{
			externalHits:  float64(tokens),
			transferred:   float64(tokens),
			nixlBytes:     float64(blocks * BlockSize * KVBytesPerToken),
			nixlTransfers: float64(asked),
		}
		for name, v := range want {
			if moved[name] != v {
				return fmt.Sprintf("%s grew by %v, not by %v: %s", name, moved[name], v, moved)
			}
		}
		return ""
	})
	if moved[computedHere] != 0 || moved[nixlFailed] != 0 {
		t.Errorf("decode computed %v prompt tokens itself, %v transfers failed", moved[computedHere], moved[nixlFailed])
	}
	report.say(t, "%d requests, %d prompt tokens; decode: %s", asked, tokens, moved)
}
