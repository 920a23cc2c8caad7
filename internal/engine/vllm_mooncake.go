package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
)

const mooncakePath = "/query"

// MooncakePeer is what the bootstrap server of a vLLM prefill worker with Mooncake says
// (GET /query): the id of the engine of each data-parallel rank.
type MooncakePeer struct {
	EngineIDs []string // by data-parallel rank
}

// ReadPeer implements Pairer.
func (VLLM) ReadPeer(ctx context.Context, w Probed, connector string) (p Peer, asked bool, err error) {
	if connector != ConnectorMooncake {
		return nil, false, nil
	}
	m, err := askMooncake(ctx, w)
	if err != nil {
		return nil, true, fmt.Errorf("its Mooncake bootstrap server does not answer: %w", err)
	}
	return m, true, nil
}

// askMooncake asks the bootstrap server of a worker for the ids of its engines.
func askMooncake(ctx context.Context, w Probed) (*MooncakePeer, error) {
	if w.BootstrapAddr == "" {
		return nil, errors.New("its bootstrap_port is set to none")
	}
	status, body, err := w.Ask(ctx, Question{Path: mooncakePath, AtBootstrap: true})
	switch {
	case err != nil:
		return nil, err
	case status/100 != 2:
		return nil, fmt.Errorf("%s%s answers %d", w.BootstrapAddr, mooncakePath, status)
	}
	m, err := readMooncake(body)
	if err != nil {
		return nil, fmt.Errorf("%s%s has an unexpected answer: %w", w.BootstrapAddr, mooncakePath, err)
	}
	return m, nil
}

// readMooncake reads {"<dp rank>":{"engine_id":"…",…},…}.
func readMooncake(body []byte) (*MooncakePeer, error) {
	var in map[string]Fields
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	m := &MooncakePeer{}
	for key, o := range in {
		dp, err := strconv.Atoi(key)
		id := o.Str("engine_id")
		if err != nil || dp < 0 || dp >= MaxDPSize || id == "" {
			continue
		}
		m.EngineIDs = grown(m.EngineIDs, dp)
		m.EngineIDs[dp] = id
	}
	if len(m.EngineIDs) == 0 {
		return nil, errors.New("it contains no engine_id")
	}
	return m, nil
}

// anyRank returns some rank whose engine is known, another one each time.
func (m *MooncakePeer) anyRank() int {
	n := len(m.EngineIDs)
	for i, from := 0, rand.IntN(n); i < n; i++ {
		if r := (from + i) % n; m.EngineIDs[r] != "" {
			return r
		}
	}
	return 0
}

// engineID returns the engine id of a prefill rank. ok is false while it is not known.
func (m *MooncakePeer) engineID(dp int) (id string, ok bool) {
	if m == nil || dp >= len(m.EngineIDs) || m.EngineIDs[dp] == "" {
		return "", false
	}
	return m.EngineIDs[dp], true
}
