package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/sluice-router/sluice/internal/upstream"
)

const (
	mooncakePath = "/query"
	// maxQueryBody bounds the answer of a bootstrap server: an address for each
	// process of the engine.
	maxQueryBody = 1 << 20
)

// mooncake is the answer of the bootstrap server of a vLLM prefill worker (GET
// /query): the id of the engine of each data-parallel rank. Immutable.
type mooncake struct {
	ids []string // by data-parallel rank
}

// readMooncake reads {"<dp rank>":{"engine_id":"…",…},…}.
func readMooncake(body []byte) (*mooncake, error) {
	var in map[string]lenient
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	m := &mooncake{}
	for key, o := range in {
		dp, err := strconv.Atoi(key)
		id := o.str("engine_id")
		if err != nil || dp < 0 || dp >= maxDPSize || id == "" {
			continue
		}
		m.ids = grown(m.ids, dp)
		m.ids[dp] = id
	}
	if len(m.ids) == 0 {
		return nil, fmt.Errorf("it names no engine_id")
	}
	return m, nil
}

// MooncakeAddr returns the base URL of the worker's Mooncake bootstrap server,
// as decode's remote_bootstrap_addr has it. It speaks plain HTTP. Empty when
// there is none.
func (w *Worker) MooncakeAddr() string {
	host, port, ok := w.Bootstrap()
	if !ok {
		return ""
	}
	return "http://" + net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port))
}

// MooncakeAddr is Worker.MooncakeAddr.
func (r *Rank) MooncakeAddr() string { return r.worker.MooncakeAddr() }

// MooncakeEngineID returns the engine id of the rank, the first one's where the
// worker is scheduled as a whole. It is read with the worker's facts, and again after
// the worker was away. ok is false until it is known.
func (r *Rank) MooncakeEngineID() (id string, ok bool) {
	m := r.worker.mooncake.Load()
	dp := max(r.dp, 0)
	if m == nil || dp >= len(m.ids) || m.ids[dp] == "" {
		return "", false
	}
	return m.ids[dp], true
}

// readMooncake asks the bootstrap server of w; what it said before stays if it
// does not answer.
func (f *Fleet) readMooncake(w *Worker) error {
	m, err := f.prober.mooncake(w.ctx, w)
	if err != nil {
		return err
	}
	w.mooncake.Store(m)
	return nil
}

func (p *httpProber) mooncake(ctx context.Context, w *Worker) (*mooncake, error) {
	addr := w.MooncakeAddr()
	if addr == "" {
		return nil, fmt.Errorf("its bootstrap_port is set to none")
	}
	ep, err := upstream.NewEndpoint(upstream.Config{URL: addr, MaxIdleConns: -1})
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	status, body, err := p.send(ctx, ep, &upstream.Request{Method: "GET", Path: mooncakePath, Header: probeHeader, Limits: upstream.Limits{Total: p.cfg.Timeout}}, maxQueryBody)
	switch {
	case err != nil:
		return nil, err
	case status/100 != 2:
		return nil, fmt.Errorf("%s%s answers %d", addr, mooncakePath, status)
	}
	m, err := readMooncake(body)
	if err != nil {
		return nil, fmt.Errorf("%s%s answers with something else than expected: %w", addr, mooncakePath, err)
	}
	return m, nil
}
