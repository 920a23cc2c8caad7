package generate

import (
	"math"
	"slices"

	"github.com/sluice-router/sluice/internal/openai"
)

// sampling takes the client's choices, else the model's, else those of the API.
func (b *builder) sampling() *openai.Error {
	s, w, d := &b.r.Sampling, &b.w, &b.defaults
	one, zero := 1.0, 0.0
	for _, f := range [...]struct {
		name      string
		to        *float32
		client    optional[float64]
		model     *float64
		api       float64
		low, high float64
	}{
		{"temperature", &s.Temperature, w.temperature, d.Temperature, one, 0, 2},
		{"top_p", &s.TopP, w.topP, d.TopP, one, math.SmallestNonzeroFloat64, 1},
		{"min_p", &s.MinP, w.minP, d.MinP, zero, 0, 1},
		{"frequency_penalty", &s.FrequencyPenalty, w.frequency, nil, zero, -2, 2},
		{"presence_penalty", &s.PresencePenalty, w.presence, nil, zero, -2, 2},
		{"repetition_penalty", &s.RepetitionPenalty, w.repetition, d.RepetitionPenalty, one, math.SmallestNonzeroFloat64, math.MaxFloat32},
	} {
		v := f.api
		if f.model != nil {
			v = *f.model
		}
		v = f.client.or(v)
		if v < f.low || v > f.high {
			return outOfRange(f.name, v, f.low, f.high)
		}
		*f.to = float32(v)
		if *f.to == 0 && f.low > 0 {
			*f.to = math.SmallestNonzeroFloat32 // 0 is the contract's way to say nothing
		}
	}
	k := int64(0)
	if d.TopK != nil {
		k = *d.TopK
	}
	k = w.topK.or(k)
	if k < -1 {
		return openai.InvalidRequest("top_k", "top_k is %d; it must be 0 for all tokens, or at least 1", k)
	}
	s.TopK = int32(min(max(k, 0), math.MaxInt32)) // beyond the vocabulary there is no difference
	if v, ok := w.seed.get(); ok && v != -1 {
		seed := foldSeed(v)
		s.Seed = &seed
	}
	if n := w.minTokens.or(0); n < 0 || n > math.MaxInt32 {
		return openai.InvalidRequest("min_tokens", "min_tokens is %d; it must be at least 0", n)
	}
	s.IgnoreEOS = w.ignoreEOS
	s.SkipSpecial, s.SpacesBetweenSpecial = w.skipSpecial.or(true), w.spacesBetween.or(true)
	for id := range w.logitBias {
		if int64(id) >= int64(b.r.Vocab) {
			return openai.InvalidRequest("logit_bias", "logit_bias has the token id %d; the model has %d", id, b.r.Vocab)
		}
	}
	s.LogitBias = w.logitBias
	return nil
}

func outOfRange(name string, v, low, high float64) *openai.Error {
	switch {
	case low == math.SmallestNonzeroFloat64 && high == math.MaxFloat32:
		return openai.InvalidRequest(name, "%s is %v; it must be greater than 0", name, v)
	case low == math.SmallestNonzeroFloat64:
		return openai.InvalidRequest(name, "%s is %v; it must be greater than 0 and at most %v", name, v, high)
	}
	return openai.InvalidRequest(name, "%s is %v; it must be between %v and %v", name, v, low, high)
}

// foldSeed makes a seed of 64 bits one of 32, as the contract has. The same seed is always the
// same, and those of 32 bits stay as they are.
func foldSeed(v int64) int32 {
	if v == int64(int32(v)) {
		return int32(v)
	}
	return int32(v) ^ int32(v>>32)
}

