package engine

// RankLoad is what an engine says about the work on one data-parallel rank, from
// whomever it comes (SGLang's GET /v1/loads, vLLM's GET /metrics).
type RankLoad struct {
	// Running and Waiting are requests, WaitingTokens the prompt tokens to compute
	// of those that wait.
	Running, Waiting, WaitingTokens int64
	// UsedTokens are those in its KV cache that requests hold.
	UsedTokens int64
}

// Loads are an answer about the load. Of ranks that it leaves out nothing is known.
type Loads struct {
	// Ranks and Capacities are by data-parallel rank and of the same length, which is
	// at most MaxDPSize.
	Ranks      []RankLoad
	Capacities []RankCapacity

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
