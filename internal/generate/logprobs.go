package generate

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// logs are log probabilities that have not been sent yet, as JSON without the brackets: in
// content those of a chat, else those of a completion in a list for each of its fields.
type logs struct {
	content                       []byte
	offsets, values, tokens, tops []byte
	offset                        int // of the next token in the text of all tokens, in characters

	recent [4]uint32 // the last tokens, the oldest first
	n      int       // of recent
}

func (l *logs) reset() {
	l.sent()
	l.offset, l.n = 0, 0
}

func (l *logs) sent() {
	l.content = l.content[:0]
	l.offsets, l.values, l.tokens, l.tops = l.offsets[:0], l.values[:0], l.tokens[:0], l.tops[:0]
}

func (l *logs) release() {
	l.content = trim(l.content)
	l.offsets, l.values, l.tokens, l.tops = trim(l.offsets), trim(l.values), trim(l.tokens), trim(l.tops)
	l.reset()
}

// push makes a token the last of the recent ones, unless nothing is known of it but its id: the
// first of a prompt.
func (l *logs) push(t *TokenLogprobs) {
	if !t.HasValue {
		return
	}
	if l.n == len(l.recent) {
		copy(l.recent[:], l.recent[1:])
		l.n--
	}
	l.recent[l.n] = t.ID
	l.n++
}

// token adds a generated token.
func (l *logs) token(a *Answer, t *TokenLogprobs) {
	if a.req.Route == openai.RouteChatCompletions {
		l.chat(a, t)
	} else {
		l.completion(a, t, a.req.Form.Logprobs)
	}
	l.push(t)
}

func (l *logs) chat(a *Answer, t *TokenLogprobs) {
	b := l.content
	if len(b) > 0 {
		b = append(b, ',')
	}
	b = append(l.entry(b, a, t.ID, t.Logprob, false), `,"top_logprobs":[`...)
	first := true
	for top := range t.ranked(int(a.req.Form.Logprobs)) {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(l.entry(b, a, top.ID, top.Logprob, a.req.Form.TokensAsIDs), '}')
	}
	l.content = append(b, "]}"...)
}

// entry appends a token of a chat without its closing brace. Its bytes are those of its text,
// or of its name where named is set.
func (l *logs) entry(b []byte, a *Answer, id uint32, logprob float32, named bool) []byte {
	text := l.text(a, id)
	b = append(b, `{"token":`...)
	start := len(b)
	b = l.name(b, a, id, text)
	if named {
		text = append(a.piece[:0], b[start+1:len(b)-1]...)
		a.piece = text
	}
	b = appendLogprob(append(b, `,"logprob":`...), logprob)
	b = append(b, `,"bytes":[`...)
	for i, c := range text {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(c), 10)
	}
	return append(b, ']')
}

// completion adds a token of the completions API: with its alternatives one more than are
// asked for, if it is none of the most probable ones itself.
func (l *logs) completion(a *Answer, t *TokenLogprobs, asked int32) {
	if len(l.offsets) > 0 {
		l.offsets, l.values = append(l.offsets, ','), append(l.values, ',')
		l.tokens, l.tops = append(l.tokens, ','), append(l.tops, ',')
	}
	l.offsets = strconv.AppendInt(l.offsets, int64(l.offset), 10)
	text := l.text(a, t.ID)
	if !t.HasValue {
		a.piece = a.req.Tokenizer.Decode(a.piece[:0], []uint32{t.ID}, tokenizer.DecodeOptions{SpacesBetweenSpecial: true})
		text = a.piece
	}
	at := len(l.tokens)
	l.tokens = l.name(l.tokens, a, t.ID, text)
	if a.req.Form.TokensAsIDs {
		l.offset += len(l.tokens) - at - 2
	} else {
		l.offset += utf8.RuneCount(text)
	}
	if !t.HasValue {
		l.values, l.tops = append(l.values, "null"...), append(l.tops, "null"...)
		return
	}
	l.values = appendLogprob(l.values, t.Logprob)
	b := append(l.tops, '{')
	object := len(b)
	for top := range t.ranked(t.shown(int(asked))) {
		before := len(b)
		if before > object {
			b = append(b, ',')
		}
		key := len(b)
		b = append(l.name(b, a, top.ID, l.text(a, top.ID)), ':')
		if bytes.Contains(b[object:before], b[key:]) {
			b = b[:before] // another token of the same text
			continue
		}
		b = appendLogprob(b, top.Logprob)
	}
	l.tops = append(b, '}')
}

