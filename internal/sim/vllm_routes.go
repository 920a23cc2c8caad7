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
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// The routes of a worker beside generation.

// plainBody reads such a route's body into its fields, and checks the model.
func (w *Worker) plainBody(body []byte) (map[string]jsontext.Value, *wireError) {
	if !jsontext.Value(body).IsValid(jsonOptions...) || jsontext.Value(body).Kind() != '{' {
		return nil, badRequestf("body", "JSON decode error: the body is not a JSON object")
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsonOptions...)
	_, _ = d.ReadToken()
	fields := make(map[string]jsontext.Value)
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
		fields[name] = v.Clone()
	}
	model, err := str("model", fields["model"])
	if fields["model"] != nil && err != nil {
		return nil, badRequestf("body.model", "Input should be a valid string")
	}
	if fields["model"] != nil && !w.known(model) {
		return nil, w.noModel(model)
	}
	return fields, nil
}

// textOf is what a body asks to tokenize: a prompt, or messages and what stands
// before them.
func textOf(f map[string]jsontext.Value, anthropic bool) ([]byte, *wireError) {
	if p := f["prompt"]; p.Kind() == '"' {
		b, _ := contentOf(p)
		return b, nil
	}
	var s speech
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
			param = "body.prompt" // the first of the two kinds of body
		}
		return nil, badRequestf(param, "Field required")
	}
	return s.prompt(), nil
}

func (w *Worker) tokenizeRoute(body []byte, _ http.Header) (int, []byte) {
	f, e := w.plainBody(body)
	if e != nil {
		return w.refused(e)
	}
	text, e := textOf(f, false)
	if e != nil {
		return w.refused(e)
	}
	n := 0
	var ids []byte
	tokenize(text, func(id int64) {
		if n++; n > 1 {
			ids = append(ids, ',')
		}
		ids = strconv.AppendInt(ids, id, 10)
	})
	return 200, fmt.Appendf(nil, `{"count":%d,"max_model_len":%d,"tokens":[%s],"token_strs":null}`, n, w.opt.ContextLength, ids)
}

func (w *Worker) detokenizeRoute(body []byte, _ http.Header) (int, []byte) {
	f, e := w.plainBody(body)
	if e != nil {
		return w.refused(e)
	}
	if f["tokens"].Kind() != '[' {
		return w.refused(badRequestf("body.tokens", "Field required"))
	}
	var text []byte
	for _, x := range elements(f["tokens"]) {
		id, err := integer("tokens", x)
		if err != nil {
			return w.refused(badRequestf("body.tokens", "Input should be a valid integer"))
		}
		text = appendPiece(text, id)
	}
	member := `{"prompt":`
	if w.opt.Backend == SGLang {
		member = `{"text":`
	}
	return 200, append(appendQuoted([]byte(member), string(text)), '}')
}

func (w *Worker) countTokens(body []byte, _ http.Header) (int, []byte) {
	f, e := w.plainBody(body)
	if e == nil {
		var text []byte
		if text, e = textOf(f, true); e == nil {
			return 200, fmt.Appendf(nil, `{"input_tokens":%d,"context_management":{"original_input_tokens":%[1]d}}`, w.tokenized(text, "").tokens)
		}
	}
	return e.status, (&responseWriter{w: w, api: messages}).vbody(e)
}

// inputs are the texts of a field that holds one or several.
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

// share01 is a number from 0 to 1 out of a hash.
func share01(h uint64) float64 { return float64(h%10007) / 10007 }

// pooled starts an answer of the pooling routes, and ends it.
func (w *Worker) pooled(kind string, h http.Header, list bool) []byte {
	id := h.Get("X-Request-Id")
	if id == "" {
		id = newRequestID()
	}
	b := appendQuoted([]byte(`{"id":`), kind+"-"+id)
	if list {
		b = fmt.Appendf(b, `,"object":"list","created":%d`, time.Now().Unix())
	}
	return appendQuoted(append(b, `,"model":`...), w.opt.Model)
}

func pooledUsage(b []byte, tokens int) []byte {
	return fmt.Appendf(b, `"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0,"prompt_tokens_details":null}}`, tokens, tokens)
}

// vector appends an embedding: a list of numbers, or packed the little-endian
// 32-bit floats in base64.
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

func (w *Worker) embeddings(body []byte, h http.Header) (int, []byte) {
	f, e := w.plainBody(body)
	if e != nil {
		return w.refused(e)
	}
	texts, ok := inputs(f["input"])
	if !ok {
		return w.refused(badRequestf("body.input", "Field required"))
	}
	packed := false
	if v := f["encoding_format"]; v != nil && v.Kind() != 'n' {
		format, err := str("encoding_format", v)
		if packed = format == "base64"; err != nil || !packed && format != "float" {
			return w.refused(badRequestf("body.encoding_format", "Input should be 'float' or 'base64'"))
		}
	}
	tokens := 0
	b := append(w.pooled("embd", h, true), `,"data":[`...)
	for i, t := range texts {
		p := w.tokenized(t, "")
		tokens += p.tokens
		if i > 0 {
			b = append(b, ',')
		}
		b = append(vector(fmt.Appendf(b, `{"index":%d,"object":"embedding","embedding":`, i), p.hash, packed), '}')
	}
	return 200, pooledUsage(append(b, "],"...), tokens)
}

