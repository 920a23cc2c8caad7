package tokenizer

import (
	"errors"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-router/sluice/internal/tokenizer/pattern"
)

// preTokenizer is one step that cuts text into words.
type preTokenizer interface {
	// run passes the pieces of s to the step next. first tells that s is the beginning of
	// the text.
	run(e *encoder, s string, first bool, next int)
}

type preTokenizerFile struct {
	Type             string           `json:"type"`
	PreTokenizers    []jsontext.Value `json:"pretokenizers"` // of Sequence
	Pattern          patternFile      `json:"pattern"`       // of Split
	Behavior         string           `json:"behavior"`      // of Split and Punctuation
	Invert           bool             `json:"invert"`
	AddPrefixSpace   *bool            `json:"add_prefix_space"` // of ByteLevel and Metaspace
	UseRegex         *bool            `json:"use_regex"`        // of ByteLevel
	IndividualDigits bool             `json:"individual_digits"`
	Replacement      string           `json:"replacement"` // of Metaspace
	PrependScheme    *string          `json:"prepend_scheme"`
	Split            *bool            `json:"split"`
	Delimiter        string           `json:"delimiter"` // of CharDelimiterSplit
}

// wordPattern is GPT-2's, which ByteLevel cuts by.
const wordPattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// parsePreTokenizer reads the section "pre_tokenizer": the steps of it, sequences within
// sequences laid out flat.
func parsePreTokenizer(v jsontext.Value, list []preTokenizer, depth int) ([]preTokenizer, error) {
	if !present(v) {
		return list, nil
	}
	var f preTokenizerFile
	if err := json.Unmarshal(v, &f, fileOptions); err != nil {
		return nil, brokenSection("pre_tokenizer", err)
	}
	var step preTokenizer
	var err error
	switch f.Type {
	case "Sequence":
		if depth == 8 {
			return nil, unsupported("pre_tokenizer", "so deep nesting")
		}
		for _, v := range f.PreTokenizers {
			if list, err = parsePreTokenizer(v, list, depth+1); err != nil {
				return nil, err
			}
		}
		return list, nil
	case "Split":
		step, err = f.split()
	case "ByteLevel":
		b := byteLevel{prefixSpace: f.AddPrefixSpace == nil || *f.AddPrefixSpace}
		if f.UseRegex == nil || *f.UseRegex {
			b.words, err = compileExpression(wordPattern)
		}
		step = b
	case "Digits":
		s := split{of: expression{pattern.OfCharacters(pattern.Numeric)}, how: isolated}
		if !f.IndividualDigits {
			s.how = contiguous
		}
		step = s
	case "Punctuation":
		s := split{of: expression{pattern.OfCharacters(pattern.Punctuation)}, how: isolated}
		if f.Behavior != "" {
			s.how, err = parseBehavior(f.Behavior)
		}
		step = s
	case "WhitespaceSplit":
		step = split{of: expression{pattern.OfCharacters(pattern.Space)}, how: removed}
	case "Whitespace":
		step = split{of: expression{pattern.OfWords()}, how: removed, invert: true}
	case "CharDelimiterSplit":
		if len([]rune(f.Delimiter)) != 1 {
			return nil, errors.New("tokenizer.json: pre_tokenizer: a delimiter that is not one character")
		}
		step = split{of: literal(f.Delimiter), how: removed}
	case "Metaspace":
		step, err = f.metaspace()
	default:
		err = unsupported("pre_tokenizer", "type %q", f.Type)
	}
	if err != nil {
		return nil, err
	}
	if list = append(list, step); len(list) > maxSteps || rewrites(list) > maxRewrites || patterns(list) > maxPatterns {
		return nil, unsupported("pre_tokenizer", "so long a sequence")
	}
	return list, nil
}

// maxRewrites is how many steps may rewrite text. Each keeps what it has written until those
// behind it have read it, and may make it longer.
const maxRewrites = 4

