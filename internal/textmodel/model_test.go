package textmodel

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/internal/chattemplate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tokenizerJSON is a byte-level tokenizer without merges: a token for each byte, and special tokens behind them.
func tokenizerJSON() string {
	vocab := map[string]int{}
	for b, next := 0, 256; b < 256; b++ {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r = rune(next)
			next++
		}
		vocab[string(r)] = b
	}
	data, err := json.Marshal(vocab)
	if err != nil {
		panic(err)
	}
	var added []string
	for i, text := range []string{"<s>", "</s>", "<|im_start|>", "<|im_end|>"} {
		added = append(added, fmt.Sprintf(`{"id":%d,"content":%q,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`, 256+i, text))
	}
	return `{"version":"1.0","truncation":null,"padding":null,"added_tokens":[` + strings.Join(added, ",") + `],"normalizer":null,
		"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
		"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
			"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"id":"<s>","ids":[256],"tokens":["<s>"]}}},
		"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
		"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,
			"ignore_merges":false,"vocab":` + string(data) + `,"merges":[]}}`
}

const (
	bos, eos = 256, 257
	template = `{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}`
)

// bundle are the files of a small model; changes replace some, nil takes one away.
func bundle(changes map[string]any) map[string]string {
	files := map[string]string{
		tokenizerFile:        tokenizerJSON(),
		tokenizerConfigFile:  `{"bos_token":"<s>","eos_token":{"content":"</s>","lstrip":false},"chat_template":` + quoted(template) + `}`,
		configFile:           `{"max_position_embeddings":2048,"vocab_size":320,"eos_token_id":257}`,
		generationConfigFile: `{"eos_token_id":[257,259],"temperature":0.6,"top_k":20,"top_p":0.95,"max_new_tokens":100}`,
	}
	for name, content := range changes {
		if content == nil {
			delete(files, name)
		} else {
			files[name] = content.(string)
		}
	}
	return files
}

