package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"net/http"
	"strings"
)

const (
	// serverInfoPath has every argument of SGLang's server, oldServerInfoPath the same
	// in earlier versions.
	serverInfoPath    = "/server_info"
	oldServerInfoPath = "/get_server_info"
)

// Owns implements Prober.
func (d SGLang) Owns(ownedBy string) bool { return ownedBy == d.Name() }

// SignPath implements Prober: ReadFacts asks for it.
func (SGLang) SignPath() string { return serverInfoPath }

// Recognizes implements Prober.
func (SGLang) Recognizes(path string, answer Fields) bool {
	path, _, _ = strings.Cut(path, "?")
	return (path == serverInfoPath || path == oldServerInfoPath) && answer["vllm_config"] == nil &&
		(answer["disaggregation_mode"] != nil || answer["internal_states"] != nil || answer["scheduler_info"] != nil)
}

// ReadFacts implements Prober.
func (d SGLang) ReadFacts(q *Inquiry) {
	f := q.Facts
	f.InfoPath, f.InfoLost = q.Read(f.readServerInfo, serverInfoPath, oldServerInfoPath)
	if !q.Elsewhere(d) {
		q.Read(f.readModelInfo, "/model_info", "/get_model_info")
	}
}

// readServerInfo reads an answer of /server_info.
func (f *Facts) readServerInfo(answer []byte) error {
	var o Fields
	if err := json.Unmarshal(answer, &o); err != nil {
		return err
	}
	f.Fingerprint = fingerprintOf(answer)
	f.ServedName = o.Str("served_model_name")
	if f.ModelPath == "" {
		f.ModelPath = o.Str("model_path")
	}
	f.Mode = o.Str("disaggregation_mode")
	f.Version = o.Str("version")
	if p := o.Num("disaggregation_bootstrap_port"); p <= 65535 {
		f.BootstrapPort = int(p)
	}
	if n := o.Num("dp_size"); n <= MaxDPSize {
		f.DPSize = int(n)
	} else {
		f.Warn("dp_size %d is over %d and not used", n, MaxDPSize)
	}
	f.MaxRunningRequests = o.Amount("max_running_requests")
	f.ChunkedPrefillSize = o.Amount("chunked_prefill_size")
	f.MaxPrefillTokens = o.Amount("max_prefill_tokens")
	f.PageSize = o.Num("page_size")
	f.MaxTotalTokens = o.Object("scheduler_info").Amount("max_total_num_tokens")
	_ = json.Unmarshal(o["enable_dp_attention"], &f.DPAttention) // anything else is false
	f.readStates(o)
	return nil
}

// readStates reads /server_info's internal_states, one for each data-parallel rank.
func (f *Facts) readStates(info Fields) {
	var states []Fields
	if json.Unmarshal(info["internal_states"], &states) != nil {
		return
	}
	for i, o := range states {
		dp, ok := rankOf(o, i)
		if !ok {
			continue
		}
		tokens := o.Amount("token_capacity")
		if tokens == 0 {
			tokens = o.Object("memory_usage").Amount("token_capacity")
		}
		f.States = grown(f.States, dp)
		f.States[dp] = RankCapacity{KVTokens: tokens, MaxRunning: o.Amount("effective_max_running_requests_per_dp")}
	}
}

// rankOf returns the rank that the i-th object of a list is about.
func rankOf(o Fields, i int) (dp int, ok bool) {
	if _, told := o["dp_rank"]; told {
		var n int
		if json.Unmarshal(o["dp_rank"], &n) == nil {
			i = n
		}
	}
	return i, i >= 0 && i < MaxDPSize
}

// readModelInfo reads an answer of /model_info.
func (f *Facts) readModelInfo(answer []byte) error {
	var o Fields
	if err := json.Unmarshal(answer, &o); err != nil {
		return err
	}
	if p := o.Str("model_path"); p != "" {
		f.ModelPath = p
	}
	return nil
}

// Changed implements Prober: by the list of models and the server's arguments.
func (SGLang) Changed(ctx context.Context, ask Ask, before *Facts) bool {
	if differ, ok := modelsDiffer(ctx, ask, before); differ || !ok {
		return differ
	}
	path := serverInfoPath
	if before.InfoPath != "" {
		path = before.InfoPath
	}
	switch status, body, err := ask(ctx, Question{Path: path}); {
	case err != nil:
		return false
	case status/100 == 2:
		return fingerprintOf(body) != before.Fingerprint
	case status == http.StatusNotFound:
		return before.Fingerprint != 0
	}
	return false
}

