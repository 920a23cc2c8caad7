package openai

import "math"

// Span is a range of bytes of the body.
type Span struct{ Start, End int }

// IsZero reports whether nothing was found.
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

// TokenIDs tells whether prompts of this form are token ids.
func (k PromptKind) TokenIDs() bool { return k == PromptTokens || k == PromptTokenLists }

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

// promptShape is the form of one prompt field, and its batch.
type promptShape struct {
	kind  PromptKind
	batch bool
	size  int
}

// Samples is the number of sequences the request asks for: prompts × n.
func (p *Peeked) Samples() int {
	if p.BatchSize > math.MaxInt32 {
		return math.MaxInt
	}
	return p.BatchSize * p.N
}

// Has reports whether the body has the field, null included.
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

// Given tells whether the body has the field, and not as null.
func (p *Peeked) Given(f Field) bool {
	k := p.FieldKind(f)
	return k != KindAbsent && k != KindNull
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
