package vllmgrpc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-router/sluice/internal/engine"
	commonpb "github.com/sluice-router/sluice/internal/enginepb/common"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

func engineInfo() *vllmpb.GetServerInfoResponse {
	return &vllmpb.GetServerInfoResponse{
		ServerType: "vllm-grpc", KvConnector: "NixlConnector", KvRole: "kv_both", KvEngineId: "first", DataParallelSize: 2,
		BlockSize: 32, MaxNumSeqs: 16, KvCacheDtype: "auto",
	}
}

func modelInfo() *vllmpb.GetModelInfoResponse {
	return &vllmpb.GetModelInfoResponse{ModelPath: "org/tiny", ServedModelName: "tiny", MaxContextLength: 1024, VocabSize: 576,
		EosTokenIds: []int32{2, -1, 7}, DefaultSamplingParamsJson: `{"top_k": 20}`}
}

func all() *engine.Registry {
	return engine.NewRegistry(engine.SGLang{}, engine.VLLM{}, Dialect{})
}

func TestFactsOfAnEngine(t *testing.T) {
	first := int32(0)
	m := &mock{info: engineInfo, model: modelInfo, loads: func() *vllmpb.GetLoadsResponse {
		return &vllmpb.GetLoadsResponse{Loads: []*vllmpb.SchedulerLoad{
			{DpRank: first},
			{DpRank: first + 1, NumRunningReqs: 3, NumWaitingReqs: 2, MaxTotalNumTokens: 1000, NumUsedTokens: 500, TokenUsage: 0.5, NumWaitingUncachedTokens: 77},
			{DpRank: -1}, {DpRank: 1 << 20},
		}}
	}}
	ep := m.start(t)
	f := all().Speaking("grpc").ReadFacts(t.Context(), ask(ep), nil)
	if f.Backend != "vllm-grpc" || f.Incomplete || len(f.Warnings) != 0 || len(f.Missing) != 0 {
		t.Fatalf("the facts are %+v", f)
	}
	if f.Connector != engine.ConnectorNIXL || f.PageSize != 32 || f.MaxRunningRequests != 16 || f.DPSize != 2 || f.Fingerprint == 0 ||
		!slices.Equal(f.Names(), []string{"tiny"}) || f.MaxModelLen() != 1024 || f.CacheType != "auto" {
		t.Errorf("the facts are %+v", f)
	}
	if want := (&engine.TokenFacts{Vocab: 576, EOS: []uint32{2, 7}, Sampling: `{"top_k": 20}`}); !f.Tokens.Same(want) {
		t.Errorf("of its tokens it tells %+v, want %+v", f.Tokens, want)
	}
	d := Dialect{}
	_, body, _ := ask(ep)(t.Context(), engine.Question{Path: d.LoadsPath()})
	l, err := d.ReadLoads(body)
	if err != nil || len(l.Ranks) != 2 {
		t.Fatalf("the loads are %+v, %v", l, err)
	}
	if r := l.Ranks[1]; r.Running != 3 || r.Waiting != 2 || r.UsedTokens != 500 || r.Usage != 0.5 || r.WaitingTokens != 77 || l.Capacities[1].KVTokens != 1000 {
		t.Errorf("the load is %+v, the capacity %+v", r, l.Capacities[1])
	}
	first = 6 // of a server that has the last two of eight ranks
	_, body, _ = ask(ep)(t.Context(), engine.Question{Path: d.LoadsPath()})
	if l, err := d.ReadLoads(body); err != nil || len(l.Ranks) != 2 || l.FirstRank != 6 || l.Ranks[1].Running != 3 {
		t.Errorf("the loads are %+v, %v", l, err)
	}
	if l, err := d.ReadLoads(nil); err == nil {
		t.Errorf("no load is %+v", l)
	}
}

// Another id of the KV engine is another process, whose blocks are not those of the one before.
func TestAnotherEngineAtTheSameAddress(t *testing.T) {
	id, name := "first", "tiny"
	m := &mock{
		info:  func() *vllmpb.GetServerInfoResponse { i := engineInfo(); i.KvEngineId = id; return i },
		model: func() *vllmpb.GetModelInfoResponse { i := modelInfo(); i.ServedModelName = name; return i },
	}
	ep := m.start(t)
	before := all().Speaking("grpc").ReadFacts(t.Context(), ask(ep), nil)
	changed := func() bool { return Dialect{}.Changed(t.Context(), ask(ep), before) }
	if changed() {
		t.Error("it changed without a change")
	}
	if id = "second"; !changed() {
		t.Error("another engine id is no change")
	}
	if id, name = "first", "other"; !changed() {
		t.Error("another model is no change")
	}
	m.info = nil
	if changed() {
		t.Error("what does not answer proves a change")
	}
}

