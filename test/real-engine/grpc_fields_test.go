//go:build realengine

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// fieldCases are requests whose answers the router makes of tokens, with fields that change
// what is in them.
func fieldCases() (cases []fieldCase) {
	const streamed = "stream"
	add := func(r *route, name string, extra map[string]any) {
		for _, stream := range []bool{false, true} {
			c := fieldCase{name: r.name + "/" + name, request: request{route: r, prompt: "Why is the sky blue?", tokens: 12, stream: stream, extra: map[string]any{}}}
			maps.Copy(c.extra, extra)
			if stream {
				c.name += "/" + streamed
				if _, ok := extra["stream_options"]; !ok {
					c.extra["stream_options"] = map[string]any{"include_usage": true}
				}
			}
			cases = append(cases, c)
		}
	}
	schema := map[string]any{"type": "object", "properties": map[string]any{"a": map[string]any{"type": "string", "enum": []string{"x", "y"}}}, "required": []string{"a"}, "additionalProperties": false}
	for _, r := range []*route{chat, completions} {
		add(r, "plain", nil)
		add(r, "one token", map[string]any{"max_tokens": 1})
		add(r, "no usage", map[string]any{"stream_options": map[string]any{}})
		add(r, "usage in each event", map[string]any{"stream_options": map[string]any{"include_usage": true, "continuous_usage_stats": true}, "max_tokens": 100})
		// Prompts are shorter than a block, so that nothing of them is cached anywhere.
		add(r, "all that is left", map[string]any{"max_tokens": nil, "stop": []string{" river"}})
		add(r, "stop", map[string]any{"stop": []string{"e", "zzz"}})
		add(r, "stop, included", map[string]any{"stop": []string{"e"}, "include_stop_str_in_output": true})
		add(r, "stop, one string", map[string]any{"stop": "o", "min_tokens": 5})
		add(r, "stop ids", map[string]any{"stop_token_ids": []int{300, 320, 340, 360, 380, 400, 420, 440, 281, 291, 301, 311, 321, 331}})
		add(r, "token ids in the answer", map[string]any{"return_token_ids": true})
		add(r, "penalties", map[string]any{"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2})
		add(r, "drawn with a seed", map[string]any{"temperature": 1, "seed": 42, "top_p": 0.9, "top_k": 40, "min_p": 0.01})
		add(r, "samples with a seed", map[string]any{"temperature": 1, "seed": 42, "n": 3})
		add(r, "bias", map[string]any{"logit_bias": map[string]any{"300": 100}})
		add(r, "no end", map[string]any{"ignore_eos": true, "skip_special_tokens": false, "spaces_between_special_tokens": false, "logit_bias": map[string]any{"2": 100}})
		add(r, "the end at once", map[string]any{"logit_bias": map[string]any{"2": 100}})
		add(r, "special tokens", map[string]any{"logit_bias": map[string]any{"3": 100}, "skip_special_tokens": false})
		add(r, "halves of characters", map[string]any{"logit_bias": map[string]any{"130": 100, "140": 100}})
		add(r, "a line break", map[string]any{"logit_bias": map[string]any{"203": 100}, "max_tokens": 3})
		add(r, "a schema", map[string]any{"response_format": map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "a", "schema": schema}}, "max_tokens": 40})
		add(r, "a regex", map[string]any{"structured_outputs": map[string]any{"regex": "[ab]{3}"}})
		add(r, "a choice", map[string]any{"structured_outputs": map[string]any{"choice": []string{"yes", "no"}}})
		add(r, "a grammar", map[string]any{"structured_outputs": map[string]any{"grammar": "root ::= \"yes\" | \"no\""}})
		add(r, "cut", map[string]any{"truncate_prompt_tokens": 4})
	}
	add(chat, "logprobs", map[string]any{"logprobs": true})
	add(chat, "logprobs with alternatives", map[string]any{"logprobs": true, "top_logprobs": 3})
	add(chat, "logprobs and a stop", map[string]any{"logprobs": true, "top_logprobs": 1, "stop": []string{"e"}})
	add(chat, "logprobs of halves", map[string]any{"logprobs": true, "top_logprobs": 2, "logit_bias": map[string]any{"130": 100, "140": 100}})
	add(chat, "ids for tokens", map[string]any{"logprobs": true, "top_logprobs": 2, "return_tokens_as_token_ids": true})
	add(chat, "prompt logprobs", map[string]any{"prompt_logprobs": 1})
	add(chat, "echo", map[string]any{"echo": true})
	add(chat, "parts", map[string]any{"messages": []any{map[string]any{"role": "user", "content": []any{map[string]any{"type": "text", "text": "Why?"}, map[string]any{"type": "text", "text": "How?"}}}}})
	add(chat, "goes on", map[string]any{"messages": []any{map[string]any{"role": "user", "content": "Why?"}, map[string]any{"role": "assistant", "content": "Because"}}, "continue_final_message": true, "add_generation_prompt": false})
	add(chat, "no generation prompt", map[string]any{"add_generation_prompt": false})
	add(completions, "logprobs", map[string]any{"logprobs": 0})
	add(completions, "logprobs with alternatives", map[string]any{"logprobs": 3})
	add(completions, "logprobs and a stop", map[string]any{"logprobs": 1, "stop": []string{"e"}})
	add(completions, "logprobs of halves", map[string]any{"logprobs": 2, "logit_bias": map[string]any{"130": 100, "140": 100}})
	add(completions, "ids for tokens", map[string]any{"logprobs": 2, "return_tokens_as_token_ids": true})
	add(completions, "prompt logprobs", map[string]any{"prompt_logprobs": 1})
	add(completions, "echo", map[string]any{"echo": true})
	add(completions, "echo and logprobs", map[string]any{"echo": true, "logprobs": 2})
	add(completions, "echo alone", map[string]any{"echo": true, "max_tokens": 0, "logprobs": 1})
	add(completions, "batch", map[string]any{"prompt": []string{"Why is the sky blue?", "Tell me a story."}})
	add(completions, "batch of samples", map[string]any{"prompt": []string{"Why is the sky blue?", "Tell me a story."}, "n": 2, "temperature": 1, "seed": 7})
	add(completions, "ids", map[string]any{"prompt": []int{300, 301, 302, 303}})
	add(completions, "batch of ids", map[string]any{"prompt": [][]int{{300, 301, 302, 303}, {310, 311}}, "echo": true})
	add(completions, "special tokens in the prompt", map[string]any{"prompt": "<bos>Why <turn>", "add_special_tokens": true, "return_token_ids": true})
	return cases
}

