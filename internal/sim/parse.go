package sim

import (
	"bytes"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// api is the route family of a generation request.
type api int

const (
	chat api = iota
	completions
	generate
	responses // vLLM only
	messages  // vLLM only
)

// limits of what one request may ask for.
const (
	maxBatch  = 4096
	maxN      = 128
	maxTokens = 1 << 24
)

// request holds the fields of a body that the engine uses; of duplicate fields the
// last counts, as in Python's parser.
type request struct {
	api         api
	model       string
	stream      bool
	usage       bool // stream_options.include_usage
	n           int
	rid         string
	maxTokens   int  // -1: not given
	logprob     bool // return_logprob
	logs        logprobs
	prompts     []int // token counts, one per prompt
	batched     bool  // the prompt came as a list of prompts
	hosts       []string
	ports       []int // -1: null
	rooms       []int64
	scalarRoom  bool
	routedRank  *int64
	prefillRank *int64
	simField    jsontext.Value

	// For the prefix cache.
	at       [2]int // where the prompt is in the body
	tools    [2]int // and the tools, if there are any
	inputIDs bool   // the prompt is token ids
	salt     string
	session  string
	adapter  string // lora_path
}

var jsonOptions = []jsontext.Options{
	jsontext.AllowDuplicateNames(true),
	jsontext.AllowInvalidUTF8(true),
}

// parseRequest reads a body. Its errors are *wireError.
func parseRequest(a api, body []byte) (*request, error) {
	r := &request{api: a, n: 1, maxTokens: -1}
	if !utf8.Valid(body) {
		return nil, invalidf("", "cannot decode the body: invalid utf-8")
	}
	var prompt, maxCompletion, samplingMax bool
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsonOptions...) // reads a Buffer in place
	if d.PeekKind() != '{' {
		return nil, invalidf("", "the body is not a JSON object")
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, invalidf("", "the body is not JSON: %v", err)
	}
	var deprecatedRank *int64
	for d.PeekKind() != '}' {
		tok, err := d.ReadToken()
		if err != nil {
			return nil, invalidf("", "the body is not JSON: %v", err)
		}
		name := tok.String()
		v, err := d.ReadValue()
		if err != nil {
			return nil, invalidf("", "the body is not JSON: %v", err)
		}
		null := v.Kind() == 'n'
		end := int(d.InputOffset())
		here := [2]int{end - len(v), end}
		switch name {
		case "model":
			if r.model, err = str(name, v); err != nil {
				return nil, err
			}
		case "stream":
			if r.stream, err = boolean(name, v); err != nil {
				return nil, err
			}
		case "stream_options":
			if null {
				continue
			}
			if x := field(v, "include_usage"); x != nil {
				if r.usage, err = boolean("stream_options.include_usage", x); err != nil {
					return nil, err
				}
			}
		case "n":
			if a == generate || null {
				continue
			}
			n, err := integer(name, v)
			if err != nil {
				return nil, err
			}
			if n < 1 || n > maxN {
				return nil, invalidf("n", "n must be between 1 and %d, got %d", maxN, n)
			}
			r.n = int(n)
		case "max_tokens", "max_completion_tokens":
			if a == generate || null || (name == "max_tokens" && maxCompletion) {
				continue
			}
			if r.maxTokens, err = count(name, v, a == completions); err != nil {
				return nil, err
			}
			maxCompletion = maxCompletion || name == "max_completion_tokens"
		case "sampling_params":
			if a != generate || null {
				continue
			}
			p := v
			if v.Kind() == '[' { // one per prompt: the first is used for all
				if list := elements(v); len(list) > 0 {
					p = list[0]
				}
			}
			if x := field(p, "max_new_tokens"); x != nil && x.Kind() != 'n' && !samplingMax {
				if r.maxTokens, err = count("sampling_params.max_new_tokens", x, true); err != nil {
					return nil, err
				}
			}
			if x := field(p, "n"); x != nil && x.Kind() != 'n' {
				n, err := integer("sampling_params.n", x)
				if err != nil {
					return nil, err
				}
				if n < 1 || n > maxN {
					return nil, invalidf("sampling_params.n", "n must be between 1 and %d, got %d", maxN, n)
				}
				r.n = int(n)
			}
		case "messages":
			if a != chat {
				continue
			}
			if v.Kind() != '[' {
				return nil, invalidf(name, "messages must be a list")
			}
			prompt = true
			if !r.inputIDs {
				r.prompts, r.at = []int{tokensOf(v)}, here
			}
		case "prompt":
			if a != completions {
				continue
			}
			if r.prompts, r.batched, err = promptOf(name, v); err != nil {
				return nil, err
			}
			prompt, r.at = true, here
		case "text":
			if a != generate || null {
				continue
			}
			if v.Kind() != '"' && (v.Kind() != '[' || numbers(v)) {
				return nil, invalidf(name, "text must be a string or a list of strings")
			}
			if r.prompts, r.batched, err = promptOf(name, v); err != nil {
				return nil, err
			}
			prompt, r.at = true, here
		case "input_ids":
			if a == completions || null {
				continue
			}
			if v.Kind() != '[' {
				return nil, invalidf(name, "input_ids must be a list")
			}
			if r.prompts, r.batched, err = promptOf(name, v); err != nil {
				return nil, err
			}
			prompt, r.inputIDs, r.at = true, true, here
		case "input_embeds":
			if a == generate && !null {
				prompt, r.prompts, r.at = true, []int{max(1, len(elements(v)))}, [2]int{}
			}
		case "rid":
			if v.Kind() == '"' {
				r.rid, _ = str(name, v)
			}
		case "return_logprob":
			if a == generate {
				r.logprob = v.Kind() == 't' || (v.Kind() == '[' && bytes.Contains(v, []byte("true")))
			}
		case "logprobs", "top_logprobs":
			if a == generate {
				continue
			}
			if err := r.logs.field(a, name, v); err != nil {
				return nil, err
			}
		case "bootstrap_host":
			if r.hosts, err = list(v, func(v jsontext.Value) (string, error) { return str(name, v) }); err != nil {
				return nil, err
			}
		case "bootstrap_port":
			if r.ports, err = list(v, func(v jsontext.Value) (int, error) {
				if v.Kind() == 'n' {
					return -1, nil
				}
				p, err := integer(name, v)
				if err == nil && (p < 0 || p > 65535) {
					err = invalidf(name, "bootstrap_port must be a port, got %d", p)
				}
				return int(p), err
			}); err != nil {
				return nil, err
			}
		case "bootstrap_room":
			if null {
				continue
			}
			r.scalarRoom = v.Kind() != '['
			if r.rooms, err = list(v, func(v jsontext.Value) (int64, error) {
				x, err := integer(name, v)
				if err == nil && x < 0 {
					err = invalidf(name, "bootstrap_room must not be negative, got %d", x)
				}
				return x, err
			}); err != nil {
				return nil, err
			}
		case "routed_dp_rank", "disagg_prefill_dp_rank", "data_parallel_rank":
			if null || (name == "data_parallel_rank" && a == generate) {
				continue
			}
			x, err := integer(name, v)
			if err != nil {
				return nil, err
			}
			switch name {
			case "routed_dp_rank":
				r.routedRank = &x
			case "disagg_prefill_dp_rank":
				r.prefillRank = &x
			default:
				deprecatedRank = &x
			}
		case "tools":
			if r.tools = here; null {
				r.tools = [2]int{}
			}
		case "cache_salt", "extra_key", "session_id", "lora_path":
			text, _ := str(name, v) // a list has one for each prompt, which the cache does not tell apart
			switch name {
			case "session_id":
				r.session = text
			case "lora_path":
				r.adapter = text
			default:
				r.salt += text
			}
		case "sim":
			r.simField = v.Clone()
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, invalidf("", "the body is not JSON: %v", err)
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, invalidf("", "the body goes on after its JSON object")
	}
	if err := r.logs.check(a); err != nil {
		return nil, err
	}
	if r.routedRank == nil {
		r.routedRank = deprecatedRank
	}
	if a == chat && !r.inputIDs && len(r.prompts) == 1 {
		r.prompts[0] += (r.tools[1] - r.tools[0]) / 4
	}
	if !prompt || len(r.prompts) == 0 {
		return nil, r.refuse(map[api]string{chat: "messages", completions: "prompt", generate: "text"}[a])
	}
	return r, nil
}

func (r *request) refuse(missing string) error {
	e := invalidf(missing, "the field %s is missing or empty", missing)
	if r.api == generate {
		e = invalidf("", "either text, input_ids or input_embeds must be given")
		e.native = true
	}
	return e
}

func str(name string, v jsontext.Value) (string, error) {
	switch v.Kind() {
	case 'n':
		return "", nil
	case '"':
		b, err := jsontext.AppendUnquote(nil, v)
		if err != nil && len(b) == 0 {
			return "", invalidf(name, "%s is not a valid string", name)
		}
		return string(b), nil
	}
	return "", invalidf(name, "%s must be a string", name)
}

func boolean(name string, v jsontext.Value) (bool, error) {
	switch v.Kind() {
	case 't':
		return true, nil
	case 'f', 'n':
		return false, nil
	}
	return false, invalidf(name, "%s must be a boolean", name)
}

func integer(name string, v jsontext.Value) (int64, error) {
	if v.Kind() == '0' {
		if x, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return x, nil
		}
	}
	text := v
	if len(text) > 40 {
		text = text[:40]
	}
	return 0, invalidf(name, "%s must be an integer of 64 bits, got %s", name, text)
}

