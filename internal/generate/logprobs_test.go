package generate

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

func logprob(id uint32, v float32, top ...TokenLogprob) TokenLogprobs {
	return TokenLogprobs{ID: id, Logprob: v, HasValue: true, Top: top}
}

func (e *Event) logs(l ...TokenLogprobs) *Event {
	e.Logprobs = l
	return e
}

func wantLogprobs(t *testing.T, r *Request, want string, events ...*Event) {
	t.Helper()
	got, err := answer(r, events...)
	if err != nil {
		t.Error(err)
		return
	}
	var b body
	if err := json.Unmarshal([]byte(got), &b); err != nil {
		t.Errorf("%v\n%s", err, got)
		return
	}
	if l := string(b.Choices[0].Logprobs); l != want {
		t.Errorf("got  %s\nwant %s", l, want)
	}
}

func TestLogprobsOfAChat(t *testing.T) {
	r := newRequest(func(r *Request) { r.Sampling.Logprobs, r.Form.Logprobs = 2, 2 })
	top := []TokenLogprob{{idHello, -0.5}, {idWorld, -1}}
	wantLogprobs(t, r, `{"content":[{"token":"Hello","logprob":-0.5,"bytes":[72,101,108,108,111],"top_logprobs":[{"token":"Hello","logprob":-0.5,"bytes":[72,101,108,108,111]},{"token":" world","logprob":-1.0,"bytes":[32,119,111,114,108,100]}]},`+
		`{"token":"<|end|>","logprob":-9999.0,"bytes":[60,124,101,110,100,124,62],"top_logprobs":[{"token":"<|end|>","logprob":-9999.0,"bytes":[60,124,101,110,100,124,62]},{"token":"Hello","logprob":-0.5,"bytes":[72,101,108,108,111]}]}]}`,
		tell(idHello).logs(logprob(idHello, -0.5, top...)), end(Stopped, idEnd).logs(logprob(idEnd, float32(math.Inf(-1)), top...)))

	// The value is that of 32 bits in all its digits, as engines over HTTP print it.
	r = newRequest(func(r *Request) { r.Sampling.Logprobs, r.Form.Logprobs = 0, 0 })
	wantLogprobs(t, r, `{"content":[{"token":"!","logprob":-0.10000000149011612,"bytes":[33],"top_logprobs":[]}]}`, end(Length, '!').logs(logprob('!', -0.1)))
	r.Form.TokensAsIDs, r.Sampling.Logprobs, r.Form.Logprobs = true, 1, 1
	wantLogprobs(t, r, `{"content":[{"token":"token_id:33","logprob":0.0,"bytes":[33],"top_logprobs":[{"token":"token_id:33","logprob":0.0,"bytes":[116,111,107,101,110,95,105,100,58,51,51]}]}]}`,
		end(Length, '!').logs(logprob('!', 0, TokenLogprob{'!', 0})))
}

func TestLogprobsOfACharacterOverSeveralTokens(t *testing.T) {
	r := newRequest(func(r *Request) { r.Sampling.Logprobs, r.Form.Logprobs = 1, 1 })
	var list []TokenLogprobs
	ids := []uint32{'a', 0xf0, 0x9f, 0x98, 0x80, 'b'}
	for _, id := range ids {
		list = append(list, logprob(id, -1, TokenLogprob{id, -1}))
	}
	none := `{"token":"","logprob":-1.0,"bytes":[],"top_logprobs":[{"token":"","logprob":-1.0,"bytes":[]}]},`
	wantLogprobs(t, r, `{"content":[{"token":"a","logprob":-1.0,"bytes":[97],"top_logprobs":[{"token":"a","logprob":-1.0,"bytes":[97]}]},`+none+none+none+
		`{"token":"😀","logprob":-1.0,"bytes":[240,159,152,128],"top_logprobs":[{"token":"😀","logprob":-1.0,"bytes":[240,159,152,128]}]},`+
		`{"token":"b","logprob":-1.0,"bytes":[98],"top_logprobs":[{"token":"b","logprob":-1.0,"bytes":[98]}]}]}`,
		end(Length, ids...).logs(list...))
}

func TestLogprobsOfACompletion(t *testing.T) {
	r := newRequest(func(r *Request) {
		r.Route, r.Sampling.Logprobs, r.Form.Logprobs = openai.RouteCompletions, 3, 2
	})
	// The contract has three: the token itself, and the two others that are most probable.
	among := logprob(idHello, -0.5, TokenLogprob{idHello, -0.5}, TokenLogprob{idWorld, -1}, TokenLogprob{'x', -2})
	below := logprob(idEnd, -5, TokenLogprob{idEnd, -5}, TokenLogprob{idWorld, -1}, TokenLogprob{'x', -2})
	wantLogprobs(t, r, `{"text_offset":[0,5],"token_logprobs":[-0.5,-5.0],"tokens":["Hello","<|end|>"],"top_logprobs":[{"Hello":-0.5," world":-1.0},{"<|end|>":-5.0," world":-1.0,"x":-2.0}]}`,
		tell(idHello).logs(among), end(Stopped, idEnd).logs(below))

	r.Sampling.Logprobs, r.Form.Logprobs = 0, 0
	wantLogprobs(t, r, `{"text_offset":[0],"token_logprobs":[-0.5],"tokens":["Hello"],"top_logprobs":[{"Hello":-0.5}]}`,
		end(Length, idHello).logs(logprob(idHello, -0.5)))
}