func quoted(s string) string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func zipOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func modelOf(t *testing.T, changes map[string]any) *Model {
	t.Helper()
	m, err := FromZip(zipOf(t, bundle(changes)), "")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestModelKnowsWhatItsFilesSay(t *testing.T) {
	m := modelOf(t, nil)
	if m.Context() != 2048 || m.VocabSize() != 320 || !slices.Equal(m.EOS(), []uint32{eos, 259}) {
		t.Errorf("context %d, vocabulary %d, ends %v", m.Context(), m.VocabSize(), m.EOS())
	}
	s := m.DefaultSampling()
	if *s.Temperature != 0.6 || *s.TopK != 20 || *s.TopP != 0.95 || *s.MaxTokens != 100 || s.MinP != nil || s.RepetitionPenalty != nil {
		t.Errorf("sampling %+v", s)
	}
	if err := m.ChatRefusal(); err != nil {
		t.Error(err)
	}
	if m.MemoryBytes() < 1000 {
		t.Errorf("memory %d", m.MemoryBytes())
	}
}

func TestFilesThatAreMissingOrOddAreDefaults(t *testing.T) {
	m := modelOf(t, map[string]any{configFile: nil, generationConfigFile: `{"temperature":"hot","top_k":null,"eos_token_id":[1,"x",-1]}`, tokenizerConfigFile: nil})
	if m.Context() != 0 || m.VocabSize() != 260 || !slices.Equal(m.EOS(), []uint32{1}) || m.DefaultSampling() != (Sampling{}) {
		t.Errorf("context %d, vocabulary %d, ends %v, sampling %+v", m.Context(), m.VocabSize(), m.EOS(), m.DefaultSampling())
	}
	m = modelOf(t, map[string]any{configFile: `{"text_config":{"max_position_embeddings":77,"vocab_size":1000},"vocab_size":5,"max_position_embeddings":5,"vocab_size":6}`})
	if m.Context() != 77 || m.VocabSize() != 1000 {
		t.Errorf("of a model with media: context %d, vocabulary %d", m.Context(), m.VocabSize())
	}
}

// A template that begins with the beginning of sequence is not given another one; a prompt of text is.
func TestBeginningOfSequenceIsNotDoubled(t *testing.T) {
	m := modelOf(t, nil)
	ids, err := m.RenderChat(context.Background(), []byte(`{"messages":[{"role":"user","content":"a<s>"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []uint32{bos, 258, 'u', 's', 'e', 'r', ':', 'a', bos, 259, 258}
	if !slices.Equal(ids, want) {
		t.Errorf("chat: got %v, want %v", ids, want)
	}
	ids, err = m.RenderChat(context.Background(), []byte(`{"messages":[{"role":"user","content":"a"}],"add_special_tokens":true}`))
	if err != nil || ids[0] != bos || ids[1] != bos {
		t.Errorf("where the client wants it: got %v, %v", ids, err)
	}
	if ids, err = m.Encode(context.Background(), "ab"); err != nil || !slices.Equal(ids, []uint32{bos, 'a', 'b'}) {
		t.Errorf("text: got %v, %v", ids, err)
	}
	if n, err := m.Count(context.Background(), "ab"); err != nil || n != 3 {
		t.Errorf("count: got %d, %v", n, err)
	}
}

// The tokenizer's configuration goes before tokenizer.json.
func TestConfigurationSaysWhatIsPutAroundPrompts(t *testing.T) {
	for flags, want := range map[string][]uint32{
		`"add_bos_token":true`:                       {bos, 'a'},
		`"add_bos_token":false`:                      {'a'},
		`"add_bos_token":true,"add_eos_token":true`:  {bos, 'a', eos},
		`"add_bos_token":null,"add_eos_token":false`: {'a'},
		`"add_bos_token":null`:                       {bos, 'a'},
	} {
		m := modelOf(t, map[string]any{tokenizerConfigFile: `{"bos_token":"<s>","eos_token":"</s>",` + flags + `}`})
		if ids, err := m.Encode(context.Background(), "a"); err != nil || !slices.Equal(ids, want) {
			t.Errorf("%s: got %v, %v, want %v", flags, ids, err, want)
		}
	}
}

func TestTemplateIsFoundWhereModelsHaveIt(t *testing.T) {
	config := func(template string) string { return `{"bos_token":"<s>","chat_template":` + template + `}` }
	for name, c := range map[string]struct {
		changes map[string]any
		want    string
	}{
		"a string":                  {map[string]any{tokenizerConfigFile: config(`"one"`)}, "one"},
		"a list":                    {map[string]any{tokenizerConfigFile: config(`[{"name":"tool_use","template":"tools"},{"name":"default","template":"two"}]`)}, "two"},
		"a file goes before":        {map[string]any{tokenizerConfigFile: config(`"one"`), templateFile: "three"}, "three"},
		"a JSON file goes before":   {map[string]any{tokenizerConfigFile: config(`"one"`), templateJSONFile: `{"chat_template":"four"}`}, "four"},
		"special tokens from a map": {map[string]any{tokenizerConfigFile: `{"chat_template":"{{ eos_token }}"}`, specialTokensFile: `{"eos_token":{"content":"E"}}`}, "E"},
	} {
		m := modelOf(t, c.changes)
		text, err := m.RenderText(context.Background(), []byte(`{"messages":[{"role":"user","content":"x"}]}`))
		if err != nil || text != c.want {
			t.Errorf("%s: got %q, %v", name, text, err)
		}
	}
}

func TestChatIsRefusedWithTheReason(t *testing.T) {
	for config, want := range map[string]string{
		`{}`:                                 "has no chat template",
		`{"chat_template":"{% if %}"}`:       "cannot be used",
		`{"chat_template":"{{ 1|random }}"}`: "not supported: the filter random",
		`{"chat_template":[{"name":"tool_use","template":"x"}]}`:                                  "none is called default",
		`{"chat_template":"` + strings.Repeat("x", 2<<20) + `"}`:                                  "bytes",
		`{"chat_template":"{{ ` + strings.Repeat("(", 1000) + strings.Repeat(")", 1000) + ` }}"}`: "nests",
	} {
		m := modelOf(t, map[string]any{tokenizerConfigFile: config})
		var refusal *Refusal
		if err := m.ChatRefusal(); !errors.As(err, &refusal) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %s", config, err, want)
		}
		if _, err := m.RenderChat(context.Background(), []byte(`{"messages":[{"role":"user","content":"x"}]}`)); !errors.As(err, &refusal) {
			t.Errorf("%.60s: rendering gives %v", config, err)
		}
		if _, err := m.Encode(context.Background(), "x"); err != nil {
			t.Errorf("%.60s: texts are refused too: %v", config, err)
		}
	}
	m := modelOf(t, nil)
	if err := m.WithChatRefusal(&Refusal{Reason: "the self-check failed"}).ChatRefusal(); err == nil || m.ChatRefusal() != nil {
		t.Errorf("a refusal of the copy: %v; of the model: %v", err, m.ChatRefusal())
	}
}

// What vLLM's HTTP server makes of these requests was recorded; see testdata/record.py.
func TestRequestsAreReadAsVLLMReadsThem(t *testing.T) {
	var bodies []json.RawMessage
	var want map[string][]struct{ Text, Error string }
	for name, into := range map[string]any{"bodies.json": &bodies, "rendered.json": &want} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
	}
	for name, renders := range want {
		source, err := os.ReadFile(filepath.Join("..", "chattemplate", "testdata", name+".jinja"))
		if err != nil {
			t.Fatal(err)
		}
		m := modelOf(t, map[string]any{templateFile: string(source)})
		for i, body := range bodies {
			text, err := m.RenderText(context.Background(), body)
			switch {
			case renders[i].Error != "" && err == nil:
				t.Errorf("%s: %s\ngot %q\nwant the error %s", name, body, text, renders[i].Error)
			case renders[i].Error == "" && (err != nil || text != renders[i].Text):
				t.Errorf("%s: %s\ngot  %q, %v\nwant %q", name, body, text, err, renders[i].Text)
			}
			var request *RequestError
			if err != nil && !errors.As(err, &request) {
				t.Errorf("%s: %s: the error is no *RequestError: %v", name, body, err)
			}
		}
	}
}

func TestBadRequestsSayWhatIsWrong(t *testing.T) {
	m := modelOf(t, nil)
	for body, want := range map[string]string{
		`{`:                 "cannot read the JSON",
		`[]`:                "must be a JSON object",
		`{"messages":[]} x`: "more than one JSON value",
		`{"messages":[{"role":"user","content":"\ud800"}]}`:                                                       "cannot read the JSON",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}":                                               "cannot read the JSON",
		`{"messages":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`:                                "nests too deep",
		`{"messages":[{"role":"user","content":"x"}],"chat_template":"x"}`:                                        "of the request's own",
		`{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"chat_template":"x"}}`:               `cannot set "chat_template"`,
		`{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"raise_exception":1}}`:               `cannot set "raise_exception"`,
		`{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":[]}`:                                  "must be an object",
		`{"messages":[{"role":"user","content":"x"}],"continue_final_message":true}`:                              "cannot set both",
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://127.0.0.1/"}}]}]}`: "text only",
		`{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}]}`:                      "text only",
		`{"messages":[{"role":"user","content":[{"image_url":"x"}]}]}`:                                            "text only",
		`{"messages":[{"role":"user","content":[{"type":"holo"}]}]}`:                                              "not supported",
	} {
		_, err := m.RenderChat(context.Background(), []byte(body))
		var request *RequestError
		if !errors.As(err, &request) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: got %v, want %q", body, err, want)
			continue
		}
		if request.Media != (want == "text only") {
			t.Errorf("%.80s: media %v", body, request.Media)
		}
	}
}

func TestWhatTheTemplateRaisesIsTheClientsFault(t *testing.T) {
	m := modelOf(t, map[string]any{templateFile: "{% if messages | length > 1 %}{{ raise_exception('only one, please') }}{% endif %}{{ messages[0].content.x.y }}"})
	for body, want := range map[string]chattemplate.Kind{
		`{"messages":[{"role":"user","content":"x"},{"role":"user","content":"y"}]}`: chattemplate.Raised,
		`{"messages":[{"role":"user","content":"x"}]}`:                               chattemplate.Runtime,
	} {
		_, err := m.RenderChat(context.Background(), []byte(body))
		var request *RequestError
		var failed *chattemplate.Error
		if !errors.As(err, &request) || !errors.As(err, &failed) || failed.Kind != want {
			t.Errorf("%s: got %v", body, err)
		}
	}
}

func TestRenderingEndsWithItsContext(t *testing.T) {
	m := modelOf(t, map[string]any{templateFile: "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.RenderChat(ctx, []byte(`{"messages":[{"role":"user","content":"x"}]}`)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestReadingARequestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := chattemplate.ParseJSONContext(ctx, []byte("["+strings.Repeat("1,", 10_000)+"1]"), 10)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Whatever the body is, there are token ids or a *RequestError.
func FuzzRenderChat(f *testing.F) {
	data, err := os.ReadFile(filepath.Join("testdata", "bodies.json"))
	if err != nil {
		f.Fatal(err)
	}
	var bodies []json.RawMessage
	if err := json.Unmarshal(data, &bodies); err != nil {
		f.Fatal(err)
	}
	for _, body := range bodies {
		f.Add([]byte(body))
	}
	var t testing.T
	var models []*Model
	for _, name := range []string{"chatml-tools", "macros-xml", "channels"} {
		source, err := os.ReadFile(filepath.Join("..", "chattemplate", "testdata", name+".jinja"))
		if err != nil {
			f.Fatal(err)
		}
		models = append(models, modelOf(&t, map[string]any{templateFile: string(source)}))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, m := range models {
			var request *RequestError
			if _, err := m.RenderChat(context.Background(), body); err != nil && !errors.As(err, &request) {
				t.Errorf("got %v", err)
			}
		}
	})
}

func TestTemplateTellsOfAnswers(t *testing.T) {
	for source, want := range map[string]Formats{
		"{{ messages }}": {},
		"{% if tools %}<tool_call>{% endif %}<think></think>": {TakesTools: true, Tools: ToolsHermes, ThinkOpen: "<think>", ThinkClose: "</think>"},
		"{% if tools %}[TOOL_CALLS]{% endif %}":               {TakesTools: true, Tools: ToolsMistral},
		"{% if tools %}<tool_call><function=f>{% endif %}":    {TakesTools: true, Tools: ToolsXML},
		"{% if tools %}something{% endif %}":                  {TakesTools: true, Tools: ToolsUnknown},
		"{% if messages %}[THINK]x[/THINK]{% endif %}":        {ThinkOpen: "[THINK]", ThinkClose: "[/THINK]"},
	} {
		if got := modelOf(t, map[string]any{templateFile: source}).Formats(); got != want {
			t.Errorf("%s: got %+v", source, got)
		}
	}
}
