package vllmgrpc

import (
	"encoding/binary"
	"errors"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-router/sluice/internal/generate"
)

// message is a GenerateResponse. It is decoded by hand, since one comes with nearly each token:
// a message that is reused allocates nothing once its slices have grown. Slices of bytes are
// parts of what was decoded.
type message struct {
	complete bool // else a chunk
	index    uint32
	ids      []uint32
	// prompt and cached count tokens of the prompt.
	prompt, cached uint32
	output, input  logprobs
	// finish is why the sequence ended, as the engine spells it; matchedStop the text that
	// ended it, matchedID the token, -1: none.
	finish, matchedStop []byte
	matchedID           int64
	params              []byte // kv_transfer_params_json; nil: none
}

var (
	errWire     = errors.New("a message cannot be read")
	errEmpty    = errors.New("a message is neither a part nor the end of a sequence")
	errLogprobs = errors.New("lists of log probabilities have different lengths")
)

// Numbers of fields. A chunk and a complete differ.
const (
	fieldChunk, fieldComplete = 1, 2

	chunkIDs, chunkPrompt, chunkCached, chunkOutput, chunkInput, chunkIndex = 1, 2, 4, 5, 6, 7

	completeIDs, completeFinish, completePrompt, completeCached, completeOutput, completeInput, completeIndex = 1, 2, 3, 5, 6, 7, 8
	completeMatchedID, completeMatchedStop, completeParams                                                    = 10, 11, 12
)

// field is one field of a message: a number, or bytes.
type field struct {
	number protowire.Number
	typ    protowire.Type
	value  uint64
	bytes  []byte
}

// nextField takes the first field off b.
func nextField(b []byte) (f field, rest []byte, err error) {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 {
		return f, nil, errWire
	}
	b = b[n:]
	f.number, f.typ = num, typ
	switch typ {
	case protowire.VarintType:
		f.value, n = protowire.ConsumeVarint(b)
	case protowire.Fixed32Type:
		var v uint32
		v, n = protowire.ConsumeFixed32(b)
		f.value = uint64(v)
	case protowire.Fixed64Type:
		f.value, n = protowire.ConsumeFixed64(b)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(b)
	default:
		n = protowire.ConsumeFieldValue(num, typ, b)
	}
	if n < 0 {
		return f, nil, errWire
	}
	return f, b[n:], nil
}

// decode reads b, which must stay as it is while m is used.
func (m *message) decode(b []byte) error {
	*m = message{ids: m.ids[:0], output: m.output, input: m.input, matchedID: -1}
	m.output.reset()
	m.input.reset()
	found := false
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		switch f.number {
		case fieldChunk:
			err = m.chunk(f.bytes)
		case fieldComplete:
			m.complete = true
			err = m.whole(f.bytes)
		default:
			continue
		}
		if err != nil {
			return err
		}
		if found {
			return errWire // two answers in one: not how any encoder writes it
		}
		found = true
	}
	if !found {
		return errEmpty
	}
	return nil
}

