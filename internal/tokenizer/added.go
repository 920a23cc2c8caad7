package tokenizer

import (
	"sort"
	"unicode/utf8"

	"github.com/sluice-router/sluice/internal/tokenizer/pattern"
)

const (
	maxAddedBytes      = 1 << 10 // of one added token: each of its bytes may be read again at each byte of a text
	maxAddedTotalBytes = 1 << 22
	// maxAddedWork is for normalising all added tokens, in units of work: less than a second.
	maxAddedWork = 1 << 26
)

// finder finds added tokens in a text: the leftmost ones, and of those that begin at the
// same place the longest. Single words, and white space beside tokens that take it, are
// as in the reference: a token that is found and does not count, being no single word,
// hides shorter ones that begin in it. A token may begin in white space that the one
// before it took; if it takes white space itself nothing may be left of it.
type finder struct {
	root  [256]int32 // by first byte: a state + 1
	edges []edge     // of all states, those of one state ascending by byte
	nodes []trieNode
	rules []addedRule
}

type trieNode struct {
	first, end int32 // edges
	rule       int32 // the token that ends here + 1
}

type edge struct {
	b  byte
	to int32
}

// addedRule is a token to be found.
type addedRule struct {
	text       string
	id         uint32
	singleWord bool
	lstrip     bool // takes the white space before it
	rstrip     bool
}

// newFinder makes a finder of rules, nil if there are none. Of rules with the same text the
// first counts.
func newFinder(rules []addedRule) *finder {
	if len(rules) == 0 {
		return nil
	}
	f := &finder{rules: rules}
	order := make([]int32, len(rules))
	for i := range order {
		order[i] = int32(i)
	}
	sort.SliceStable(order, func(i, j int) bool { return rules[order[i]].text < rules[order[j]].text })
	// A range of the sorted tokens that begin alike is a state; states are made by level, so
	// that the edges of each lie together.
	type span struct{ lo, hi, depth int }
	spans := []span{{0, len(order), 0}}
	f.nodes = append(f.nodes, trieNode{})
	for at := 0; at < len(spans); at++ {
		s := spans[at]
		f.nodes[at].first = int32(len(f.edges))
		for s.lo < s.hi && len(rules[order[s.lo]].text) == s.depth {
			if f.nodes[at].rule == 0 && s.depth > 0 {
				f.nodes[at].rule = order[s.lo] + 1
			}
			s.lo++
		}
		for s.lo < s.hi {
			b := rules[order[s.lo]].text[s.depth]
			end := s.lo + 1
			for end < s.hi && rules[order[end]].text[s.depth] == b {
				end++
			}
			f.edges = append(f.edges, edge{b: b, to: int32(len(spans))})
			spans = append(spans, span{s.lo, end, s.depth + 1})
			f.nodes = append(f.nodes, trieNode{})
			s.lo = end
		}
		f.nodes[at].end = int32(len(f.edges))
	}
	for _, e := range f.edges[f.nodes[0].first:f.nodes[0].end] {
		f.root[e.b] = e.to + 1
	}
	return f
}

// longest returns the longest token at the beginning of s, nil if there is none, and how
// many bytes it read to tell.
func (f *finder) longest(s string) (rule *addedRule, walked int) {
	state := f.root[s[0]] - 1
	for i := 1; ; i++ {
		n := &f.nodes[state]
		if n.rule > 0 {
			rule = &f.rules[n.rule-1]
		}
		if i == len(s) || n.first == n.end {
			return rule, i
		}
		edges := f.edges[n.first:n.end]
		j := 0
		if len(edges) > 8 {
			j = sort.Search(len(edges), func(j int) bool { return edges[j].b >= s[i] })
		}
		for j < len(edges) && edges[j].b < s[i] {
			j++
		}
		if j == len(edges) || edges[j].b != s[i] {
			return rule, i
		}
		state = edges[j].to
	}
}

// skip returns how many bytes at the beginning of s no token begins with.
func (f *finder) skip(s string) int {
	for i := range len(s) {
		if f.root[s[i]] != 0 {
			return i
		}
	}
	return len(s)
}

// next returns the first token that counts at or after pos, with the white space that it
// takes. from is the end of the token before, which white space on the left is not taken
// beyond. resume is where to look for the next one.
func (f *finder) next(e *encoder, s string, from, pos int) (rule *addedRule, start, end, resume int, ok bool) {
	for pos < len(s) {
		if n := f.skip(s[pos:min(len(s), pos+1<<12)]); n > 0 {
			pos += n
			if !e.tick(n / 8) {
				break
			}
			continue
		}
		rule, walked := f.longest(s[pos:])
		if !e.tick(walked) {
			break
		}
		if rule == nil {
			pos++
			continue
		}
		start, end = pos, pos+len(rule.text)
		if rule.singleWord && (wordBefore(s, start) || wordAt(s, end)) {
			pos = end
			continue
		}
		resume = end
		if rule.lstrip {
			start = max(start, from)
			for start > from && e.tick(2) {
				r, n := utf8.DecodeLastRuneInString(s[from:start])
				if !pattern.Space.Has(r) {
					break
				}
				start -= n
			}
		}
		if rule.rstrip {
			end = max(end, from) // what the token before took is not gone over again
			for end < len(s) && e.tick(2) {
				r, n := utf8.DecodeRuneInString(s[end:])
				if !pattern.Space.Has(r) {
					break
				}
				end += n
			}
		}
		return rule, start, end, resume, true
	}
	return nil, 0, 0, 0, false
}

func wordBefore(s string, pos int) bool {
	r, n := utf8.DecodeLastRuneInString(s[:pos])
	return n > 0 && pattern.Word.Has(r)
}

func wordAt(s string, pos int) bool {
	r, n := utf8.DecodeRuneInString(s[pos:])
	return n > 0 && pattern.Word.Has(r)
}

func (f *finder) bytes() int64 {
	if f == nil {
		return 0
	}
	return 1024 + int64(len(f.edges))*8 + int64(len(f.nodes))*12 + int64(len(f.rules))*32
}
