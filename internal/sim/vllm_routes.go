package sim

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// The routes of a worker that take a POST and do not generate.

// plainRoute answers such a request from the fields of its body.
type plainRoute func(w *Worker, f fields, h http.Header) ([]byte, *wireError)

// fields are the members of a body.
type fields map[string]jsontext.Value

// plainRoutes sets up those the worker has.
func (w *Worker) plainRoutes() {
	vllm := w.opt.Backend == VLLM
	add := func(route plainRoute, paths ...string) {
		for _, p := range paths {
			w.plain[p] = route
		}
	}
	add((*Worker).countTokens, "/v1/messages/count_tokens")
	if vllm || w.opt.Tokenizer {
		add((*Worker).tokenizeRoute, "/tokenize")
		add((*Worker).detokenizeRoute, "/detokenize")
		if !vllm {
			add((*Worker).tokenizeRoute, "/v1/tokenize")
			add((*Worker).detokenizeRoute, "/v1/detokenize")
		}
	}
	if w.role == Regular && !vllm {
		add((*Worker).rerank, "/v1/rerank") // by a language model
	}
	if !w.opt.Pooling {
		return
	}
	add((*Worker).embeddings, "/v1/embeddings")
	add((*Worker).rerank, "/v1/rerank")
	add((*Worker).score, "/v1/score")
	if !vllm {
		add((*Worker).classify, "/v1/classify")
		return
	}
	add((*Worker).embeddings, "/pooling")
	add((*Worker).classify, "/classify")
	add((*Worker).rerank, "/rerank", "/v2/rerank")
	add((*Worker).score, "/score")
}

// servePlain answers such a request, after what its fault wants.
func (w *Worker) servePlain(o *responseWriter, r *http.Request, route plainRoute, body []byte) error {
	if strings.HasPrefix(r.URL.Path, w.opt.BasePath+"/v1/messages") {
		o.api = messages
	}
	if done, err := w.deviate(o, &request{api: chat}, body); done || err != nil {
		return err
	}
	f, e := w.plainBody(body)
	if e == nil && !strings.Contains(r.URL.Path, "token") { // which the server does by itself
		if err := w.thawed(r.Context()); err != nil {
			return err
		}
	}
	var answer []byte
	if e == nil {
		answer, e = route(w, f, r.Header)
	}
	switch {
	case e == nil:
		return o.json(http.StatusOK, answer)
	case w.opt.Backend == VLLM || o.api == messages:
		return o.json(e.status, o.vbody(e))
	}
	return o.json(e.status, e.body())
}

// plainBody reads the body of a plain route, and checks the model.
func (w *Worker) plainBody(body []byte) (fields, *wireError) {
	if !jsontext.Value(body).IsValid(jsonOptions...) || jsontext.Value(body).Kind() != '{' {
		return nil, badRequestf("body", "JSON decode error: the body is not a JSON object")
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsonOptions...)
	_, _ = d.ReadToken()
	f := make(fields)
	for d.PeekKind() != '}' {
		tok, err := d.ReadToken()
		if err != nil {
			return nil, badRequestf("body", "JSON decode error: %v", err)
		}
		name := tok.String()
		v, err := d.ReadValue()
		if err != nil {
			return nil, badRequestf("body", "JSON decode error: %v", err)
		}
		f[name] = v.Clone()
	}
	model, err := str("model", f["model"])
	if f["model"] != nil && err != nil {
		return nil, badRequestf("body.model", "Input should be a valid string")
	}
	if f["model"] != nil && !w.known(model) {
		return nil, w.noModel(model)
	}
	return f, nil
}

// textOf is the text that a body asks to tokenize: a prompt, or messages with the
// tools and the system prompt before them.
func textOf(f fields, anthropic bool) ([]byte, *wireError) {
	if p := f["prompt"]; p.Kind() == '"' {
		b, _ := contentOf(p)
		return b, nil
	}
	var s transcript
	if t := f["tools"]; t != nil && t.Kind() != 'n' {
		s.head = line(s.head, "tools", compact(t))
	}
	if t := f["system"]; t != nil && t.Kind() != 'n' {
		text, _ := contentOf(t)
		s.head = line(s.head, "system", text)
	}
	if !s.messages(f["messages"]) {
		param := "body.messages"
		if f["messages"] == nil && !anthropic {
			param = "body.prompt" // the engine reports the first of the two forms of a body
		}
		return nil, badRequestf(param, "Field required")
	}
	return s.prompt(), nil
}