func rewrites(list []preTokenizer) (n int) {
	for _, step := range list {
		if _, cuts := step.(split); !cuts {
			n++
		}
	}
	return n
}

// patterns counts those that are regular expressions, which take more memory than the rest.
func patterns[T any](list []T) (n int) {
	for _, step := range list {
		var of matcher
		switch step := any(step).(type) {
		case split:
			of = step.of
		case replace:
			of = step.of
		}
		if _, ok := of.(expression); ok {
			n++
		}
	}
	return n
}

func (f *preTokenizerFile) split() (preTokenizer, error) {
	how, err := parseBehavior(f.Behavior)
	if err != nil {
		return nil, err
	}
	m, err := f.Pattern.matcher("pre_tokenizer")
	return split{of: m, how: how, invert: f.Invert}, err
}

func (f *preTokenizerFile) metaspace() (preTokenizer, error) {
	if len([]rune(f.Replacement)) != 1 {
		return nil, errors.New("tokenizer.json: pre_tokenizer: a replacement that is not one character")
	}
	m := metaspace{mark: f.Replacement, always: true, split: f.Split == nil || *f.Split}
	if f.PrependScheme != nil {
		switch *f.PrependScheme {
		case "always":
		case "first":
			m.always, m.first = false, true
		case "never":
			m.always = false
		default:
			return nil, unsupported("pre_tokenizer", "the scheme %q", *f.PrependScheme)
		}
	}
	if f.AddPrefixSpace != nil && !*f.AddPrefixSpace && (m.always || m.first) {
		return nil, unsupported("pre_tokenizer", "a scheme that adds a prefix where none is wanted")
	}
	return m, nil
}

// matcher finds the next place in a text that a step is about. last is where the one before
// ended, -1 for the first: a pattern that matches no text does not do so there.
type matcher interface {
	find(e *encoder, s string, pos, last int) (start, end int, ok bool)
	bytes() int64
}

// literal is a text that stands for itself.
type literal string

func (l literal) find(_ *encoder, s string, pos, _ int) (start, end int, ok bool) {
	i := strings.Index(s[pos:], string(l))
	return pos + i, pos + i + len(l), i >= 0
}

func (l literal) bytes() int64 { return int64(len(l)) }

// expression is a regular expression.
type expression struct{ of *pattern.Pattern }

func (x expression) find(e *encoder, s string, pos, last int) (start, end int, ok bool) {
	return e.machine.Find(x.of, s, pos, last)
}

func (x expression) bytes() int64 { return x.of.Bytes() }

func compileExpression(source string) (x expression, err error) {
	p, err := pattern.Compile(source)
	if u := (*pattern.UnsupportedError)(nil); errors.As(err, &u) {
		err = unsupported("pattern", "%s", u.What)
	}
	return expression{p}, err
}

// matcher makes what finds the pattern. part is the section that it stands in.
func (f *patternFile) matcher(part string) (matcher, error) {
	switch {
	case f.String != nil && *f.String != "":
		return literal(*f.String), nil
	case f.Regex != nil:
		return compileExpression(*f.Regex)
	}
	return nil, unsupported(part, "no pattern")
}

// behavior is what becomes of the matches of a split, and of the text between them.
type behavior uint8

const (
	isolated           behavior = iota // each is a piece
	removed                            // matches are left out
	mergedWithPrevious                 // a match is part of the piece before it
	mergedWithNext
	contiguous // neighbouring matches are one piece
)

func parseBehavior(s string) (behavior, error) {
	known := map[string]behavior{
		"Isolated": isolated, "Removed": removed, "MergedWithPrevious": mergedWithPrevious,
		"MergedWithNext": mergedWithNext, "Contiguous": contiguous,
	}
	b, ok := known[s]
	if !ok {
		return 0, unsupported("pre_tokenizer", "the behavior %q", s)
	}
	return b, nil
}

// split cuts text at matches.
type split struct {
	of     matcher
	how    behavior
	invert bool // what is between the matches counts as the matches
}