type fieldCase struct {
	name string
	request
}

// The router's answers have the fields of the same model's behind vLLM's own HTTP server, and
// the same values in them.
func TestGRPCWholeFields(t *testing.T) { sameFields(t, startGRPC(t)) }

// The same through a pair, where several samples and prompts are several hand-offs.
func TestGRPCPairFields(t *testing.T) { sameFields(t, startGRPCPair(t)) }

func sameFields(t *testing.T, r *router) {
	n := 0
	forms, formsThere := map[string]string{}, map[string]string{}
	for _, c := range fieldCases() {
		t.Run(c.name, func(t *testing.T) {
			ours, theirs := c.send(t, r.url), c.send(t, one.URL())
			got, want := ours.wait(), theirs.wait()
			for _, d := range differences(got, want) {
				t.Error(d)
			}
			if !t.Failed() && got.status == 200 {
				n++
			}
			shapesOf(forms, c, got)
			shapesOf(formsThere, c, want)
		})
	}
	// What comes together is another thing from one time to the next, so that forms of events
	// are compared over all requests.
	for shape, name := range formsThere {
		if forms[shape] == "" {
			t.Errorf("%s: no event as %s", name, shape)
		}
	}
	for shape, name := range forms {
		if formsThere[shape] == "" {
			t.Errorf("%s: an event as %s", name, shape)
		}
	}
	report.say(t, "%d answers have the fields and the values of vLLM's own server", n)
}

// shapesOf adds the forms of an answer's events.
func shapesOf(shapes map[string]string, c fieldCase, a answer) {
	for _, e := range a.events {
		s := e.data // [DONE]
		if e.json != nil {
			s = shape(normal(e.json))
		}
		shapes[c.route.name+" "+s] = c.name
	}
}

// differences says how the answer of the router is another than the engine's.
func differences(got, want answer) (list []string) {
	if got.status != want.status || got.streams() != want.streams() {
		return []string{fmt.Sprintf("got %s\nwant %s", got, want)}
	}
	if !want.streams() {
		if want.status != 200 { // other words
			return nil
		}
		return compare(list, "", normal(got.json), normal(want.json))
	}
	a, b := merge(got), merge(want)
	list = compare(list, "merged", a.choices, b.choices)
	if choices, _ := b.last["choices"].([]any); len(choices) == 0 { // of usage
		list = compare(list, "last", a.last, b.last)
	}
	return list
}

