package sim

import (
	"encoding/json"
	"strings"
	"testing"
)

// reported is what an answer, streamed or not, says of prompt tokens and cached ones;
// -1: nothing.
func reported(t *testing.T, r reply) (prompt, cached int) {
	t.Helper()
	type usage struct {
		Prompt  int  `json:"prompt_tokens"`
		Input   int  `json:"input_tokens"`
		Created int  `json:"cache_creation_input_tokens"`
		Read    *int `json:"cache_read_input_tokens"`
		Details *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		Inputs *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	}
	type meta struct {
		Prompt int  `json:"prompt_tokens"`
		Cached *int `json:"cached_tokens"`
	}
	cached = -1
	bodies := []string{r.body}
	if strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") {
		bodies = nil
		for _, e := range sse(r.body) {
			bodies = append(bodies, e.data)
		}
	}
	for _, b := range bodies {
		var v struct {
			Usage    *usage
			Response struct{ Usage *usage }
			Message  struct{ Usage *usage }
			Meta     *meta `json:"meta_info"`
		}
		if json.Unmarshal([]byte(b), &v) != nil {
			continue
		}
		if m := v.Meta; m != nil {
			prompt, cached = m.Prompt, *m.Cached
		}
		for _, u := range []*usage{v.Usage, v.Response.Usage, v.Message.Usage} {
			if u == nil {
				continue
			}
			in := u.Input + u.Created
			if u.Read != nil {
				in += *u.Read
			}
			prompt = max(prompt, u.Prompt, in)
			for _, d := range []*struct {
				Cached *int `json:"cached_tokens"`
			}{u.Details, u.Inputs} {
				if d != nil && d.Cached != nil {
					cached = *d.Cached
				}
			}
			if u.Read != nil {
				cached = *u.Read
			}
		}
	}
	if r.err != nil || r.status != 200 || prompt == 0 {
		t.Fatalf("no usage in %+v", r)
	}
	return prompt, cached
}

// Details must have the members of the API: what was computed and cached is told by
// chat, responses and messages, and of several prompts only one counts.
func TestMembersOfTheDetails(t *testing.T) {
	f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: VLLM, CacheReport: true}})
	w, c := f.Regular(0), client(t)
	ids := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("5,", n), ",") + "]" }
	chatBody := `{"messages":[{"role":"user","content":"` + strings.Repeat("abcd", 20) + `"}],"max_tokens":2`
	for _, tc := range []struct{ path, body, want string }{
		{chatPath, chatBody + "}", `"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":16,"multimodal_tokens":null}`},
		{chatPath, chatBody + `,"stream":true,"stream_options":{"include_usage":true}}`, `"prompt_tokens_details":{"cached_tokens":16,"created_cache_tokens":0}}`},
		{"/v1/messages", strings.Replace(chatBody, `"messages"`, `"model":"sim-model","messages"`, 1) + "}", `"usage":{"input_tokens":9,"output_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":16}`},
		{"/v1/messages", strings.Replace(chatBody, `"messages"`, `"model":"sim-model","messages"`, 1) + `,"stream":true}`, `"usage":{"input_tokens":25,"output_tokens":0}`},
		{"/v1/completions", `{"max_tokens":1,"prompt":` + ids(40) + `}`, `"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":null,"multimodal_tokens":null}`},
		{"/v1/completions", `{"max_tokens":1,"prompt":[` + ids(40) + `,` + ids(20) + `]}`, `"prompt_tokens":60,"total_tokens":62,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":16,`},
		{"/v1/completions", `{"max_tokens":1,"prompt":[` + ids(40) + `,` + ids(20) + `],"stream":true,"stream_options":{"include_usage":true}}`, `"prompt_tokens_details":{"cached_tokens":32}}`},
	} {
		r := post(testContext(t), c, w.URL()+tc.path, tc.body)
		if r.status != 200 || !strings.Contains(r.body, tc.want) {
			t.Errorf("%s %s: no %s in %d %s", tc.path, tc.body, tc.want, r.status, r.body)
		}
	}
}
