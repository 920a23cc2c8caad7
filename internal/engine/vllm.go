package engine

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/sluice-router/sluice/internal/openai"
)

// NIXLPrefillParams ask a vLLM prefill engine with NixlConnector to keep the KV
// blocks for a decode engine and to say in its answer where they are.
const NIXLPrefillParams = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// Connectors of vLLM, as they are set for workers or found out.
const (
	ConnectorNIXL     = "nixl"
	ConnectorNIXLPush = "nixl-push"
	ConnectorMooncake = "mooncake"
	ConnectorMoRIIO   = "moriio"
	// ConnectorLMCache and ConnectorShared move the KV cache by themselves: the
	// prompt is prefilled, then sent to decode as it is.
	ConnectorLMCache = "lmcache"
	ConnectorShared  = "shared-storage"
	// ConnectorNone: the engine was asked and names no KV cache to fetch. Decode
	// computes the prompt again.
	ConnectorNone = "none"
	// ConnectorUnknown: it could not be found out. It is tried as NIXL.
	ConnectorUnknown = "unknown"
)

// MovesKV tells whether a prefill leg before the decode leg is of any use.
// ConnectorNIXLPush wants both legs together instead.
func MovesKV(connector string) bool {
	return connector != ConnectorNone && connector != ConnectorNIXLPush
}

// PrefillParams are the kv_transfer_params of a prefill leg that goes before its
// decode leg; nil where the connector wants none. transferID is good once.
func PrefillParams(connector, transferID string) []byte {
	switch connector {
	case ConnectorNIXL, ConnectorUnknown:
		return []byte(NIXLPrefillParams)
	case ConnectorMoRIIO:
		b := append([]byte(nil), NIXLPrefillParams[:len(NIXLPrefillParams)-1]...)
		b = append(b, `,"transfer_id":`...)
		return append(openai.AppendString(b, "tx-"+transferID), '}')
	}
	return nil
}

// HandsOver tells whether the prefill's answer has params for decode.
func HandsOver(connector string) bool {
	return connector == ConnectorNIXL || connector == ConnectorUnknown || connector == ConnectorMoRIIO
}

// VLLMPrefill makes the body of a prefill leg out of the client's: the same
// prompt, one token, one JSON answer (a streamed one carries no
// kv_transfer_params). Stream options and a minimum of tokens would be refused
// then. Everything the prompt's tokens depend on stays as it is: a decode prompt
// longer than what was prefilled kills the engine, for everybody on it. params is
// the value of kv_transfer_params, nil for connectors that need none.
func VLLMPrefill(s *openai.Splicer, p *openai.Peeked, params []byte) {
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
	if params != nil {
		s.SetRaw(openai.FieldKVTransferParams, params)
	}
}

// ForcesTool tells whether the request forces a tool call. The one token of a prefill
// leg is none: engines fail to parse it, so that the leg's copy leaves the choice to
// the model. The tools stay, and with them the prompt: only "none" may change that.
func ForcesTool(p *openai.Peeked) bool { return freeToolChoice(p) != "" }

// freeToolChoice is the tool_choice in place of one that forces; empty if none does.
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

// WantsPromptLogprobs tells whether the request asks for log probabilities of its
// prompt. A decode engine that fetched the prompt's KV cache cannot have them, and may
// die of being asked (vllm-project/vllm#50792).
func WantsPromptLogprobs(p *openai.Peeked) bool {
	kind := p.FieldKind(openai.FieldPromptLogprobs)
	if kind != openai.KindAbsent && kind != openai.KindNull {
		return true
	}
	return p.Route == openai.RouteCompletions && string(p.Raw(openai.FieldEcho)) == "true"
}

// VLLMDecode adds what the prefill answered to the client's body, byte for byte.
func VLLMDecode(s *openai.Splicer, params []byte) {
	if params != nil {
		s.SetRaw(openai.FieldKVTransferParams, params)
	}
}

// Errors of VLLMHandOff.
var (
	// ErrNoHandOff: the answer has no kv_transfer_params. The prompt may be too
	// short for a block, or the engine has no connector: decode can compute it
	// all, and must be counted as doing so.
	ErrNoHandOff = errors.New("the prefill's answer has no kv_transfer_params")
	// ErrBadHandOff: the params cannot be used: decode would hang on them.
	ErrBadHandOff = errors.New("the prefill's kv_transfer_params cannot be used")
)

// VLLMHandOff reads kv_transfer_params out of a prefill's answer, as they are
// written. They are good for about 30 s (kv_lease_duration); used later the engine
// answers with wrong text.
func VLLMHandOff(answer []byte) (params []byte, err error) {
	params, ok := openai.RawField(answer, openai.FieldKVTransferParams.String())
	if !ok || bytes.Equal(params, []byte("null")) {
		return nil, ErrNoHandOff
	}
	if params[0] != '{' {
		return nil, fmt.Errorf("%w: they are no object", ErrBadHandOff)
	}
	// A decode request without remote_host hangs for minutes.
	if host, ok := openai.RawField(params, "remote_host"); !ok || len(host) < 3 || host[0] != '"' {
		return nil, fmt.Errorf("%w: there is no remote_host in them", ErrBadHandOff)
	}
	return params, nil
}

// MooncakePrefillParams and MooncakeDecodeParams pair the legs of one call by a
// transfer id; without one nothing is transferred, silently. addr is the prefill
// engine's bootstrap server, engineID what its /query says.
func MooncakePrefillParams(transferID string) []byte {
	b := append([]byte(nil), `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":`...)
	return append(openai.AppendString(b, transferID), '}')
}

// MooncakeDecodeParams is the decode leg's half; see MooncakePrefillParams.
func MooncakeDecodeParams(transferID, addr, engineID string) []byte {
	b := append([]byte(nil), `{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":`...)
	b = openai.AppendString(b, addr)
	b = append(b, `,"remote_engine_id":`...)
	b = openai.AppendString(b, engineID)
	b = append(b, `,"transfer_id":`...)
	return append(openai.AppendString(b, transferID), '}')
}
