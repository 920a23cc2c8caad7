package sim

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	commonpb "github.com/sluice-router/sluice/internal/enginepb/common"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// vllmService is one process's service.
type vllmService struct {
	vllmpb.UnimplementedVllmEngineServer
	w *Worker
	l *lifetime
}

// unary answers a call with one message.
func unary[T proto.Message](ctx context.Context, v *vllmService, method string, req proto.Message, generation bool, answer func(*call) (T, error)) (T, error) {
	var out T
	err := v.w.call(ctx, v.l, method, req, generation, func(m proto.Message) error {
		out = m.(T)
		return nil
	}, func(c *call) error {
		m, err := answer(c)
		if err != nil {
			return err
		}
		return c.message(m)
	})
	if err == nil && !out.ProtoReflect().IsValid() {
		err = status.Error(codes.Internal, "the call was ended by a fault")
	}
	return out, err
}

// HealthCheck tells how the engine is, which the server outlives.
func (v *vllmService) HealthCheck(ctx context.Context, m *vllmpb.HealthCheckRequest) (*vllmpb.HealthCheckResponse, error) {
	return unary(ctx, v, vllmpb.VllmEngine_HealthCheck_FullMethodName, m, false, func(*call) (*vllmpb.HealthCheckResponse, error) {
		if v.l.engineDead.Load() {
			return &vllmpb.HealthCheckResponse{Message: "Engine is not alive"}, nil
		}
		return &vllmpb.HealthCheckResponse{Healthy: true, Message: "Health"}, nil
	})
}

// Abort ends calls, which end normally. An id that is not known is no error.
func (v *vllmService) Abort(ctx context.Context, m *vllmpb.AbortRequest) (*vllmpb.AbortResponse, error) {
	return unary(ctx, v, vllmpb.VllmEngine_Abort_FullMethodName, m, false, func(*call) (*vllmpb.AbortResponse, error) {
		for _, id := range m.GetRequestIds() {
			v.w.abort(id)
		}
		return &vllmpb.AbortResponse{}, nil
	})
}

// FlushCache empties the prefix caches, unless requests run for longer than it may wait.
func (v *vllmService) FlushCache(ctx context.Context, m *commonpb.FlushCacheRequest) (*commonpb.FlushCacheResponse, error) {
	return unary(ctx, v, vllmpb.VllmEngine_FlushCache_FullMethodName, m, false, func(c *call) (*commonpb.FlushCacheResponse, error) {
		wait, cancel := context.WithTimeout(c.ctx, time.Duration(float64(m.GetTimeoutS())*float64(time.Second)))
		defer cancel()
		if v.w.busy(c.ctx) && v.w.WaitIdle(wait) != nil {
			return &commonpb.FlushCacheResponse{Message: "requests are running"}, nil
		}
		v.w.ClearCache()
		return &commonpb.FlushCacheResponse{Success: true, Message: "cache flushed"}, nil
	})
}

// modelPath is where the model would be.
const modelPath = "/models/"

// GetModelInfo tells what the model is.
func (v *vllmService) GetModelInfo(ctx context.Context, m *vllmpb.GetModelInfoRequest) (*vllmpb.GetModelInfoResponse, error) {
	return unary(ctx, v, vllmpb.VllmEngine_GetModelInfo_FullMethodName, m, false, func(*call) (*vllmpb.GetModelInfoResponse, error) {
		o := v.w.opt
		return &vllmpb.GetModelInfoResponse{
			ModelPath: modelPath + o.Model, IsGeneration: !o.Pooling, MaxContextLength: uint32(o.ContextLength), VocabSize: modelVocabulary,
			ServedModelName: o.Model, TokenizerPath: modelPath + o.Model, ModelType: "qwen2", Architectures: []string{"Qwen2ForCausalLM"},
			EosTokenIds: []int32{endOfTurn, endOfText}, PadTokenId: endOfText, MaxReqInputLen: int32(o.ContextLength),
			DefaultSamplingParamsJson: `{"repetition_penalty": 1.05, "temperature": 0.7, "top_k": 20, "top_p": 0.8}`,
		}, nil
	})
}

// GetServerInfo tells how the engine was started.
func (v *vllmService) GetServerInfo(ctx context.Context, m *vllmpb.GetServerInfoRequest) (*vllmpb.GetServerInfoResponse, error) {
	return unary(ctx, v, vllmpb.VllmEngine_GetServerInfo_FullMethodName, m, false, func(*call) (*vllmpb.GetServerInfoResponse, error) {
		o := v.w.opt
		info := &vllmpb.GetServerInfoResponse{DataParallelSize: int32(o.DPSize), KvCacheDtype: "auto",
			BlockSize: int32(o.PageSize), ModelDtype: "torch.bfloat16", MaxNumSeqs: int32(o.MaxRunning), ConstrainedDecodingStart: "first_token"}
		if name := connectorNames[o.Connector]; name != "" {
			info.KvConnector, info.KvRole, info.KvEngineId = name, o.KVRole, v.l.baseEngineID()
			def(&info.KvRole, "kv_both")
		}
		return info, nil
	})
}

