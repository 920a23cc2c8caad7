package openai

// Field names one top-level field that sluice reads or writes. All of them are searched
// for on every route, so that writing a field never adds a second one of the same name:
// engines use the last of two.
type Field uint8

// The fields, in groups: routing, prompt, limits, affinity, engine-controlled.
const (
	FieldNone Field = iota
	FieldModel
	FieldStream
	FieldStreamOptions
	FieldN
	FieldBestOf
	FieldSeed
	FieldSamplingParams
	FieldReturnLogprob
	FieldLogprobs
	FieldEcho
	FieldUseBeamSearch
	FieldPromptLogprobs
	FieldToolChoice

	FieldMessages
	FieldTools
	FieldPrompt
	FieldText
	FieldInput
	FieldInputIDs
	FieldInputEmbeds
	FieldSystem
	FieldInstructions
	FieldChatTemplate
	FieldChatTemplateArgs
	FieldDocuments
	FieldReasoningEffort

	FieldMaxTokens
	FieldMaxCompletionTokens
	FieldMinTokens
	FieldMaxOutputTokens

	FieldUser
	FieldSessionID
	FieldPreviousResponseID
	FieldThread
	FieldConversation
	FieldBackground
	FieldPriority
	FieldLoRAPath
	FieldCacheSalt
	FieldExtraKey
	FieldNVExt

	FieldRID
	FieldRequestID
	FieldBootstrapHost
	FieldBootstrapPort
	FieldBootstrapRoom
	FieldBootstrapPairKey
	FieldRoutedDPRank
	FieldDisaggPrefillDPRank
	FieldDataParallelRank
	FieldDecodeTPSize
	FieldKVTransferParams
	FieldECTransferParams
	FieldTransferID
	FieldDisaggregatedParams

	numFields
)

var fieldNames = [numFields]string{
	FieldModel:               "model",
	FieldStream:              "stream",
	FieldStreamOptions:       "stream_options",
	FieldN:                   "n",
	FieldBestOf:              "best_of",
	FieldSeed:                "seed",
	FieldSamplingParams:      "sampling_params",
	FieldReturnLogprob:       "return_logprob",
	FieldLogprobs:            "logprobs",
	FieldEcho:                "echo",
	FieldPromptLogprobs:      "prompt_logprobs",
	FieldToolChoice:          "tool_choice",
	FieldUseBeamSearch:       "use_beam_search",
	FieldMessages:            "messages",
	FieldTools:               "tools",
	FieldPrompt:              "prompt",
	FieldText:                "text",
	FieldInput:               "input",
	FieldInputIDs:            "input_ids",
	FieldInputEmbeds:         "input_embeds",
	FieldSystem:              "system",
	FieldInstructions:        "instructions",
	FieldChatTemplate:        "chat_template",
	FieldChatTemplateArgs:    "chat_template_kwargs",
	FieldDocuments:           "documents",
	FieldReasoningEffort:     "reasoning_effort",
	FieldMaxTokens:           "max_tokens",
	FieldMaxCompletionTokens: "max_completion_tokens",
	FieldMinTokens:           "min_tokens",
	FieldMaxOutputTokens:     "max_output_tokens",
	FieldUser:                "user",
	FieldSessionID:           "session_id",
	FieldPreviousResponseID:  "previous_response_id",
	FieldThread:              "thread",
	FieldConversation:        "conversation",
	FieldBackground:          "background",
	FieldPriority:            "priority",
	FieldLoRAPath:            "lora_path",
	FieldCacheSalt:           "cache_salt",
	FieldExtraKey:            "extra_key",
	FieldNVExt:               "nvext",
	FieldRID:                 "rid",
	FieldRequestID:           "request_id",
	FieldBootstrapHost:       "bootstrap_host",
	FieldBootstrapPort:       "bootstrap_port",
	FieldBootstrapRoom:       "bootstrap_room",
	FieldBootstrapPairKey:    "bootstrap_pair_key",
	FieldRoutedDPRank:        "routed_dp_rank",
	FieldDisaggPrefillDPRank: "disagg_prefill_dp_rank",
	FieldDataParallelRank:    "data_parallel_rank",
	FieldDecodeTPSize:        "decode_tp_size",
	FieldKVTransferParams:    "kv_transfer_params",
	FieldECTransferParams:    "ec_transfer_params",
	FieldTransferID:          "transfer_id",
	FieldDisaggregatedParams: "disaggregated_params",
}

// maxFieldName is the length of the longest name in fieldNames.
const maxFieldName = 22

// String is the field's name in the body.
func (f Field) String() string {
	if f == FieldNone || f >= numFields {
		return "(no field)"
	}
	return fieldNames[f]
}

// FieldSet is a set of fields.
type FieldSet uint64

// NewFieldSet makes a set.
func NewFieldSet(fields ...Field) FieldSet {
	var s FieldSet
	for _, f := range fields {
		s |= 1 << f
	}
	return s
}

// Has reports whether f is in the set.
func (s FieldSet) Has(f Field) bool { return s>>f&1 != 0 }

// With is the set with f in it.
func (s FieldSet) With(f Field) FieldSet { return s | 1<<f }

// Without is the set without f.
func (s FieldSet) Without(f Field) FieldSet { return s &^ (1 << f) }

// ControlledFields are those by which engines pair their legs. A client that could
// set them could make two requests share a room, read another's KV cache, or have a
// worker connect to an address of its choice (sgl-project/sglang#40125).
// FieldRID and FieldRequestID are not in it; a caller that sets them adds them.
var ControlledFields = NewFieldSet(
	FieldBootstrapHost, FieldBootstrapPort, FieldBootstrapRoom, FieldBootstrapPairKey,
	FieldRoutedDPRank, FieldDisaggPrefillDPRank, FieldDataParallelRank, FieldDecodeTPSize,
	FieldKVTransferParams, FieldECTransferParams, FieldTransferID, FieldDisaggregatedParams,
)

// lookupField finds the field by the raw bytes between the quotes of its name,
// whatever way it is spelled ("model" and "\u006dodel" are the same key to every
// engine).
func lookupField(raw []byte) Field {
	if f := fieldByName(raw); f != FieldNone {
		return f
	}
	var buf [maxFieldName]byte
	name, ok := unescapeName(buf[:], raw)
	if !ok {
		return FieldNone
	}
	return fieldByName(name)
}

var fieldsByLength = func() (t [maxFieldName + 1][]Field) {
	for f := FieldNone + 1; f < numFields; f++ {
		n := len(fieldNames[f])
		t[n] = append(t[n], f)
	}
	return t
}()

func fieldByName(name []byte) Field {
	if len(name) > maxFieldName {
		return FieldNone
	}
	for _, f := range fieldsByLength[len(name)] {
		if fieldNames[f] == string(name) {
			return f
		}
	}
	return FieldNone
}
