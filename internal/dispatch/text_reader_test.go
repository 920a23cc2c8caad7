package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/textmodel"
)

// simReader reads prompts by the files of the simulated engines' model.
func simReader(t *testing.T) *modelReader {
	t.Helper()
	m, err := textmodel.FromDir("../sim/model")
	if err != nil {
		t.Fatal(err)
	}
	return &modelReader{PoolText: fleet.PoolText{Model: m, Context: 1000}, pool: "sim-model"}
}

func atOnce(ctx context.Context, _ int, work func(ctx context.Context) error) error { return work(ctx) }

// Prompts are counted as they are read for engines that take tokens.
func TestCountIsWhatIsRead(t *testing.T) {
	t.Parallel()
	r := simReader(t)
	for route, bodies := range map[openai.Route][]string{
		openai.RouteCompletions: {
			`{"model":"m","prompt":"Why is the sky blue? \ud83d\ude00"}`, `{"model":"m","prompt":["a","b c","Why is the sky blue?"],"n":2,"temperature":1}`,
		},
		openai.RouteChatCompletions: {`{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Why is the sky blue?"}]}`},
	} {
		for _, body := range bodies {
			p := mustPeekRoute(t, route, body)
			counted, err := r.Count(t.Context(), p, atOnce)
			if err != nil {
				t.Fatal(body, err)
			}
			read, err := r.Read(t.Context(), p, "", atOnce)
			if err != nil {
				t.Fatal(body, err)
			}
			if len(counted) != len(read.Prompts) || lengths(counted) == 0 || !slices.EqualFunc(counted, read.Prompts, slices.Equal[[]uint32]) {
				t.Errorf("%s: counted %v, read %v", body, counted, read.Prompts)
			}
			if read.Context != 1000 || read.Model != "m" {
				t.Errorf("context %d, model %q", read.Context, read.Model)
			}
		}
	}
}

// What the engine tells of its model goes before what the files say.
func TestTheEnginesDefaultsOfSampling(t *testing.T) {
	t.Parallel()
	r := simReader(t)
	p := mustPeekRoute(t, openai.RouteCompletions, `{"model":"m","prompt":"Hi","top_p":0.5}`)
	top, cold := 0.9, 0.1
	r.Engine = &fleet.EngineText{Vocab: 1 << 20, EOS: []uint32{1 << 19}, Sampling: &textmodel.Sampling{TopP: &top, Temperature: &cold}}
	req, err := r.Read(t.Context(), p, "", atOnce)
	if err != nil {
		t.Fatal(err)
	}
	if s := req.Sampling; s.TopP != 0.5 || s.Temperature != 0.1 || req.Vocab != 1<<20 || !slices.Contains(req.EOS, 1<<19) {
		t.Errorf("top_p %v, temperature %v, vocabulary %d, ends %v", s.TopP, s.Temperature, req.Vocab, req.EOS)
	}
	if slices.Contains(r.Model.EOS(), 1<<19) {
		t.Error("the model itself was changed")
	}
}

// The name in answers is the model's where the client uses an alias or none.
func TestNameInAnswers(t *testing.T) {
	t.Parallel()
	r := simReader(t)
	for _, c := range []struct{ body, name, want string }{
		{`{"model":"m","prompt":"a"}`, "", "m"}, {`{"model":"alias","prompt":"a"}`, "target", "target"}, {`{"prompt":"a"}`, "", "sim-model"},
	} {
		read, err := r.Read(t.Context(), mustPeekRoute(t, openai.RouteCompletions, c.body), c.name, atOnce)
		if err != nil || read.Model != c.want {
			t.Errorf("%s: %v, model %q, want %q", c.body, err, read.Model, c.want)
		}
	}
}

