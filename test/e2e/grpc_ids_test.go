package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Prompts that are token ids are served where no text can be made of tokens, with token ids;
// what needs a text is refused with the reason, and nobody is blamed.
func TestGRPCWithoutATokenizer(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"gives no files", "of an unknown kind"} {
		for shape, args := range grpcFleets {
			t.Run(kind+" "+shape, func(t *testing.T) {
				t.Parallel()
				fleet := startSim(t, args...)
				var flags []string
				why := "does not give the files"
				if kind == "gives no files" {
					fleet.fault("all", "code=UNIMPLEMENTED,path=/vllm.grpc.engine.VllmEngine/GetTokenizer")
				} else {
					dir := t.TempDir()
					if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["a",0]]}}`), 0o600); err != nil {
						t.Fatal(err)
					}
					flags, why = []string{"--tokenizer-path", dir}, "Unigram"
				}
				r := startRouter(t, fleet, flags...)
				ask := func(path, fields string) *answer {
					return send(clients(t), http.MethodPost, r.url()+path, `{"model":"sim-model",`+fields+`}`).wait(t)
				}
				whole := ask("/v1/completions", `"max_tokens":3,"return_token_ids":true,"prompt":[5,6,7]`)
				if whole.good(t); !strings.Contains(whole.body, `"text":""`) || !strings.Contains(whole.body, `"prompt_token_ids":[5,6,7]`) ||
					!strings.Contains(whole.body, `"completion_tokens":3`) {
					t.Errorf("%s", whole)
				}
				stream := ask("/v1/completions", streamed+`"max_tokens":3,"return_token_ids":true,"prompt":[5,6,7]`)
				if stream.good(t); strings.Count(stream.body, `"token_ids":[`) < 3 {
					t.Errorf("%s", stream)
				}
				for _, c := range []struct{ path, fields, says string }{
					{"/v1/completions", `"prompt":[5,6,7]`, "return_token_ids"},
					{"/v1/completions", `"prompt":[5,6,7],"return_token_ids":true,"stop":"a"`, "stop"},
					{"/v1/completions", `"prompt":[5,6,7],"return_token_ids":true,"logprobs":1`, "logprobs"},
					{"/v1/completions", `"prompt":[5,6,7],"return_token_ids":true,"echo":true`, "echo"},
					{"/v1/completions", `"prompt":"five","return_token_ids":true`, "token ids are served"},
					{"/v1/chat/completions", `"messages":[{"role":"user","content":"five"}]`, "chats with this model are refused"},
					{"/v1/messages", `"max_tokens":3,"messages":[{"role":"user","content":"five"}]`, "chats with this model are refused"},
					{"/tokenize", `"prompt":"five"`, "text can't be made into tokens"},
					{"/detokenize", `"tokens":[5]`, "tokens into text"},
				} {
					a := ask(c.path, c.fields)
					if a.status != http.StatusBadRequest || !strings.Contains(a.body, c.says) || !strings.Contains(a.body, why) ||
						c.path != "/v1/messages" && a.code() != "unsupported_for_grpc" {
						t.Errorf("%s %s: %s", c.path, c.fields, a)
					}
				}
				if status, body := r.get("/workers"); status != http.StatusOK || !strings.Contains(body, "prompts that are token ids are answered") {
					t.Errorf("GET /workers: %d %s", status, body)
				}
				if open := slices.ContainsFunc(r.workers(), func(w worker) bool { return !w.Healthy || w.Breaker != "closed" }); open {
					t.Errorf("blamed: %+v", r.workers())
				}
			})
		}
	}
}
