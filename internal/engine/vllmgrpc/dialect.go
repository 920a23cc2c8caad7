package vllmgrpc

import (
	"bytes"
	"net/http"

	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/openai"
)

// Dialect is vLLM by gRPC. What is the same as by HTTP, such as its connectors and who can be
// paired, is that of [engine.VLLM].
type Dialect struct{ engine.VLLM }

const service = "/vllm.grpc.engine.VllmEngine/"

// Name implements engine.Dialect.
func (Dialect) Name() string { return "vllm-grpc" }

// Speaks implements engine.Dialect.
func (Dialect) Speaks(scheme string) bool { return scheme == "grpc" || scheme == "grpcs" }

// TakesTokens implements engine.Dialect.
func (Dialect) TakesTokens() bool { return true }

// Native implements engine.Dialect: chat and completions are what becomes a request in tokens,
// and embeddings.
func (Dialect) Native(route openai.Route) bool {
	return route == openai.RouteChatCompletions || route == openai.RouteCompletions || route == openai.RouteEmbeddings
}

// Plan implements engine.Dialect.
func (d Dialect) Plan(p *engine.Pair) (engine.Plan, error) { return d.PlanTokens(p) }

// EditWhole implements engine.Dialect: there is no body.
func (Dialect) EditWhole(*openai.Splicer, engine.Whole) {}

// RankHeader implements engine.Dialect: a field of the request names the rank.
func (Dialect) RankHeader() string { return "" }

// HandOffLost implements engine.Dialect: unlike by HTTP, a decode that could not fetch the
// blocks is told apart from other failures, see TransferFailure.
func (Dialect) HandOffLost(int) bool { return false }

// transferLost is told of a decode that ended with the reason "error" although it was handed
// KV cache: that is how vLLM says that it could not fetch it.
const transferLost = "the engine could not load the KV cache that prefill handed over"

// TransferFailure implements engine.Dialect.
func (Dialect) TransferFailure(status int, body []byte) bool {
	return status == http.StatusInternalServerError && bytes.Contains(body[:min(len(body), 4096)], []byte(transferLost))
}

// RankMissing implements engine.Dialect. The engine says which number is out of which range.
func (Dialect) RankMissing(status int, body []byte) bool {
	if status != http.StatusBadRequest {
		return false
	}
	body = bytes.ToLower(body[:min(len(body), 4096)])
	return bytes.Contains(body, []byte("out of range")) && bytes.Contains(body, []byte("rank"))
}