func (w *Worker) rerank(body []byte, h http.Header) (int, []byte) {
	f, e := w.plainBody(body)
	if e != nil {
		return w.refused(e)
	}
	query, ok := inputs(f["query"])
	docs, ok2 := inputs(f["documents"])
	if !ok || !ok2 {
		return w.refused(badRequestf("body.documents", "Field required"))
	}
	type ranked struct {
		index int
		score float64
	}
	tokens, q := 0, w.tokenized(query[0], "")
	list := make([]ranked, len(docs))
	for i, d := range docs {
		p := w.tokenized(d, "")
		tokens += p.tokens + q.tokens
		list[i] = ranked{i, share01(mix(q.hash, p.hash))}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].score > list[j].score })
	if n, err := integer("top_n", f["top_n"]); err == nil && n > 0 && int(n) < len(list) {
		list = list[:n]
	}
	var items []byte
	for i, r := range list {
		if i > 0 {
			items = append(items, ',')
		}
		if w.opt.Backend == SGLang {
			items = fmt.Appendf(items, `{"score":%.6f,"document":`, r.score)
			items = fmt.Appendf(appendQuoted(items, string(docs[r.index])), `,"index":%d,"meta_info":null}`, r.index)
			continue
		}
		items = fmt.Appendf(items, `{"index":%d,"document":{"text":`, r.index)
		items = fmt.Appendf(appendQuoted(items, string(docs[r.index])), `,"multi_modal":null},"relevance_score":%.6f}`, r.score)
	}
	if w.opt.Backend == SGLang {
		return 200, append(append([]byte{'['}, items...), ']')
	}
	b := fmt.Appendf(w.pooled("rerank", h, false), `,"usage":{"prompt_tokens":%d,"total_tokens":%d},"results":[`, tokens, tokens)
	return 200, append(append(b, items...), "]}"...)
}

func (w *Worker) score(body []byte, h http.Header) (int, []byte) {
	f, e := w.plainBody(body)
	if e != nil {
		return w.refused(e)
	}
	names := []string{"text_1", "text_2"}
	if w.opt.Backend == SGLang {
		names = []string{"query", "items"}
	}
	left, ok := inputs(f[names[0]])
	right, ok2 := inputs(f[names[1]])
	if !ok || !ok2 || len(left) > 1 && len(left) != len(right) {
		return w.refused(badRequestf("body."+names[1], "Field required"))
	}
	tokens := 0
	var items []byte
	for i, t := range right {
		a, b := w.tokenized(left[min(i, len(left)-1)], ""), w.tokenized(t, "")
		tokens += a.tokens + b.tokens
		if i > 0 {
			items = append(items, ',')
		}
		x := share01(mix(a.hash, b.hash))
		if w.opt.Backend == SGLang {
			items = fmt.Appendf(items, `[%.6f]`, x)
			continue
		}
		items = fmt.Appendf(items, `{"index":%d,"object":"score","score":%.6f}`, i, x)
	}
	if w.opt.Backend == SGLang {
		b := appendQuoted(append(append([]byte(`{"scores":[`), items...), `],"model":`...), w.opt.Model)
		return 200, pooledUsage(append(b, `,"object":"scoring",`...), tokens)
	}
	b := append(append(w.pooled("score", h, true), `,"data":[`...), items...)
	return 200, pooledUsage(append(b, "],"...), tokens)
}

func (w *Worker) classify(body []byte, h http.Header) (int, []byte) {
	f, e := w.plainBody(body)
	if e != nil {
		return w.refused(e)
	}
	texts, ok := inputs(f["input"])
	if !ok {
		return w.refused(badRequestf("body.input", "Field required"))
	}
	tokens := 0
	b := append(w.pooled("classify", h, true), `,"data":[`...)
	for i, t := range texts {
		p := w.tokenized(t, "")
		tokens += p.tokens
		if i > 0 {
			b = append(b, ',')
		}
		x := share01(p.hash)
		label := "LABEL_0"
		if x > 0.5 {
			label = "LABEL_1"
		}
		b = fmt.Appendf(b, `{"index":%d,"label":%q,"probs":[%.6f,%.6f],"num_classes":2}`, i, label, 1-x, x)
	}
	return 200, pooledUsage(append(b, "],"...), tokens)
}