func count(name string, v jsontext.Value, zero bool) (int, error) {
	x, err := integer(name, v)
	if err != nil {
		return 0, err
	}
	if x < 0 || x > maxTokens || (x == 0 && !zero) {
		return 0, invalidf(name, "%s must be positive and at most %d, got %d", name, maxTokens, x)
	}
	return int(x), nil
}

// list reads a scalar or an array of them.
func list[T any](v jsontext.Value, one func(jsontext.Value) (T, error)) ([]T, error) {
	if v.Kind() != '[' {
		x, err := one(v)
		return []T{x}, err
	}
	var out []T
	for _, e := range elements(v) {
		x, err := one(e)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

// field is the last value of that name in an object, or nil.
func field(v jsontext.Value, name string) jsontext.Value {
	if v.Kind() != '{' {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(v), jsonOptions...)
	_, _ = d.ReadToken()
	var found jsontext.Value
	for d.PeekKind() != '}' {
		tok, err := d.ReadToken()
		if err != nil {
			return found
		}
		hit := tok.String() == name
		x, err := d.ReadValue()
		if err != nil {
			return found
		}
		if hit {
			found = x.Clone()
		}
	}
	return found
}

// elements splits an array that is known to be valid.
func elements(v jsontext.Value) []jsontext.Value {
	if v.Kind() != '[' {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(v), jsonOptions...)
	_, _ = d.ReadToken()
	var out []jsontext.Value
	for d.PeekKind() != ']' {
		x, err := d.ReadValue()
		if err != nil {
			return out
		}
		out = append(out, x.Clone())
	}
	return out
}

// numbers reports whether an array's first element is a number.
func numbers(v jsontext.Value) bool {
	t := bytes.TrimLeft(v[1:], " \t\r\n")
	return len(t) > 0 && (t[0] == '-' || (t[0] >= '0' && t[0] <= '9'))
}

// promptOf reads a prompt: a string, token ids, or a list of either.
func promptOf(name string, v jsontext.Value) (tokens []int, batched bool, err error) {
	switch {
	case v.Kind() == '"':
		return []int{tokensOf(v)}, false, nil
	case v.Kind() != '[':
		return nil, false, invalidf(name, "%s must be a string or a list", name)
	case numbers(v):
		return []int{bytes.Count(v, []byte(",")) + 1}, false, nil
	}
	for _, e := range elements(v) {
		switch {
		case e.Kind() == '"':
			tokens = append(tokens, tokensOf(e))
		case e.Kind() == '[' && numbers(e):
			tokens = append(tokens, bytes.Count(e, []byte(","))+1)
		default:
			return nil, false, invalidf(name, "%s must hold strings or lists of token ids", name)
		}
	}
	if len(tokens) > maxBatch {
		return nil, false, invalidf(name, "%s holds %d prompts, more than %d", name, len(tokens), maxBatch)
	}
	return tokens, true, nil
}

// tokensOf counts a text's tokens: a quarter of its bytes in JSON.
func tokensOf(v jsontext.Value) int { return len(v)/4 + 1 }