var fingerprintSeed = maphash.MakeSeed()

// fingerprintOf hashes an answer of /server_info, without parsing it as JSON: all of it
// except internal_states, which has loads; of these only the capacities. SGLang's
// answer has every argument, among them a random seed that each process draws.
func fingerprintOf(body []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(fingerprintSeed)
	from, to := section(body, `"internal_states"`)
	_, _ = h.Write(body[:from])
	for rest := body[from:to]; ; {
		i := bytes.Index(rest, []byte(`"token_capacity"`))
		if i < 0 {
			break
		}
		rest = rest[i:]
		end := bytes.IndexAny(rest, ",}")
		if end < 0 {
			break
		}
		_, _ = h.Write(rest[:end])
		rest = rest[end:]
	}
	_, _ = h.Write(body[to:])
	return max(h.Sum64(), 1)
}

// section finds the array that follows a name in JSON; from = to = len(body) when
// there is none.
func section(body []byte, name string) (from, to int) {
	i := bytes.Index(body, []byte(name))
	if i < 0 {
		return len(body), len(body)
	}
	depth, quoted := 0, false
	for j := i + len(name); j < len(body); j++ {
		switch c := body[j]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			j++
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth <= 0 {
				return i, j + 1
			}
		}
	}
	return i, len(body)
}

// AlivePath implements Prober: SGLang's health route runs a generation.
func (SGLang) AlivePath() string { return "/model_info" }

// SchedulerPath implements Prober. SGLang's health route runs a generation of one token,
// and takes any other sign of the scheduler for its answer: one that computes a long
// prompt gives such a sign after each chunk. (With SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0
// the route proves nothing.)
func (SGLang) SchedulerPath() string { return "/health" }

// sglangMarks are the counters of a rank's load, and what tells of the use of its KV
// cache. The time stamps are left out: they may be of the answer.
var (
	sglangMarks      = []string{"total_prefill_uncached_tokens", "total_prefill_busy_us", "total_decode_steps", "total_decode_step_us"}
	sglangCacheMarks = []string{"num_used_tokens", "num_total_tokens", "num_active_tokens"}
)

// markOf makes a mark of those of the fields that there are.
func markOf(o Fields, names []string) (mark uint64) {
	for _, name := range names {
		var n float64
		if raw, told := o[name]; told && json.Unmarshal(raw, &n) == nil {
			mark = mix(mark, name, n)
		}
	}
	return mark
}

// sglangMark makes the mark of a rank's counters.
func sglangMark(o Fields) uint64 {
	mark := markOf(o, sglangMarks)
	var moments []float64
	if json.Unmarshal(o["decode_moments"], &moments) == nil {
		for _, n := range moments {
			mark = mix(mark, "decode_moments", n)
		}
	}
	return mark
}

// LoadsPath implements Prober.
func (SGLang) LoadsPath() string { return "/v1/loads?include=core" }

// ReadLoads implements Prober.
func (SGLang) ReadLoads(answer []byte) (*Loads, error) {
	var in struct {
		Loads []Fields `json:"loads"`
	}
	if err := json.Unmarshal(answer, &in); err != nil {
		return nil, err
	}
	l := &Loads{}
	for i, o := range in.Loads {
		dp, ok := rankOf(o, i)
		if !ok {
			continue
		}
		l.Capacities = grown(l.Capacities, dp)
		l.Ranks = grown(l.Ranks, dp)
		l.Capacities[dp] = RankCapacity{KVTokens: o.Amount("max_total_num_tokens"), MaxRunning: o.Amount("max_running_requests")}
		l.Ranks[dp] = RankLoad{
			Running: o.Amount("num_running_reqs"), Waiting: o.Amount("num_waiting_reqs"),
			WaitingTokens: o.Amount("num_waiting_uncached_tokens"), UsedTokens: o.Amount("num_used_tokens"), Usage: o.part("token_usage"), Mark: sglangMark(o), CacheMark: markOf(o, sglangCacheMarks),
		}
	}
	if len(l.Ranks) == 0 {
		return nil, errors.New("it has no loads")
	}
	return l, nil
}

// PairReady implements Pairer: the bootstrap port must be known.
func (SGLang) PairReady(k PairKnowledge) bool { return !k.Facts.InfoLost || k.BootstrapSet }

// UsesBootstrap implements Pairer.
func (SGLang) UsesBootstrap(string) bool { return true }
