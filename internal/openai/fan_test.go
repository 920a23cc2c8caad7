package openai

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/text"
)

func planFan(t *testing.T, route Route, body string, maxCopies int) (*Peeked, Fan, error) {
	t.Helper()
	p := new(Peeked)
	if err := p.Read(route, []byte(body), PeekOptions{Refuse: ControlledFields}); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	f, err := PlanFan(p, maxCopies)
	return p, f, err
}

func copyBody(p *Peeked, f Fan, k int) string {
	var s Splicer
	s.Reset(p)
	f.Edit(&s, k)
	return string(s.AppendBytes(nil))
}

func TestPlanFan(t *testing.T) {
	for _, c := range []struct {
		name            string
		route           Route
		body            string
		copies, prompts int
		last            string // the body of the last copy
	}{
		{"n absent", RouteChatCompletions, `{"messages":[]}`, 1, 1, `{"messages":[]}`},
		{"n null", RouteChatCompletions, `{"n":null}`, 1, 1, `{"n":null}`},
		{"n 1 keeps all", RouteChatCompletions, `{"n":1,"seed":1.5,"best_of":1,"use_beam_search":true,"rid":"x"}`, 1, 1, `{"n":1,"seed":1.5,"best_of":1,"use_beam_search":true,"rid":"x"}`},
		{"n 3", RouteChatCompletions, `{"x":1, "n": 3 ,"y":[0.10]}`, 3, 1, `{"x":1, "n": 1 ,"y":[0.10]}`},
		{"seed", RouteChatCompletions, `{"n":3,"seed":40}`, 3, 1, `{"n":1,"seed":42}`},
		{"seed 0", RouteChatCompletions, `{"n":2,"seed":0}`, 2, 1, `{"n":1,"seed":1}`},
		{"negative seed", RouteChatCompletions, `{"n":3,"seed":-1}`, 3, 1, `{"n":1,"seed":1}`},
		{"largest seed", RouteChatCompletions, `{"n":3,"seed":9223372036854775807}`, 3, 1, `{"n":1,"seed":1}`},
		{"smallest seed", RouteChatCompletions, `{"n":2,"seed":-9223372036854775808}`, 2, 1, `{"n":1,"seed":-9223372036854775807}`},
		{"null seed", RouteChatCompletions, `{"n":2,"seed":null}`, 2, 1, `{"n":1,"seed":null}`},
		{"best_of n", RouteCompletions, `{"best_of":2,"n":2,"prompt":"a"}`, 2, 1, `{"best_of":1,"n":1,"prompt":"a"}`},
		{"best_of 1", RouteCompletions, `{"best_of":1,"n":2,"prompt":"a"}`, 2, 1, `{"best_of":1,"n":1,"prompt":"a"}`},
		{"best_of null", RouteCompletions, `{"best_of":null,"n":2}`, 2, 1, `{"best_of":null,"n":1}`},
		{"no beams", RouteCompletions, `{"use_beam_search":false,"n":2}`, 2, 1, `{"use_beam_search":false,"n":1}`},
		{"null id", RouteCompletions, `{"rid":null,"n":2}`, 2, 1, `{"rid":null,"n":1}`},
		{"batch", RouteCompletions, `{"prompt":["a","b"]}`, 1, 2, `{"prompt":["a","b"]}`},
		{"batch with n", RouteCompletions, `{"prompt":["a","b"],"n":2,"echo":true,"logprobs":1}`, 2, 2, `{"prompt":["a","b"],"n":1,"echo":true,"logprobs":1}`},
		{"token lists", RouteCompletions, `{"prompt":[[1],[2],[3]],"n":2}`, 2, 3, `{"prompt":[[1],[2],[3]],"n":1}`},
		{"native list", RouteGenerate, `{"text":["a","b"]}`, 1, 2, `{"text":["a","b"]}`},
		{"native, n on top means nothing", RouteGenerate, `{"text":"a","n":5,"best_of":7}`, 1, 1, `{"text":"a","n":5,"best_of":7}`},
	} {
		p, f, err := planFan(t, c.route, c.body, 0)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if f.Copies != c.copies || f.Prompts != c.prompts {
			t.Errorf("%s: %d copies, %d prompts", c.name, f.Copies, f.Prompts)
		}
		if got := copyBody(p, f, f.Copies-1); got != c.last {
			t.Errorf("%s: the last copy is %s, want %s", c.name, got, c.last)
		}
	}
}

func TestPlanFanRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		route Route
		body  string
		param string
	}{
		{"native n", RouteGenerate, `{"text":"a","sampling_params":{"n":2}}`, "sampling_params.n"},
		{"native n in a list", RouteGenerate, `{"text":["a","b"],"sampling_params":[{"n":2},{"n":2}]}`, "sampling_params.n"},
		{"another route", RouteResponses, `{"n":2}`, "n"},
		{"too many", RouteChatCompletions, `{"n":129}`, "n"},
		{"seed with a fraction", RouteChatCompletions, `{"n":2,"seed":1.0}`, "seed"},
		{"seed beyond 64 bits", RouteChatCompletions, `{"n":2,"seed":9223372036854775808}`, "seed"},
		{"seed in text", RouteChatCompletions, `{"n":2,"seed":"1"}`, "seed"},
		{"best_of above n", RouteCompletions, `{"n":2,"best_of":3}`, "best_of"},
		{"best_of without n", RouteCompletions, `{"best_of":2}`, "best_of"},
		{"best_of 0", RouteCompletions, `{"best_of":0}`, "best_of"},
		{"best_of in text", RouteCompletions, `{"best_of":"1"}`, "best_of"},
		{"beams", RouteCompletions, `{"n":2,"use_beam_search":true}`, "use_beam_search"},
		{"rid", RouteChatCompletions, `{"n":2,"rid":"a"}`, "rid"},
		{"rids", RouteCompletions, `{"n":2,"prompt":["a"],"rid":["a"]}`, "rid"},
		{"request_id", RouteChatCompletions, `{"n":2,"request_id":"a"}`, "request_id"},
	} {
		_, _, err := planFan(t, c.route, c.body, 0)
		var e *Error
		if !errors.As(err, &e) || e.Status != 400 || e.Param != c.param {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, _, err := planFan(t, RouteChatCompletions, `{"n":5}`, 4); err == nil {
		t.Error("5 copies where 4 are allowed")
	}
	if _, f, err := planFan(t, RouteChatCompletions, `{"n":128}`, 0); err != nil || f.Copies != 128 {
		t.Error(f.Copies, err)
	}
}

// SGLang uses one bootstrap room for all samples of n > 1, and all but the first wait for
// the timeout of 300 s: no copy may ask for more than one.
func TestCopiesAskForOneSample(t *testing.T) {
	p, f, err := planFan(t, RouteChatCompletions, `{"messages":[{"role":"user","content":"hi"}],"n":3,"seed":7}`, 0)
	if err != nil || f.Copies != 3 {
		t.Fatal(f.Copies, err)
	}
	for k := range f.Copies {
		want := fmt.Sprintf(`{"messages":[{"role":"user","content":"hi"}],"n":1,"seed":%d}`, 7+k)
		if got := copyBody(p, f, k); got != want {
			t.Errorf("copy %d is %s", k, got)
		}
	}
}

// Numbers above 2^53 must not change, as they do if a body is decoded and encoded.
func TestCopiesKeepNumbers(t *testing.T) {
	rest := `"tools":[{"maximum":9223372036854775807}],"a":1e400,"b":1.0,"c":-0,"metadata":{"u":"12345678901234567890"}}`
	p, f, err := planFan(t, RouteChatCompletions, `{"n":2,"seed":9007199254740993,`+rest, 0)
	if err != nil {
		t.Fatal(err)
	}
	for k, seed := range []string{"9007199254740993", "9007199254740994"} {
		if got, want := copyBody(p, f, k), `{"n":1,"seed":`+seed+`,`+rest; got != want {
			t.Errorf("copy %d is %s", k, got)
		}
	}
}

// Fields that the router does not know reach the worker.
func TestCopiesKeepUnknownFields(t *testing.T) {
	rest := `"chat_template_kwargs":{"enable_thinking":false},"separate_reasoning":true,"made_up":[{"x":null}],"messages":[{"role":"user","content":"a","made_up":{"y":[1]}}]}`
	p, f, err := planFan(t, RouteChatCompletions, `{"n":2,`+rest, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := copyBody(p, f, 1); got != `{"n":1,`+rest {
		t.Error(got)
	}
}

func TestOffsetSeedsDiffer(t *testing.T) {
	for _, seed := range []int64{0, 1, -1, -2, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64} {
		seen := map[int64]bool{}
		for k := range DefaultMaxCopies {
			seen[offsetSeed(seed, k)] = true
			if v := offsetSeed(seed, k); seed >= 0 && v < 0 {
				t.Errorf("%d+%d became %d", seed, k, v)
			}
		}
		if len(seen) != DefaultMaxCopies || offsetSeed(seed, 0) != seed {
			t.Errorf("seed %d gives %d different ones", seed, len(seen))
		}
	}
}

func TestReadErrorObject(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, c := range []struct {
		json    string
		status  int
		message string
		ok      bool
	}{
		{`{"error":{"message":"no \"room\"","type":"x","code":400}}`, 400, `no "room"`, true},
		{`{"error":{"code":"invalid_value","message":"m"}}`, 0, "m", true},
		{`{"error":{}}`, 0, "", true},
		{`{"error":"text"}`, 0, "text", true},
		{`{"error":null,"choices":[]}`, 0, "", false},
		{`{"error":false}`, 0, "", false},
		{`{"object":"error","message":"flat","type":"BadRequestError","param":null,"code":503}`, 503, "flat", true},
		{`{"code":429,"message":"first","object":"error"}`, 429, "first", true},
		{`{"object":"error","code":200}`, 0, "", true},
		{`{"object":"error","code":50000000000000000000}`, 0, "", true},
		{`{"type":"error","error":{"type":"overloaded_error","message":"busy"}}`, 0, "busy", true},
		{`{"object":"error","code":500,"error":{"message":"both"}}`, 500, "both", true},
		{`{"choices":[{"message":{"content":"the \"error\" was"}}]}`, 0, "", false},
		{`{"choices":[{"error":{"message":"inside"}}]}`, 0, "", false},
		{`{"object":"chat.completion","x":"error"}`, 0, "", false},
		{`[{"error":{"message":"x"}}]`, 0, "", false},
		{`{"error":{"message":"cut","code":500},"x":[1`, 500, "cut", true},
		{`{"error":{"message":"cut","co`, 0, "cut", true},
		{`{"x":1 "error":{}}`, 0, "", false},
		{` "error"`, 0, "", false},
		{``, 0, "", false},
		{`{"error":{"message":"` + long + `"}}`, 0, text.Clip(long, maxErrorMessage), true},
	} {
		status, message, ok := ReadErrorObject([]byte(c.json))
		if status != c.status || message != c.message || ok != c.ok {
			t.Errorf("%.80s: %d %.80q %t", c.json, status, message, ok)
		}
	}
}
