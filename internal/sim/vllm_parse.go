package sim

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// vrequest holds the fields of a body that a vLLM worker uses.
type vrequest struct {
	request
	base        string // of the ids: X-Request-Id, or one of its own
	response    string // of the responses API's ids, which follow no header
	contents    []prompt
	min         int // min_tokens
	greedy      bool
	temperature string // as the responses API repeats it
	kv          *transferParams
	adapter     string
	scope       *cacheScope
}

// transferParams is the kv_transfer_params object: the fields the connectors
// act on.
type transferParams struct {
	remoteDecode  bool // leave KV for a decode
	remotePrefill bool // take the KV of a prefill
	engineID      string
	requestID     string
	host          string
	port          int
	hasPort       bool
	blocks        []int
	hasBlocks     bool
	cached        int // remote_prefill_cached_tokens
	hasCached     bool
	transferID    string
	bootstrapAddr string
}

// badRequestf is the error of a body that does not have the expected form. The error
// of one that asks for something impossible is invalidf.
func badRequestf(param, format string, args ...any) *wireError {
	e := invalidf(param, format, args...)
	e.kind = "Bad Request"
	return e
}

// vfield is a field's name as validation errors give it.
func vfield(name string) string { return "body." + name }

// parseVLLM reads a body of the API a. Its errors are *wireError.
func (w *Worker) parseVLLM(a api, body []byte, h http.Header) (*vrequest, error) {
	r := &vrequest{request: request{api: a, n: 1, maxTokens: -1}, response: newRequestID()[:16], temperature: "1.0", scope: &cacheScope{}}
	if t, _, _ := strings.Cut(h.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(t), "application/json") {
		return r, badRequestf("", "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed")
	}
	if !utf8.Valid(body) {
		return r, badRequestf("body.0", "JSON decode error: the body is not UTF-8")
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsonOptions...)
	broken := func(err error) error {
		return badRequestf(vfield(strconv.FormatInt(d.InputOffset(), 10)), "JSON decode error: %v", err)
	}
	if d.PeekKind() != '{' {
		if v, err := d.ReadValue(); err != nil || !v.IsValid() {
			return r, broken(err)
		}
		return r, badRequestf("body", "Input should be a valid dictionary")
	}
	if _, err := d.ReadToken(); err != nil {
		return r, broken(err)
	}
	p := vparser{w: w, r: r, header: h, completion: -1}
	var invalid error // reported only if the whole body is valid JSON
	for d.PeekKind() != '}' {
		tok, err := d.ReadToken()
		if err != nil {
			return r, broken(err)
		}
		name := tok.String()
		v, err := d.ReadValue()
		if err != nil {
			return r, broken(err)
		}
		if invalid == nil {
			invalid = p.field(name, v)
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return r, broken(err)
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return r, badRequestf(vfield(strconv.FormatInt(d.InputOffset(), 10)), "JSON decode error: Extra data")
	}
	if invalid == nil {
		invalid = p.finish()
	}
	if id := h.Get("X-Request-Id"); id != "" {
		r.base = id
	} else if r.base == "" {
		r.base = newRequestID()[:16]
	}
	return r, invalid
}

// vparser reads the fields of one body, in any order.
type vparser struct {
	w          *Worker
	r          *vrequest
	header     http.Header
	full       bool   // kv_cache_report_mode
	session    string // of vllm_xargs, which counts last
	transcript transcript
	hasPrompt  bool // messages, prompt or input was there
	texts      []jsontext.Value
	input      jsontext.Value // of the responses API
	options    bool           // stream_options given, and not empty
	completion int            // max_completion_tokens, -1: not given
	hasModel   bool
}

func wrongType(name, want string) error {
	return badRequestf(vfield(name), "Input should be a valid %s", want)
}

// field reads one field; of duplicate fields the last counts.
func (p *vparser) field(name string, v jsontext.Value) (err error) {
	r, null := p.r, v.Kind() == 'n'
	if name == "max_tokens" && r.api == responses || name == "max_output_tokens" && r.api != responses {
		return nil
	}
	switch name {
	case "model":
		p.hasModel = !null
		if r.model, err = str(name, v); err != nil {
			return wrongType(name, "string")
		}
	case "stream":
		if r.stream, err = boolean(name, v); err != nil {
			return wrongType(name, "boolean")
		}
	case "stream_options":
		if !null && v.Kind() != '{' {
			return wrongType(name, "dictionary")
		}
		p.options = !null && string(compact(v)) != "{}" // an empty one counts as none
		r.usage = field(v, "include_usage").Kind() == 't'
	case "n":
		n := int64(1)
		if !null {
			if n, err = integer(name, v); err != nil {
				return wrongType(name, "integer")
			}
		}
		r.n = int(min(max(n, -1), 1<<20))
	case "max_tokens", "max_output_tokens", "max_completion_tokens", "min_tokens":
		n := int64(-1)
		if !null {
			if n, err = integer(name, v); err != nil {
				return wrongType(name, "integer")
			}
			if n = min(max(n, -2), 1<<40); n < 0 {
				n = -2
			}
		}
		switch name {
		case "min_tokens":
			r.min = int(max(n, 0))
		case "max_completion_tokens":
			p.completion = int(n)
		default:
			r.maxTokens = int(n)
		}
	case "logprobs", "top_logprobs":
		if r.api != chat && r.api != completions {
			return nil
		}
		return r.logs.field(r.api, name, v)
	case "temperature":
		if v.Kind() != '0' && !null {
			return wrongType(name, "number")
		}
		r.greedy = v.Kind() == '0' && strings.Trim(string(v), "-0.") == ""
		if r.greedy {
			r.temperature = "0.0"
		} else if !null {
			r.temperature = string(v)
		}
	case "request_id":
		if v.Kind() == '"' {
			r.base, _ = str(name, v)
		}
	case "kv_transfer_params":
		if null {
			r.kv = nil
			return nil
		}
		if v.Kind() != '{' {
			return wrongType(name, "dictionary")
		}
		r.kv = parseTransfer(v)
	case "cache_salt":
		if r.scope.salt, err = str(name, v); err != nil {
			return wrongType(name, "string")
		}
	case "session_id":
		if v.Kind() == '"' {
			r.scope.session, _ = str(name, v)
		}
	case "vllm_xargs":
		mode, _ := str(name, field(v, "kv_cache_report_mode"))
		p.full = mode == "full"
		p.session, _ = str(name, field(v, "session_id"))
	case "sim":
		r.simField = v.Clone()
	case "messages":
		if r.api != chat && r.api != messages {
			return nil
		}
		p.hasPrompt = true
		p.transcript.body = nil
		if r.api == chat && v.Kind() != '[' {
			return invalidf("", "messages is not iterable") // the engine's own words name Python's type
		}
		if !p.transcript.messages(v) {
			return wrongType(name, "list")
		}
	case "tools":
		if null {
			return nil
		}
		if v.Kind() == '[' && len(elements(v)) == 0 && r.api != completions {
			return invalidf("tools", "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely. (parameter=tools)")
		}
		p.transcript.head = line(p.transcript.head, "tools", compact(v))
	case "system", "instructions":
		if null || (name == "system") != (r.api == messages) || r.api == chat || r.api == completions {
			return nil
		}
		text, ok := contentOf(v)
		if !ok {
			return wrongType(name, "string")
		}
		p.transcript.head = line(p.transcript.head, "system", text)
	case "input":
		if r.api == responses {
			p.input = v.Clone()
		}
	case "prompt":
		if r.api != completions || null {
			return nil
		}
		return p.prompt(v)
	}
	return nil
}

// prompt reads the completions API's four kinds of prompt.
func (p *vparser) prompt(v jsontext.Value) error {
	p.hasPrompt, p.texts = true, nil
	switch {
	case v.Kind() == '"', v.Kind() == '[' && numbers(v):
		p.texts = []jsontext.Value{v.Clone()}
		return nil
	case v.Kind() != '[':
		return wrongType("prompt", "string")
	}
	p.texts, p.r.batched = elements(v), true
	if len(p.texts) > maxBatch {
		return badRequestf("prompt", "%d prompts are more than %d", len(p.texts), maxBatch)
	}
	for _, x := range p.texts {
		if x.Kind() != '"' && (x.Kind() != '[' || !numbers(x)) {
			return wrongType("prompt", "string")
		}
	}
	return nil
}

// finish checks what can only be checked with all fields read, in the engine's
// order, and tokenizes.
func (p *vparser) finish() error {
	r := p.r
	switch {
	case r.api == messages && !p.hasModel:
		return badRequestf(vfield("model"), "Field required")
	case r.api == messages && r.maxTokens == -1:
		return badRequestf(vfield("max_tokens"), "Field required")
	case r.api == responses && p.input == nil:
		return badRequestf(vfield("input"), "Field required")
	case r.api == messages && r.maxTokens < 1:
		return badRequestf(vfield("max_tokens"), "Value error, max_tokens must be positive")
	case r.api == completions && (!p.hasPrompt || len(p.texts) == 1 && string(p.texts[0]) == `""`):
		return invalidf("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	case r.api != completions && r.api != responses && !p.hasPrompt:
		return badRequestf(vfield("messages"), "Field required")
	case r.logs.check(r.api) != nil:
		return r.logs.check(r.api)
	case p.options && !r.stream:
		return invalidf("stream_options", "Stream options can only be defined when `stream=True`. (parameter=stream_options)")
	case r.api == chat && len(p.transcript.body) == 0:
		return invalidf("", "Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	if r.model == "" {
		r.model = p.w.opt.Model
	}
	if slices.Contains(p.w.opt.Adapters, r.model) {
		r.adapter = r.model
	} else if !p.w.named(r.model) && p.w.opt.Backend == VLLM {
		return p.w.noModel(r.model)
	}
	if r.api == chat && p.completion != -1 {
		r.maxTokens = p.completion
	}
	if err := p.tokenize(); err != nil {
		return err
	}
	return p.limits()
}

func (p *vparser) tokenize() error {
	r := p.r
	if r.api == responses {
		switch p.input.Kind() {
		case '"':
			text, _ := contentOf(p.input)
			p.transcript.body = line(p.transcript.body, "user", text)
		default:
			if !p.transcript.messages(p.input) {
				return wrongType("input", "string")
			}
		}
	}
	r.scope = p.w.scopeOf(r.adapter, r.scope.salt, r.scope.session, p.header)
	r.scope.full = p.full
	def(&r.scope.session, p.session)
	if r.api != completions {
		r.contents = []prompt{p.w.tokenized(p.transcript.prompt(), r.scope)}
		return nil
	}
	for _, x := range p.texts {
		if x.Kind() == '"' {
			text, _ := contentOf(x)
			r.contents = append(r.contents, p.w.tokenized(text, r.scope))
			continue
		}
		c, err := p.w.ofIDs("prompt", x, r.scope)
		if err != nil {
			return wrongType("prompt", "integer")
		}
		r.contents = append(r.contents, c)
	}
	if len(r.contents) == 0 {
		return invalidf("", "You must pass at least one prompt")
	}
	return nil
}

// limits checks numbers against each other and the model.
func (p *vparser) limits() error {
	r := p.r
	for _, c := range r.contents {
		if c.tokens >= p.w.opt.ContextLength {
			return invalidf("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains at least %d input tokens, "+
				"which exceeds this limit even without any output tokens. (parameter=input_tokens, value=%[2]d)", p.w.opt.ContextLength, c.tokens)
		}
	}
	name := "max_tokens"
	switch r.api {
	case responses:
		name = "max_output_tokens"
	case messages:
		name = "max_completion_tokens"
	}
	switch {
	case r.n < 1 || r.n > maxN:
		return invalidf("", "n must be at least 1, got %d.", r.n)
	case r.n*len(r.contents) > maxBatch:
		return invalidf("", "%d samples of %d prompts are more than %d.", r.n, len(r.contents), maxBatch)
	case r.n > 1 && r.greedy:
		return invalidf("", "n must be 1 when using greedy sampling, got %d.", r.n)
	case r.maxTokens == -2 || r.maxTokens == 0:
		return invalidf("max_tokens", "max_tokens must be at least 1, got %d. (parameter=max_tokens, value=%[1]d)", max(r.maxTokens, -1))
	case r.maxTokens > p.w.opt.ContextLength:
		return invalidf(name, "%s=%d cannot be greater than max_model_len=%d. Please request fewer output tokens. (parameter=%[1]s, value=%[2]d)",
			name, r.maxTokens, p.w.opt.ContextLength)
	case r.maxTokens >= 0 && r.min > r.maxTokens:
		return invalidf("", "min_tokens must be less than or equal to max_tokens=%d, got %d.", r.maxTokens, r.min)
	}
	return nil
}

// noModel is the error for a model that is not served here.
func (w *Worker) noModel(model string) *wireError {
	e := invalidf("model", "The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(slices.Concat([]string{w.opt.Model}, w.opt.Names, w.opt.Adapters), ", "))
	e.kind, e.status = "NotFoundError", 404
	return e
}

// parseTransfer reads kv_transfer_params, leaving out what has another type.
func parseTransfer(v jsontext.Value) *transferParams {
	t := &transferParams{}
	text := func(name string) string {
		s, _ := str(name, field(v, name))
		return s
	}
	t.remoteDecode = field(v, "do_remote_decode").Kind() == 't'
	t.remotePrefill = field(v, "do_remote_prefill").Kind() == 't'
	t.engineID, t.requestID, t.host = text("remote_engine_id"), text("remote_request_id"), text("remote_host")
	t.transferID, t.bootstrapAddr = text("transfer_id"), text("remote_bootstrap_addr")
	if n, err := integer("remote_port", field(v, "remote_port")); err == nil {
		t.port, t.hasPort = int(min(max(n, -1), 1<<17)), true
	}
	if n, err := integer("remote_prefill_cached_tokens", field(v, "remote_prefill_cached_tokens")); err == nil {
		t.cached, t.hasCached = int(min(max(n, 0), maxTokens)), true
	}
	if ids := field(v, "remote_block_ids"); ids.Kind() == '[' {
		for _, group := range elements(ids) {
			for _, id := range elements(group) {
				n, err := integer("remote_block_ids", id)
				if err != nil {
					n = -1
				}
				t.blocks = append(t.blocks, int(n))
			}
		}
	}
	t.hasBlocks = len(t.blocks) > 0
	return t
}