// normal takes away what no two answers have in common.
func normal(v map[string]any) map[string]any {
	v = maps.Clone(v)
	if id, _ := v["id"].(string); v["id"] != nil {
		v["id"], _, _ = strings.Cut(id, "-")
	}
	if v["created"] != nil {
		v["created"] = 0.0
	}
	if v["system_fingerprint"] != nil {
		v["system_fingerprint"] = "" // what it names is another thing
	}
	// How much of a prompt is new in the cache is not told by gRPC.
	if usage, _ := v["usage"].(map[string]any); usage != nil {
		v["usage"] = maps.Clone(usage)
		if d, _ := usage["prompt_tokens_details"].(map[string]any); d != nil {
			d = maps.Clone(d)
			delete(d, "created_cache_tokens")
			v["usage"].(map[string]any)["prompt_tokens_details"] = d
		}
	}
	return v
}

// merged is a stream without the bounds of its events.
type merged struct {
	choices map[string]any // by index, what came in pieces joined
	last    map[string]any // event with JSON
}

func merge(a answer) merged {
	m := merged{choices: map[string]any{}}
	for _, e := range a.events {
		if e.json == nil {
			continue
		}
		v := normal(e.json)
		m.last = v
		choices, _ := v["choices"].([]any)
		for _, c := range choices {
			c, _ := c.(map[string]any)
			key := fmt.Sprint(c["index"])
			old, _ := m.choices[key].(map[string]any)
			if old == nil {
				old = map[string]any{}
			}
			m.choices[key] = join(old, c)
		}
	}
	return m
}

// join appends strings and lists, and takes the later of other values.
func join(a, b any) any {
	switch b := b.(type) {
	case nil:
		return a
	case string:
		if s, ok := a.(string); ok && s != b {
			return s + b
		} else if ok && s != "assistant" { // a role may come again
			return s + b
		}
	case []any:
		if l, ok := a.([]any); ok {
			return append(slices.Clone(l), b...)
		}
	case map[string]any:
		if m, ok := a.(map[string]any); ok {
			m = maps.Clone(m)
			for k, v := range b {
				if m[k] != nil || v != nil {
					m[k] = join(m[k], v)
				}
			}
			return m
		}
	}
	return b
}

// shape is a value without what it says: names of fields, and kinds.
func shape(v any) string {
	switch v := v.(type) {
	case map[string]any:
		// What a server with a parser of tool calls makes of a piece without text, and one
		// without a parser does not.
		if d, ok := v["delta"].(map[string]any); ok && len(d) == 0 {
			v = maps.Clone(v)
			v["delta"] = map[string]any{"content": ""}
		}
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			switch k {
			case "top_logprobs", "prompt_logprobs", "logit_bias":
				if v[k] != nil {
					parts = append(parts, k+":some")
					continue
				}
			}
			parts = append(parts, k+":"+shape(v[k]))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case []any:
		var kinds []string
		for _, x := range v {
			kinds = append(kinds, shape(x))
		}
		slices.Sort(kinds)
		return "[" + strings.Join(slices.Compact(kinds), " ") + "]"
	case nil:
		return "null"
	case string:
		return "text"
	}
	return fmt.Sprintf("%T", v)
}

// compare adds where two values differ.
func compare(list []string, path string, got, want any) []string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			break
		}
		for _, k := range slices.Sorted(maps.Keys(w)) {
			if v, ok := g[k]; ok {
				list = compare(list, path+"."+k, v, w[k])
			} else {
				list = append(list, path+"."+k+" is missing, want "+brief(w[k]))
			}
		}
		for _, k := range slices.Sorted(maps.Keys(g)) {
			if _, ok := w[k]; !ok {
				list = append(list, path+"."+k+" is "+brief(g[k])+", the engine has no such field")
			}
		}
		return list
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			break
		}
		for i := range w {
			list = compare(list, fmt.Sprintf("%s[%d]", path, i), g[i], w[i])
		}
		return list
	case float64:
		// Logits of two engines, as one writes them in 32 bits.
		if g, ok := got.(float64); ok && math.Abs(g-w) <= 2e-3*max(1, math.Abs(w)) {
			return list
		}
	}
	if got == nil && strings.HasSuffix(path, ".rank") {
		return list // of a token that is less probable than all that were asked for
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		list = append(list, fmt.Sprintf("%s is %s, want %s", path, brief(got), brief(want)))
	}
	return list
}

func brief(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return clip(string(b))
}
