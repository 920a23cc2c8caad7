package openai

import (
	"math"
	"strconv"
)

// appendFanUsage appends the usage of copies[0], with the output tokens summed over all
// copies; the prompt counts once, as it does when an engine gives n samples itself.
// copies are usage objects, known to be valid JSON. Members that are no integer counts
// stay unchanged.
func appendFanUsage(dst []byte, copies [][]byte) []byte {
	u := fanUsage{copies: copies}
	frame := copies[0]
	u.s.reset(frame, DefaultMaxDepth)
	i := u.s.space(0)
	if i >= len(frame) || frame[i] != '{' {
		return append(dst, frame...)
	}
	u.dst = dst
	u.object(i+1, 1)
	return append(u.dst, frame[u.at:]...)
}

// fanUsage is one merge. at is how far the first usage object has been copied.
type fanUsage struct {
	s      scanner
	look   scanner
	copies [][]byte
	dst    []byte
	at     int
}

func (u *fanUsage) object(i, depth int) int {
	s := &u.s
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return v
		}
		if depth == 1 && s.b[v] == '{' && s.nameIs(name, "completion_tokens_details") {
			i = u.object(v+1, depth+1)
		} else {
			i = s.skip(v, depth)
		}
		if i < 0 {
			return -1
		}
		if _, ok := plainCount(s.b[v:i]); !ok {
			continue
		}
		in, key := "", ""
		switch {
		case depth > 1:
			in, key = "completion_tokens_details", string(AppendUnquoted(nil, s.b[name.Start:name.End]))
		case s.nameIs(name, "completion_tokens") || s.nameIs(name, "total_tokens"):
			key = "completion_tokens"
		case s.nameIs(name, "reasoning_tokens"): // SGLang has it here
			key = "reasoning_tokens"
		default:
			continue
		}
		sum, ok := u.sum(in, key)
		if ok && s.nameIs(name, "total_tokens") && depth == 1 {
			var prompt int64
			prompt, ok = u.count(0, "", "prompt_tokens")
			sum = addCounts(sum, prompt)
		}
		if !ok {
			continue
		}
		u.dst = append(u.dst, s.b[u.at:v]...)
		u.dst = strconv.AppendInt(u.dst, sum, 10)
		u.at = i
	}
}

// sum adds the count over all copies that have it; ok is false if the frame has not.
func (u *fanUsage) sum(in, name string) (sum int64, ok bool) {
	for k := range u.copies {
		n, has := u.count(k, in, name)
		if has {
			sum = addCounts(sum, n)
		}
		if k == 0 {
			ok = has
		}
	}
	return sum, ok
}

// count is the copy's count of that name, in the object in or at the top.
func (u *fanUsage) count(k int, in, name string) (n int64, ok bool) {
	s := &u.look
	s.reset(u.copies[k], DefaultMaxDepth)
	at, depth := Span{s.space(0), 0}, 1
	if in != "" {
		at, depth = s.find(at, 1, in), 2
	}
	at = s.find(at, depth, name)
	return plainCount(s.b[at.Start:at.End])
}

// find is the value of the last member of that name in the object that starts at
// object.Start inside depth-1 containers; zero if there is none.
func (s *scanner) find(object Span, depth int, name string) (value Span) {
	i := object.Start
	if i >= len(s.b) || s.b[i] != '{' {
		return Span{}
	}
	i++
	for first := true; ; first = false {
		at, v, done := s.member(i, first)
		if v < 0 || done {
			return value
		}
		if i = s.skip(v, depth); i < 0 {
			return Span{}
		}
		if s.nameIs(at, name) {
			value = Span{v, i}
		}
	}
}

func plainCount(raw []byte) (int64, bool) {
	n, ok := parseInt(raw)
	return n, ok && n >= 0
}

// addCounts adds two counts; a sum beyond 64 bits, which only wrong counts of an engine
// can reach, stays at the largest number.
func addCounts(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
