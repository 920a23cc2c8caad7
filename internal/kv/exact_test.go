package kv

import (
	"fmt"
	"hash/fnv"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/internal/kv/events"
)

// plainExact is what events mean, as plain as can be: hashes to the whole text of a prompt up
// to the end of their block.
type plainExact struct {
	blocks  map[uint64]*plainBlock
	aside   []plainRun
	grouped bool
	group   int
	size    int
}

type plainBlock struct {
	text      string
	parent    uint64
	hasParent bool
	ghost     bool
	alias     bool // another hash stood for the same block already: only that one counts
}

type plainRun struct {
	parent uint64
	hashes []uint64
	texts  []string
}

func (m *plainExact) clear() {
	*m = plainExact{blocks: map[uint64]*plainBlock{}, size: m.size}
}

func (m *plainExact) kids(h uint64) (n int) {
	for _, b := range m.blocks {
		if b.hasParent && b.parent == h {
			n++
		}
	}
	return n
}

func (m *plainExact) stored(s *events.Stored) {
	if s.Medium == "CPU" || s.Kind == "mamba" || m.grouped && s.Group != m.group || s.HasParent && slices.Contains(s.Hashes, s.Parent) {
		return
	}
	n := min(len(s.Hashes), len(s.Tokens)/s.BlockSize)
	if n == 0 {
		return
	}
	if m.size != 0 && m.size != s.BlockSize {
		m.clear()
	}
	m.size, m.grouped, m.group = s.BlockSize, true, s.Group
	r := plainRun{parent: s.Parent, hashes: s.Hashes[:n]}
	for i := range n {
		text := fmt.Sprint(s.Tokens[i*s.BlockSize : (i+1)*s.BlockSize])
		if i == 0 && s.HasParent {
			text += saltOf(s) // elsewhere than in a first block it is something else
		}
		r.texts = append(r.texts, text)
	}
	root := ""
	if !s.HasParent {
		root = scopeText(s.Adapter, saltOf(s), s.BlockSize)
	}
	m.store(r, s.HasParent, root)
	for again := true; again; {
		again = false
		for i, r := range m.aside {
			if m.blocks[r.parent] != nil {
				m.aside = slices.Delete(m.aside, i, i+1)
				m.store(r, true, "")
				again = true
				break
			}
		}
	}
}

func scopeText(adapter, salt string, size int) string {
	return fmt.Sprintf("%s,%s,%d:", adapter, salt, size)
}

func saltOf(s *events.Stored) string {
	if len(s.Extra) == 0 || len(s.Extra[0]) == 0 {
		return ""
	}
	last := s.Extra[0][len(s.Extra[0])-1]
	if last == s.Adapter {
		return ""
	}
	return last
}

func (m *plainExact) store(r plainRun, hasParent bool, text string) {
	if hasParent {
		p := m.blocks[r.parent]
		if p == nil {
			r.hashes = slices.Clone(r.hashes)
			m.aside = append(m.aside, r)
			return
		}
		text = p.text
	}
	parent := r.parent
	for i, h := range r.hashes {
		text += r.texts[i]
		switch b := m.blocks[h]; {
		case b == nil:
			m.blocks[h] = &plainBlock{text: text, parent: parent, hasParent: hasParent, alias: m.counts(text)}
		case b.text == text:
			if b.ghost {
				b.alias, b.ghost = m.counts(text), false
			}
		case slices.Contains(r.hashes[:i], h):
			return
		default:
			m.clear()
			return
		}
		parent, hasParent = h, true
	}
}

func (m *plainExact) counts(text string) bool {
	for _, b := range m.blocks {
		if !b.ghost && !b.alias && b.text == text {
			return true
		}
	}
	return false
}

func (m *plainExact) removed(r *events.Removed) {
	if r.Medium == "CPU" || m.grouped && r.Group != m.group {
		return
	}
	for _, h := range r.Hashes {
		if b := m.blocks[h]; b != nil && !b.ghost {
			if b.ghost = m.kids(h) > 0; !b.ghost {
				m.drop(h)
			}
		}
		for i := 0; i < len(m.aside); i++ {
			if j := slices.Index(m.aside[i].hashes, h); j == 0 {
				m.aside = slices.Delete(m.aside, i, i+1)
				i--
			} else if j > 0 {
				m.aside[i].hashes = m.aside[i].hashes[:j]
			}
		}
	}
}

func (m *plainExact) drop(h uint64) {
	b := m.blocks[h]
	delete(m.blocks, h)
	if p := m.blocks[b.parent]; b.hasParent && p != nil && p.ghost && m.kids(b.parent) == 0 {
		m.drop(b.parent)
	}
}

func (m *plainExact) depth(text string, tokens []uint32, size int) (n int) {
	for n < len(tokens)/size {
		text += fmt.Sprint(tokens[n*size : (n+1)*size])
		if !m.counts(text) {
			break
		}
		n++
	}
	return n
}

// prompt is one that an engine may have, with the hashes that it gives its blocks.
type prompt struct {
	adapter, salt string
	size          int
	tokens        []uint32
}

