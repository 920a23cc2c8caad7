package engine

import (
	"math"
	"strings"
)

// RankLoad is what an engine says about the work on one data-parallel rank, from
// whomever it comes (SGLang's GET /v1/loads, vLLM's GET /metrics).
type RankLoad struct {
	// Running and Waiting are requests, WaitingTokens the prompt tokens to compute
	// of those that wait.
	Running, Waiting, WaitingTokens int64
	// UsedTokens are those in its KV cache that requests hold.
	UsedTokens int64
	// Usage is the part of the cache that they take, from 0 to 1.
	Usage float64
	// Mark stands for the counters that only the scheduler moves: tokens computed, steps
	// made. Different marks of two answers prove that it ran between them. CacheMark
	// stands for the use of the KV cache, which also grows with each chunk of a long
	// prompt; it proves that too, if Running and Waiting are the same in both answers:
	// what comes and goes changes it as well. 0: the answer has nothing of the kind.
	Mark, CacheMark uint64
}

// PathOnly is a path without its query.
func PathOnly(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return path
}

// Plus is the load of two ranks together, but for Usage, which is the sum of both.
func (l RankLoad) Plus(o RankLoad) RankLoad {
	return RankLoad{
		Running: l.Running + o.Running, Waiting: l.Waiting + o.Waiting, WaitingTokens: l.WaitingTokens + o.WaitingTokens,
		UsedTokens: l.UsedTokens + o.UsedTokens, Usage: l.Usage + o.Usage, Mark: both(l.Mark, o.Mark), CacheMark: both(l.CacheMark, o.CacheMark),
	}
}

// both is the mark of two together.
func both(a, b uint64) uint64 {
	if a == 0 || b == 0 {
		return a | b
	}
	return max(a*31^b, 1)
}

// mix takes a value into a mark. It is order dependent, and never makes a mark 0.
func mix(mark uint64, name string, value float64) uint64 {
	const prime = 1099511628211 // FNV-1a
	if mark == 0 {
		mark = 14695981039346656037
	}
	for i := range len(name) {
		mark = (mark ^ uint64(name[i])) * prime
	}
	for b := math.Float64bits(value); b != 0; b >>= 8 {
		mark = (mark ^ b&0xff) * prime
	}
	return max((mark^0x100)*prime, 1)
}

// Loads are an answer about the load. Of ranks that it leaves out nothing is known.
type Loads struct {
	// Ranks and Capacities are by data-parallel rank and of the same length, which is
	// at most MaxDPSize.
	Ranks      []RankLoad
	Capacities []RankCapacity
	// FirstRank is the number that the engine itself gives the first of them: where
	// several servers share the ranks of one model (vLLM's --data-parallel-start-rank),
	// each reports its own by their place among all.
	FirstRank int

	// The following is not in every engine's answer: 0 and empty when not reported.

	// BlockSize is that of the KV cache in tokens. An answer that has it also tells
	// the number of ranks and CacheType.
	BlockSize int64
	CacheType string
	// Started is when the engine's process began, in seconds since 1970.
	Started float64
	// External counts the KV cache received from other engines, in tokens and bytes;
	// it only grows while the engine lives. CountsExternal: it is reported.
	External       float64
	CountsExternal bool
}