// An engine of another service, and one that is not there: neither is taken for vLLM.
func TestEnginesThatAreNotVLLM(t *testing.T) {
	f := all().Speaking("grpc").ReadFacts(t.Context(), ask((&mock{}).start(t)), nil)
	if f.Backend != "" || f.Incomplete || !f.Answered {
		t.Errorf("without the service: %+v", f)
	}
	ep := (&mock{}).start(t)
	ep.Close()
	if f := all().Speaking("grpc").ReadFacts(t.Context(), ask(ep), nil); f.Backend != "" || !f.Incomplete {
		t.Errorf("not there: %+v", f)
	}
}

func TestDialectsByScheme(t *testing.T) {
	for scheme, want := range map[string]string{"grpc": "vllm-grpc", "grpcs": "vllm-grpc", "http": "sglang vllm", "https": "sglang vllm"} {
		if got := strings.Join(all().Speaking(scheme).Names(), " "); got != want {
			t.Errorf("%s is spoken by %q, want %q", scheme, got, want)
		}
	}
}

func TestHealth(t *testing.T) {
	d := Dialect{}
	healthy := encoded(t, &vllmpb.HealthCheckResponse{Healthy: true, Message: "Health"})
	ill := encoded(t, &vllmpb.HealthCheckResponse{Message: "the engine died"})
	serving := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	notServing := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 2)
	for _, tc := range []struct {
		path   string
		answer []byte
		well   bool
	}{
		{d.HealthPath("/health"), healthy, true},
		{d.HealthPath("/health"), ill, false},
		{d.HealthPath("/health"), nil, false}, // all fields left out: not healthy
		{d.HealthPath("/health"), []byte{0xff}, false},
		{d.AlivePath(), serving, true},
		{d.AlivePath(), notServing, false},
		{d.AlivePath(), nil, false},
		{d.AlivePath(), []byte{0xff}, false},
	} {
		if err := d.ReadHealth(tc.path, tc.answer); (err == nil) != tc.well {
			t.Errorf("%s %q: %v", tc.path, tc.answer, err)
		}
	}
}

func TestSchedulerQuestionIsAGenerationOfOneToken(t *testing.T) {
	m := &mock{generate: answer(complete(0, "length", 1))}
	ep := m.start(t)
	q := Dialect{}.SchedulerQuestions("tiny")
	if len(q) != 1 {
		t.Fatalf("there are %d questions", len(q))
	}
	if status, _, err := ask(ep)(t.Context(), q[0]); err != nil || status != 200 {
		t.Fatalf("status %d, %v", status, err)
	}
	if r := m.requests()[0]; r.SamplingParams.GetMaxTokens() != 1 || r.Stream || len(r.GetTokenized().InputIds) == 0 {
		t.Errorf("it asks %v", r)
	}
}

