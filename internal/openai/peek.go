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

// Span is a range of bytes of the body.
type Span struct{ Start, End int }

// IsZero tells that nothing was found.
func (s Span) IsZero() bool { return s.End == 0 }

// Len is the length in bytes.
func (s Span) Len() int { return s.End - s.Start }

// Kind is the type of a JSON value.
type Kind uint8

// The kinds of values.
const (
	KindAbsent Kind = iota
	KindNull
	KindBool
	KindNumber
	KindString
	KindArray
	KindObject
)

func kindOf(c byte) Kind {
	switch c {
	case '"':
		return KindString
	case '{':
		return KindObject
	case '[':
		return KindArray
	case 't', 'f':
		return KindBool
	case 'n':
		return KindNull
	}
	return KindNumber
}

func (k Kind) String() string {
	return [...]string{"absent", "null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

// fieldSpan is where a top-level field is. start is the offset right after the '{' or
// ',' before it, ordinal its place among the object's members.
type fieldSpan struct {
	start   int
	value   Span
	ordinal int
	kind    Kind
}

// PromptKind says in which form the prompt came.
type PromptKind uint8

// The forms of a prompt.
const (
	PromptNone PromptKind = iota
	PromptMessages
	PromptText
	PromptTexts
	PromptTokens
	PromptTokenLists
	PromptEmbeds
	PromptEmbedLists
)

// PromptSpan is one piece of the prompt in the order of the body.
type PromptSpan struct {
	Span
	// Tokens: the span is an array of token ids; otherwise a JSON string with its
	// quotes (see AppendUnquoted).
	Tokens bool
	// Item is the index of the message, or of the prompt in a batch.
	Item int
	// Size is the text's length in bytes of UTF-8 once decoded, or the number of
	// ids.
	Size int
}

// Peeked is what Peek found. It refers to the body, which must not change while it
// is in use. It is not safe for concurrent use while Peek runs; afterwards it is only
// read.
type Peeked struct {
	Body  []byte
	Route Route

	// Model is "" where ModelKind is KindAbsent or KindNull, and may be "" where
	// it is KindString.
	Model     string
	ModelKind Kind

	Stream       bool
	IncludeUsage bool // stream_options.include_usage

	// N is the number of samples asked for each prompt, at least 1; on
	// RouteGenerate it is sampling_params.n.
	N int
	// IsBatch: the prompt came as a list of prompts, perhaps of one; engines then
	// want lists in the fields that pair the legs. BatchSize is at least 1.
	IsBatch   bool
	BatchSize int

	PromptKind PromptKind
	// Prompt has the pieces of the prompt, at most MaxPromptSpans of them.
	Prompt []PromptSpan
	// PromptBytes is the length of all text pieces, decoded; PromptTokenIDs the
	// number of all token ids (or embedding rows).
	PromptBytes    int
	PromptTokenIDs int
	// Messages counts chat messages; MediaParts their parts that are not text.
	Messages   int
	MediaParts int
	// ToolBytes is the raw length of tools and tool calls, which templates render
	// into the prompt too.
	ToolBytes int

	// MaxTokens is the most output tokens the client allows (max_completion_tokens,
	// else max_tokens, on RouteGenerate sampling_params.max_new_tokens), or -1.
	MaxTokens int64
	// ReturnLogprob is set when return_logprob is true, or a list with a true.
	ReturnLogprob bool
	// Seed is valid if HasSeed; a seed that is no 64-bit integer is not read.
	Seed    int64
	HasSeed bool

	// SamplingN and SamplingMaxNewTokens are where these stand in a
	// sampling_params object; zero if absent or if it is a list.
	SamplingN            Span
	SamplingMaxNewTokens Span

	// Members is the number of top-level fields; afterOpen the offset after '{',
	// closing that of the last '}'.
	Members   int
	afterOpen int
	closing   int

	seen     FieldSet
	fields   [numFields]fieldSpan
	maxSpans int
	textItem promptShape
	idsItem  promptShape
	embeds   promptShape
	sampling samplingFacts
	scan     scanner
}

// promptShape is what one prompt field says about the batch.
type promptShape struct {
	kind  PromptKind
	batch bool
	size  int
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
	// Model stays: if the next body names the same one its string is used again.
	p.ModelKind = KindAbsent
	p.Stream, p.IncludeUsage = false, false
	p.N, p.IsBatch, p.BatchSize = 1, false, 1
	p.PromptKind = PromptNone
	p.Prompt = p.Prompt[:0]
	p.PromptBytes, p.PromptTokenIDs = 0, 0
	p.Messages, p.MediaParts, p.ToolBytes = 0, 0, 0
	p.MaxTokens, p.ReturnLogprob = -1, false
	p.Seed, p.HasSeed = 0, false
	p.SamplingN, p.SamplingMaxNewTokens = Span{}, Span{}
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

// check takes in the simple fields and refuses wrong types of those that routing
// stands on. Types that only matter to the engine are left to it.
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

// show is a value for a message: short, and never a client's text.
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

// finish judges what needs the whole body: shapes that must agree, and sizes.
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

// Samples is the number of sequences the request asks for: prompts × n.
func (p *Peeked) Samples() int {
	if p.BatchSize > math.MaxInt32 {
		return math.MaxInt
	}
	return p.BatchSize * p.N
}

// Has tells whether the body has the field, null included.
func (p *Peeked) Has(f Field) bool { return p.seen.Has(f) }

// Fields is the set of known fields that the body has.
func (p *Peeked) Fields() FieldSet { return p.seen }

// FieldKind is the type of the field's value.
func (p *Peeked) FieldKind(f Field) Kind {
	if !p.seen.Has(f) {
		return KindAbsent
	}
	return p.fields[f].kind
}

// FieldSpan is where the field's value is; zero if it is absent.
func (p *Peeked) FieldSpan(f Field) Span {
	if !p.seen.Has(f) {
		return Span{}
	}
	return p.fields[f].value
}

// Raw is the field's value as the client wrote it; nil if it is absent.
func (p *Peeked) Raw(f Field) []byte {
	if !p.seen.Has(f) {
		return nil
	}
	v := p.fields[f].value
	return p.Body[v.Start:v.End]
}

// Str is the field's value if it is a string.
func (p *Peeked) Str(f Field) (string, bool) {
	if p.FieldKind(f) != KindString {
		return "", false
	}
	return string(AppendUnquoted(nil, p.Raw(f))), true
}

// Int is the field's value if it is a plain 64-bit integer.
func (p *Peeked) Int(f Field) (int64, bool) { return p.intField(f) }

// User is the client's name for its end user, or "".
func (p *Peeked) User() string { v, _ := p.Str(FieldUser); return v }

// SessionID is the client's session, or "".
func (p *Peeked) SessionID() string { v, _ := p.Str(FieldSessionID); return v }

// AppendPromptText appends the decoded text of a piece of the prompt.
func (p *Peeked) AppendPromptText(dst []byte, at PromptSpan) []byte {
	if at.Tokens {
		return dst
	}
	return AppendUnquoted(dst, p.Body[at.Start:at.End])
}

// AppendPromptTokens appends the token ids of a piece of the prompt. ok is false if
// one of them is no 32-bit unsigned integer; dst then has those before it.
func (p *Peeked) AppendPromptTokens(dst []uint32, at PromptSpan) (_ []uint32, ok bool) {
	if !at.Tokens {
		return dst, false
	}
	var v uint64
	digits := 0
	for _, c := range p.Body[at.Start+1 : at.End] {
		switch {
		case isDigit(c):
			v = v*10 + uint64(c-'0')
			digits++
			if v > math.MaxUint32 {
				return dst, false
			}
		case c == ',' || c == ']':
			if digits > 0 {
				dst = append(dst, uint32(v))
			}
			v, digits = 0, 0
		case c == ' ' || c == '\n' || c == '\r' || c == '\t':
		default:
			return dst, false
		}
	}
	return dst, true
}
