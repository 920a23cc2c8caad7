package dispatch

import (
	"encoding/binary"
	"sync"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/policy"
)

// prefixWalk reads the beginning of a prompt.
type prefixWalk struct {
	walk  openai.PromptWalk
	text  []byte
	limit int
}

var prefixWalks = sync.Pool{New: func() any { return new(prefixWalk) }}

// read reads the first bytes of the prompt of p, token ids as four bytes each, and tells
// whether there are any.
func (w *prefixWalk) read(p *openai.Peeked, limit int) bool {
	w.text, w.limit = w.text[:0], limit
	if formOf[p.Route] == 0 {
		return false
	}
	ids := openai.WalkTokens(p, func(ids []uint32) bool {
		for _, id := range ids {
			w.text = binary.LittleEndian.AppendUint32(w.text, id)
		}
		return len(w.text) < limit
	})
	if ids {
		w.text = w.text[:min(len(w.text), limit)]
	} else {
		w.walk.Walk(p, w)
	}
	return len(w.text) > 0
}

// TakePiece is that of openai.PieceTaker.
func (w *prefixWalk) TakePiece(kind openai.PieceKind, b []byte) bool {
	if kind != openai.PieceText {
		w.text = append(w.text, byte(kind))
	}
	w.text = append(w.text, b[:min(len(b), max(w.limit-len(w.text), 0))]...)
	return len(w.text) < w.limit
}

// prefixBytes is how much of a prompt the policies of the configuration go by.
func prefixBytes(cfg *config.Config) int {
	r := &cfg.Routing
	names := [...]config.Policy{r.Policy, ""}
	if cfg.Fleet.PDDisaggregation {
		names = [...]config.Policy{r.PrefillPolicy, r.DecodePolicy}
	}
	for _, n := range names {
		if policy.UsesPrefix(string(n)) {
			o := policy.Options{PrefixTokens: r.PrefixTokenCount}
			return o.PrefixBytes()
		}
	}
	return 0
}