func drawPrompt(t *rapid.T) prompt {
	p := prompt{
		adapter: rapid.SampledFrom([]string{"", "", "lora"}).Draw(t, "adapter"),
		salt:    rapid.SampledFrom([]string{"", "", "tenant"}).Draw(t, "salt"),
		size:    rapid.SampledFrom([]int{2, 2, 2, 2, 2, 3}).Draw(t, "size"),
	}
	for range rapid.IntRange(1, 6).Draw(t, "blocks") {
		x := rapid.Uint32Range(1, 2).Draw(t, "token")
		for range p.size {
			p.tokens = append(p.tokens, x)
		}
	}
	return p
}

func (p *prompt) hash(i int) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, scopeText(p.adapter, p.salt, p.size), p.tokens[:(i+1)*p.size])
	return h.Sum64()
}

// stored is the event of an engine that stores blocks from to end of a prompt.
func (p *prompt) stored(from, end int) *events.Stored {
	s := &events.Stored{BlockSize: p.size, Adapter: p.adapter, Medium: "GPU", Tokens: p.tokens[from*p.size : end*p.size]}
	for i := from; i < end; i++ {
		s.Hashes = append(s.Hashes, p.hash(i))
		var extra []string
		if p.adapter != "" {
			extra = append(extra, p.adapter)
		}
		if i == 0 && p.salt != "" {
			extra = append(extra, p.salt)
		}
		s.Extra = append(s.Extra, extra)
	}
	if p.salt == "" && p.adapter == "" {
		s.Extra = nil
	}
	if s.HasParent = from > 0; s.HasParent {
		s.Parent = p.hash(from - 1)
	}
	return s
}

func checkExact(t *rapid.T) {
	x := newIndex(Options{}, 2)
	e := NewExact(x, RankSpec{Data: "e"}, "model")
	m := &plainExact{}
	m.clear()
	other := x.Add(RankSpec{}) // of the same index, of another feed
	x.Store(other, []Key{1, 2, 3})
	t.Repeat(map[string]func(*rapid.T){
		"stored": func(t *rapid.T) {
			p := drawPrompt(t)
			n := len(p.tokens) / p.size
			from := rapid.IntRange(0, n-1).Draw(t, "from")
			s := p.stored(from, rapid.IntRange(from+1, n).Draw(t, "end"))
			switch rapid.IntRange(0, 30).Draw(t, "lie") {
			case 1:
				s.Hashes[0] = rapid.Uint64Range(0, 2).Draw(t, "hash")
			case 2:
				s.HasParent, s.Parent = true, s.Hashes[len(s.Hashes)-1]
			case 3:
				s.Tokens = s.Tokens[:len(s.Tokens)-1]
			case 4:
				s.Medium = "CPU"
			case 5:
				s.Group, s.Kind = 1, rapid.SampledFrom([]string{"full_attention", "mamba"}).Draw(t, "kind")
			case 6:
				s.Hashes = append(s.Hashes, s.Hashes[0])
				s.Tokens = append(slices.Clone(s.Tokens), s.Tokens[:s.BlockSize]...)
				if s.Extra != nil {
					s.Extra = append(s.Extra, s.Extra[0])
				}
			case 7:
				s.HasParent, s.Parent = true, 0
			}
			e.Stored(s)
			m.stored(s)
		},
		"removed": func(t *rapid.T) {
			r := &events.Removed{Medium: rapid.SampledFrom([]string{"GPU", "GPU", "", "CPU"}).Draw(t, "medium")}
			for range rapid.IntRange(1, 4).Draw(t, "count") {
				p := drawPrompt(t)
				r.Hashes = append(r.Hashes, p.hash(rapid.IntRange(0, len(p.tokens)/p.size-1).Draw(t, "at")))
			}
			e.Removed(r)
			m.removed(r)
		},
		"cleared": func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
				e.Cleared()
				m.clear()
			}
		},
		"": func(t *rapid.T) {
			for range 4 {
				p := drawPrompt(t)
				var h Hasher
				h.Reset(Scope{Model: "model", Adapter: p.adapter, Salt: p.salt, Form: FormTokens, Size: p.size})
				h.WriteTokens(p.tokens)
				got := 0
				for _, o := range x.Match(h.Keys(), 0, nil, nil) {
					got = o.Blocks
				}
				if want := m.depth(scopeText(p.adapter, p.salt, p.size), p.tokens, p.size); got != want {
					t.Fatalf("%d blocks of %+v are credited, want %d", got, p, want)
				}
			}
		},
	})
	e.Drop()
	x.Drop(other)
	x.sweepNext(1 << 30)
	if s := x.Stats(); s.Distinct != 0 || x.used.Load() != 2*shardBytes+listsLeft(x) {
		t.Fatalf("left: %+v, %d bytes are counted", s, x.used.Load())
	}
}

func TestEventsMeanWhatTheyMeanInAPlainModel(t *testing.T) { rapid.Check(t, checkExact) }

func FuzzEvents(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkExact)) }
