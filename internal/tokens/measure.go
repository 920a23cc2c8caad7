package tokens

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/sluice-router/sluice/internal/openai"
)

// Prompt is what the length of a prompt is estimated from. It holds no references, so
// that it may outlive the request's body.
type Prompt struct {
	// IDs are the token ids, or rows of embeddings: exact.
	IDs int64
	// ASCII and Other are the bytes of text, as UTF-8, within and beyond ASCII.
	ASCII, Other int64
	// ToolBytes is the JSON of tools and tool calls, Messages their number, Media
	// the parts that are no text.
	ToolBytes, Messages, Media int64
	// Prompts of a batch; at least 1.
	Prompts int64

	// clear: an engine's count of the prompt counts exactly what is measured here. In
	// the Messages API (messagesAPI) a count may leave out cached tokens.
	clear, messagesAPI bool
}

// Counted is a prompt, or a batch of prompts, whose tokens were counted by the model's own
// tokenizer. Nothing is learned from it.
func Counted(ids int64, prompts int) Prompt {
	return Prompt{IDs: ids, Prompts: int64(max(prompts, 1))}
}

// IsExact reports whether there is nothing to estimate.
func (p *Prompt) IsExact() bool { return p.IDs > 0 && p.text() == 0 && p.Media == 0 }

func (p *Prompt) text() int64 { return p.ASCII + p.Other + p.ToolBytes }

const (
	// sampleBytes is how much text is sampled to find the share of ASCII, in bytes; a
	// prompt that is not longer is read whole.
	sampleBytes = 512
	// samples is the number of places from which it is sampled.
	samples = 16
	// maxWalk bounds the pieces of a prompt that are sampled.
	maxWalk = 64
)

// Measure measures a request's prompt. Its cost does not grow with
// the prompt, except for bodies whose prompt Peek does not look for (the
// Responses API and routes unknown to it): those are searched once for encoded
// media.
func Measure(p *openai.Peeked) Prompt {
	m := Prompt{
		IDs: int64(p.PromptTokenIDs), ToolBytes: int64(p.ToolBytes),
		Messages: int64(p.Messages), Media: int64(p.MediaParts), Prompts: int64(max(p.BatchSize, 1)),
		messagesAPI: p.Route == openai.RouteMessages,
	}
	if p.PromptKind == openai.PromptNone {
		m.raw(p)
		return m
	}
	text := int64(p.PromptBytes)
	m.Other = min(int64(float64(text)*otherShare(p)+0.5), text)
	m.ASCII = text - m.Other
	// A native answer of several samples counts its prompt for each sample, a stream of
	// several prompts reports one at a time, and the tokens of media depend on their
	// encoder.
	m.clear = m.IDs == 0 && p.Samples() == 1
	return m
}

// raw measures a body of unknown form by the length of its JSON.
func (p *Prompt) raw(body *openai.Peeked) {
	b := body.Body
	if input := body.Raw(openai.FieldInput); input != nil {
		b = input
	}
	text, media := withoutMedia(b)
	p.Media += media
	p.ASCII = text
}

// withoutMedia returns the length of a JSON text without the data URLs in it, and
// their number.
func withoutMedia(b []byte) (text, media int64) {
	mark := []byte(";base64,")
	text = int64(len(b))
	for {
		i := bytes.Index(b, mark)
		if i < 0 {
			return text, media
		}
		b = b[i+len(mark):]
		n := bytes.IndexByte(b, '"')
		if n < 0 {
			n = len(b)
		}
		text -= int64(n)
		media++
		b = b[n:]
	}
}

// otherShare estimates what part of the text's bytes is beyond ASCII.
func otherShare(p *openai.Peeked) float64 {
	spans := p.Prompt
	switch {
	case p.PromptBytes <= sampleBytes && len(spans) <= maxWalk:
		var c census
		for i := range spans {
			c.take(p, &spans[i], 0, spans[i].Len())
		}
		return c.share()
	case len(spans) <= maxWalk:
		return evenShare(p, spans)
	}
	// Too many pieces: one of them per sample, weighted by its size.
	var sum, all float64
	for i := range samples {
		s := &spans[(2*i+1)*len(spans)/(2*samples)]
		if s.Tokens || s.Size == 0 {
			continue
		}
		var c census
		c.take(p, s, s.Len()/2-sampleBytes/samples/2, sampleBytes/samples)
		sum += c.share() * float64(s.Size)
		all += float64(s.Size)
	}
	if all == 0 {
		return 0
	}
	return sum / all
}

// evenShare samples at even distances in the text.
func evenShare(p *openai.Peeked, spans []openai.PromptSpan) float64 {
	total := 0
	for i := range spans {
		if !spans[i].Tokens {
			total += spans[i].Len()
		}
	}
	step := max(total/samples, 1)
	next := step / 2
	var c census
	for i := range spans {
		s := &spans[i]
		if s.Tokens {
			continue
		}
		n := s.Len()
		for ; next < n; next += step {
			c.take(p, s, next, sampleBytes/samples)
		}
		next -= n
	}
	return c.share()
}

// census counts the decoded bytes of samples.
type census struct{ ascii, other int }

func (c *census) share() float64 {
	if c.other == 0 {
		return 0
	}
	return float64(c.other) / float64(c.ascii+c.other)
}

const highBits = 0x8080808080808080

// take counts up to n bytes of a string from an offset in it.
func (c *census) take(p *openai.Peeked, s *openai.PromptSpan, at, n int) {
	if s.Tokens {
		return
	}
	first, last := s.Start+1, s.End-1 // without the quotes
	from := min(max(s.Start+at, first), last)
	start := max(from-5, first)
	if from >= 8 && !hasBackslash(binary.LittleEndian.Uint64(p.Body[from-8:])) {
		start = from
	}
	for i := start; i < from; i++ {
		if p.Body[i] == '\\' && p.Body[i+1] == 'u' {
			from = min(i+6, last) // not in the middle of an escape
			break
		}
	}
	b := p.Body[from:min(from+n, last)]
	for len(b) >= 8 {
		w := binary.LittleEndian.Uint64(b)
		if hasBackslash(w) {
			break
		}
		high := bits.OnesCount64(w & highBits)
		c.other += high
		c.ascii += 8 - high
		b = b[8:]
	}
	for len(b) > 0 {
		switch {
		case b[0] == '\\':
			b = b[c.escape(b):]
			continue
		case b[0] >= 0x80:
			c.other++
		default:
			c.ascii++
		}
		b = b[1:]
	}
}

func hasBackslash(w uint64) bool {
	const ones = 0x0101010101010101
	x := w ^ '\\'*ones
	return (x-ones)&^x&highBits != 0
}

// escape counts the bytes that an escape at the start of b stands for, and returns its
// length. Clients that write only ASCII send all other text as escapes.
func (c *census) escape(b []byte) int {
	if len(b) < 2 || b[1] != 'u' {
		c.ascii++
		return min(len(b), 2)
	}
	if len(b) < 6 {
		return len(b) // cut off by the sample's end
	}
	switch {
	case b[2] == '0' && b[3] == '0' && b[4] < '8':
		c.ascii++
	case b[2] == '0' && b[3] < '8', isD(b[2]) && b[3] >= '8':
		c.other += 2 // also each half of a surrogate pair
	default:
		c.other += 3
	}
	return 6
}

func isD(b byte) bool { return b == 'd' || b == 'D' }
