package vllmgrpc

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-router/sluice/internal/engine"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// The methods by which an engine is probed.
const (
	methodServerInfo = service + "GetServerInfo"
	methodModelInfo  = service + "GetModelInfo"
	methodLoads      = service + "GetLoads"
	methodHealth     = service + "HealthCheck"
	methodAlive      = "/grpc.health.v1.Health/Check"
)

// Owns implements engine.Prober: there is no list of models.
func (Dialect) Owns(string) bool { return false }

// SignPath implements engine.Prober: no other engine has the service.
func (Dialect) SignPath() string { return methodServerInfo }

// Recognizes implements engine.Prober: the method itself is the sign.
func (Dialect) Recognizes(string, engine.Fields) bool { return false }

// ListsModels implements engine.Prober.
func (Dialect) ListsModels() bool { return false }

// ReadFacts implements engine.Prober.
func (Dialect) ReadFacts(q *engine.Inquiry) {
	f := q.Facts
	f.InfoPath = methodServerInfo
	if _, lost := q.Read(func(answer []byte) error { return readModelInfo(f, answer) }, methodModelInfo); lost {
		f.InfoLost = true
	}
	q.Read(func(answer []byte) error { return readServerInfo(f, answer) }, methodServerInfo)
}

func readModelInfo(f *engine.Facts, answer []byte) error {
	var m vllmpb.GetModelInfoResponse
	if err := proto.Unmarshal(answer, &m); err != nil {
		return err
	}
	f.ModelPath, f.ServedName = name(m.ModelPath), name(m.ServedModelName)
	id := f.ServedName
	if id == "" {
		id = f.ModelPath
	}
	if id == "" {
		return errors.New("it names no model")
	}
	f.Models = []engine.ModelInfo{{ID: id, Root: f.ModelPath, OwnedBy: "vllm", MaxModelLen: amount(int64(m.MaxContextLength))}}
	f.Tokens = tokenFacts(&m)
	return nil
}

// Bounds of what an engine tells of its model's tokens.
const (
	maxEOS      = 64
	maxVocab    = 1 << 24
	maxSampling = 4 << 10 // bytes
)

func tokenFacts(m *vllmpb.GetModelInfoResponse) *engine.TokenFacts {
	t := &engine.TokenFacts{}
	if m.VocabSize <= maxVocab {
		t.Vocab = int64(m.VocabSize)
	}
	for _, id := range m.EosTokenIds[:min(len(m.EosTokenIds), maxEOS)] {
		if id >= 0 {
			t.EOS = append(t.EOS, uint32(id))
		}
	}
	if s := m.DefaultSamplingParamsJson; len(s) <= maxSampling {
		t.Sampling = s
	}
	return t
}

func readServerInfo(f *engine.Facts, answer []byte) error {
	var m vllmpb.GetServerInfoResponse
	if err := proto.Unmarshal(answer, &m); err != nil {
		return err
	}
	switch class := name(m.KvConnector); class {
	case "":
		f.Connector = engine.ConnectorNone
	default:
		if f.Connector = (Dialect{}).Connectors().Named(class); f.Connector == "" {
			f.Warn("its KV connector %q is not known here", class)
		}
	}
	f.MaxRunningRequests = amount(int64(m.MaxNumSeqs))
	if n := m.BlockSize; n > 0 && n <= engine.MaxBlockSize {
		f.PageSize = int64(n)
	}
	if n := m.DataParallelSize; n > 0 && n <= engine.MaxDPSize {
		f.DPSize = int(n)
	}
	f.CacheType = name(m.KvCacheDtype)
	f.Fingerprint = fingerprint(&m)
	if m.IsPaused {
		f.Warn("it is paused")
	}
	return nil
}

// fingerprint distinguishes the engine's processes: each start of one with a KV connector has
// another engine id. What moves while it runs is left out.
func fingerprint(m *vllmpb.GetServerInfoResponse) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q %q %q %q %d %d %d %q", m.KvEngineId, m.KvConnector, m.KvRole, m.KvCacheDtype,
		m.DataParallelSize, m.BlockSize, m.MaxNumSeqs, m.ModelDtype)
	return max(h.Sum64(), 1)
}

func name(s string) string {
	if !engine.ValidName(s) {
		return ""
	}
	return s
}

func amount(n int64) int64 { return min(max(n, 0), engine.MaxCapacity) }

