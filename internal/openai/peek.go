package openai

import (
	"math"
	"sync"
	"unicode/utf8"
)

// Route says which API a body belongs to, and so what its fields mean.
type Route uint8

// The routes whose bodies Peek knows. On the others the common fields (model,
// stream, user, controlled fields) are read and everything else passes.
const (
	RouteOther Route = iota
	RouteChatCompletions
	RouteCompletions
	RouteGenerate
	RouteResponses
	RouteMessages
	RouteEmbeddings
	// Of the bodies of the following routes only the common fields are read. Some are
	// not JSON.
	RouteTokenize
	RouteDetokenize
	RouteRerank
	RouteScore
	RouteClassify
	RoutePooling
	RouteCountTokens
	RouteAudio
	RouteStoredResponse

	// NumRoutes is the number of routes.
	NumRoutes
)

// String is the route's name for logs and metric labels.
func (r Route) String() string {
	switch r {
	case RouteChatCompletions:
		return "chat_completions"
	case RouteCompletions:
		return "completions"
	case RouteGenerate:
		return "generate"
	case RouteResponses:
		return "responses"
	case RouteMessages:
		return "messages"
	case RouteEmbeddings:
		return "embeddings"
	case RouteTokenize:
		return "tokenize"
	case RouteDetokenize:
		return "detokenize"
	case RouteRerank:
		return "rerank"
	case RouteScore:
		return "score"
	case RouteClassify:
		return "classify"
	case RoutePooling:
		return "pooling"
	case RouteCountTokens:
		return "count_tokens"
	case RouteAudio:
		return "audio"
	case RouteStoredResponse:
		return "stored_response"
	}
	return "other"
}

// Defaults of PeekOptions.
const (
	// DefaultMaxDepth is far above what requests need (a tool schema nests 20–60
	// levels) and below where the engines' own parsers give up (about 1000 in
	// CPython).
	DefaultMaxDepth = 512
	// DefaultMaxSamples bounds prompts × n of one request.
	DefaultMaxSamples = 4096
	// DefaultMaxPromptSpans bounds the list of prompt pieces that is kept.
	DefaultMaxPromptSpans = 4096
)

// minMaxDepth is what Peek's own walks need.
const minMaxDepth = 8

// PeekOptions are the bounds of one Peek. The zero value is usable and refuses no
// field.
type PeekOptions struct {
	// MaxDepth is the deepest nesting of the body; 0 is DefaultMaxDepth, at most
	// 10000.
	MaxDepth int
	// MaxSamples is the largest prompts × n; 0 is DefaultMaxSamples.
	MaxSamples int
	// MaxPromptSpans is how many prompt pieces are kept in Prompt; 0 is
	// DefaultMaxPromptSpans. Pieces beyond are still counted.
	MaxPromptSpans int
	// Refuse are the fields a client may not set, such as ControlledFields. A null
	// in one of them is the same as its absence, and passes.
	Refuse FieldSet
}

var peekedPool = sync.Pool{New: func() any { return new(Peeked) }}

// Peek reads what routing needs out of body in one pass and checks that the whole of
// it is a JSON object. The error is always an *Error with status 400. Release gives
// the result back for reuse.
func Peek(route Route, body []byte, opts PeekOptions) (*Peeked, error) {
	p := peekedPool.Get().(*Peeked)
	if err := p.Read(route, body, opts); err != nil {
		p.Release()
		return nil, err
	}
	return p, nil
}

// Opaque is a body that is not JSON, or no body: it passes unchanged. model is the model
// that the request asks for in another way, "" if it names none.
func Opaque(route Route, body []byte, model string) *Peeked {
	p, err := Peek(route, []byte("{}"), PeekOptions{})
	if err != nil {
		panic("BUG: an empty object is refused: " + err.Error())
	}
	p.Body = body
	if model != "" {
		p.Model, p.ModelKind = model, KindString
	}
	return p
}

// Release gives p back; neither it nor slices taken from it may be used afterwards.
func (p *Peeked) Release() {
	p.Body, p.scan.b = nil, nil
	if cap(p.Prompt) > 1024 {
		p.Prompt = nil // one giant request must not stay in the pool
	}
	if len(p.Model) > 256 {
		p.Model = ""
	}
	peekedPool.Put(p)
}

// Read is Peek into a Peeked that the caller keeps. After an error p is only good for
// another Read.
func (p *Peeked) Read(route Route, body []byte, opts PeekOptions) error {
	if opts.MaxDepth <= 0 {
		opts.MaxDepth = DefaultMaxDepth
	}
	if opts.MaxSamples <= 0 {
		opts.MaxSamples = DefaultMaxSamples
	}
	if opts.MaxPromptSpans <= 0 {
		opts.MaxPromptSpans = DefaultMaxPromptSpans
	}
	p.reset(route, body, opts)
	if err := p.read(&opts); err != nil {
		return err
	}
	return nil
}

