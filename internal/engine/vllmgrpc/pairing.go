package vllmgrpc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-router/sluice/internal/engine"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// FindConnector implements engine.Pairer for an engine whose GetServerInfo names a connector
// that is not known here: what its prefill hands over tells. What is so left at the engine is
// freed by its lease.
func (Dialect) FindConnector(ctx context.Context, w engine.Probed, f *engine.Facts) (engine.Found, error) {
	params, err := handOff(ctx, w, f)
	if err != nil {
		return engine.Found{}, err
	}
	return engine.FoundByParams(params, w.Host), nil
}

// handOff asks for a prefill whose KV cache is to be handed over, and returns the params of it;
// nil: there are none.
func handOff(ctx context.Context, w engine.Probed, f *engine.Facts) ([]byte, error) {
	n := int(max(f.PageSize, 16)) + 1 // more than a block, so that there is one to hand over
	if most := int(f.MaxModelLen()); most > 1 {
		n = min(n, most-1)
	}
	prompt := make([]uint32, min(n, 4096))
	for i := range prompt {
		prompt[i] = uint32(3 + i%5) // short ids are in every vocabulary
	}
	ask, err := proto.Marshal(&vllmpb.GenerateRequest{
		Input: &vllmpb.GenerateRequest_Tokenized{Tokenized: &vllmpb.TokenizedInput{InputIds: prompt}},
		SamplingParams: &vllmpb.SamplingParams{
			Temperature: proto.Float32(0), TopP: 1, RepetitionPenalty: 1, N: 1, MaxTokens: proto.Uint32(1), IgnoreEos: true,
		},
		KvTransferParamsJson: proto.String(`{"do_remote_decode":true,"do_remote_prefill":false}`),
	})
	if err != nil {
		return nil, err
	}
	status, body, err := w.Ask(ctx, engine.Question{Method: http.MethodPost, Path: methodGenerate, Body: ask})
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("the probe is answered %d", status)
	}
	var m message
	if err := m.decode(body); err != nil {
		return nil, fmt.Errorf("the answer to the probe cannot be read: %w", err)
	}
	if !json.Valid(m.params) {
		return nil, nil
	}
	return m.params, nil
}

// ReadPeer implements engine.Pairer. With Mooncake the bootstrap server says how its engines
// are called, as by HTTP; where it does not answer, GetServerInfo has the id of which theirs
// are made. With NIXL that pushes, a prefill's hand-off tells.
//
// The forms of Mooncake and of NIXL that pushes follow the contract and what is done by HTTP;
// they were never tried against a real engine that is spoken to by gRPC.
func (d Dialect) ReadPeer(ctx context.Context, w engine.Probed, connector string) (engine.Peer, bool, error) {
	switch connector {
	case engine.ConnectorMooncake:
		p, asked, err := d.VLLM.ReadPeer(ctx, w, connector)
		if err == nil {
			return p, asked, nil
		}
		if m := mooncakePeer(ctx, w); m != nil {
			return m, true, nil
		}
		return nil, true, err
	case engine.ConnectorNIXLPush:
		f := &engine.Facts{}
		if status, body, err := w.Ask(ctx, engine.Question{Path: methodServerInfo}); err == nil && status == http.StatusOK {
			_ = readServerInfo(f, body)
		}
		params, err := handOff(ctx, w, f)
		if err != nil {
			return nil, true, err
		}
		found := engine.FoundByParams(params, w.Host)
		if p, ok := found.Peer.(*engine.PushPeer); ok {
			p.OfSeveral(f.FirstRank, f.DPSize)
			return p, true, nil
		}
		return nil, true, fmt.Errorf("its prefill does not tell what decode must know of it")
	}
	return nil, false, nil
}

// mooncakePeer makes the ids of a worker's engines of the one that GetServerInfo has; nil if it
// has none.
func mooncakePeer(ctx context.Context, w engine.Probed) *engine.MooncakePeer {
	status, body, err := w.Ask(ctx, engine.Question{Path: methodServerInfo})
	var m vllmpb.GetServerInfoResponse
	if err != nil || status != http.StatusOK || proto.Unmarshal(body, &m) != nil || name(m.KvEngineId) == "" {
		return nil
	}
	if n := int(m.DataParallelSize); n > 1 && n <= engine.MaxDPSize {
		id, _, _ := strings.Cut(m.KvEngineId, engine.RankMark)
		p := &engine.MooncakePeer{}
		for dp := range n {
			p.EngineIDs = append(p.EngineIDs, fmt.Sprintf("%s%s%d", id, engine.RankMark, dp))
		}
		return p
	}
	return &engine.MooncakePeer{EngineIDs: []string{m.KvEngineId}}
}

// Warnings implements engine.Pairer.
func (d Dialect) Warnings(k engine.PairKnowledge) []string {
	list := d.VLLM.Warnings(k)
	if k.Facts.Connector == engine.ConnectorNone && k.Prefill {
		list = append(list, "it was started without a KV connector: decode computes each prompt again; start it with --kv-transfer-config")
	}
	return list
}