func (w *Worker) tokenizeRoute(f fields, _ http.Header) ([]byte, *wireError) {
	text, e := textOf(f, false)
	if e != nil {
		return nil, e
	}
	n := 0
	var ids []byte
	tokenize(text, func(id int64) {
		if n++; n > 1 {
			ids = append(ids, ',')
		}
		ids = strconv.AppendInt(ids, id, 10)
	})
	return fmt.Appendf(nil, `{"count":%d,"max_model_len":%d,"tokens":[%s],"token_strs":null}`, n, w.opt.ContextLength, ids), nil
}

func (w *Worker) detokenizeRoute(f fields, _ http.Header) ([]byte, *wireError) {
	if f["tokens"].Kind() != '[' {
		return nil, badRequestf("body.tokens", "Field required")
	}
	var text []byte
	for _, x := range elements(f["tokens"]) {
		id, err := integer("tokens", x)
		if err != nil {
			return nil, badRequestf("body.tokens", "Input should be a valid integer")
		}
		text = appendPiece(text, id)
	}
	member := `{"prompt":`
	if w.opt.Backend == SGLang {
		member = `{"text":`
	}
	return append(appendQuoted([]byte(member), string(text)), '}'), nil
}

func (w *Worker) countTokens(f fields, _ http.Header) ([]byte, *wireError) {
	text, e := textOf(f, true)
	if e != nil {
		return nil, e
	}
	return fmt.Appendf(nil, `{"input_tokens":%d,"context_management":{"original_input_tokens":%[1]d}}`, w.bare(text).tokens), nil
}

// inputs are the texts of a field that holds one text or a list of them.
func inputs(v jsontext.Value) ([][]byte, bool) {
	if v.Kind() == '"' {
		b, _ := contentOf(v)
		return [][]byte{b}, true
	}
	if v.Kind() != '[' {
		return nil, false
	}
	if numbers(v) {
		return [][]byte{compact(v)}, true
	}
	var out [][]byte
	for _, x := range elements(v) {
		b, ok := contentOf(x)
		if !ok || x.Kind() == 'n' {
			return nil, false
		}
		out = append(out, b)
	}
	return out, len(out) > 0
}

// share01 makes a number from 0 to 1 of a hash.
func share01(h uint64) float64 { return float64(h%10007) / 10007 }

// pooledID begins an answer of the pooling routes.
func pooledID(kind string, h http.Header) []byte {
	id := h.Get("X-Request-Id")
	if id == "" {
		id = newRequestID()
	}
	return appendQuoted([]byte(`{"id":`), kind+"-"+id)
}

// pooledList is an answer of the pooling routes that is a list of n items. item appends
// one and returns the tokens of its prompt.
func (w *Worker) pooledList(kind string, h http.Header, n int, item func(b []byte, i int) ([]byte, int)) []byte {
	b := fmt.Appendf(pooledID(kind, h), `,"object":"list","created":%d`, time.Now().Unix())
	b = append(appendQuoted(append(b, `,"model":`...), w.opt.Model), `,"data":[`...)
	b, tokens := joined(b, n, item)
	return pooledUsage(append(b, "],"...), tokens)
}

// joined appends n items with commas between them, and returns the tokens of all.
func joined(b []byte, n int, item func(b []byte, i int) ([]byte, int)) ([]byte, int) {
	tokens, one := 0, 0
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b, one = item(b, i)
		tokens += one
	}
	return b, tokens
}

// pooledUsage ends an answer with the tokens that it took.
func pooledUsage(b []byte, tokens int) []byte {
	return fmt.Appendf(b, `"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0,"prompt_tokens_details":null}}`, tokens, tokens)
}

// vector appends an embedding: a list of numbers, or if packed, little-endian 32-bit
// floats in base64.
func vector(b []byte, hash uint64, packed bool) []byte {
	const size = 8
	if packed {
		var raw []byte
		for k := range uint64(size) {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(share01(mix(hash, k)))))
		}
		return append(base64.StdEncoding.AppendEncode(append(b, '"'), raw), '"')
	}
	b = append(b, '[')
	for k := range uint64(size) {
		if k > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, share01(mix(hash, k)), 'f', 6, 64)
	}
	return append(b, ']')
}

