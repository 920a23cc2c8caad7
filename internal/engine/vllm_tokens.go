package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

// VLLMTokenLegs are the legs of a pair of vLLM engines that take token ids. There is no body
// to edit: whoever calls the engines asks for what each of the request's sequences is told of
// the hand-off. Sequences are counted from 0, through all samples of a prompt before the next
// prompt. Blocks can be fetched once, so that each has a hand-off of its own.
type VLLMTokenLegs Pair

// MaxHandOffs is how many sequences of one request are handed over at most. A request for more
// is computed by decode alone: what waits for its turn there would outlive its lease.
const MaxHandOffs = 64

// PlanTokens is Plan for engines that take token ids: by the same rules, but that several
// sequences are handed over one by one.
func (d VLLM) PlanTokens(p *Pair) (Plan, error) {
	legs := (*VLLMTokenLegs)(p)
	// What an engine calls the request is its alone: clients repeat theirs.
	p.answerID = p.RequestID
	p.RequestID += "-" + p.NewID()
	plan, err := d.plan(p, legs, legs.sequences() <= MaxHandOffs && !wantsPromptLogprobs(p.Request))
	plan.RankHeader = ""
	return plan, err
}

func (l *VLLMTokenLegs) sequences() int { return max(l.Request.N, 1) * max(l.Request.BatchSize, 1) }

// AnswerID is what the answer to the client calls the request.
func (l *VLLMTokenLegs) AnswerID() string { return l.answerID }

// CallID is what both engines call sequence k of a request with the id.
func CallID(id string, k int) string {
	if k == 0 {
		return id
	}
	return id + "-" + strconv.Itoa(k)
}

// transfer is what the hand-off of sequence k is called.
func (l *VLLMTokenLegs) transfer(k int) transfer {
	return transfer{id: CallID(l.transferID, k), request: CallID(l.RequestID, k)}
}

// PrefillParams are the kv_transfer_params of the prefill of sequence k; nil: none.
func (l *VLLMTokenLegs) PrefillParams(k int) []byte {
	if params := l.connector.prefillParams; params != nil && l.transferID != "" {
		return params((*Pair)(l), l.transfer(k))
	}
	return nil
}

// DecodeParams are those of the decode of each of n sequences, with what HandOff returned; nil:
// that one computes its prompt itself.
func (l *VLLMTokenLegs) DecodeParams(handOff []byte, n int) ([][]byte, error) {
	list := make([][]byte, n)
	if params := l.connector.decodeParams; params != nil && l.transferID != "" {
		for k := range list {
			list[k] = params((*Pair)(l), l.transfer(k))
		}
		return list, nil
	}
	parts, err := splitHandOff(handOff, n)
	if err == nil && len(parts) > 0 && len(parts) != n {
		err = fmt.Errorf("%w: it is of %d sequences, and %d are asked for", ErrBadHandOff, len(parts), n)
	}
	copy(list, parts)
	return list, err
}

// splitHandOff returns the parts of what prefill handed over for n sequences, one for each; nil
// stands for nothing. They are parts of handOff. What is handed over for one sequence is no
// list: if it looks like one, the engine has sent it so.
func splitHandOff(handOff []byte, n int) (parts [][]byte, err error) {
	if n == 1 || len(handOff) == 0 || handOff[0] != '[' {
		if len(handOff) > 0 {
			parts = [][]byte{handOff}
		}
		return parts, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(handOff, &list); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadHandOff, err)
	}
	for _, part := range list {
		if bytes.Equal(part, []byte("null")) {
			part = nil
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// EditPrefill implements Legs: there is no body.
func (*VLLMTokenLegs) EditPrefill(*openai.Splicer) {}

// EditDecode implements Legs: there is no body.
func (*VLLMTokenLegs) EditDecode(*openai.Splicer, []byte) {}

// Dispensable implements Legs: there is nothing in the prefill leg that an engine might refuse
// and decode would not.
func (*VLLMTokenLegs) Dispensable(int) bool { return false }

// Release implements Legs.
func (*VLLMTokenLegs) Release() {}

// HandOff implements Legs: kv_transfer_params out of the answer of the prefill call, an object,
// or a list with one or null for each sequence. Where some have none it returns those that are
// there with an [ErrNoHandOff].
func (l *VLLMTokenLegs) HandOff(answer []byte) ([]byte, error) {
	if !l.connector.handsOver {
		return nil, nil
	}
	params, ok := openai.RawField(answer, openai.FieldKVTransferParams.String())
	if !ok || bytes.Equal(params, []byte("null")) {
		return nil, fmt.Errorf("%w: it has no kv_transfer_params", ErrNoHandOff)
	}
	n := l.sequences()
	parts, err := splitHandOff(params, n)
	if err != nil {
		return nil, err
	}
	there := 0
	for _, part := range parts {
		if part == nil {
			continue
		}
		there++
		if err := l.checkParams(part); err != nil {
			return nil, err
		}
	}
	switch there {
	case 0:
		return nil, fmt.Errorf("%w: it has no kv_transfer_params", ErrNoHandOff)
	case n:
		return params, nil
	}
	return params, fmt.Errorf("%w: it has kv_transfer_params for %d of %d sequences", ErrNoHandOff, there, n)
}

// checkParams refuses params with which a decode engine would hang, or end: it reads what it
// needs of them without looking whether it is there.
func (l *VLLMTokenLegs) checkParams(params []byte) error {
	var fields [4][]byte
	if !openai.RawFields(params, []string{"remote_host", "remote_engine_id", "remote_port", "remote_block_ids"}, fields[:]) {
		return fmt.Errorf("%w: its kv_transfer_params are no object", ErrBadHandOff)
	}
	host, id, port, blocks := fields[0], fields[1], wholeIn(fields[2]), fields[3]
	missing := ""
	switch {
	case nameIn(host) == "":
		missing = "remote_host"
	case l.connector == connectors[ConnectorMoRIIO]: // the rest is its own
	case nameIn(id) == "":
		missing = "remote_engine_id"
	case port < 1 || port > 65535:
		missing = "remote_port"
	case len(blocks) == 0 || blocks[0] != '[':
		missing = "remote_block_ids"
	}
	if missing != "" {
		return fmt.Errorf("%w: there is no usable %s in its kv_transfer_params", ErrBadHandOff, missing)
	}
	return nil
}
