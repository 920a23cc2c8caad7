package fleet

import (
	"bytes"
	"context"
	"hash/maphash"
)

var fingerprintSeed = maphash.MakeSeed()

// fingerprintOf hashes an answer of /server_info, without parsing it as JSON: all of it
// except internal_states, which has loads; of these only the capacities. SGLang's
// answer has every argument, among them a random seed that each process draws.
func fingerprintOf(body []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(fingerprintSeed)
	from, to := section(body, `"internal_states"`)
	_, _ = h.Write(body[:from])
	for rest := body[from:to]; ; {
		i := bytes.Index(rest, []byte(`"token_capacity"`))
		if i < 0 {
			break
		}
		rest = rest[i:]
		end := bytes.IndexAny(rest, ",}")
		if end < 0 {
			break
		}
		_, _ = h.Write(rest[:end])
		rest = rest[end:]
	}
	_, _ = h.Write(body[to:])
	return max(h.Sum64(), 1)
}

// section finds the array that follows a name in JSON; from = to = len(body) when
// there is none.
func section(body []byte, name string) (from, to int) {
	i := bytes.Index(body, []byte(name))
	if i < 0 {
		return len(body), len(body)
	}
	depth, quoted := 0, false
	for j := i + len(name); j < len(body); j++ {
		switch c := body[j]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			j++
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth <= 0 {
				return i, j + 1
			}
		}
	}
	return i, len(body)
}

// changed reports, by a few cheap requests, whether w is another engine process than
// before, or serves other models. A route that does not answer proves nothing.
func (p *httpProber) changed(ctx context.Context, w *Worker, before *Facts) bool {
	ctx, cancel := context.WithTimeout(ctx, loadsTimeout)
	defer cancel()
	var body []byte
	status, err := p.get(ctx, w, "/v1/models", false, &body)
	if err != nil || status/100 != 2 && status != 404 {
		return false
	}
	now := &Facts{}
	if status != 404 {
		_ = now.addModels(body) // what is no list names nothing
	}
	if !now.sameNames(before) {
		return true
	}
	if before.vllm(w) {
		return false // its metrics have the start time
	}
	path := "/server_info"
	if before.oldInfo {
		path = "/get_server_info"
	}
	body = nil
	switch status, err = p.get(ctx, w, path, false, &body); {
	case err != nil:
		return false
	case status/100 == 2:
		return fingerprintOf(body) != before.fingerprint
	case status == 404:
		return before.fingerprint != 0
	}
	return false
}

// loadsDiffer reports whether an answer about the load is another engine's than the
// one that the facts are of.
func (f *Facts) loadsDiffer(l *loads) bool {
	if l.started != f.started || len(l.capacities) != len(f.loads) {
		return true
	}
	for i, s := range l.capacities {
		if s != f.loads[i] {
			return true
		}
	}
	return false
}
