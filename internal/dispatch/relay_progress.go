package dispatch

import "time"

// tokens takes note of the output that has come of an event stream.
func (r *relay) tokens() {
	if r.scan.TokenEvents > r.tokenEvents {
		r.tokenEvents = r.scan.TokenEvents
		r.firstToken()
		r.newToken = true
	}
	if r.newToken && r.resp.Body.Buffered() == 0 {
		r.dateToken() // what came at once has one time
	}
	if r.scan.DataEvents > 0 {
		r.grow()
	}
}

func (r *relay) dateToken() {
	r.newToken, r.lastToken = false, time.Since(r.x.call.Arrived)
}

// pace is the time per output token of a stream, of each sequence in it; 0 if it had
// less than two tokens.
func (r *relay) pace() time.Duration {
	tokens := int64(r.tokenEvents)
	if r.scan.HasUsage {
		tokens = max(tokens, r.scan.Usage.CompletionTokens)
	}
	tokens /= int64(max(r.x.ticket.Legs, 1))
	if r.tokenEvents < 2 || tokens < 2 {
		return 0
	}
	if r.newToken {
		r.dateToken()
	}
	return max(r.lastToken-r.x.call.Record.TTFT, 1) / time.Duration(tokens-1)
}

// firstToken is called when output of the model has come, and when a whole answer has.
func (r *relay) firstToken() {
	if rec := &r.x.call.Record; rec.TTFT == 0 {
		rec.TTFT = time.Since(r.x.call.Arrived)
		r.x.ticket.FirstToken() // what the prompt booked on its prefill rank is done
	}
}

// count records the tokens that a stream told of and their pace, however it ended.
func (r *relay) count() {
	if r.scan.HasUsage {
		r.x.call.Record.Usage = r.scan.Usage
	}
	if r.tokenEvents > 0 {
		r.x.call.Record.TPOT = r.pace()
	}
}

// grow books the blocks that the answer has grown by.
func (r *relay) grow() {
	if n := r.output.Seen(r.scan.DataEvents, r.scan.Usage.CompletionTokens); n > 0 {
		r.x.ticket.Grow(n)
	}
	r.x.output = r.output.Tokens()
}
