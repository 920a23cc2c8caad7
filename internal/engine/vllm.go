package engine

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"

	"github.com/sluice-router/sluice/internal/openai"
)

// VLLM hands KV cache over as the prefill worker's connector does it.
type VLLM struct{ HTTP }

// Name implements Dialect.
func (VLLM) Name() string { return "vllm" }

// Native implements Dialect.
func (VLLM) Native(openai.Route) bool { return true }

// FansOut implements Dialect.
func (VLLM) FansOut() bool { return false }

// DecodesWhole implements Dialect.
func (VLLM) DecodesWhole() bool { return true }

// HandOffLost implements Dialect: this is how vLLM tells that it could not fetch the
// blocks; which end is to blame it does not say.
func (VLLM) HandOffLost(status int) bool { return status == http.StatusInternalServerError }

// RankHeader implements Dialect. The number counts the ranks that this server sends
// requests to, from 0: with a load balancer of the operator's own (--data-parallel-hybrid-lb,
// --data-parallel-external-lb) those of its node, whatever their place among all.
func (VLLM) RankHeader() string { return "X-Data-Parallel-Rank" }

// Plan implements Dialect.
func (d VLLM) Plan(p *Pair) (Plan, error) {
	return d.plan(p, (*vllmLegs)(p), oneSequence(p.Request))
}

// plan plans legs; without handOver decode computes all by itself.
func (d VLLM) plan(p *Pair, legs Legs, handOver bool) (Plan, error) {
	plan := Plan{
		Shape: DecodeAlone, Why: AloneSamples, RequestID: p.RequestID, Legs: legs,
		RankHeader: d.RankHeader(), PrefillRank: p.Prefill.DPRank(), DecodeRank: p.Decode.DPRank(),
	}
	p.connector = connectorNamed(p.Prefill.Connector())
	if !handOver {
		return plan, nil
	}
	if plan.Shape = p.connector.shape; plan.Shape == DecodeAlone {
		plan.Why = AloneNoConnector
		return plan, nil
	}
	p.transferID = p.NewID()
	if prepare := p.connector.prepare; prepare != nil {
		return plan, prepare(p, &plan)
	}
	return plan, nil
}

// oneSequence tells whether the request is for one sample of one prompt. Blocks
// that are handed over can be fetched once, and those of one prompt only. What asks for
// log probabilities of its prompt is no such request: decode must compute it itself.
func oneSequence(p *openai.Peeked) bool {
	return p.N == 1 && p.BatchSize == 1 && !wantsPromptLogprobs(p)
}

// wantsPromptLogprobs tells whether the request asks for log probabilities of its
// prompt. A decode engine that fetched the prompt's KV cache cannot have them, and may
// die of being asked (vllm-project/vllm#50792).
func wantsPromptLogprobs(p *openai.Peeked) bool {
	kind := p.FieldKind(openai.FieldPromptLogprobs)
	if kind != openai.KindAbsent && kind != openai.KindNull {
		return true
	}
	return p.Route == openai.RouteCompletions && string(p.Raw(openai.FieldEcho)) == "true"
}

// vllmLegs are the legs of a pair with some connector.
type vllmLegs Pair

// EditPrefill implements Legs. It makes the body of a prefill leg out of the client's:
// the same prompt, one token, one JSON answer (a streamed one carries no
// kv_transfer_params). Stream options and a minimum of tokens would be refused then.
// Everything the prompt's tokens depend on stays as it is: a decode prompt longer than
// what was prefilled kills the engine, for everybody on it.
func (l *vllmLegs) EditPrefill(s *openai.Splicer) {
	p := l.Request
	if p.Has(openai.FieldStream) {
		s.SetBool(openai.FieldStream, false)
	}
	s.Delete(openai.FieldStreamOptions)
	s.Delete(openai.FieldMinTokens)
	switch p.Route {
	case openai.RouteResponses:
		s.SetInt(openai.FieldMaxOutputTokens, 1)
	default:
		s.SetInt(openai.FieldMaxTokens, 1)
		if p.Has(openai.FieldMaxCompletionTokens) {
			s.SetInt(openai.FieldMaxCompletionTokens, 1)
		}
	}
	if auto := freeToolChoice(p); auto != "" {
		s.SetRaw(openai.FieldToolChoice, []byte(auto))
	}
	if params := l.connector.prefillParams; params != nil {
		s.SetRaw(openai.FieldKVTransferParams, params((*Pair)(l), l.transfer()))
	}
}

// EditDecode implements Legs: the client's body, byte for byte, with the connector's
// params.
func (l *vllmLegs) EditDecode(s *openai.Splicer, handOff []byte) {
	if params := l.connector.decodeParams; params != nil && l.transferID != "" {
		handOff = params((*Pair)(l), l.transfer())
	}
	if handOff != nil {
		s.SetRaw(openai.FieldKVTransferParams, handOff)
	}
}

// transfer is what the hand-off is called. The HTTP server marks ids of requests by their route.
func (l *vllmLegs) transfer() transfer {
	if l.Request.Route == openai.RouteChatCompletions {
		return transfer{id: l.transferID, request: "chatcmpl-" + l.RequestID}
	}
	return transfer{id: l.transferID, request: "cmpl-" + l.RequestID}
}

// HandOff implements Legs: kv_transfer_params out of a prefill's answer. They are good
// for about 30 s (kv_lease_duration); used later the engine answers with wrong text.
func (l *vllmLegs) HandOff(answer []byte) (params []byte, err error) {
	if !l.connector.handsOver {
		return nil, nil
	}
	params, ok := openai.RawField(answer, openai.FieldKVTransferParams.String())
	if !ok || bytes.Equal(params, []byte("null")) {
		return nil, fmt.Errorf("%w: it has no kv_transfer_params", ErrNoHandOff)
	}
	if params[0] != '{' {
		return nil, fmt.Errorf("%w: its kv_transfer_params are no object", ErrBadHandOff)
	}
	// A decode request without remote_host hangs for minutes.
	if host, ok := openai.RawField(params, "remote_host"); !ok || len(host) < 3 || host[0] != '"' {
		return nil, fmt.Errorf("%w: there is no remote_host in its kv_transfer_params", ErrBadHandOff)
	}
	return params, nil
}

// Dispensable implements Legs. The one token of a prefill leg is no tool call, so that
// its copy leaves the choice to the model, which not every engine takes. What is
// really wrong with the request decode says too.
func (l *vllmLegs) Dispensable(status int) bool {
	return status == http.StatusBadRequest && freeToolChoice(l.Request) != ""
}

// Release implements Legs.
func (*vllmLegs) Release() {}

// freeToolChoice is the tool_choice in place of one that forces a call; empty if none
// does. The tools stay, and with them the prompt: only "none" may change that.
func freeToolChoice(p *openai.Peeked) string {
	raw := p.Raw(openai.FieldToolChoice)
	if p.Route == openai.RouteMessages {
		if kind, _ := openai.RawField(raw, "type"); string(kind) == `"any"` || string(kind) == `"tool"` {
			return `{"type":"auto"}`
		}
		return ""
	}
	if string(raw) == `"required"` || len(raw) > 0 && raw[0] == '{' {
		return `"auto"`
	}
	return ""
}

var errNoEngineID = errors.New("its bootstrap server does not tell the id of its engine")
