package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp/syntax"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// grpcRequest is a Generate call's request as the engine takes it.
type grpcRequest struct {
	*vllmpb.GenerateRequest
	sampling *vllmpb.SamplingParams // never nil
	ids      []uint32
	prompt   prompt
	n        int
	out      int      // tokens to produce, unless a stop comes before
	finish   string   // after that many
	natural  bool     // the model ends by itself after out tokens, the last of which is endOfTurn
	texts    []string // the words of the output, of a fault or of a constraint; nil: the model's own
	nonce    []byte   // of the prompt's text
	kv       *transferParams
	scope    *cacheScope
}

// maxGRPCLogprobs is the most alternatives of a token that the engine is set up for.
const maxGRPCLogprobs = 20

// parseGRPC checks a request, in the engine's order. Its errors are *wireError.
func (w *Worker) parseGRPC(c *call, m *vllmpb.GenerateRequest) (*grpcRequest, error) {
	r := &grpcRequest{GenerateRequest: m, sampling: m.GetSamplingParams()}
	if r.sampling == nil {
		r.sampling = &vllmpb.SamplingParams{}
	}
	if err := r.parseKV(); err != nil {
		return nil, err
	}
	switch in := m.GetInput().(type) {
	case *vllmpb.GenerateRequest_Tokenized:
		r.ids = in.Tokenized.GetInputIds()
	case *vllmpb.GenerateRequest_Text:
		r.ids = theVocabulary().encode(nil, in.Text)
		if t := r.sampling.TruncatePromptTokens; t != nil {
			keep := int(*t)
			if keep < -1 {
				return nil, invalidf("", "truncate_prompt_tokens must be -1 or more, got %d", keep)
			}
			if keep == -1 {
				keep = w.opt.ContextLength - 1
			}
			r.ids = r.ids[max(0, len(r.ids)-keep):]
		}
	}
	if err := r.checkSampling(); err != nil {
		return nil, err
	}
	if len(r.ids) == 0 {
		return nil, invalidf("", "The decoder prompt cannot be empty")
	}
	for _, id := range r.ids {
		if id >= modelVocabulary {
			return nil, invalidf("", "Token id %d is out of vocabulary", id)
		}
	}
	if len(r.ids) >= w.opt.ContextLength {
		return nil, invalidf("", "The decoder prompt (length %d) is longer than the maximum model length of %d, which must hold at least one token of output too", len(r.ids), w.opt.ContextLength)
	}
	if rank := m.DataParallelRank; rank != nil && (*rank < 0 || int(*rank) >= w.opt.DPSize) {
		return nil, invalidf("", "data_parallel_rank %d is out of range [0, %d)", *rank, w.opt.DPSize)
	}
	r.scope = w.scopeOf("", "", "", c.rec.Header)
	h := w.hasher(r.scope)
	for _, id := range r.ids {
		h.add(int64(id))
	}
	if w.caches() {
		h.grow = h.fork()
	}
	r.prompt = h.prompt
	r.nonce = nonceOf(theVocabulary().decode(nil, r.ids, true))
	r.setLength(w, c.fault)
	if w.pages(len(r.ids)+r.out) > w.opt.KVTokens {
		return nil, invalidf("", "The request of %d tokens needs more than the KV cache of %d tokens", len(r.ids)+r.out, w.opt.KVTokens)
	}
	return r, nil
}

func (r *grpcRequest) parseKV() error {
	if r.KvTransferParamsJson == nil {
		return nil
	}
	text := jsontext.Value(r.GetKvTransferParamsJson())
	if !text.IsValid(jsonOptions...) {
		return invalidf("", "Invalid kv_transfer_params_json: no JSON value")
	}
	text = compact(text)
	if text.Kind() != '{' {
		return invalidf("", "kv_transfer_params_json must be a JSON object")
	}
	if string(text) != "{}" {
		r.kv = parseTransfer(text)
	}
	return nil
}

func (r *grpcRequest) checkSampling() error {
	s := r.sampling
	r.n = max(1, int(s.GetN()))
	temperature := float32(1)
	if s.Temperature != nil {
		temperature = *s.Temperature
	}
	between := func(name string, v, least, most float32) error {
		if v < least || v > most || v != v {
			return invalidf(name, "%s must be in [%v, %v], got %v.", name, least, most, v)
		}
		return nil
	}
	for _, err := range []error{
		between("presence_penalty", s.GetPresencePenalty(), -2, 2),
		between("frequency_penalty", s.GetFrequencyPenalty(), -2, 2),
		between("min_p", s.GetMinP(), 0, 1),
		between("top_p", s.GetTopP(), 0, 1), // 0 is read as 1
	} {
		if err != nil {
			return err
		}
	}
	switch most := s.MaxTokens; {
	case r.n > maxN:
		return invalidf("", "n must be at most %d, got %d.", maxN, r.n)
	case s.GetRepetitionPenalty() < 0:
		return invalidf("", "repetition_penalty must be greater than zero, got %v.", s.GetRepetitionPenalty())
	case temperature < 0 || temperature != temperature:
		return invalidf("temperature", "temperature must be non-negative, got %v.", temperature)
	case most != nil && *most == 0:
		return invalidf("max_tokens", "max_tokens must be at least 1, got 0.")
	case most != nil && s.GetMinTokens() > *most:
		return invalidf("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", *most, s.GetMinTokens())
	case r.n > 1 && temperature == 0:
		return invalidf("n", "n must be 1 when using greedy sampling, got %d.", r.n)
	case s.GetLogprobs() > maxGRPCLogprobs || s.GetLogprobs() < 0:
		return invalidf("logprobs", "Requested sample logprobs of %d, which is greater than max allowed: %d", s.GetLogprobs(), maxGRPCLogprobs)
	case s.GetPromptLogprobs() > maxGRPCLogprobs || s.GetPromptLogprobs() < 0:
		return invalidf("prompt_logprobs", "Requested prompt logprobs of %d, which is greater than max allowed: %d", s.GetPromptLogprobs(), maxGRPCLogprobs)
	}
	for _, stop := range s.GetStop() {
		if stop == "" {
			return invalidf("stop", "stop cannot contain an empty string.")
		}
	}
	for id := range s.GetLogitBias() {
		if id < 0 || id >= modelVocabulary {
			return invalidf("logit_bias", "token_id(s) [%d] in logit_bias contain out-of-vocab token ids. Vocabulary size: %d", id, modelVocabulary)
		}
	}
	for _, id := range s.GetStopTokenIds() {
		if id >= modelVocabulary {
			return invalidf("stop_token_ids", "token_id(s) [%d] in stop_token_ids contain out-of-vocab token ids. Vocabulary size: %d", id, modelVocabulary)
		}
	}
	return checkConstraint(s)
}