// Changed implements engine.Prober.
func (Dialect) Changed(ctx context.Context, ask engine.Ask, before *engine.Facts) bool {
	now := &engine.Facts{}
	if status, body, err := ask(ctx, engine.Question{Path: methodServerInfo}); err != nil || status != http.StatusOK || readServerInfo(now, body) != nil {
		return false
	}
	if now.Fingerprint != before.Fingerprint && before.Fingerprint != 0 {
		return true
	}
	if status, body, err := ask(ctx, engine.Question{Path: methodModelInfo}); err != nil || status != http.StatusOK || readModelInfo(now, body) != nil {
		return false
	}
	return !now.SameModels(before)
}

// HealthPath implements engine.Prober: the operator's route is one of HTTP.
func (Dialect) HealthPath(string) string { return methodHealth }

// AlivePath implements engine.Prober.
func (Dialect) AlivePath() string { return methodAlive }

// ReadHealth implements engine.Prober. The process that answers outlives its engine: then the
// status is OK, and healthy is false, or the service not serving.
func (Dialect) ReadHealth(path string, answer []byte) error {
	if path == methodAlive {
		const serving = 1
		switch status, err := aliveStatus(answer); {
		case err != nil:
			return err
		case status != serving:
			return fmt.Errorf("its service is not serving (status %d)", status)
		}
		return nil
	}
	var m vllmpb.HealthCheckResponse
	switch err := proto.Unmarshal(answer, &m); {
	case err != nil:
		return err
	case !m.Healthy:
		return fmt.Errorf("the engine is not healthy: %.200q", m.Message)
	}
	return nil
}

// aliveStatus is field 1 of a grpc.health.v1.HealthCheckResponse.
func aliveStatus(b []byte) (status uint64, err error) {
	for len(b) > 0 {
		var f field
		if f, b, err = nextField(b); err != nil {
			return 0, err
		}
		if f.number == 1 && f.typ == protowire.VarintType {
			status = f.value
		}
	}
	return status, nil
}

// SchedulerPath implements engine.Prober: HealthCheck does not ask the scheduler.
func (Dialect) SchedulerPath() string { return "" }

// SchedulerQuestions implements engine.Prober: a generation of one token.
func (Dialect) SchedulerQuestions(string) []engine.Question {
	body, err := proto.Marshal(&vllmpb.GenerateRequest{
		Input: &vllmpb.GenerateRequest_Tokenized{Tokenized: &vllmpb.TokenizedInput{InputIds: []uint32{3}}},
		SamplingParams: &vllmpb.SamplingParams{
			Temperature: proto.Float32(0), TopP: 1, RepetitionPenalty: 1, N: 1, MaxTokens: proto.Uint32(1), IgnoreEos: true,
		},
	})
	if err != nil {
		return nil
	}
	return []engine.Question{{Method: http.MethodPost, Path: methodGenerate, Body: body}}
}

// RefusesUnlisted implements engine.Prober: requests do not name a model.
func (Dialect) RefusesUnlisted() bool { return false }

// LoadsPath implements engine.Prober.
func (Dialect) LoadsPath() string { return methodLoads }

// LoadsIdentify implements engine.Prober.
func (Dialect) LoadsIdentify() bool { return false }

// ReadLoads implements engine.Prober. A server of some of the model's ranks counts them by their
// place among all, so that its first need not be 0.
func (Dialect) ReadLoads(answer []byte) (*engine.Loads, error) {
	var m vllmpb.GetLoadsResponse
	if err := proto.Unmarshal(answer, &m); err != nil {
		return nil, err
	}
	l := &engine.Loads{FirstRank: engine.MaxDPSize}
	for _, one := range m.Loads {
		dp := int(one.DpRank)
		if dp < 0 || dp >= engine.MaxDPSize {
			continue
		}
		l.FirstRank = min(l.FirstRank, dp)
		for len(l.Ranks) <= dp {
			l.Ranks, l.Capacities = append(l.Ranks, engine.RankLoad{}), append(l.Capacities, engine.RankCapacity{})
		}
		l.Ranks[dp] = engine.RankLoad{
			Running: amount(int64(one.NumRunningReqs)), Waiting: amount(int64(one.NumWaitingReqs)),
			WaitingTokens: amount(int64(one.NumWaitingUncachedTokens)), UsedTokens: amount(int64(one.NumUsedTokens)),
			Usage: min(max(one.TokenUsage, 0), 1),
		}
		l.Capacities[dp] = engine.RankCapacity{KVTokens: amount(int64(one.MaxTotalNumTokens)), MaxRunning: amount(int64(one.MaxRunningRequests))}
	}
	if len(l.Ranks) == 0 {
		return nil, errors.New("it tells the load of no rank")
	}
	l.Ranks, l.Capacities = l.Ranks[l.FirstRank:], l.Capacities[l.FirstRank:]
	return l, nil
}