// stops takes what ends a sequence.
func (b *builder) stops() *openai.Error {
	s, w := &b.r.Sampling, &b.w
	for _, stop := range w.stop {
		if stop == "" {
			return openai.InvalidRequest("stop", "stop has an empty string")
		}
		if len(stop) > maxStopBytes {
			return openai.InvalidRequest("stop", "stop has a string of %d bytes; at most %d are taken", len(stop), maxStopBytes)
		}
	}
	s.Stop, s.IncludeStop = w.stop, w.includeStop
	for _, id := range w.stopIDs {
		if uint64(id) >= uint64(b.r.Vocab) {
			return openai.InvalidRequest("stop_token_ids", "stop_token_ids has %d; the model has %d tokens", id, b.r.Vocab)
		}
	}
	for _, id := range w.stopIDs {
		if !slices.Contains(s.StopIDs, id) {
			s.StopIDs = append(s.StopIDs, id)
		}
	}
	return nil
}

// maxEngineLogprobs is the most alternatives that vLLM tells unless it is started with another
// --max-logprobs.
const maxEngineLogprobs = 20

// logprobs takes how many alternatives the client sees, and how many the engine is asked for.
// The API shows one more where the token itself is none of the most probable; the contract
// counts that one.
func (b *builder) logprobs() *openai.Error {
	f, s, w := &b.r.Form, &b.r.Sampling, &b.w
	check := func(name string, n int64) *openai.Error {
		if n < 0 || n > int64(b.r.Vocab) {
			return openai.InvalidRequest(name, "%s is %d; it must be between 0 and the number that the engine allows, which is %d unless it was started with another", name, n, maxEngineLogprobs)
		}
		return nil
	}
	wider := func(n int32) int32 {
		if n > 0 && n < maxEngineLogprobs {
			return n + 1
		}
		return n
	}
	s.Logprobs, s.PromptLogprobs = -1, -1
	shown, asked := w.logprobs, "logprobs"
	if b.chat() {
		shown, asked = w.topLogprobs, "top_logprobs"
	}
	if n, ok := shown.get(); ok {
		if e := check(asked, n); e != nil {
			return e
		}
	}
	switch {
	case !b.chat() && shown.given:
		f.Logprobs = int32(shown.value)
		s.Logprobs = wider(f.Logprobs)
	case b.chat() && w.chatLogprobs:
		f.Logprobs = int32(shown.or(0))
		s.Logprobs = f.Logprobs
	case b.chat() && shown.or(0) > 0:
		return openai.InvalidRequest("top_logprobs", "top_logprobs is %d and logprobs is not true; set logprobs or leave it out", shown.value)
	}
	prompt := w.promptLogprobs
	if n, ok := prompt.get(); ok {
		if e := check("prompt_logprobs", n); e != nil {
			return e
		}
		if n > 0 && b.p.Stream {
			return openai.InvalidRequest("prompt_logprobs", "prompt_logprobs can't be had with stream; leave out one of them")
		}
	} else if w.echo && (b.chat() || shown.given) {
		prompt = optional[int64]{shown.or(0), true}
	}
	if n, ok := prompt.get(); ok {
		f.PromptLogprobs = int32(n)
		s.PromptLogprobs = wider(f.PromptLogprobs)
	}
	if w.echo && f.PromptLogprobs < f.Logprobs && !b.chat() {
		s.PromptLogprobs = max(s.PromptLogprobs, s.Logprobs)
	}
	return nil
}

