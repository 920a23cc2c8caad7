package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
	"unsafe"

	"github.com/sluice-router/sluice/internal/tokenizer/pattern"
)

var (
	errGrows        = errors.New("the tokenizer's normalizer makes the text too long")
	errWork         = errors.New("the tokenizer takes too long for a text of this length")
	errOverlap      = errors.New("tokens that take white space overlap in the text")
	errUnknownToken = errors.New("the tokenizer has no token for what its vocabulary cannot spell")
)

// Work is counted in units of about 10 ns, in misses of the cache of ten times as much;
// between two looks at the context is at most about a millisecond of it.
const unitsPerLook = 1 << 14

// What a text may cost in all: ten times what one costs with the tokenizers of known
// models. It is not reached but with a file that was made to.
const (
	workPerByte = 512
	freeWork    = 1 << 21
)

// Encoders keep their buffers for the next text, up to this size each.
const keptBytes = 1 << 20

// Encode appends the ids of text to dst. With addSpecial, the tokens that the model wants
// before and behind a text, such as <s>, are added. Special tokens that are written in the
// text are taken as such. The time is proportional to the length of the text, at worst
// times its logarithm; so is the memory, which is given back: up to 60 bytes for each byte
// of the longest word.
//
// When ctx ends, Encode returns its error within 20 ms. Other errors, which are of the
// model and not of the text, are those of a tokenizer.json that makes texts grow, or that
// goes over the same text again and again. With an error dst is returned as it was.
func (t *Tokenizer) Encode(ctx context.Context, dst []uint32, text string, addSpecial bool) ([]uint32, error) {
	return t.EncodeAtMost(ctx, dst, text, addSpecial, 0)
}

// TooManyError tells that a text has more ids than were wanted. It was not encoded to its
// end.
type TooManyError struct {
	AtLeast int // ids that the text has
}

// Error returns the number.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("the text has at least %d tokens", e.AtLeast)
}

// EncodeAtMost is Encode for a text of which no more than so many ids are wanted, if most is
// not 0. A text that has more is a *TooManyError, soon after that is known: its cost is that
// of most ids, and not that of its length. If it has just a few more, it may be encoded all
// the same.
func (t *Tokenizer) EncodeAtMost(ctx context.Context, dst []uint32, text string, addSpecial bool, most int) ([]uint32, error) {
	if err := ctx.Err(); err != nil {
		return dst, err
	}
	if !utf8.ValidString(text) {
		text = string([]rune(text)) // U+FFFD for each byte that is not valid
	}
	e, _ := t.encoders.Get().(*encoder)
	if e == nil {
		e = newEncoder(t)
	}
	n := len(dst)
	e.begin(ctx, dst, len(text))
	if most > 0 {
		e.most = n + most
	}
	if addSpecial {
		e.dst = append(e.dst, t.post.before...)
	}
	e.text(text)
	if addSpecial {
		e.dst = append(e.dst, t.post.behind...)
	}
	dst, err := e.dst, e.err
	e.end()
	t.encoders.Put(e)
	if tooMany := (*TooManyError)(nil); errors.As(err, &tooMany) {
		tooMany.AtLeast -= n
	}
	if err != nil {
		return dst[:n], err
	}
	return dst, nil
}

// encoder encodes one text at a time.
type encoder struct {
	t     *Tokenizer
	ctx   context.Context
	err   error
	dst   []uint32
	units int // of work until the next look at the context
	limit int // bytes that a segment may be after it was rewritten
	work  int // units left for the text
	most  int // ids that dst may have

	machine pattern.Machine
	cutLeft bool // the normalizer took something away at the beginning of the segment
	normal  [2][]byte
	form    []formChar
	sorted  []formChar
	bufs    []stepBuffers // by the step of the pre-tokenizer

	// Of one word, see merge.go.
	ids    []uint32
	pieces []piece
	links  []link
	heap   []uint64
	char   []byte
}

// stepBuffers hold text that a step has written and that the steps after it read.
type stepBuffers struct{ text, mapped []byte }

func newEncoder(t *Tokenizer) *encoder {
	e := &encoder{t: t, bufs: make([]stepBuffers, len(t.pre)+1)}
	e.machine.More = e.more
	return e
}

// begin makes e ready for a text of so many bytes.
func (e *encoder) begin(ctx context.Context, dst []uint32, bytes int) {
	e.ctx, e.err, e.dst = ctx, nil, dst
	e.units = unitsPerLook
	e.limit = 1<<16 + 16*bytes
	e.work = freeWork + workPerByte*bytes
	e.most = math.MaxInt
	e.machine.Steps, e.machine.Pause = 0, unitsPerLook
}