func (x split) run(e *encoder, s string, first bool, next int) {
	out := cutter{e: e, s: s, first: first, next: next, how: x.how, matchBefore: false}
	pos, last := 0, -1
	for e.tick(2) {
		start, end, ok := x.of.find(e, s, pos, last)
		if !ok {
			break
		}
		if pos < start {
			out.add(pos, start, x.invert)
		}
		out.add(start, end, !x.invert)
		pos, last = end, end
	}
	if pos < len(s) {
		out.add(pos, len(s), x.invert)
	}
	out.flush()
}

// cutter puts matches and the text between them together, as a behavior says. One piece is
// held back, since what follows may belong to it.
type cutter struct {
	e           *encoder
	s           string
	first       bool
	next        int
	how         behavior
	matchBefore bool // the last part was a match
	start, end  int  // the piece held back; start == end: none
}

func (p *cutter) add(start, end int, match bool) {
	joined := false
	switch p.how {
	case isolated:
		p.pass(start, end)
		return
	case removed:
		if !match {
			p.pass(start, end)
		}
		return
	case mergedWithPrevious:
		joined = match && !p.matchBefore
	case mergedWithNext:
		joined = !match && p.matchBefore
	case contiguous:
		joined = match == p.matchBefore
	}
	p.matchBefore = match
	if joined && p.start < p.end {
		p.end = end
		return
	}
	p.flush()
	p.start, p.end = start, end
}

func (p *cutter) flush() {
	if p.start < p.end {
		p.pass(p.start, p.end)
	}
	p.start, p.end = 0, 0
}

func (p *cutter) pass(start, end int) {
	p.e.pass(p.s[start:end], p.first && start == 0, p.next)
}

// byteLevel cuts text into GPT-2's words, if words is not nil, and writes bytes as the
// characters that stand for them. Where it is the last step, the model takes the bytes
// themselves (see byteWords).
type byteLevel struct {
	prefixSpace bool
	words       expression
	plain       bool // the bytes stay what they are
}

func (b byteLevel) run(e *encoder, s string, first bool, next int) {
	if b.prefixSpace && s[0] != ' ' {
		s = e.hold(next, append(append(e.buffer(next), ' '), s...))
		e.tick(len(s) / 16)
	}
	if b.words.of == nil {
		b.word(e, s, first, next)
		return
	}
	for pos := 0; pos < len(s) && e.err == nil; {
		start, end, ok := b.words.find(e, s, pos, -1)
		if !ok {
			start, end = len(s), len(s)
		}
		if pos < start {
			b.word(e, s[pos:start], first && pos == 0, next)
		}
		if start < end {
			b.word(e, s[start:end], first && start == 0, next)
		}
		pos = end
	}
}

// word passes a word on.
func (b byteLevel) word(e *encoder, s string, first bool, next int) {
	if !b.plain {
		mapped := byteAlphabet{}.apply(e, e.mapped(next), s)
		s = e.holdMapped(next, mapped)
	}
	e.pass(s, first, next)
}

// metaspace writes spaces as a mark, puts one before the text, and cuts before each.
type metaspace struct {
	mark          string
	always, first bool // the mark is put before every piece, or before the first
	split         bool
}

func (m metaspace) run(e *encoder, s string, first bool, next int) {
	out := e.buffer(next)
	if (m.always || m.first && first) && s[0] != ' ' && !strings.HasPrefix(s, m.mark) {
		out = append(out, m.mark...)
	}
	for i := 0; i < len(s); i++ {
		if s[i] == ' ' {
			out = append(out, m.mark...)
		} else {
			out = append(out, s[i])
		}
		if !e.tick(1) {
			return
		}
	}
	s = e.hold(next, out)
	if !m.split {
		e.pass(s, first, next)
		return
	}
	split{of: literal(m.mark), how: mergedWithNext}.run(e, s, first, next)
}