func TestLogprobsOfAnEcho(t *testing.T) {
	prompt := []TokenLogprobs{{ID: idHello}, logprob(0xc3, -1, TokenLogprob{0xc3, -1}), logprob(0xa9, -2, TokenLogprob{0xa9, -2}, TokenLogprob{'x', -1})}
	request := func(r *Request) {
		r.Route, r.Prompts, r.Form.Echo = openai.RouteCompletions, [][]uint32{{idHello, 0xc3, 0xa9}}, []string{"Helloé"}
		r.Sampling.Logprobs, r.Form.Logprobs, r.Sampling.PromptLogprobs, r.Form.PromptLogprobs = 2, 1, 2, 1
	}
	first := tell(idWorld).logs(logprob(idWorld, -3, TokenLogprob{idWorld, -3}, TokenLogprob{'y', -4}))
	first.PromptLogprobs = prompt
	last := end(Length, '!').logs(logprob('!', -1, TokenLogprob{'!', -1}))
	wantLogprobs(t, newRequest(request), `{"text_offset":[0,5,5,6,12],"token_logprobs":[null,-1.0,-2.0,-3.0,-1.0],"tokens":["Hello","","é"," world","!"],`+
		`"top_logprobs":[null,{"":-1.0},{"é":-2.0,"x":-1.0},{" world":-3.0},{"!":-1.0}]}`, first, last)

	r := newRequest(func(r *Request) { request(r); r.Form.OnlyEcho = true })
	end := end(Length, '!').logs(logprob('!', -1))
	end.PromptLogprobs = prompt
	wantLogprobs(t, r, `{"text_offset":[0,5,5],"token_logprobs":[null,-1.0,-2.0],"tokens":["Hello","","é"],"top_logprobs":[null,{"":-1.0},{"é":-2.0,"x":-1.0}]}`, end)
}

// Nothing is known of the first token of a prompt, so that it is named by itself.
func TestTheFirstTokenOfAnEchoStandsAlone(t *testing.T) {
	r := newRequest(func(r *Request) {
		r.Route, r.Prompts, r.Form.Echo = openai.RouteCompletions, [][]uint32{{0xc3, 0xa9}}, []string{"é"}
		r.Sampling.Logprobs, r.Sampling.PromptLogprobs, r.Form.Logprobs, r.Form.PromptLogprobs, r.Form.OnlyEcho = 0, 0, 0, 0, true
	})
	e := end(Length, '!').logs(logprob('!', -1))
	e.PromptLogprobs = []TokenLogprobs{{ID: 0xc3}, logprob(0xa9, -1)}
	wantLogprobs(t, r, `{"text_offset":[0,1],"token_logprobs":[null,-1.0],"tokens":["�",""],"top_logprobs":[null,{"":-1.0}]}`, e)
}

func TestAnEchoHasItsTokensWhereTheEngineTellsNothingOfThem(t *testing.T) {
	r := newRequest(func(r *Request) {
		r.Route, r.Prompts, r.Form.Echo = openai.RouteCompletions, [][]uint32{{idHello, 'a'}}, []string{"Helloa"}
		r.Sampling.Logprobs, r.Sampling.PromptLogprobs, r.Form.Logprobs, r.Form.PromptLogprobs = 0, 0, 0, 0
	})
	wantLogprobs(t, r, `{"text_offset":[0,5,6],"token_logprobs":[null,null,-1.0],"tokens":["Hello","a","!"],"top_logprobs":[null,null,{"!":-1.0}]}`,
		end(Length, '!').logs(logprob('!', -1)))
}

func TestPromptLogprobs(t *testing.T) {
	r := newRequest(func(r *Request) { r.Sampling.PromptLogprobs, r.Form.PromptLogprobs = 2, 1 })
	e := end(Length, idHello)
	e.PromptLogprobs = []TokenLogprobs{
		{ID: 1},
		logprob(2, -0.5, TokenLogprob{2, -0.5}, TokenLogprob{'x', -1}),
		logprob(3, -4, TokenLogprob{3, -4}, TokenLogprob{'x', -1}),
	}
	got, err := answer(r, e)
	if err != nil {
		t.Fatal(err)
	}
	var b struct {
		Logs json.RawMessage `json:"prompt_logprobs"`
	}
	if err := json.Unmarshal([]byte(got), &b); err != nil {
		t.Fatal(err)
	}
	want := `[null,{"2":{"logprob":-0.5,"rank":1,"decoded_token":"\u0002"}},{"3":{"logprob":-4.0,"rank":null,"decoded_token":"\u0003"},"120":{"logprob":-1.0,"rank":1,"decoded_token":"x"}}]`
	if string(b.Logs) != want {
		t.Errorf("got  %s\nwant %s", b.Logs, want)
	}
}

func TestNumbersAndTextAreJSON(t *testing.T) {
	for _, v := range []float64{0, -1, 1e-7, -123456.789, 1e16, 12345678901234567890, 0.00001} {
		var back float64
		if b := appendFloat(nil, v); json.Unmarshal(b, &back) != nil || back != v {
			t.Errorf("%v is written %s", v, b)
		}
	}
	if b := appendLogprob(nil, float32(math.NaN())); string(b) != "-9999.0" {
		t.Errorf("NaN is written %s", b)
	}
	for c := range 256 {
		for _, s := range []string{"", "seven b", "eight by", "0123456789abcdef0"} {
			want := s + string(rune(c)) + s
			var back string
			if b := appendQuoted(nil, []byte(want)); json.Unmarshal(b, &back) != nil || back != want {
				t.Errorf("%q is written %s", want, b)
			}
		}
	}
}
