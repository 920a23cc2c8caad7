package sim

import (
	"bytes"
	"slices"
	"strconv"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// output is what one sequence of a gRPC worker has produced. It is guarded by the answer's
// lock.
type output struct {
	r *grpcRequest
	s *sequence

	ids  []uint32 // of the words so far, more than are produced
	next int      // word

	sent    int    // tokens that chunks have told
	last    int    // tokens of the last chunk
	chunks  int    // that were sent
	text    []byte // of the tokens produced, if stops are to be found in it
	stopID  uint32
	stopped bool // by stopID
	stopStr string
	done    bool // its complete is sent
}

// id is output token k: the ids of one word after another, as the other APIs of the engine
// tell them, and the end of the turn where the model ends by itself.
func (o *output) id(k int) uint32 {
	if o.r.natural && k == o.r.out-1 {
		return endOfTurn
	}
	for len(o.ids) <= k {
		o.ids = theVocabulary().encode(o.ids, o.word(o.next))
		o.next++
	}
	return o.ids[k]
}

// word is a piece of the text.
func (o *output) word(k int) string {
	v := o.s.v
	switch {
	case k < len(o.r.texts):
		return o.r.texts[k]
	case o.r.nonce != nil && v.seed == v.prompt.hash: // not with KV of another prompt
		return " " + string(o.r.nonce) + "." + strconv.Itoa(k+1)
	}
	return word(v.seed, k)
}

// produced takes the token that the sequence has just produced, and ends it at a stop.
func (o *output) produced() {
	s, p := o.s, o.r.sampling
	id := o.id(s.produced - 1)
	if s.produced < s.out && s.produced >= int(p.GetMinTokens()) && slices.Contains(p.GetStopTokenIds(), id) {
		o.stopID, o.stopped = id, true
	}
	if len(p.GetStop()) > 0 {
		before := len(o.text)
		o.text = theVocabulary().decode(o.text, []uint32{id}, p.GetSkipSpecialTokens())
		for _, stop := range p.GetStop() {
			if s.produced >= int(p.GetMinTokens()) && bytes.Contains(o.text[max(0, before-len(stop)+1):], []byte(stop)) {
				o.stopStr = stop
				break
			}
		}
	}
	if o.stopped || o.stopStr != "" {
		s.out, s.finish = s.produced, "stop"
	}
}

// holds reports whether the engine's step told nothing yet: now and then two tokens come in
// one chunk.
func (o *output) holds() bool {
	return o.s.produced > 1 && o.s.produced < o.s.out && mix(o.s.v.seed, uint64(o.s.produced))%8 == 0
}

// tokens are the ids from..to.
func (o *output) tokens(from, to int) []uint32 {
	var ids []uint32
	for k := from; k < to; k++ {
		ids = append(ids, o.id(k))
	}
	return ids
}

// Each token has the log probability -0.5, its alternatives -1.5, -2.5 and so on, as over
// the engine's other APIs. The alternatives are the ids that follow.
func alternatives(id uint32, n int) *vllmpb.TopLogProbs {
	t := &vllmpb.TopLogProbs{}
	for x := range n {
		t.TokenIds = append(t.TokenIds, (id+uint32(x))%modelVocabulary)
		t.Values = append(t.Values, -0.5-float32(x))
	}
	return t
}

func outputLogprobs(p *vllmpb.SamplingParams, ids []uint32) *vllmpb.OutputLogProbs {
	if p.Logprobs == nil || len(ids) == 0 {
		return nil
	}
	l := &vllmpb.OutputLogProbs{TokenIds: ids}
	for _, id := range ids {
		l.TokenLogprobs = append(l.TokenLogprobs, -0.5)
		if n := int(p.GetLogprobs()); n > 0 {
			l.TopLogprobs = append(l.TopLogprobs, alternatives(id, n))
		}
	}
	return l
}

func inputLogprobs(p *vllmpb.SamplingParams, ids []uint32) *vllmpb.InputLogProbs {
	if p.PromptLogprobs == nil {
		return nil
	}
	l := &vllmpb.InputLogProbs{TokenIds: ids}
	for i, id := range ids {
		one, n := &vllmpb.InputTokenLogProb{}, 0
		if i > 0 {
			value := float32(-0.5)
			one.Value, n = &value, int(p.GetPromptLogprobs())
		}
		l.TokenLogprobs = append(l.TokenLogprobs, one)
		if p.GetPromptLogprobs() > 0 {
			l.TopLogprobs = append(l.TopLogprobs, alternatives(id, n))
		}
	}
	return l
}

// NonceAnswer is the text of the first n tokens with which a gRPC worker answers a prompt
// that has a nonce: of "nonce-a", the beginning of " nonce-a.1 nonce-a.2" and so on. A word
// is several tokens, so that n is not the number of words.
func NonceAnswer(nonce string, n int) string {
	o := output{r: &grpcRequest{nonce: []byte(nonce)}, s: &sequence{v: &vsequence{}}}
	var ids []uint32
	for k := range n {
		ids = append(ids, o.id(k))
	}
	return string(theVocabulary().decode(nil, ids, true))
}
