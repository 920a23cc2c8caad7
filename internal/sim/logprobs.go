package sim

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// logprobs are the options for log probabilities in a body of the chat or the
// completions API.
type logprobs struct {
	asked bool
	top   int // alternatives of each token
}

// maxTopLogprobs is the most alternatives of a token.
const maxTopLogprobs = 20

// field reads one of the two fields: for chat "logprobs" is a boolean and
// "top_logprobs" a number, for completions "logprobs" is the number.
func (l *logprobs) field(a api, name string, v jsontext.Value) error {
	if v.Kind() == 'n' {
		return nil
	}
	if a == chat && name == "logprobs" {
		on, err := boolean(name, v)
		l.asked = on
		return err
	}
	if a != chat && name == "top_logprobs" {
		return nil // no field of the completions API
	}
	n, err := integer(name, v)
	if err != nil {
		return err
	}
	if n < 0 || n > maxTopLogprobs {
		return invalidf(name, "%s must be between 0 and %d, got %d", name, maxTopLogprobs, n)
	}
	l.top = int(n)
	if a == completions {
		l.asked = true
	}
	return nil
}

// check is called once all fields are read.
func (l *logprobs) check(a api) error {
	if a == chat && l.top > 0 && !l.asked {
		return invalidf("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
	}
	return nil
}

// Each token has the log probability -0.5, its alternatives "alt1", "alt2" and so on
// have -1.5, -2.5 and so on, so that a test sees whether one is lost or moved.
const sampledLogprob = "-0.5"

// value appends the logprobs of a choice's tokens from..to, null if none were
// asked for. piece returns a token's text in JSON, without quotes.
func (l *logprobs) value(b []byte, a api, from, to int, piece func(k int) []byte) []byte {
	switch {
	case !l.asked:
		return append(b, "null"...)
	case a == chat:
		return l.content(b, from, to, piece)
	}
	offset := 0
	for k := range from {
		offset += len(unquoted(piece(k)))
	}
	var tokens, values, offsets, tops []byte
	for k := from; k < to; k++ {
		p := piece(k)
		sep := ","
		if k == from {
			sep = ""
		}
		tokens = append(append(append(append(tokens, sep...), '"'), p...), '"')
		values = append(append(values, sep...), sampledLogprob...)
		offsets = strconv.AppendInt(append(offsets, sep...), int64(offset), 10)
		offset += len(unquoted(p))
		tops = append(append(append(append(tops, sep...), `{"`...), p...), `":`+sampledLogprob...)
		for x := 1; x < l.top; x++ {
			tops = append(tops, `,"alt`+strconv.Itoa(x)+`":-`+strconv.Itoa(x)+`.5`...)
		}
		tops = append(tops, '}')
	}
	b = append(append(append(b, `{"text_offset":[`...), offsets...), `],"token_logprobs":[`...)
	b = append(append(append(b, values...), `],"tokens":[`...), tokens...)
	if l.top == 0 {
		return append(b, `],"top_logprobs":null}`...)
	}
	return append(append(append(b, `],"top_logprobs":[`...), tops...), "]}"...)
}

func (l *logprobs) content(b []byte, from, to int, piece func(k int) []byte) []byte {
	one := func(quoted []byte, value string) {
		b = append(append(append(b, `{"token":"`...), quoted...), `","logprob":`...)
		b = append(append(b, value...), `,"bytes":[`...)
		for i, c := range unquoted(quoted) {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(c), 10)
		}
		b = append(b, ']')
	}
	b = append(b, `{"content":[`...)
	for k := from; k < to; k++ {
		if k > from {
			b = append(b, ',')
		}
		p := piece(k)
		one(p, sampledLogprob)
		b = append(b, `,"top_logprobs":[`...)
		for x := range l.top {
			if x == 0 {
				one(p, sampledLogprob)
			} else {
				b = append(b, ',')
				one([]byte("alt"+strconv.Itoa(x)), "-"+strconv.Itoa(x)+".5")
			}
			b = append(b, '}')
		}
		b = append(b, "]}"...)
	}
	return append(b, "]}"...)
}

// unquoted is the text of a JSON string without its quotes.
func unquoted(p []byte) []byte {
	text, err := jsontext.AppendUnquote(nil, append(append([]byte{'"'}, p...), '"'))
	if err != nil {
		return p
	}
	return text
}