// structure reads what structured output the client asks for: response_format goes before
// structured_outputs, and that before the fields by the old names.
func (w *wishes) structure(p *openai.Peeked) {
	if w.err != nil || p.Route == openai.RouteEmbeddings {
		return
	}
	var format, structured []byte
	old := map[string][]byte{}
	for name, raw := range p.EachMember() {
		switch string(name) {
		case "response_format":
			format = raw
		case "structured_outputs":
			structured = raw
		case "guided_json", "guided_regex", "guided_choice", "guided_grammar":
			if !null(raw) {
				old[string(name[len("guided_"):])] = raw
			}
		}
	}
	if !null(structured) {
		if structured[0] != '{' {
			w.wrong("structured_outputs", "an object", structured)
			return
		}
		old = map[string][]byte{}
		for name, raw := range openai.ObjectMembers(structured) {
			if slices.Contains([]string{"json", "regex", "choice", "grammar", "json_object", "structural_tag"}, string(name)) && !null(raw) {
				old[string(name)] = raw
			}
		}
		if len(old) == 0 {
			w.err = openai.InvalidRequest("structured_outputs", "structured_outputs has none of json, regex, choice, grammar, json_object and structural_tag")
			return
		}
	}
	if !null(format) {
		w.responseFormat(format, old)
	}
	if w.err != nil {
		return
	}
	if len(old) > 1 {
		w.err = openai.InvalidRequest("structured_outputs", "the request asks for more than one kind of structured output; ask for one")
		return
	}
	for kind, raw := range old {
		w.constrain(kind, raw)
	}
}

// responseFormat reads response_format into the kinds that are asked for.
func (w *wishes) responseFormat(raw []byte, kinds map[string][]byte) {
	const name = "response_format"
	if raw[0] != '{' {
		w.wrong(name, "an object", raw)
		return
	}
	var kind string
	var schema []byte
	for key, value := range openai.ObjectMembers(raw) {
		switch {
		case string(key) == "type" && value[0] == '"':
			kind = text(value)
		case string(key) == "json_schema":
			for inner, v := range openai.ObjectMembers(value) {
				if string(inner) == "schema" {
					schema = v
				}
			}
		}
	}
	switch kind {
	case "text":
	case "json_object":
		kinds["json_object"] = []byte("true")
	case "json_schema":
		if null(schema) || schema[0] != '{' {
			w.err = openai.InvalidRequest(name, "response_format.json_schema.schema is missing or no object")
			return
		}
		kinds["json"] = schema
	case "structural_tag":
		kinds["structural_tag"] = raw
	default:
		w.err = openai.InvalidRequest(name, "response_format.type must be \"text\", \"json_object\", \"json_schema\" or \"structural_tag\"")
	}
}

// constrain reads one kind of structured output.
func (w *wishes) constrain(kind string, raw []byte) {
	c := &w.format
	name := "structured_outputs." + kind
	body := func() string {
		if raw[0] == '"' {
			return text(raw)
		}
		return string(raw)
	}
	switch kind {
	case "json":
		c.Kind, c.Text = JSONSchema, body()
		if raw[0] != '"' && raw[0] != '{' {
			w.wrong(name, "a schema", raw)
		}
	case "structural_tag":
		c.Kind, c.Text = StructuralTag, body()
		if raw[0] != '"' && raw[0] != '{' {
			w.wrong(name, "a structural tag", raw)
		}
	case "regex", "grammar":
		c.Kind, c.Text = Regex, body()
		if kind == "grammar" {
			c.Kind = Grammar
		}
		if raw[0] != '"' {
			w.wrong(name, "a string", raw)
		}
	case "json_object":
		var on bool
		if w.boolean(&on, name, raw); on {
			c.Kind = JSONObject
		}
	case "choice":
		c.Kind = Choice
		for e := range openai.Elements(raw) {
			if e[0] != '"' {
				w.wrong(name, "a list of strings", e)
				return
			}
			if c.Choices = append(c.Choices, text(e)); len(c.Choices) > maxChoices {
				w.err = openai.InvalidRequest(name, "%s has more than %d strings", name, maxChoices)
				return
			}
		}
		if len(c.Choices) == 0 {
			w.wrong(name, "a list of strings", raw)
		}
	}
	if w.err == nil && c.Text == "" && c.Kind != Unconstrained && c.Kind != JSONObject && c.Kind != Choice {
		w.err = openai.InvalidRequest(name, "%s is empty", name)
	}
}

func (b *builder) constraint() *openai.Error {
	b.r.Sampling.Constraint = b.w.format
	return nil
}