// end lets go of what belongs to the text, and of large buffers.
func (e *encoder) end() {
	e.ctx, e.dst = nil, nil
	for i := range e.bufs {
		e.bufs[i].text = kept(e.bufs[i].text)
		e.bufs[i].mapped = kept(e.bufs[i].mapped)
	}
	e.normal[0], e.normal[1] = kept(e.normal[0]), kept(e.normal[1])
	e.form, e.sorted = kept(e.form), kept(e.sorted)
	e.ids, e.links, e.heap = kept(e.ids), kept(e.links), kept(e.heap)
	e.machine.Shrink(keptBytes)
}

// kept returns s for another use, or nil if it is large.
func kept[T any](s []T) []T {
	var one T
	if cap(s)*int(unsafe.Sizeof(one)) > keptBytes {
		return nil
	}
	return s[:0]
}

// fail ends the encoding with an error.
func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// tick counts work and looks at the context once in a while. It reports whether to go on.
func (e *encoder) tick(units int) bool {
	if e.units -= units; e.units < 0 {
		if e.work -= unitsPerLook - e.units; e.work < 0 {
			e.fail(errWork)
		}
		e.units = unitsPerLook
		if err := e.ctx.Err(); err != nil {
			e.fail(err)
		}
		if len(e.dst) > e.most {
			e.fail(&TooManyError{AtLeast: len(e.dst)})
		}
	}
	return e.err == nil
}

// roomFor reports whether the ids of a word of so many pieces may fit: no token has more
// pieces than bytes.
func (e *encoder) roomFor(pieces int) bool {
	least := len(e.dst) + (pieces-1)/e.t.longest + 1
	if least > e.most {
		e.fail(&TooManyError{AtLeast: least})
	}
	return e.err == nil
}

// more reports whether the machine may take more steps.
func (e *encoder) more() bool {
	if !e.tick(unitsPerLook + 1) {
		e.machine.Pause = -1 // it ends, and does not begin again in this text
		return false
	}
	e.machine.Pause = e.machine.Steps + unitsPerLook
	return true
}

// text encodes a text: added tokens, and the segments between them.
func (e *encoder) text(s string) {
	e.between(e.t.inText, s, true, (*encoder).segment)
}

// between appends the added tokens that f finds in s, and passes what is between them on.
func (e *encoder) between(f *finder, s string, first bool, pass func(e *encoder, s string, first bool)) {
	if f == nil {
		pass(e, s, first)
		return
	}
	from, pos := 0, 0
	for e.err == nil {
		rule, start, end, resume, ok := f.next(e, s, from, pos)
		if !ok {
			break
		}
		if from < start {
			pass(e, s[from:start], first && from == 0)
		}
		e.tick(max(end-from, 0) + 1)
		if start < end {
			e.dst = append(e.dst, rule.id)
		} else if start > end {
			e.fail(errOverlap)
		}
		from, pos = end, resume
	}
	if from < len(s) {
		pass(e, s[from:], first && from == 0)
	}
}

// segment encodes text without added tokens but those that are looked for in normalised
// text.
func (e *encoder) segment(s string, first bool) {
	e.cutLeft = false
	if s = e.normalize(s); e.err != nil {
		return
	}
	e.between(e.t.inNormal, s, first && !e.cutLeft, (*encoder).words)
}

// normalize rewrites s by all normalizers. What it returns is valid until it is called again.
func (e *encoder) normalize(s string) string {
	for i, n := range e.t.normal {
		buf := n.apply(e, e.normal[i%2][:0], s)
		e.normal[i%2] = buf
		if len(buf) > e.limit {
			e.fail(errGrows)
		}
		if s = stringOf(buf); !e.tick(len(s) / 16) {
			break
		}
	}
	return s
}

// words encodes normalised text without added tokens.
func (e *encoder) words(s string, first bool) { e.pass(s, first, 0) }

// pass gives a piece to a step of the pre-tokenizer, or to the model if it is behind the
// last one.
func (e *encoder) pass(s string, first bool, step int) {
	switch {
	case s == "" || e.err != nil:
	case step == len(e.t.pre):
		e.t.model.word(e, s)
	default:
		e.t.pre[step].run(e, s, first, step+1)
	}
}

// buffer returns the empty buffer of the step before next; hold takes it back, and gives
// what it holds as text, valid until the step writes again.
func (e *encoder) buffer(next int) []byte { return e.bufs[next-1].text[:0] }

func (e *encoder) hold(next int, b []byte) string {
	if e.bufs[next-1].text = b; len(b) > e.limit {
		e.fail(errGrows)
	}
	return stringOf(b)
}

// mapped and holdMapped are the same for a second buffer of the step.
func (e *encoder) mapped(next int) []byte { return e.bufs[next-1].mapped[:0] }

func (e *encoder) holdMapped(next int, b []byte) string {
	if e.bufs[next-1].mapped = b; len(b) > e.limit {
		e.fail(errGrows)
	}
	return stringOf(b)
}

// stringOf returns b as a string without copying it. It is valid until b changes.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
