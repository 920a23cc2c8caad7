package generate

import (
	"bytes"
	"slices"

	"github.com/sluice-router/sluice/internal/stopwords"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// sequence is one choice of the answer.
type sequence struct {
	prompt, index int
	limit         uint32 // of tokens

	stream tokenizer.Stream
	match  stopwords.Matcher
	tokens uint32 // so far
	// last is a token that ends the sequence unless others follow; its text waits.
	last    uint32
	waiting bool

	ended     bool // by the engine's word or by a stop string
	told      bool // the engine told the end
	finish    Finish
	reason    string // of Other
	stop      string // the stop string that ended it, "": none
	stopID    int64  // the stop token, -1: none
	announced bool   // its first event has been sent

	// What has not been sent yet: all of it for clients that do not stream.
	text []byte
	ids  []uint32 // only if they were asked for
	logs logs
	news bool // tokens that have not been sent, with or without text
}

func (s *sequence) begin(a *Answer, index int) {
	r := a.req
	prompt := index / r.Samples
	*s = sequence{
		prompt: prompt, index: index, limit: r.MaxTokens(prompt),
		stream: s.stream, match: a.stops.Begin(), stopID: -1,
		text: s.text[:0], ids: s.ids[:0], logs: s.logs,
	}
	s.logs.reset()
	if !r.hasText() {
		return
	}
	s.stream.BeginAfter(r.Tokenizer, r.decodeOptions(), r.Prompts[prompt])
}

// hasText reports whether the answer has a text of the generated tokens.
func (r *Request) hasText() bool { return r.Tokenizer != nil && !r.Form.OnlyEcho }

func (r *Request) decodeOptions() tokenizer.DecodeOptions {
	return tokenizer.DecodeOptions{SkipSpecial: r.Sampling.SkipSpecial, SpacesBetweenSpecial: r.Sampling.SpacesBetweenSpecial, AsVLLM: true}
}

func (s *sequence) release() {
	s.text = trim(s.text)
	s.logs.release()
	if cap(s.ids) > maxKept/4 {
		s.ids = nil
	}
	s.stream.Begin(nil, tokenizer.DecodeOptions{})
	*s = sequence{stream: s.stream, text: s.text, ids: s.ids[:0], logs: s.logs}
}

// take takes the tokens and the end that an event tells. wait: the sequence must end here, the
// engine's word for it follows at once, and both are to be one event for the client.
func (s *sequence) take(a *Answer, e *Event) (wait bool) {
	r := a.req
	stop := false // the last token ends the sequence
	for i, id := range e.IDs {
		if s.waiting {
			s.waiting = false
			s.spell(a, s.last) // it did not end the sequence
			if s.ended {
				return false
			}
		}
		s.tokens++
		s.news = true
		if r.Form.TokenIDs {
			s.ids = append(s.ids, id)
		}
		if r.Form.Logprobs >= 0 && !r.Form.OnlyEcho {
			if s.tokens == 1 {
				s.logs.offset = a.prompts[s.prompt].echo.offset // behind an echo
			}
			s.logs.token(a, &e.Logprobs[i])
		}
		stop = s.isStop(r, id) || e.Finish == Stopped && e.MatchedStop == "" && i == len(e.IDs)-1
		if stop && !r.Sampling.IncludeStop {
			s.last, s.waiting = id, true
			continue
		}
		if s.spell(a, id); s.ended {
			return false
		}
	}
	if e.Finish != Running {
		s.end(a, e)
		return false
	}
	return stop || s.tokens >= s.limit
}

// isStop reports whether the engine ends a sequence with this token.
func (s *sequence) isStop(r *Request, id uint32) bool {
	if slices.Contains(r.Sampling.StopIDs, id) {
		return true
	}
	return !r.Sampling.IgnoreEOS && slices.Contains(r.EOS, id)
}

// spell appends a token's text, as far as it is certain.
func (s *sequence) spell(a *Answer, id uint32) {
	if !a.req.hasText() {
		return
	}
	a.piece = s.stream.Append(a.piece[:0], id)
	s.append(a, a.piece)
}

// append appends text up to a stop string.
func (s *sequence) append(a *Answer, text []byte) {
	if s.tokens <= a.req.Sampling.MinTokens && len(a.req.Sampling.Stop) > 0 {
		s.text = s.match.Pass(s.text, text)
		return
	}
	var matched int
	if s.text, matched = s.match.Append(s.text, text); matched >= 0 {
		s.stop = a.req.Sampling.Stop[matched]
		s.finished(a, Stopped)
	}
}

// end ends the sequence by the engine's word.
func (s *sequence) end(a *Answer, e *Event) {
	if s.waiting {
		s.waiting = false
		if e.Finish != Stopped || e.MatchedStop != "" {
			s.spell(a, s.last)
		}
	}
	if s.ended {
		return
	}
	if a.req.hasText() {
		a.piece = s.stream.Flush(a.piece[:0])
		s.text = s.match.Flush(s.match.Pass(s.text, a.piece))
	}
	// The engine found a stop string that was not found here. What has been sent stays.
	if stop := e.MatchedStop; stop != "" {
		if at := bytes.LastIndex(s.text, []byte(stop)); at >= 0 {
			if a.req.Sampling.IncludeStop {
				at += len(stop)
			}
			s.text = s.text[:at]
		}
		s.stop = stop
	}
	s.stopID, s.reason = e.MatchedID, e.Reason
	s.finished(a, e.Finish)
}

func (s *sequence) finished(a *Answer, f Finish) {
	s.ended, s.finish = true, f
	a.open--
}