func (p *Peeked) reset(route Route, body []byte, opts PeekOptions) {
	p.Body, p.Route = body, route
	// Model stays: if the next body names the same model, its string is reused.
	p.ModelKind = KindAbsent
	p.Stream, p.IncludeUsage = false, false
	p.N, p.IsBatch, p.BatchSize = 1, false, 1
	p.PromptKind = PromptNone
	p.Prompt = p.Prompt[:0]
	p.PromptBytes, p.PromptTokenIDs = 0, 0
	p.Messages, p.MediaParts, p.ToolBytes = 0, 0, 0
	p.MaxTokens, p.ReturnLogprob = -1, false
	p.Seed, p.HasSeed = 0, false
	p.Members, p.afterOpen, p.closing = 0, 0, 0
	p.seen = 0
	p.maxSpans = opts.MaxPromptSpans
	p.textItem, p.idsItem, p.embeds = promptShape{}, promptShape{}, promptShape{}
	p.sampling = samplingFacts{}
	p.scan.reset(body, max(opts.MaxDepth, minMaxDepth))
}

func (p *Peeked) read(opts *PeekOptions) *Error {
	s := &p.scan
	b := s.b
	i := s.space(0)
	switch {
	case i >= len(b):
		return InvalidRequest("", "the request body is empty; send a JSON object")
	case len(b) >= 3 && b[0] == 0xef && b[1] == 0xbb && b[2] == 0xbf:
		return InvalidRequest("", "the request body starts with a byte order mark; send plain UTF-8 without one")
	}
	if b[i] != '{' {
		if end := s.skip(i, 0); end < 0 {
			return p.notJSON()
		}
		return InvalidRequest("", "the request body is %s; it must be a JSON object", kindOf(b[i]))
	}
	// Engines decode the body as UTF-8 before they parse it, and then refuse all of
	// it. Lone surrogates in escapes are valid UTF-8 and pass.
	if !utf8.Valid(b) {
		return InvalidRequest("", "the request body is not valid UTF-8 (first bad byte at %d)", firstInvalid(b))
	}
	i++
	p.afterOpen = i
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 {
			return p.notJSON()
		}
		if done {
			p.closing = v - 1
			i = v
			break
		}
		start := p.afterOpen
		if !first {
			start = s.space(i) + 1
		}
		f := lookupField(b[name.Start+1 : name.End-1])
		if f == FieldNone {
			if i = s.skip(v, 1); i < 0 {
				return p.notJSON()
			}
			p.Members++
			continue
		}
		if p.seen.Has(f) {
			return InvalidRequest(f.String(), "the field %q is there twice; send it once", f)
		}
		if i = p.value(f, v); i < 0 {
			return p.notJSON()
		}
		kind := kindOf(b[v])
		p.seen = p.seen.With(f)
		p.fields[f] = fieldSpan{start: start, value: Span{v, i}, ordinal: p.Members, kind: kind}
		p.Members++
		if opts.Refuse.Has(f) && kind != KindNull {
			return InvalidRequest(f.String(), "the field %q may not be set by clients; leave it out", f)
		}
		if err := p.check(f, kind, b[v:i]); err != nil {
			return err
		}
	}
	if i = s.space(i); i < len(b) {
		return InvalidRequest("", "the request body has more data after the JSON object, at byte %d", i)
	}
	return p.finish(opts)
}

func (p *Peeked) notJSON() *Error {
	return InvalidRequest("", "the request body is not valid JSON: %s", p.scan.describe())
}

