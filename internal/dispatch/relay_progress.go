package dispatch

import (
	"time"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokens"
	"github.com/sluice-router/sluice/internal/upstream"
)

// answerProgress is how far an answer is: when its tokens came, and the KV blocks they fill.
type answerProgress struct {
	x      *request
	output tokens.OutputCounter
	// events is the number of events with tokens so far; last is when the last came, from
	// the request's arrival; undated: last is still to be set.
	events  int32
	undated bool
	last    time.Duration
}

// note records the output of an event stream so far.
func (p *answerProgress) note(scan *openai.EventScanner, body upstream.Body) {
	if n := int32(scan.TokenEvents); n > p.events {
		p.events = n
		p.firstToken()
		p.undated = true
	}
	if p.undated && body.Buffered() == 0 {
		p.date() // events that came together have the same time
	}
	if scan.DataEvents > 0 {
		p.grow(scan)
	}
}

func (p *answerProgress) date() {
	p.undated, p.last = false, time.Since(p.x.call.Arrived)
}

// firstToken is called when the first output of the model has come, or a whole answer.
func (p *answerProgress) firstToken() {
	if rec := &p.x.call.Record; rec.TTFT == 0 {
		rec.TTFT = time.Since(p.x.call.Arrived)
		p.x.ticket.FirstToken() // the prompt's holds on its prefill rank end
	}
}

// grow books the blocks by which the answer has grown.
func (p *answerProgress) grow(scan *openai.EventScanner) {
	if n := p.output.Seen(scan.DataEvents, scan.Usage.CompletionTokens); n > 0 {
		p.x.ticket.Grow(n)
	}
	p.x.output = p.output.Tokens()
}

// record records the tokens that a stream reported and their pace, however it ended.
func (p *answerProgress) record(scan *openai.EventScanner) {
	if scan.HasUsage {
		p.x.call.Record.Usage = scan.Usage
	}
	if p.events > 0 {
		p.x.call.Record.TPOT = p.pace(scan)
	}
}

// pace is the time per output token of a stream, of each sequence in it; 0 if it had
// less than two tokens.
func (p *answerProgress) pace(scan *openai.EventScanner) time.Duration {
	tokens := int64(p.events)
	if scan.HasUsage {
		tokens = max(tokens, scan.Usage.CompletionTokens)
	}
	tokens /= int64(max(p.x.ticket.Legs, 1))
	if p.events < 2 || tokens < 2 {
		return 0
	}
	if p.undated {
		p.date()
	}
	return max(p.last-p.x.call.Record.TTFT, 1) / time.Duration(tokens-1)
}