func TestBundle(t *testing.T) {
	data := []byte(strings.Repeat("zip", 1000))
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	type part = commonpb.GetTokenizerChunk
	large := engine.TooLargeError{}
	for name, tc := range map[string]struct {
		parts []*part
		limit int
		want  string // "" for success
	}{
		"two parts":        {[]*part{{Data: data[:1000]}, {Data: data[1000:], Sha256: strings.ToUpper(digest)}}, 1 << 20, ""},
		"digest of others": {[]*part{{Data: data[1:], Sha256: digest}}, 1 << 20, "digest"},
		"cut off":          {[]*part{{Data: data}}, 1 << 20, "no digest"},
		"nothing":          {nil, 1 << 20, "no files"},
		"goes on":          {[]*part{{Data: data, Sha256: digest}, {Data: data}}, 1 << 20, "goes on"},
		"too large":        {[]*part{{Data: data, Sha256: digest}}, 100, large.Error()[:len("the answer is over")]},
		"grows too large":  {[]*part{{Data: data[:1500]}, {Data: data[1500:], Sha256: digest}}, 2900, large.Error()[:len("the answer is over")]},
	} {
		m := &mock{tokenizer: func(s grpc.ServerStreamingServer[part]) error {
			for _, p := range tc.parts {
				if err := s.Send(p); err != nil {
					return err
				}
			}
			return nil
		}}
		got, told, err := Dialect{}.Bundle(t.Context(), m.start(t), tc.limit)
		switch {
		case tc.want == "" && (err != nil || string(got) != string(data) || told != digest):
			t.Errorf("%s: %d bytes, %s, %v", name, len(got), told, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	if _, _, err := (Dialect{}).Bundle(t.Context(), (&mock{}).start(t), 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Error("an engine without the method gave files")
	}
}

func TestTokenizeByTheEngine(t *testing.T) {
	m := &mock{generate: func(r *vllmpb.GenerateRequest, s sender) error {
		c := complete(0, "length", 1)
		if r.GetText() != "" && r.SamplingParams.PromptLogprobs != nil {
			c.GetComplete().InputLogprobs = &vllmpb.InputLogProbs{
				TokenIds: []uint32{4, 5}, TokenLogprobs: []*vllmpb.InputTokenLogProb{{}, {Value: proto.Float32(-1)}},
			}
		}
		return s.Send(c)
	}}
	ep := m.start(t)
	if ids, err := (Dialect{}).Tokenize(t.Context(), ep, "text"); err != nil || !slices.Equal(ids, []uint32{4, 5}) {
		t.Errorf("got %v, %v", ids, err)
	}
	m.generate = answer(complete(0, "length", 1))
	if ids, err := (Dialect{}).Tokenize(t.Context(), ep, "text"); err == nil {
		t.Errorf("an engine that tells no ids gave %v", ids)
	}
}

func TestConnectorOfAnEngine(t *testing.T) {
	for class, want := range map[string]string{
		"": engine.ConnectorNone, "NixlConnector": engine.ConnectorNIXL, "MooncakeConnector": engine.ConnectorMooncake, "Unheard": "",
	} {
		f := &engine.Facts{}
		i := engineInfo()
		i.KvConnector = class
		if err := readServerInfo(f, encoded(t, i)); err != nil || f.Connector != want {
			t.Errorf("%q: %q, %v; want %q", class, f.Connector, err, want)
		}
	}
	// One that is not known by its class is known by what it hands over.
	m := &mock{generate: func(r *vllmpb.GenerateRequest, s sender) error {
		c := complete(0, "length", 1)
		if strings.Contains(r.GetKvTransferParamsJson(), "do_remote_decode") {
			c.GetComplete().KvTransferParamsJson = proto.String(handedOver(1))
		}
		return s.Send(c)
	}}
	found, err := Dialect{}.FindConnector(t.Context(), engine.Probed{Ask: ask(m.start(t)), Host: "h"}, &engine.Facts{PageSize: 32})
	if err != nil || found.Connector != engine.ConnectorNIXL {
		t.Errorf("found %+v, %v", found, err)
	}
	if n := len(m.requests()[0].GetTokenized().InputIds); n <= 32 {
		t.Errorf("the question has %d tokens, which is no more than a block", n)
	}
}

// The ids of Mooncake's engines come from their bootstrap server, else from the engine.
func TestMooncakeEnginesWithoutABootstrapServer(t *testing.T) {
	m := &mock{info: engineInfo}
	ep := m.start(t)
	asker := func(ctx context.Context, q engine.Question) (int, []byte, error) {
		if q.AtBootstrap {
			return 0, nil, errors.New("not there")
		}
		return ask(ep)(ctx, q)
	}
	p, asked, err := Dialect{}.ReadPeer(t.Context(), engine.Probed{Ask: asker, BootstrapAddr: "http://h:1"}, engine.ConnectorMooncake)
	if err != nil || !asked || !slices.Equal(p.(*engine.MooncakePeer).EngineIDs, []string{"first_dp0", "first_dp1"}) {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestRankThatIsNotThere(t *testing.T) {
	m := &mock{generate: func(*vllmpb.GenerateRequest, sender) error {
		return status.Error(codes.InvalidArgument, "data_parallel_rank 5 is out of range [0, 2)")
	}}
	got := callAndRead(t.Context(), m.start(t), request(streamed))
	if !(Dialect{}).RankMissing(got.status, []byte(got.raw)) {
		t.Errorf("got %+v", got)
	}
	if (Dialect{}).RankMissing(400, []byte("temperature is out of range")) {
		t.Error("another number out of range is taken for a rank's")
	}
}

func TestWhatAnEngineTellsOfTokensIsBounded(t *testing.T) {
	f := tokenFacts(&vllmpb.GetModelInfoResponse{VocabSize: 1 << 30, EosTokenIds: make([]int32, 1000), DefaultSamplingParamsJson: strings.Repeat("x", maxSampling+1)})
	if f.Vocab != 0 || len(f.EOS) > maxEOS || f.Sampling != "" {
		t.Errorf("%+v", f)
	}
}
