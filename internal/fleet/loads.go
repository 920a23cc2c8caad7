package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// RankLoad is the load of one data-parallel rank as the engine reports it, from any
// router (SGLang's GET /v1/loads, vLLM's GET /metrics).
type RankLoad struct {
	// Running and Waiting are requests, WaitingTokens the prompt tokens to compute
	// of those that wait.
	Running, Waiting, WaitingTokens int64
	// UsedTokens are those in its KV cache that requests hold.
	UsedTokens int64
}

// loads is an answer of SGLang's /v1/loads or of vLLM's /metrics.
type loads struct {
	// These are only in vLLM's: 0 and empty when not reported. external counts the KV
	// cache received from other engines, in tokens and bytes; it only grows while the
	// engine lives.
	blockSize     int64
	started       float64 // as in Facts
	cacheType     string
	external      float64
	tellsExternal bool

	capacities []rankCapacity // by data-parallel rank
	load       []RankLoad
	at         admission.Instant
}

// readLoads reads an answer of /v1/loads. Of ranks that it leaves out nothing is
// known.
func readLoads(body []byte) (*loads, error) {
	var in struct {
		Loads []lenient `json:"loads"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	l := &loads{}
	for i, o := range in.Loads {
		dp, ok := rankOf(o, i)
		if !ok {
			continue
		}
		l.capacities = grown(l.capacities, dp)
		l.load = grown(l.load, dp)
		l.capacities[dp] = rankCapacity{kvTokens: o.amount("max_total_num_tokens"), maxRunning: o.amount("max_running_requests")}
		l.load[dp] = RankLoad{
			Running: o.amount("num_running_reqs"), Waiting: o.amount("num_waiting_reqs"),
			WaitingTokens: o.amount("num_waiting_uncached_tokens"), UsedTokens: o.amount("num_used_tokens"),
		}
	}
	if len(l.load) == 0 {
		return nil, errors.New("it has no loads")
	}
	return l, nil
}

// rankOf returns the rank that the i-th object of a list is about.
func rankOf(o lenient, i int) (dp int, ok bool) {
	if _, told := o["dp_rank"]; told {
		var n int
		if json.Unmarshal(o["dp_rank"], &n) == nil {
			i = n
		}
	}
	return i, i >= 0 && i < maxDPSize
}

// Reported returns what the engine last said about the rank's load, and when. ok
// is false when it never did.
func (r *Rank) Reported() (load RankLoad, at admission.Instant, ok bool) {
	l := r.worker.loads.Load()
	if l == nil {
		return RankLoad{}, 0, false
	}
	if r.dp >= 0 {
		if r.dp >= len(l.load) {
			return RankLoad{}, 0, false
		}
		return l.load[r.dp], l.at, true
	}
	for _, one := range l.load {
		load.Running += one.Running
		load.Waiting += one.Waiting
		load.WaitingTokens += one.WaitingTokens
		load.UsedTokens += one.UsedTokens
	}
	return load, l.at, true
}

const (
	loadsPath = "/v1/loads"
	// loadsTimeout bounds the wait for them. They are worth less than the check
	// that they come after.
	loadsTimeout = time.Second
)

func (p *httpProber) loads(ctx context.Context, w *Worker, vllm bool) (l *loads, never bool) {
	ctx, cancel := context.WithTimeout(ctx, loadsTimeout)
	defer cancel()
	path, read := loadsPath+"?include=core", readLoads
	if vllm {
		path, read = metricsPath, readMetrics
	}
	var body []byte
	status, err := p.get(ctx, w, path, false, &body)
	switch {
	case err != nil:
		return nil, tooLarge(err)
	case status/100 != 2:
		return nil, status < 500 && status != 429 || status == 501
	}
	l, err = read(body)
	return l, err != nil
}

// setLoads takes from an answer about the load what does not change.
func (f *Facts) setLoads(l *loads) {
	f.loads, f.started = l.capacities, l.started
	if l.blockSize > 0 { // vLLM
		f.PageSize, f.CacheType = l.blockSize, l.cacheType
		f.DPSize = len(l.capacities)
	}
}

// copyLoads takes it from what was known before.
func (f *Facts) copyLoads(before *Facts) {
	f.loads, f.started = before.loads, before.started
	if before.Backend == DialectVLLM || f.Backend == DialectVLLM {
		f.PageSize, f.CacheType, f.DPSize = before.PageSize, before.CacheType, before.DPSize
	}
}

// readCapacities adds the capacities that only /v1/loads reports. A transient failure
// leaves those from before.
func (f *Fleet) readCapacities(ctx context.Context, w *Worker, facts *Facts) {
	vllm := facts.vllm(w)
	l, never := f.prober.loads(ctx, w, vllm)
	switch {
	case l != nil:
		facts.setLoads(l)
		f.storeLoads(w, l)
	case never && vllm:
		facts.noLoads = true
		facts.Missing = append(facts.Missing, metricsPath)
	case never:
		facts.noLoads = true
		facts.Missing = append(facts.Missing, loadsPath)
	default:
		facts.copyLoads(w.Facts())
	}
}

func (f *Fleet) storeLoads(w *Worker, l *loads) {
	if l != nil {
		l.at = f.clock.Now()
		w.loads.Store(l)
		if l.tellsExternal && w.role == admission.RoleDecode && w.transfers.read(l.external) {
			f.logTransfers(w)
		}
	}
}
