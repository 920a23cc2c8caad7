package generate

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

// The bytes are those of vLLM 0.32 over HTTP, but for ids, times and the fingerprint.
func TestChatStreamedByteForByte(t *testing.T) {
	r := newRequest(func(r *Request) { r.Stream, r.Form.Fingerprint = true, "fp_1" })
	const head = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[`
	want := head + `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}

` + head + `{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

` + head + `{"index":0,"delta":{"content":" world\n\"\\"},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],"system_fingerprint":"fp_1"}

data: [DONE]

`
	got, err := answer(r, tell(idHello), end(Stopped, idWorld, '\n', '"', '\\', idEnd))
	if err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

func TestChatStreamedWithUsage(t *testing.T) {
	r := newRequest(func(r *Request) {
		r.Stream, r.Form.Fingerprint, r.Form.Usage, r.Form.UsageAlways = true, "fp_1", true, true
		r.Form.TokenIDs = true
	})
	const head = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[`
	want := head + `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0,"completion_tokens_details":null},"prompt_token_ids":[1,2,3],"prompt_text":null}

` + head + `{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null,"token_ids":[256]}],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,"completion_tokens_details":null}}

` + head + `{"index":0,"delta":{"content":"!"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":[33]}],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"completion_tokens_details":null}}

` + head + `],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":2}},"system_fingerprint":"fp_1"}

data: [DONE]

`
	first := tell(idHello)
	first.CachedTokens = 2
	got, err := answer(r, first, end(Length, '!'))
	if err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

func TestChatWholeByteForByte(t *testing.T) {
	r := newRequest(func(r *Request) { r.Form.Fingerprint = "fp_1" })
	want := `{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"fp_1","usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`
	got, err := answer(r, end(Stopped, idHello, idEnd))
	if err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

func TestCompletionsStreamedByteForByte(t *testing.T) {
	r := newRequest(func(r *Request) {
		r.Route, r.Stream, r.Form.Fingerprint, r.Form.TokenIDs = openai.RouteCompletions, true, "fp_1", true
	})
	const head = `data: {"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[`
	want := head + `{"index":0,"text":"Hello","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":[1,2,3],"token_ids":[256]}]}

` + head + `{"index":0,"text":" world","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":[257]}],"system_fingerprint":"fp_1"}

data: [DONE]

`
	got, err := answer(r, tell(idHello), end(Length, idWorld))
	if err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

func TestCompletionsWholeByteForByte(t *testing.T) {
	r := newRequest(func(r *Request) {
		r.Route, r.Prompts, r.Form.Fingerprint = openai.RouteCompletions, [][]uint32{{1}, {2, 3}}, "fp_1"
	})
	one := `,"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}`
	want := `{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":"Hello"` + one + `,{"index":1,"text":" world"` + one +
		`],"service_tier":null,"system_fingerprint":"fp_1","usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1,"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`
	second, first := end(Length, idWorld).of(1, 0), end(Length, idHello)
	first.CachedTokens, second.CachedTokens = 0, 1
	got, err := answer(r, second, first)
	if err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

// The end of a sequence comes in a message of its own behind its last token.
func TestTheEndComesInTheEventOfTheLastToken(t *testing.T) {
	f := func(edit func(*Request), want string, events ...*Event) {
		t.Helper()
		r := newRequest(func(r *Request) { r.Stream = true; edit(r) })
		got, err := answer(r, events...)
		if err != nil {
			t.Fatal(err)
		}
		last := strings.Split(got, "\n\n")
		if n := len(last); n < 3 || !strings.Contains(last[n-3], want) {
			t.Errorf("the last event is not %s:\n%s", want, got)
		}
	}
	limit := func(r *Request) { r.Sampling.MaxTokens = 2 }
	f(limit, `"delta":{"content":" world"},"logprobs":null,"finish_reason":"length"`, tell(idHello), tell(idWorld), end(Length))
	f(func(*Request) {}, `"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":null`, tell(idHello), tell(idEnd), end(Stopped))
	f(func(r *Request) { r.Sampling.IncludeStop, r.Sampling.SkipSpecial = true, false },
		`"delta":{"content":"<|end|>"},"logprobs":null,"finish_reason":"stop","stop_reason":null`, tell(idHello), tell(idEnd), end(Stopped))
	f(func(r *Request) { r.Sampling.StopIDs = []uint32{idWorld} }, `"delta":{"content":"a"},"logprobs":null,"finish_reason":"stop","stop_reason":257`,
		tell(idHello), tell('a', idWorld), func() *Event { e := end(Stopped); e.MatchedID = int64(idWorld); return e }())
}

func TestTextOfStopsAndEnds(t *testing.T) {
	f := func(name string, edit func(*Request), want string, events ...*Event) {
		t.Helper()
		for _, stream := range []bool{true, false} {
			r := newRequest(func(r *Request) {
				r.Stream = stream
				edit(r)
			})
			got, err := answer(r, events...)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if g := gist(t, got); g != want {
				t.Errorf("%s, stream=%t: %s, want %s", name, stream, g, want)
			}
		}
	}
	stops := func(more ...func(*Request)) func(*Request) {
		return func(r *Request) {
			r.Sampling.Stop = []string{"STOP", "\n\n"}
			for _, m := range more {
				m(r)
			}
		}
	}
	include := func(r *Request) { r.Sampling.IncludeStop = true }
	special := func(r *Request) { r.Sampling.SkipSpecial = false }

	f("the engine's stop string is cut", stops(), `"Hello" stop STOP|`, tell(idHello), tell(idStop), end(Stopped).stop("STOP"))
	f("over several tokens", stops(), `"Hello" stop STOP|`, tell(idHello), tell('S', 'T'), tell('O'), tell('P'), end(Stopped).stop("STOP"))
	f("and what the last token has behind it", stops(), `"a" stop `+"\n\n|", tell('a', '\n'), tell('\n'), end(Stopped).stop("\n\n"))
	f("with the stop string", stops(include), `"HelloSTOP" stop STOP|`, tell(idHello), tell(idStop), end(Stopped).stop("STOP"))
	f("one that the engine missed", stops(), `"Hello" stop STOP|`, tell(idHello, idStop), tell(idWorld), end(Length))
	f("tokens behind it are dropped", stops(), `"Hello" stop STOP|`, tell(idHello, idStop, idWorld), end(Aborted))
	f("the beginning of one at the end", stops(), `"HelloST" length <nil>|`, tell(idHello), tell('S', 'T'), end(Length))
	f("one that only the engine found", stops(), `"Hel" stop lo|`, end(Stopped, idHello).stop("lo"))
	f("before the least number of tokens none counts", stops(func(r *Request) { r.Sampling.MinTokens = 2 }), `"STOPHello" stop STOP|`,
		tell(idStop, idHello), tell(idStop), end(Stopped).stop("STOP"))
	f("a special token has no text", stops(), `"Hello" stop <nil>|`, tell(idHello, idUser, idEnd), end(Stopped))
	f("unless it is asked for", stops(special), `"Hello<|user|>" stop <nil>|`, tell(idHello, idUser), tell(idEnd), end(Stopped))
	f("the end of sequence too", stops(special, include), `"Hello<|end|>" stop <nil>|`, tell(idHello), tell(idEnd), end(Stopped))
	f("an end of sequence that is none", stops(special), `"<|end|>Hello" length <nil>|`, tell(idEnd), tell(idHello), end(Length))
	f("ignored ones are text", stops(special, func(r *Request) { r.Sampling.IgnoreEOS = true }), `"<|end|>" length <nil>|`, tell(idEnd), end(Length))
	f("an end of sequence that is not known as one", stops(special), `"Hello" stop <nil>|`, end(Stopped, idHello, idUser))
	f("no token at all", stops(), `"" stop <nil>|`, end(Stopped))
	f("a reason that is not known here", stops(), `"Hello!" repetition <nil>|`, tell(idHello), &Event{IDs: []uint32{'!'}, PromptTokens: -1, CachedTokens: -1, MatchedID: -1, Finish: Other, Reason: "repetition"})
	f("a character over several tokens", stops(), `"é😀" length <nil>|`, tell(0xc3), tell(0xa9, 0xf0), tell(0x9f, 0x98), tell(0x80), end(Length))
	f("ids that only fill the vocabulary up", stops(), `"Hello" length <nil>|`, tell(idHello, idTests+1), end(Length))
}

func TestSeveralSequences(t *testing.T) {
	for _, stream := range []bool{true, false} {
		r := newRequest(func(r *Request) {
			r.Route, r.Stream, r.Prompts, r.Samples = openai.RouteCompletions, stream, [][]uint32{{1}, {2}}, 2
		})
		got, err := answer(r, tell('a').of(0, 0), tell('d').of(1, 1), end(Length, 'c').of(1, 0), end(Stopped, 'b', idEnd).of(0, 1),
			end(Length, 'D').of(1, 1), end(Length, 'A').of(0, 0))
		if want := `"aA" length <nil>|"b" stop <nil>|"c" length <nil>|"dD" length <nil>|`; err != nil || gist(t, got) != want {
			t.Errorf("%v %s, want %s", err, gist(t, got), want)
		}
	}
	r := newRequest(func(r *Request) { r.Stream, r.Samples = true, 3 })
	got, err := answer(r, end(Length, 'c').of(0, 2), end(Length, 'a'), end(Length, 'b').of(0, 1))
	if err != nil || strings.Count(got, `"role":"assistant"`) != 3 || gist(t, got) != `"a" length <nil>|"b" length <nil>|"c" length <nil>|` {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestWhatEnginesMustNotDo(t *testing.T) {
	f := func(name string, edit func(*Request), finish Finish, events ...*Event) {
		t.Helper()
		for _, stream := range []bool{true, false} {
			r := newRequest(func(r *Request) {
				r.Stream = stream
				if edit != nil {
					edit(r)
				}
			})
			got, err := answer(r, events...)
			var e *EngineError
			if !errors.As(err, &e) || e.Finish != finish || strings.Contains(got, "DONE") {
				t.Errorf("%s, stream=%t: %v\n%s", name, stream, err, got)
			}
		}
	}
	f("no event", nil, Running)
	f("no end", nil, Running, tell(idHello))
	f("a second end", nil, Running, end(Length, idHello), end(Length))
	f("tokens after the end", nil, Running, end(Length, idHello), tell(idWorld))
	f("an index that is out of range", nil, Running, tell(idHello).of(0, 1))
	f("a prompt that is out of range", nil, Running, tell(idHello).of(1, 0))
	f("negative", nil, Running, tell(idHello).of(0, -1))
	f("an id that is none", nil, Running, tell(idTests+3))
	f("more than asked for", func(r *Request) { r.Sampling.MaxTokens = 2 }, Running, tell(1, 2), tell(3))
	f("a failure", nil, Failed, tell(idHello), end(Failed))
	f("an abort", nil, Aborted, tell(idHello), end(Aborted))
	f("one sequence of two", func(r *Request) { r.Samples = 2 }, Running, end(Length, idHello))
	logprobs := func(r *Request) { r.Sampling.Logprobs, r.Form.Logprobs = 0, 0 }
	f("no log probabilities", logprobs, Running, tell(idHello))
	prompt := func(r *Request) { r.Sampling.PromptLogprobs, r.Form.PromptLogprobs = 0, 0 }
	e := tell(idHello)
	e.PromptLogprobs = []TokenLogprobs{{ID: 1}, {ID: 2}, {ID: 4}}
	f("log probabilities of another prompt", prompt, Running, e)
}

func TestNothingFollowsAFault(t *testing.T) {
	r := newRequest(func(r *Request) { r.Stream = true })
	var a Answer
	a.Begin(r, "1", 7)
	if _, err := a.Event(nil, tell(idTests+3)); err == nil {
		t.Fatal("an id that is none passed")
	}
	if out, err := a.Event(nil, end(Length, idHello)); err == nil || len(out) > 0 {
		t.Errorf("%s, %v", out, err)
	}
	if out, err := a.End(nil); err == nil || len(out) > 0 {
		t.Errorf("%s, %v", out, err)
	}
}

func TestAStopStringFoundHereEndsTheSequence(t *testing.T) {
	r := newRequest(func(r *Request) { r.Stream, r.Samples, r.Sampling.Stop = true, 2, []string{"STOP"} })
	var a Answer
	a.Begin(r, "1", 7)
	if _, err := a.Event(nil, tell(idStop)); err != nil || !a.Stopped(0, 0) || a.Stopped(0, 1) || a.Done() {
		t.Fatalf("%v: %t %t %t", err, a.Stopped(0, 0), a.Stopped(0, 1), a.Done())
	}
	if out, err := a.Event(nil, end(Failed)); err != nil || len(out) > 0 || a.Stopped(0, 0) {
		t.Errorf("%s, %v", out, err)
	}
	if _, err := a.Event(nil, tell(idStop).of(0, 1)); err != nil || !a.Done() {
		t.Errorf("%v: %t", err, a.Done())
	}
	if _, err := a.End(nil); err != nil {
		t.Error(err)
	}
	if a.Tokens() != 2 {
		t.Errorf("%d tokens", a.Tokens())
	}
}

func TestEchoOfAPrompt(t *testing.T) {
	for _, stream := range []bool{true, false} {
		r := newRequest(func(r *Request) {
			r.Route, r.Stream, r.Form.Echo = openai.RouteCompletions, stream, []string{"Once \"upon\""}
		})
		got, err := answer(r, tell(idWorld), end(Length, '!'))
		if want := `"Once \"upon\" world!" length <nil>|`; err != nil || gist(t, got) != want {
			t.Errorf("%v %s, want %s", err, gist(t, got), want)
		}
		if stream && strings.Count(got, `"prompt_token_ids":[1,2,3]`) != 1 { // as vLLM, asked for or not
			t.Errorf("the ids of the prompt are not there once:\n%s", got)
		}
		r.Form.OnlyEcho, r.Sampling.MaxTokens = true, 1
		got, err = answer(r, end(Length, '!'))
		if want := `"Once \"upon\"" length <nil>|`; err != nil || gist(t, got) != want {
			t.Errorf("%v %s, want %s", err, gist(t, got), want)
		}
		r = newRequest(func(r *Request) { r.Stream, r.Form.Echo = stream, []string{"Once"} })
		got, err = answer(r, tell(idWorld), end(Length, '!'))
		if want := `"Once world!" length <nil>|`; err != nil || gist(t, got) != want {
			t.Errorf("%v %s, want %s", err, gist(t, got), want)
		}
	}
}

func TestAnAnswerIsUsedAgain(t *testing.T) {
	var a Answer
	stops := newRequest(func(r *Request) {
		r.Stream, r.Samples, r.Sampling.Stop, r.Form.TokenIDs = true, 3, []string{"STOP"}, true
	})
	plain := newRequest(nil)
	want, _ := answer(plain, end(Stopped, idHello, idEnd))
	for range 3 {
		a.Begin(stops, "2", 1)
		_, _ = a.Event(nil, tell(idStop, 0xf0).of(0, 1))
		_, _ = a.Event(nil, tell(0xf0, 0x9f))
		a.Release()
		a.Begin(plain, "1", 7)
		if _, err := a.Event(nil, end(Stopped, idHello, idEnd)); err != nil {
			t.Fatal(err)
		}
		if got, err := a.End(nil); err != nil || string(got) != want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, want)
		}
	}
}
