package sim

import (
	"fmt"
	"strings"
	"testing"
)

// A client can tell its own answer by the nonce that it sent, on both engines.
func TestAnswersRepeatTheNonce(t *testing.T) {
	for _, backend := range []Backend{SGLang, VLLM} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: backend}})
		for _, stream := range []bool{false, true} {
			for _, nonce := range []string{"nonce-a1", "nonce-b2"} {
				r := post(testContext(t), client(t), f.Regular(0).URL()+"/v1/chat/completions",
					fmt.Sprintf(`{"model":"sim-model","max_tokens":3,"stream":%t,"messages":[{"role":"user","content":"say %s, please"}]}`, stream, nonce))
				for k := 1; k <= 3; k++ {
					if n := strings.Count(r.body, fmt.Sprintf(" %s.%d", nonce, k)); r.status != 200 || n != 1 {
						t.Errorf("%s, stream %t: token %d stands %d times in %d %s", backend, stream, k, n, r.status, r.body)
					}
				}
			}
		}
	}
}