// ranked yields the token itself and then the most probable others, n together.
func (t *TokenLogprobs) ranked(n int) func(func(TokenLogprob) bool) {
	return func(yield func(TokenLogprob) bool) {
		if n <= 0 || !yield(TokenLogprob{t.ID, t.Logprob}) {
			return
		}
		n--
		for _, top := range t.Top {
			if n <= 0 {
				return
			}
			if top.ID == t.ID {
				continue
			}
			if n--; !yield(top) {
				return
			}
		}
	}
}

// shown is how many of the ranked tokens a completion shows when asked are asked for: so many
// if the token is one of the most probable, else one more.
func (t *TokenLogprobs) shown(asked int) int {
	more := 0 // other tokens that are more probable
	for _, top := range t.Top {
		if top.ID != t.ID && top.Logprob > t.Logprob {
			more++
		}
	}
	if more >= asked {
		return asked + 1
	}
	return asked
}

// name appends how log probabilities name a token.
func (l *logs) name(b []byte, a *Answer, id uint32, text []byte) []byte {
	if a.req.Form.TokensAsIDs {
		b = strconv.AppendUint(append(b, `"token_id:`...), uint64(id), 10)
		return append(b, '"')
	}
	return appendQuoted(b, text)
}

// text is the text that names a token, valid until the next call.
func (l *logs) text(a *Answer, id uint32) []byte {
	a.piece = a.req.Tokenizer.AppendTokenText(a.piece[:0], l.recent[:l.n], id)
	return a.piece
}

// echoes reports whether an echo has log probabilities.
func (a *Answer) echoes() bool {
	f := &a.req.Form
	return a.req.Route == openai.RouteCompletions && f.Echo != nil && f.Logprobs >= 0
}

// echoUnknown is promptLogprobs for an engine that tells nothing of the prompt: each token of
// the echo is there, without a value, as the first one always is.
func (a *Answer) echoUnknown(p *promptState, ids []uint32) {
	if !a.echoes() {
		return
	}
	for _, id := range ids {
		p.echo.completion(a, &TokenLogprobs{ID: id}, a.req.Form.Logprobs)
	}
}

// promptLogprobs renders those of a prompt: for the list of their own, and for an echo.
func (a *Answer) promptLogprobs(p *promptState, list []TokenLogprobs) {
	f := &a.req.Form
	if a.echoes() {
		for i := range list {
			p.echo.completion(a, &list[i], f.Logprobs)
			p.echo.push(&list[i])
		}
	}
	if f.PromptLogprobs < 0 || a.req.Stream { // a stream has no place for the list
		return
	}
	var names logs
	b := append(p.logs, '[')
	for i := range list {
		t := &list[i]
		if i > 0 {
			b = append(b, ',')
		}
		if !t.HasValue {
			b = append(b, "null"...)
			continue
		}
		b = append(b, '{')
		shown := t.shown(int(f.PromptLogprobs))
		place := 0
		for top := range t.ranked(shown) {
			if place > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(append(b, '"'), uint64(top.ID), 10)
			b = appendLogprob(append(b, `":{"logprob":`...), top.Logprob)
			b = append(b, `,"rank":`...)
			if rank := t.rank(top); rank > 0 {
				b = strconv.AppendInt(b, int64(rank), 10)
			} else {
				b = append(b, "null"...)
			}
			b = append(b, `,"decoded_token":`...)
			b = append(appendQuoted(b, names.text(a, top.ID)), '}')
			place++
		}
		b = append(b, '}')
		names.push(t)
	}
	p.logs = append(b, ']')
}

// rank is the place of one of the ranked tokens among all by their probability, from 1; 0 if
// it can't be told, as all the others that are known are more probable.
func (t *TokenLogprobs) rank(of TokenLogprob) int {
	above, below := 0, false
	for top := range t.ranked(len(t.Top) + 1) {
		switch {
		case top.ID == of.ID:
		case top.Logprob > of.Logprob:
			above++
		default:
			below = true
		}
	}
	if of.ID == t.ID && !below {
		return 0
	}
	return above + 1
}