// Where an engine makes other tokens than the model's files, only token ids are served.
func TestOnlyTokenIDsAfterAMismatch(t *testing.T) {
	t.Parallel()
	r := simReader(t)
	r.Mismatch = errors.New("the self-check failed")
	r.Model = r.Model.WithChatRefusal(&textmodel.Refusal{Reason: "the self-check failed"})
	for body, route := range map[string]openai.Route{
		`{"model":"m","prompt":"a"}`: openai.RouteCompletions, `{"model":"m","input":["a"]}`: openai.RouteEmbeddings,
		`{"model":"m","messages":[{"role":"user","content":"a"}]}`: openai.RouteChatCompletions,
	} {
		_, err := r.Read(t.Context(), mustPeekRoute(t, route, body), "", atOnce)
		var e *openai.Error
		if !errors.As(err, &e) || e.Status != 400 || e.Code != generate.CodeUnsupported || !strings.Contains(e.Message, "self-check") {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, body := range []string{`{"prompt":"a"}`, `{"messages":[{"role":"user","content":"a"}]}`} {
		_, err := r.Answer(t.Context(), mustPeekRoute(t, openai.RouteTokenize, body), atOnce)
		var e *openai.Error
		if !errors.As(err, &e) || e.Code != generate.CodeUnsupported {
			t.Errorf("tokenize %s: %v", body, err)
		}
	}
	read, err := r.Read(t.Context(), mustPeekRoute(t, openai.RouteCompletions, `{"model":"m","prompt":[1,2,3]}`), "", atOnce)
	if err != nil || !slices.Equal(read.Prompts[0], []uint32{1, 2, 3}) {
		t.Errorf("%v %v", read, err)
	}
}

// A text that is far too long is not read to its end to be refused: of a short one for the
// same context the number is exact.
func TestTextsThatAreFarTooLong(t *testing.T) {
	t.Parallel()
	r := simReader(t)
	for _, words := range []int{1500, 1 << 18} {
		text := strings.TrimPrefix(strings.Repeat(" sky", words), " ")
		for body, route := range map[string]openai.Route{
			`{"model":"m","prompt":"` + text + `"}`:                               openai.RouteCompletions,
			`{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`: openai.RouteChatCompletions,
			`{"model":"m","input":"` + text + `"}`:                                openai.RouteEmbeddings,
		} {
			_, err := r.Read(t.Context(), mustPeekRoute(t, route, body), "", atOnce)
			var e *openai.Error
			if !errors.As(err, &e) || e.Status != 400 || e.Code != generate.CodeContextLength || !strings.Contains(e.Message, "1000 tokens") {
				t.Errorf("%v, %d words: %v", route, words, err)
				continue
			}
			if far := words > 2000; far != strings.Contains(e.Message, "has at least ") {
				t.Errorf("%v, %d words: %s", route, words, e.Message)
			}
		}
	}
	body := `{"model":"m","prompt":"` + strings.Repeat(" sky", 1<<14) + `","truncate_prompt_tokens":10}`
	if read, err := r.Read(t.Context(), mustPeekRoute(t, openai.RouteCompletions, body), "", atOnce); err != nil || len(read.Prompts[0]) != 10 {
		t.Errorf("a text that is to be shortened: %v", err)
	}
}

// A few ids may stand for much text.
func TestDetokenizedTextIsBounded(t *testing.T) {
	t.Parallel()
	r := simReader(t)
	longest, size := uint32(0), 0
	for id := range uint32(r.Model.Tokenizer().VocabSize()) {
		if s, _ := r.Model.Tokenizer().Token(id); len(s) > size {
			longest, size = id, len(s)
		}
	}
	list := strings.Repeat(fmt.Sprintf(",%d", longest), maxDetokenized/size*2+1)
	_, err := r.Answer(t.Context(), mustPeekRoute(t, openai.RouteDetokenize, `{"tokens":[`+list[1:]+`]}`), atOnce)
	if e := new(openai.Error); !errors.As(err, &e) || e.Status != 400 || !strings.Contains(e.Message, "16777216 bytes") {
		t.Errorf("%v", err)
	}
}

// What is answered here has the form of vLLM's routes.
func TestAnswersWithoutAnEngine(t *testing.T) {
	t.Parallel()
	r := simReader(t)
	answer := func(route openai.Route, body string) (string, error) {
		b, err := r.Answer(t.Context(), mustPeekRoute(t, route, body), atOnce)
		if err == nil && !json.Valid(b) {
			t.Errorf("%s: %s is no JSON", body, b)
		}
		return string(b), err
	}
	ids, err := r.Model.Encode(t.Context(), "sky blue")
	if err != nil {
		t.Fatal(err)
	}
	list, _ := json.Marshal(ids)
	got, err := answer(openai.RouteTokenize, `{"model":"m","prompt":"sky blue"}`)
	if want := fmt.Sprintf(`{"count":%d,"max_model_len":1000,"tokens":%s,"token_strs":null}`, len(ids), list); err != nil || got != want {
		t.Errorf("%v %s, want %s", err, got, want)
	}
	var named struct {
		Tokens []uint32
		Names  []string `json:"token_strs"`
	}
	got, err = answer(openai.RouteTokenize, `{"prompt":"sky blue","return_token_strs":true}`)
	if json.Unmarshal([]byte(got), &named) != nil || err != nil || len(named.Names) != len(ids) || strings.ReplaceAll(strings.Join(named.Names, ""), "Ġ", " ") != "sky blue" {
		t.Errorf("%v %s", err, got)
	}
	if got, err = answer(openai.RouteDetokenize, `{"tokens":`+string(list)+`}`); err != nil || got != `{"prompt":"sky blue"}` {
		t.Errorf("%v %s", err, got)
	}
	messages := `"messages":[{"role":"user","content":"sky blue"}]`
	chat, err := r.Model.RenderChat(t.Context(), []byte(`{`+messages+`}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, err = answer(openai.RouteCountTokens, `{"model":"m",`+messages+`}`); err != nil || got != fmt.Sprintf(`{"input_tokens":%d}`, len(chat)) {
		t.Errorf("%v %s", err, got)
	}
	if got, err = answer(openai.RouteTokenize, `{`+messages+`}`); err != nil || !strings.HasPrefix(got, fmt.Sprintf(`{"count":%d,`, len(chat))) {
		t.Errorf("%v %s", err, got)
	}
	for body, route := range map[string]openai.Route{
		`{"tokens":[-1]}`: openai.RouteDetokenize, `{"tokens":[99999999]}`: openai.RouteDetokenize, `{"tokens":"a"}`: openai.RouteDetokenize, `{}`: openai.RouteDetokenize,
		`{"prompt":5}`: openai.RouteTokenize, `{"prompt":"a\ud800"}`: openai.RouteTokenize, `{"model":"m"}`: openai.RouteTokenize, `{"prompt":"a","messages":[]}`: openai.RouteTokenize,
		`{"messages":5}`: openai.RouteCountTokens, `{"messages":[{"role":"user","content":[{"type":"hologram"}]}]}`: openai.RouteCountTokens,
	} {
		_, err := answer(route, body)
		if e := new(openai.Error); !errors.As(err, &e) || e.Status != 400 {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// A renderer makes the tokens of chats that the model's own files cannot be used for, and of
// no others; what it says of the request and of itself reaches the client as such.
func TestRendererForWhatIsRefused(t *testing.T) {
	t.Parallel()
	chat := mustPeekRoute(t, openai.RouteChatCompletions, `{"model":"alias","messages":[{"role":"user","content":"hi"}]}`)
	refusing := simReader(t)
	refusing.Model = refusing.Model.WithChatRefusal(&textmodel.Refusal{Reason: "no template"})
	for name, c := range map[string]struct {
		err    error
		media  bool
		status int
		code   string
	}{
		"good":           {nil, false, 200, ""},
		"media":          {nil, true, 400, codeUnsupported},
		"client's fault": {&textmodel.RequestError{Message: "no", Param: "messages"}, false, 400, "invalid_request"},
		"down":           {&textmodel.RendererError{Err: errors.New("dial tcp 10.0.0.1: refused")}, false, 502, "upstream_failed"},
		"slow":           {&textmodel.RendererError{Timeout: true, Err: errors.New("late")}, false, 504, "upstream_timeout"},
	} {
		asked := &fakeRenderer{err: c.err, media: c.media}
		r := *refusing
		r.renderer = asked
		read, err := r.Read(t.Context(), chat, "target", atOnce)
		if !strings.Contains(asked.body, `"model":"target"`) {
			t.Errorf("%s: it was sent %s", name, asked.body)
		}
		if c.status == 200 {
			if err != nil || !slices.Equal(read.Prompts[0], []uint32{7, 8}) {
				t.Errorf("%s: %v, %v", name, read, err)
			}
			continue
		}
		e := new(openai.Error)
		if !errors.As(err, &e) || e.Status != c.status || e.Code != c.code || strings.Contains(e.Message, "10.0.0.1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	own := simReader(t)
	asked := &fakeRenderer{}
	own.renderer = asked
	if _, err := own.Read(t.Context(), chat, "", atOnce); err != nil || asked.body != "" {
		t.Errorf("%v; it was asked for a chat that can be rendered: %q", err, asked.body)
	}
}

type fakeRenderer struct {
	err   error
	media bool
	body  string
}

func (r *fakeRenderer) Chat(_ context.Context, body []byte) (*textmodel.Rendered, error) {
	r.body = string(body)
	if r.err != nil {
		return nil, r.err
	}
	got := &textmodel.Rendered{IDs: []uint32{7, 8}}
	if r.media {
		got.Features = []byte("{}")
	}
	return got, nil
}