func (m *message) chunk(b []byte) (err error) {
	for len(b) > 0 {
		var f field
		if f, b, err = nextField(b); err != nil {
			return err
		}
		switch f.number {
		case chunkIDs:
			m.ids, err = appendNumbers(m.ids, f)
		case chunkPrompt:
			m.prompt, err = f.number32()
		case chunkCached:
			m.cached, err = f.number32()
		case chunkOutput:
			err = m.output.decode(f, false)
		case chunkInput:
			err = m.input.decode(f, true)
		case chunkIndex:
			m.index, err = f.number32()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *message) whole(b []byte) (err error) {
	for len(b) > 0 {
		var f field
		if f, b, err = nextField(b); err != nil {
			return err
		}
		switch f.number {
		case completeIDs:
			m.ids, err = appendNumbers(m.ids, f)
		case completeFinish:
			m.finish, err = f.text()
		case completePrompt:
			m.prompt, err = f.number32()
		case completeCached:
			m.cached, err = f.number32()
		case completeOutput:
			err = m.output.decode(f, false)
		case completeInput:
			err = m.input.decode(f, true)
		case completeIndex:
			m.index, err = f.number32()
		case completeMatchedID:
			var id uint32
			id, err = f.number32()
			m.matchedID = int64(id)
		case completeMatchedStop:
			m.matchedStop, err = f.text()
		case completeParams:
			m.params, err = f.text()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// number32 is the value of a field of type uint32.
func (f *field) number32() (uint32, error) {
	if f.typ != protowire.VarintType || f.value > math.MaxUint32 {
		return 0, errWire
	}
	return uint32(f.value), nil
}

// text is the value of a field of type string, not checked.
func (f *field) text() ([]byte, error) {
	if f.typ != protowire.BytesType {
		return nil, errWire
	}
	return f.bytes, nil
}

// appendNumbers appends a repeated field of type uint32, packed or one by one.
func appendNumbers(dst []uint32, f field) ([]uint32, error) {
	if f.typ != protowire.BytesType {
		n, err := f.number32()
		return append(dst, n), err
	}
	for b := f.bytes; len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 || v > math.MaxUint32 {
			return dst, errWire
		}
		dst, b = append(dst, uint32(v)), b[n:]
	}
	return dst, nil
}

// appendFloats appends a repeated field of type float.
func appendFloats(dst []float32, f field) ([]float32, error) {
	switch f.typ {
	case protowire.Fixed32Type:
		return append(dst, math.Float32frombits(uint32(f.value))), nil
	case protowire.BytesType:
		if len(f.bytes)%4 != 0 {
			return dst, errWire
		}
		for b := f.bytes; len(b) > 0; b = b[4:] {
			dst = append(dst, math.Float32frombits(binary.LittleEndian.Uint32(b)))
		}
		return dst, nil
	}
	return dst, errWire
}

// logprobs are the lists of an OutputLogProbs or InputLogProbs, and what becomes of them.
type logprobs struct {
	list []generate.TokenLogprobs

	values   []float32
	absent   []bool // of values; only of a prompt
	ids      []uint32
	ends     []int // of each place's part of top
	top      []generate.TokenLogprob
	topValue []float32
	topID    []uint32
}

func (l *logprobs) reset() {
	l.list, l.values, l.absent, l.ids, l.ends, l.top = l.list[:0], l.values[:0], l.absent[:0], l.ids[:0], l.ends[:0], l.top[:0]
}

// decode reads the message in a field. prompt tells that it is an InputLogProbs.
func (l *logprobs) decode(in field, prompt bool) (err error) {
	if in.typ != protowire.BytesType {
		return errWire
	}
	for b := in.bytes; len(b) > 0; {
		var f field
		if f, b, err = nextField(b); err != nil {
			return err
		}
		switch {
		case f.number == 1 && prompt:
			err = l.promptValue(f)
		case f.number == 1:
			l.values, err = appendFloats(l.values, f)
		case f.number == 2:
			l.ids, err = appendNumbers(l.ids, f)
		case f.number == 3:
			err = l.alternatives(f)
		}
		if err != nil {
			return err
		}
	}
	return l.join()
}

// promptValue reads an InputTokenLogProb, whose only field may be absent.
func (l *logprobs) promptValue(in field) error {
	if in.typ != protowire.BytesType {
		return errWire
	}
	value, absent := float32(0), true
	for b := in.bytes; len(b) > 0; {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		if b = rest; f.number == 1 && f.typ == protowire.Fixed32Type {
			value, absent = math.Float32frombits(uint32(f.value)), false
		}
	}
	l.values, l.absent = append(l.values, value), append(l.absent, absent)
	return nil
}

// alternatives reads a TopLogProbs, that of the next place.
func (l *logprobs) alternatives(in field) (err error) {
	if in.typ != protowire.BytesType {
		return errWire
	}
	l.topValue, l.topID = l.topValue[:0], l.topID[:0]
	for b := in.bytes; len(b) > 0; {
		var f field
		if f, b, err = nextField(b); err != nil {
			return err
		}
		switch f.number {
		case 1:
			l.topValue, err = appendFloats(l.topValue, f)
		case 2:
			l.topID, err = appendNumbers(l.topID, f)
		}
		if err != nil {
			return err
		}
	}
	if len(l.topValue) != len(l.topID) {
		return errLogprobs
	}
	for i, id := range l.topID {
		l.top = append(l.top, generate.TokenLogprob{ID: id, Logprob: l.topValue[i]})
	}
	l.ends = append(l.ends, len(l.top))
	return nil
}

// join makes list of the lists.
func (l *logprobs) join() error {
	n := len(l.ids)
	if len(l.values) != n || len(l.ends) != 0 && len(l.ends) != n || len(l.absent) != 0 && len(l.absent) != n {
		return errLogprobs
	}
	l.list = l.list[:0]
	for i, id := range l.ids {
		one := generate.TokenLogprobs{ID: id, Logprob: l.values[i], HasValue: len(l.absent) == 0 || !l.absent[i]}
		if len(l.ends) > 0 {
			from := 0
			if i > 0 {
				from = l.ends[i-1]
			}
			one.Top = l.top[from:l.ends[i]:l.ends[i]]
		}
		l.list = append(l.list, one)
	}
	return nil
}

// maxReason is how long the name of a reason may be, in bytes.
const maxReason = 64

// reason is why the sequence ended. An engine may know reasons that this program does not:
// the client is told them by the engine's name for them, as it is by HTTP.
func (m *message) reason() (generate.Finish, error) {
	switch string(m.finish) {
	case "":
		return generate.Running, errors.New("a sequence ends without a reason")
	case "stop":
		return generate.Stopped, nil
	case "length":
		return generate.Length, nil
	case "abort":
		return generate.Aborted, nil
	case "error":
		return generate.Failed, nil
	}
	if len(m.finish) > maxReason || !utf8.Valid(m.finish) {
		return generate.Running, errors.New("a sequence ends for a reason that has no proper name")
	}
	return generate.Other, nil
}

// event makes e the event that m is of sequence (prompt, sample). streamed tells that tokens
// came in chunks, so that those at the end of a sequence have come already: vLLM repeats the
// last ones.
func (m *message) event(e *generate.Event, prompt, sample int, streamed bool) error {
	*e = generate.Event{Prompt: prompt, Sample: sample, PromptTokens: -1, CachedTokens: int64(m.cached), MatchedID: -1}
	if m.prompt > 0 {
		e.PromptTokens = int64(m.prompt)
	}
	if !m.complete && !streamed {
		return errors.New("an answer that was not to come in parts does")
	}
	if !m.complete || !streamed {
		e.IDs, e.Logprobs, e.PromptLogprobs = m.ids, m.output.list, m.input.list
	}
	if !m.complete {
		return nil
	}
	var err error
	e.MatchedStop, e.MatchedID = string(m.matchedStop), m.matchedID
	if e.Finish, err = m.reason(); err != nil {
		return err
	}
	if e.Finish == generate.Other {
		e.Reason = string(m.finish)
	}
	return nil
}

// forget drops what a message keeps of the last answer, so that a large one is not kept.
func (m *message) forget() {
	const most = 4 << 10 // elements
	keep := message{ids: m.ids[:0], output: m.output, input: m.input}
	if cap(keep.ids) > most {
		keep.ids = nil
	}
	if cap(keep.output.list)+cap(keep.output.top) > most {
		keep.output = logprobs{}
	}
	if cap(keep.input.list)+cap(keep.input.top) > most {
		keep.input = logprobs{}
	}
	*m = keep
}