func (w *Worker) embeddings(f fields, h http.Header) ([]byte, *wireError) {
	texts, ok := inputs(f["input"])
	if !ok {
		return nil, badRequestf("body.input", "Field required")
	}
	packed := false
	if v := f["encoding_format"]; v != nil && v.Kind() != 'n' {
		format, err := str("encoding_format", v)
		if packed = format == "base64"; err != nil || !packed && format != "float" {
			return nil, badRequestf("body.encoding_format", "Input should be 'float' or 'base64'")
		}
	}
	return w.pooledList("embd", h, len(texts), func(b []byte, i int) ([]byte, int) {
		p := w.bare(texts[i])
		b = fmt.Appendf(b, `{"index":%d,"object":"embedding","embedding":`, i)
		return append(vector(b, p.hash, packed), '}'), p.tokens
	}), nil
}

func (w *Worker) classify(f fields, h http.Header) ([]byte, *wireError) {
	texts, ok := inputs(f["input"])
	if !ok {
		return nil, badRequestf("body.input", "Field required")
	}
	return w.pooledList("classify", h, len(texts), func(b []byte, i int) ([]byte, int) {
		p := w.bare(texts[i])
		x := share01(p.hash)
		label := "LABEL_0"
		if x > 0.5 {
			label = "LABEL_1"
		}
		return fmt.Appendf(b, `{"index":%d,"label":%q,"probs":[%.6f,%.6f],"num_classes":2}`, i, label, 1-x, x), p.tokens
	}), nil
}

func (w *Worker) rerank(f fields, h http.Header) ([]byte, *wireError) {
	query, ok := inputs(f["query"])
	docs, ok2 := inputs(f["documents"])
	if !ok || !ok2 {
		return nil, badRequestf("body.documents", "Field required")
	}
	type ranked struct {
		index int
		score float64
	}
	tokens, q := 0, w.bare(query[0])
	list := make([]ranked, len(docs))
	for i, d := range docs {
		p := w.bare(d)
		tokens += p.tokens + q.tokens
		list[i] = ranked{i, share01(mix(q.hash, p.hash))}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].score > list[j].score })
	if n, err := integer("top_n", f["top_n"]); err == nil && n > 0 && int(n) < len(list) {
		list = list[:n]
	}
	if w.opt.Backend == SGLang {
		b, _ := joined([]byte{'['}, len(list), func(b []byte, i int) ([]byte, int) {
			b = appendQuoted(fmt.Appendf(b, `{"score":%.6f,"document":`, list[i].score), string(docs[list[i].index]))
			return fmt.Appendf(b, `,"index":%d,"meta_info":null}`, list[i].index), 0
		})
		return append(b, ']'), nil
	}
	b := appendQuoted(append(pooledID("rerank", h), `,"model":`...), w.opt.Model)
	b = fmt.Appendf(b, `,"usage":{"prompt_tokens":%d,"total_tokens":%d},"results":[`, tokens, tokens)
	b, _ = joined(b, len(list), func(b []byte, i int) ([]byte, int) {
		b = appendQuoted(fmt.Appendf(b, `{"index":%d,"document":{"text":`, list[i].index), string(docs[list[i].index]))
		return fmt.Appendf(b, `,"multi_modal":null},"relevance_score":%.6f}`, list[i].score), 0
	})
	return append(b, "]}"...), nil
}

func (w *Worker) score(f fields, h http.Header) ([]byte, *wireError) {
	names := []string{"text_1", "text_2"}
	if w.opt.Backend == SGLang {
		names = []string{"query", "items"}
	}
	left, ok := inputs(f[names[0]])
	right, ok2 := inputs(f[names[1]])
	if !ok || !ok2 || len(left) > 1 && len(left) != len(right) {
		return nil, badRequestf("body."+names[1], "Field required")
	}
	pair := func(i int) (score float64, tokens int) {
		a, b := w.bare(left[min(i, len(left)-1)]), w.bare(right[i])
		return share01(mix(a.hash, b.hash)), a.tokens + b.tokens
	}
	if w.opt.Backend == SGLang {
		b, tokens := joined([]byte(`{"scores":[`), len(right), func(b []byte, i int) ([]byte, int) {
			x, n := pair(i)
			return fmt.Appendf(b, `[%.6f]`, x), n
		})
		b = appendQuoted(append(b, `],"model":`...), w.opt.Model)
		return pooledUsage(append(b, `,"object":"scoring",`...), tokens), nil
	}
	return w.pooledList("score", h, len(right), func(b []byte, i int) ([]byte, int) {
		x, n := pair(i)
		return fmt.Appendf(b, `{"index":%d,"object":"score","score":%.6f}`, i, x), n
	}), nil
}
