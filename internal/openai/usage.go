package openai

// Usage is the token counts an engine reports, -1 where it reports none. PromptTokens are
// those of the whole prompt in every API, CachedTokens the part of them that was cached.
type Usage struct {
	PromptTokens, CompletionTokens, CachedTokens int64
}

// ReadUsage finds the token counts in the JSON of an answer or an event: a
// top-level usage object (OpenAI), or meta_info (SGLang's native form; of a list
// of answers the counts are summed). ok is false if there are none.
//
// The JSON need not be checked: invalid JSON does not make it panic.
func ReadUsage(json []byte) (u Usage, ok bool) {
	s := new(scanner)
	s.reset(json, DefaultMaxDepth)
	u = noUsage
	i := s.space(0)
	if i >= len(json) {
		return noUsage, false
	}
	switch json[i] {
	case '{':
		s.usageIn(i+1, &u)
	case '[':
		i++
		for first := true; ; first = false {
			e, done := s.element(i, first)
			if e < 0 || done {
				break
			}
			if json[e] == '{' {
				one := noUsage
				i = s.usageIn(e+1, &one)
				u.add(one)
			} else {
				i = s.skip(e, 1)
			}
			if i < 0 {
				break
			}
		}
	}
	if u == noUsage {
		return noUsage, false
	}
	return u, true
}

var noUsage = Usage{-1, -1, -1}

// maxCount is more tokens than any prompt or answer has. A count above it is wrong, and is
// taken for none: sums and counters that it went into would be of no use ever after.
const maxCount = 1 << 32

// add sums counts that are reported. Sums cannot overflow below 2^31 items.
func (u *Usage) add(v Usage) {
	for _, p := range [...]struct {
		to   *int64
		from int64
	}{{&u.PromptTokens, v.PromptTokens}, {&u.CompletionTokens, v.CompletionTokens}, {&u.CachedTokens, v.CachedTokens}} {
		if p.from >= 0 {
			*p.to = max(0, *p.to) + p.from
		}
	}
}

// usageIn walks an answer's object (i is after its '{') for usage or meta_info. Events
// of the Messages and Responses APIs have it one level down, in message or response.
func (s *scanner) usageIn(i int, u *Usage) int {
	return s.usageAt(i, u, 1)
}

func (s *scanner) usageAt(i int, u *Usage, depth int) int {
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return v
		}
		switch {
		case s.b[v] != '{':
			i = s.skip(v, depth)
		case s.nameIs(name, "usage") || s.nameIs(name, "meta_info"):
			i = s.counts(v+1, u, depth+1)
		case depth == 1 && (s.nameIs(name, "message") || s.nameIs(name, "response")):
			i = s.usageAt(v+1, u, depth+1)
		default:
			i = s.skip(v, depth)
		}
		if i < 0 {
			return -1
		}
	}
}

func (s *scanner) counts(i int, u *Usage, depth int) int {
	// The input_tokens of the Messages API do not have those that were found in the cache or
	// are kept there from now on. Where it does not tell these, they have all.
	input, read, created := int64(-1), int64(0), int64(0)
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			if input >= 0 {
				u.PromptTokens = input + read + created
			}
			return v
		}
		details := depth < 4 && s.b[v] == '{' && (s.nameIs(name, "prompt_tokens_details") || s.nameIs(name, "input_tokens_details"))
		if details {
			i = s.counts(v+1, u, depth+1)
		} else {
			i = s.skip(v, depth)
		}
		if i < 0 {
			return -1
		}
		n, ok := parseInt(s.b[v:i])
		if !ok || n < 0 || n > maxCount {
			continue
		}
		switch {
		case s.nameIs(name, "prompt_tokens"):
			u.PromptTokens = n
		case s.nameIs(name, "input_tokens"):
			input = n
		case s.nameIs(name, "completion_tokens") || s.nameIs(name, "output_tokens"):
			u.CompletionTokens = n
		case s.nameIs(name, "cached_tokens"):
			u.CachedTokens = n
		case s.nameIs(name, "cache_read_input_tokens"):
			u.CachedTokens, read = n, n
		case s.nameIs(name, "cache_creation_input_tokens"):
			created = n
		}
	}
}

// RawFields finds several top-level fields of a JSON object in one pass, as RawField finds
// one: raw[i] is the value of names[i], nil if there is none. It is false, and raw not to be
// used, if json is no object.
func RawFields(json []byte, names []string, raw [][]byte) bool {
	var s scanner
	s.reset(json, DefaultMaxDepth)
	i := s.space(0)
	if i >= len(json) || json[i] != '{' {
		return false
	}
	i++
	for first := true; ; first = false {
		at, v, done := s.member(i, first)
		if v < 0 || done {
			return v >= 0
		}
		if i = s.skip(v, 1); i < 0 {
			return false
		}
		for k, name := range names {
			if s.nameIs(at, name) {
				raw[k] = json[v:i]
			}
		}
	}
}

// RawField is a top-level field of a JSON object as it is written, the last of that
// name; ok is false if there is none or json is no object. The bytes are those of json.
func RawField(json []byte, field string) (raw []byte, ok bool) {
	at, ok := findField(json, field)
	if !ok {
		return nil, false
	}
	return json[at.Start:at.End], true
}

// findField is the place of the value that RawField returns.
func findField(json []byte, field string) (at Span, ok bool) {
	s := new(scanner)
	s.reset(json, DefaultMaxDepth)
	i := s.space(0)
	if i >= len(json) || json[i] != '{' {
		return Span{}, false
	}
	i++
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 {
			return Span{}, false
		}
		if done {
			return at, ok
		}
		if i = s.skip(v, 1); i < 0 {
			return Span{}, false
		}
		if s.nameIs(name, field) {
			at, ok = Span{v, i}, true
		}
	}
}