// checkConstraint refuses what no output can be held to.
func checkConstraint(s *vllmpb.SamplingParams) error {
	refuse := func(kind string, err any) error {
		return invalidf("structured_outputs", "Failed to convert the %s to a grammar: %v", kind, err)
	}
	switch x := s.GetConstraint().(type) {
	case *vllmpb.SamplingParams_JsonSchema:
		var schema any
		if err := json.Unmarshal([]byte(x.JsonSchema), &schema); err != nil {
			return refuse("JSON schema", err)
		}
		if _, ok := schema.(map[string]any); !ok {
			return refuse("JSON schema", "it is no object")
		}
	case *vllmpb.SamplingParams_Regex:
		if _, err := syntax.Parse(x.Regex, syntax.Perl); err != nil {
			return refuse("regex", err)
		}
	case *vllmpb.SamplingParams_Grammar:
		if !strings.Contains(x.Grammar, "root") {
			return refuse("grammar", "it has no rule \"root\"")
		}
	case *vllmpb.SamplingParams_StructuralTag:
		if !json.Valid([]byte(x.StructuralTag)) {
			return refuse("structural tag", "it is no JSON")
		}
	case *vllmpb.SamplingParams_Choice:
		if len(x.Choice.GetChoices()) == 0 {
			return refuse("choice", "there are no choices")
		}
	}
	return nil
}

// setLength finds how long the output is. A max_tokens of all that the context has left is
// no limit: the model then ends by itself, after as many tokens as the engine's other APIs
// give without a limit.
func (r *grpcRequest) setLength(w *Worker, f *Fault) {
	left := w.opt.ContextLength - len(r.ids)
	most := left
	if m := r.sampling.MaxTokens; m != nil {
		most = int(min(int64(*m), int64(left))) // more is cut, without an error
	}
	r.out, r.finish = most, "length"
	end := max(w.Timing().OutputTokens, int(r.sampling.GetMinTokens()))
	switch r.texts = f.Tokens; {
	case len(r.texts) > 0:
	case len(r.sampling.GetChoice().GetChoices()) > 0:
		r.texts = r.sampling.GetChoice().GetChoices()[:1]
	case r.sampling.GetJsonObject():
		r.texts = []string{"{", "}"}
	}
	switch {
	case len(r.texts) > 0:
		n := 0
		for _, t := range r.texts {
			n += len(theVocabulary().encode(nil, t))
		}
		if end = n + 1; end <= most {
			r.out, r.finish, r.natural = end, "stop", true
		}
	case f.OutputTokens > 0 && f.OutputTokens < most:
		r.out, r.finish, r.natural = f.OutputTokens, "stop", true
	case most == left && !r.sampling.GetIgnoreEos() && end < most:
		r.out, r.finish, r.natural = end, "stop", true
	}
}

// sequences creates the request's sequences.
func (r *grpcRequest) sequences(w *Worker, c *call) []*sequence {
	base := r.GetRequestId()
	if base == "" {
		base = newRequestID()
	}
	var seqs []*sequence
	for k := range r.n {
		id := base
		if r.n > 1 {
			id = strconv.Itoa(k) + "_" + id
		}
		s := &sequence{index: k, prompt: len(r.ids), out: r.out, finish: r.finish, prefillRank: -1,
			v: &vsequence{id: id + "-" + newRequestID()[:8], base: base, prompt: r.prompt, sample: k,
				long: r.sampling.GetMaxTokens() != 1, many: r.n > 1, kv: r.kv, client: c.client}}
		if w.caches() {
			s.content, s.scope = &s.v.prompt, r.scope
		}
		if rank := r.DataParallelRank; rank != nil {
			s.rank = int(*rank)
		} else {
			s.rank = int(w.nextRank.Add(1) % uint64(w.opt.DPSize))
		}
		seqs = append(seqs, s)
	}
	w.note(func() {
		e := c.rec
		e.RID, e.RequestID, e.Stream, e.Rank, e.Prompt = r.GetRequestId(), seqs[0].v.id, r.GetStream(), seqs[0].rank, len(r.ids)
	})
	return seqs
}

// registered makes a call known to Abort, until the function that it returns. The engine
// takes the same id twice.
func (w *Worker) registered(c *call, id string, cancel context.CancelCauseFunc) (leave func()) {
	key := fmt.Sprintf("%s\x00%d", id, c.rec.Seq)
	w.mu.Lock()
	w.rids[key] = cancel
	w.mu.Unlock()
	return func() { w.unregister(key) }
}

// abort ends the calls of an id.
func (w *Worker) abort(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, cancel := range w.rids {
		if strings.HasPrefix(key, id+"\x00") {
			cancel(errAborted)
		}
	}
}
