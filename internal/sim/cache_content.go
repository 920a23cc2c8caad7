package sim

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// caches reports whether the worker has a prefix cache.
func (w *Worker) caches() bool { return w.opt.CacheBlocks > 0 }

// hasher begins a prompt.
func (w *Worker) hasher(scope *cacheScope) hasher {
	var h hasher
	if w.opt.Connector.shared() || w.caches() {
		h.size = w.opt.CacheBlock
	}
	for _, c := range []byte(scope.adapter) { // an adapter's KV is its own
		h.hash = mix(h.hash, uint64(c))
	}
	for _, c := range []byte(scope.salt) {
		h.salt = mix(h.salt, uint64(c)+1)
	}
	if w.caches() && w.opt.KVEvents != nil {
		h.keep = true
		if w.opt.Backend == SGLang {
			h.chain = newDigestChain(scope)
		}
	}
	return h
}

// tokenized is the prompt of a text.
func (w *Worker) tokenized(text []byte, scope *cacheScope) prompt {
	return w.tokenizedBefore(text, nil, scope)
}

// tokenizedBefore is tokenized for a text to which opening is added before the output.
// With an opening, even an empty one, the tokens end with the last that will be the
// same whatever follows.
func (w *Worker) tokenizedBefore(text, opening []byte, scope *cacheScope) prompt {
	h := w.hasher(scope)
	h.add(bos)
	rest := text[pieces(text, h.add):]
	var grow *hasher
	if w.caches() {
		grow = h.fork()
	}
	if opening == nil {
		flush(rest, h.add)
	}
	h.grow, h.carry = grow, append(bytes.Clone(rest), opening...)
	return h.prompt
}

// ofIDs is the prompt of a list of token ids. Its error names the field.
func (w *Worker) ofIDs(field string, ids jsontext.Value, scope *cacheScope) (prompt, error) {
	h := w.hasher(scope)
	for _, e := range elements(ids) {
		id, err := integer(field, e)
		if err != nil {
			return prompt{}, err
		}
		h.add(id)
	}
	if w.caches() {
		h.grow = h.fork()
	}
	return h.prompt, nil
}

// scopeOf is the scope of a request in the prefix cache.
func (w *Worker) scopeOf(adapter, salt, session string, h http.Header) *cacheScope {
	s := &cacheScope{adapter: adapter, salt: salt, session: session}
	if s.session == "" {
		s.session = h.Get("X-Session-ID")
	}
	s.adapterID = slices.Index(w.opt.Adapters, adapter) + 1
	return s
}

// contents are a SGLang request's prompts as the prefix cache knows them. Chat
// messages are taken as JSON without insignificant space, after the tools, as a
// template puts them; the answer is expected to come back in the next turn as
// {"role":"assistant","content":"…"}. What it cannot read has no contents.
func (w *Worker) contents(r *request, body []byte, scope *cacheScope) []prompt {
	v := jsontext.Value(body[r.at[0]:r.at[1]])
	if !v.IsValid(jsonOptions...) {
		return nil
	}
	one := func(v jsontext.Value) (prompt, bool) {
		switch {
		case v.Kind() == '"':
			return w.tokenizedBefore(v[1:len(v)-1], []byte{}, scope), true
		case v.Kind() == '[' && numbers(v):
			p, err := w.ofIDs("input_ids", v, scope)
			return p, err == nil
		}
		return prompt{}, false
	}
	if p, ok := one(v); ok {
		return []prompt{p}
	}
	if v.Kind() != '[' {
		return nil
	}
	if r.api == chat && !r.inputIDs {
		text := compact(v)
		text = text[:len(text)-1]
		if tools := r.tools; tools[1] > 0 {
			text = append(compact(body[tools[0]:tools[1]]), text...)
		}
		return []prompt{w.tokenizedBefore(text, []byte(`,{"role":"assistant","content":"`), scope)}
	}
	var list []prompt
	for _, e := range elements(v) {
		p, ok := one(e)
		if !ok {
			return nil
		}
		list = append(list, p)
	}
	return list
}

// attach gives a SGLang request's sequences their contents.
func (w *Worker) attach(o *responseWriter, r *request, body []byte, h http.Header, seqs []*sequence) {
	if !w.caches() {
		return
	}
	adapter := r.adapter
	if adapter == "" && slices.Contains(w.opt.Adapters, r.model) {
		adapter = r.model
	}
	scope := w.scopeOf(adapter, r.salt, r.session, h)
	list := w.contents(r, body, scope)
	for i, s := range seqs {
		s.scope = scope
		if p := i / r.n; p < len(list) {
			s.content = &list[p]
		}
		if w.role == Prefill {
			continue
		}
		s.text = func(b []byte, k int) []byte { return o.tokens(b, k, k+1, o.token) }
	}
}

// unescaped is the text that JSON without quotes stands for.
func unescaped(b []byte) []byte {
	if bytes.IndexByte(b, '\\') < 0 {
		return b
	}
	t, err := jsontext.AppendUnquote(nil, []byte(`"`+string(b)+`"`))
	if err != nil {
		return b
	}
	return t
}

// cachedOf is how many prompt tokens of a request of n samples a prompt were cached:
// of each prompt's first sample.
func cachedOf(seqs []*sequence, n int) int {
	cached := 0
	for i := 0; i < len(seqs); i += n {
		cached += seqs[i].cached
	}
	return cached
}

// cacheDetails is the number of cached tokens in a usage object.
func cacheDetails(b []byte, cached int) []byte {
	return append(strconv.AppendInt(append(b, `{"cached_tokens":`...), int64(cached), 10), '}')
}

// bare is the prompt of a text that no request of the engine's own holds.
func (w *Worker) bare(text []byte) prompt { return w.tokenized(text, &cacheScope{}) }