func firstInvalid(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// value passes the value of f at v, looking inside where the route says so.
func (p *Peeked) value(f Field, v int) int {
	switch f {
	case FieldMessages:
		if p.Route == RouteChatCompletions || p.Route == RouteMessages {
			return p.messages(v)
		}
	case FieldTools:
		end := p.scan.skip(v, 1)
		if end > 0 {
			p.ToolBytes += end - v
		}
		return end
	case FieldPrompt:
		if p.Route == RouteCompletions {
			return p.prompt(v, &p.textItem)
		}
	case FieldText:
		if p.Route == RouteGenerate {
			return p.prompt(v, &p.textItem)
		}
	case FieldInput:
		if p.Route == RouteEmbeddings {
			return p.prompt(v, &p.textItem)
		}
	case FieldInputIDs:
		if p.Route == RouteGenerate || p.Route == RouteChatCompletions {
			return p.prompt(v, &p.idsItem)
		}
	case FieldInputEmbeds:
		if p.Route == RouteGenerate {
			return p.inputEmbeds(v)
		}
	case FieldSamplingParams:
		if p.Route == RouteGenerate {
			return p.samplingParams(v)
		}
	case FieldStreamOptions:
		return p.streamOptions(v)
	}
	return p.scan.skip(v, 1)
}

// check reads the simple fields and refuses wrong types of those that routing needs.
// Types that matter to the engine only are checked by the engine.
func (p *Peeked) check(f Field, kind Kind, raw []byte) *Error {
	switch f {
	case FieldModel:
		p.ModelKind = kind
		switch kind {
		case KindString:
			p.setModel(raw)
		case KindNull:
		default:
			return InvalidRequest("model", "model is %s; it must be a string", kind)
		}
	case FieldStream:
		if kind != KindBool && kind != KindNull {
			return InvalidRequest("stream", "stream is %s; it must be true or false", kind)
		}
		p.Stream = raw[0] == 't'
	case FieldN:
		if p.Route == RouteGenerate {
			return nil // means nothing there
		}
		return p.setN("n", kind, raw)
	case FieldSeed:
		if v, ok := parseInt(raw); kind == KindNumber && ok {
			p.Seed, p.HasSeed = v, true
		}
	case FieldReturnLogprob:
		switch kind {
		case KindBool:
			p.ReturnLogprob = raw[0] == 't'
		case KindArray:
			p.ReturnLogprob = anyTrue(raw)
		}
	case FieldMaxTokens:
		if _, set := p.intField(FieldMaxCompletionTokens); !set {
			p.setMaxTokens(raw)
		}
	case FieldMaxCompletionTokens:
		p.setMaxTokens(raw)
	case FieldMaxOutputTokens:
		if p.Route == RouteResponses {
			p.setMaxTokens(raw)
		}
	case FieldPrompt, FieldText, FieldInput, FieldInputIDs, FieldInputEmbeds:
		return p.checkPrompt(f, kind)
	case FieldSamplingParams:
		return p.checkSampling()
	}
	return nil
}

func anyTrue(raw []byte) bool {
	// The array is valid JSON; a bare t outside strings can only be a true at any
	// depth, and a string here would be refused by the engine anyway.
	for _, c := range raw {
		if c == 't' {
			return true
		}
	}
	return false
}

func (p *Peeked) setModel(raw []byte) {
	inner := raw[1 : len(raw)-1]
	if string(inner) == p.Model {
		return // the same as in this Peeked's last body: no allocation
	}
	for _, c := range inner {
		if c == '\\' {
			p.Model = string(AppendUnquoted(nil, raw))
			return
		}
	}
	p.Model = string(inner)
}

func (p *Peeked) setN(param string, kind Kind, raw []byte) *Error {
	if kind == KindNull {
		return nil
	}
	v, ok := parseInt(raw)
	if kind != KindNumber || !ok {
		return InvalidRequest(param, "%s is %s; it must be a whole number of at least 1", param, show(kind, raw))
	}
	if v < 1 {
		return InvalidRequest(param, "%s is %d; it must be at least 1", param, v)
	}
	p.N = int(min(v, math.MaxInt32))
	return nil
}

// show describes a value in a message: short, and without any text of a client's string.
func show(kind Kind, raw []byte) string {
	if kind == KindNumber && len(raw) <= 24 {
		return string(raw)
	}
	return kind.String()
}

func (p *Peeked) setMaxTokens(raw []byte) {
	if v, ok := parseInt(raw); ok && v >= 0 {
		p.MaxTokens = v
	}
}

func (p *Peeked) intField(f Field) (int64, bool) {
	if !p.seen.Has(f) {
		return 0, false
	}
	return parseInt(p.Raw(f))
}

// finish checks what needs the whole body: forms that must agree, and sizes.
func (p *Peeked) finish(opts *PeekOptions) *Error {
	if p.ModelKind != KindString {
		p.Model = ""
	}
	shape := p.textItem
	for _, other := range [...]promptShape{p.idsItem, p.embeds} {
		switch {
		case other.kind == PromptNone:
		case shape.kind == PromptNone:
			shape = other
		case shape.batch != other.batch || shape.size != other.size:
			return InvalidRequest("input_ids", "text, input_ids and input_embeds are there together but differ in shape (%d and %d prompts); send one of them, or as many of each",
				shape.size, other.size)
		}
	}
	if shape.kind != PromptNone {
		p.IsBatch, p.BatchSize = shape.batch, shape.size
		p.PromptKind = shape.kind
	}
	if n := p.Samples(); n > opts.MaxSamples {
		return InvalidRequest("n", "the request asks for %d samples (%d prompts, n=%d); at most %d are allowed in one request",
			n, p.BatchSize, p.N, opts.MaxSamples)
	}
	return nil
}