// GetLoads tells the load of each rank.
func (v *vllmService) GetLoads(ctx context.Context, m *vllmpb.GetLoadsRequest) (*vllmpb.GetLoadsResponse, error) {
	return unary(ctx, v, vllmpb.VllmEngine_GetLoads_FullMethodName, m, false, func(*call) (*vllmpb.GetLoadsResponse, error) {
		w := v.w
		report := w.scheduled()
		out := &vllmpb.GetLoadsResponse{Timestamp: time.Now().UTC().Format("2006-01-02T15:04:05.000000+00:00"), Version: vllmVersion, DpRankCount: int32(w.opt.DPSize)}
		for rank, c := range report.counts {
			running, waiting := c.load()
			out.Loads = append(out.Loads, &vllmpb.SchedulerLoad{DpRank: int32(rank), NumRunningReqs: int32(running), NumWaitingReqs: int32(waiting),
				NumTotalReqs: int32(running + waiting), NumUsedTokens: int32(c.used), MaxTotalNumTokens: int32(w.opt.KVTokens),
				TokenUsage: float64(c.used) / float64(max(1, w.opt.KVTokens)), CacheHitRate: c.hitRate(),
				Utilization: float64(running) / float64(max(1, w.opt.MaxRunning)), MaxRunningRequests: int32(w.opt.MaxRunning),
				NumWaitingUncachedTokens: int32(c.tokens[queued])})
		}
		return out, nil
	})
}

// load is the number of sequences that run and that wait, as the engine counts them.
func (c rankCounts) load() (running, waiting int) {
	return c.n[prefilling] + c.n[decoding], c.n[queued] + c.n[receiving]
}

// baseEngineID is the engine's id without the rank.
func (l *lifetime) baseEngineID() string { return l.engines[0].base }

// tokenizerChunk is the most bytes of one part of the archive. The engine sends all in one
// when it is small; here a reader must put parts together.
const tokenizerChunk = 4 << 10

// GetTokenizer sends the model's files.
func (v *vllmService) GetTokenizer(m *commonpb.GetTokenizerRequest, stream grpc.ServerStreamingServer[commonpb.GetTokenizerChunk]) error {
	return v.w.call(stream.Context(), v.l, vllmpb.VllmEngine_GetTokenizer_FullMethodName, m, false,
		func(m proto.Message) error { return stream.Send(m.(*commonpb.GetTokenizerChunk)) },
		func(c *call) error {
			archive, digest, err := bundle(v.w.opt.ContextLength)
			if err != nil {
				return err
			}
			for len(archive) > 0 {
				n := min(len(archive), tokenizerChunk)
				part := &commonpb.GetTokenizerChunk{Data: archive[:n]}
				if archive = archive[n:]; len(archive) == 0 {
					part.Sha256 = digest
				}
				if err := c.message(part); err != nil {
					return err
				}
			}
			return nil
		})
}

// embeddingSize is the length of an embedding.
const embeddingSize = 8

// Embed answers with a vector that depends on the tokens, where the worker has pooling.
func (v *vllmService) Embed(ctx context.Context, m *vllmpb.EmbedRequest) (*vllmpb.EmbedResponse, error) {
	return unary(ctx, v, vllmpb.VllmEngine_Embed_FullMethodName, m, true, func(*call) (*vllmpb.EmbedResponse, error) {
		ids := m.GetTokenized().GetInputIds()
		switch {
		case !v.w.opt.Pooling:
			return nil, invalidf("", "Embedding API is not supported by this model. Please set `--task embedding` if it is")
		case m.GetTokenized() == nil:
			return nil, invalidf("", "EmbedRequest requires tokenized input")
		case len(ids) == 0:
			return nil, invalidf("", "The decoder prompt cannot be empty")
		case len(ids) > v.w.opt.ContextLength:
			return nil, invalidf("", "The prompt of %d tokens is longer than the maximum model length of %d", len(ids), v.w.opt.ContextLength)
		}
		h := uint64(0)
		for _, id := range ids {
			if id >= modelVocabulary {
				return nil, invalidf("", "Token id %d is out of vocabulary", id)
			}
			h = mix(h, uint64(id))
		}
		out := &vllmpb.EmbedResponse{PromptTokens: uint32(len(ids)), EmbeddingDim: embeddingSize}
		for k := range uint64(embeddingSize) {
			out.Embedding = append(out.Embedding, float32(mix(h, k)%2001)/1000-1)
		}
		return out, nil
	})
}
