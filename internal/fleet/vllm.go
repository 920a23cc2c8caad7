package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/upstream"
)

const metricsPath = "/metrics"

// readMetrics reads what sluice needs out of a vLLM engine's GET /metrics: for
// each data-parallel rank (label engine) the requests that run and wait, the size
// of its KV cache and how much of it is used; and what came from other engines.
func readMetrics(body []byte) (*loads, error) {
	l := &loads{}
	used := []float64{}
	found := false
	for len(body) > 0 {
		line := body
		if i := bytes.IndexByte(body, '\n'); i >= 0 {
			line, body = body[:i], body[i+1:]
		} else {
			body = nil
		}
		rest, ok := bytes.CutPrefix(line, []byte("vllm:"))
		if !ok {
			if at, ok := bytes.CutPrefix(line, []byte("process_start_time_seconds ")); ok {
				_, l.started, _ = readSample(at)
			}
			continue
		}
		end := bytes.IndexAny(rest, "{ ")
		if end < 0 {
			continue
		}
		name := string(rest[:end])
		switch name {
		case "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc",
			"cache_config_info", "external_prefix_cache_hits_total", "prompt_tokens_by_source_total", "nixl_bytes_transferred_sum":
		default:
			continue
		}
		labels, value, ok := readSample(rest[end:])
		if !ok {
			continue
		}
		dp := 0
		if e, told := labels["engine"]; told {
			n, err := strconv.Atoi(e)
			if err != nil || n < 0 || n >= maxDPSize {
				continue
			}
			dp = n
		}
		found = true
		l.load, l.shares, used = grown(l.load, dp), grown(l.shares, dp), grown(used, dp)
		amount := int64(min(max(value, 0), maxCapacity))
		switch name {
		case "num_requests_running":
			l.load[dp].Running += amount
		case "num_requests_waiting":
			l.load[dp].Waiting += amount
		case "kv_cache_usage_perc", "gpu_cache_usage_perc":
			used[dp] = min(max(value, 0), 1)
		case "cache_config_info":
			blocks, size := number(labels["num_gpu_blocks"]), number(labels["block_size"])
			if size > 0 && size <= maxBlockSize {
				l.blockSize = size
				l.shares[dp].kvTokens = min(blocks, maxCapacity/size) * size
			}
			if d := labels["cache_dtype"]; goodName(d) {
				l.cacheType = d
			}
		case "external_prefix_cache_hits_total", "nixl_bytes_transferred_sum":
			l.external, l.tellsExternal = l.external+max(value, 0), true
		case "prompt_tokens_by_source_total":
			if labels["source"] == "external_kv_transfer" {
				l.external, l.tellsExternal = l.external+max(value, 0), true
			}
		}
	}
	if !found {
		return nil, errors.New("it has none of vLLM's metrics")
	}
	for dp := range l.load {
		l.load[dp].UsedTokens = int64(used[dp] * float64(l.shares[dp].kvTokens))
	}
	return l, nil
}

// number reads a whole number ≥ 0 in a label; 0 for everything else.
func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return min(n, maxCapacity)
}

// readSample reads what follows a metric's name: {label="value",…} value.
func readSample(s []byte) (labels map[string]string, value float64, ok bool) {
	if len(s) > 0 && s[0] == '{' {
		if len(s) > 16<<10 {
			return nil, 0, false
		}
		labels = map[string]string{}
		s = s[1:]
		for {
			s = bytes.TrimLeft(s, ", ")
			if len(s) > 0 && s[0] == '}' {
				s = s[1:]
				break
			}
			eq := bytes.IndexByte(s, '=')
			if eq <= 0 || eq+1 >= len(s) || s[eq+1] != '"' {
				return nil, 0, false
			}
			name := string(s[:eq])
			s = s[eq+2:]
			var v []byte
			for {
				i := bytes.IndexAny(s, `\"`)
				if i < 0 {
					return nil, 0, false
				}
				v = append(v, s[:i]...)
				if s[i] == '"' {
					s = s[i+1:]
					break
				}
				if i+1 >= len(s) {
					return nil, 0, false
				}
				c := s[i+1]
				if c == 'n' {
					c = '\n'
				}
				v = append(v, c)
				s = s[i+2:]
			}
			labels[name] = string(v)
		}
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(s[:min(len(s), 64)])), " ")
	value, err := strconv.ParseFloat(text, 64)
	return labels, value, err == nil && !math.IsNaN(value)
}

// addVLLMInfo reads vLLM's GET /server_info, which exists in its development mode
// only. Told apart from SGLang's by vllm_config.
func (f *Facts) addVLLMInfo(l lenient) {
	c := l.object("vllm_config")
	f.Backend = DialectVLLM
	f.MaxRunningRequests = c.object("scheduler_config").amount("max_num_seqs")
	f.ChunkedPrefillSize = c.object("scheduler_config").amount("max_num_batched_tokens")
	transfer, told := c["kv_transfer_config"]
	switch {
	case told && string(transfer) == "null":
		f.Connector = ConnectorNone
	case told:
		f.Connector = connectorOf[strings.ToLower(c.object("kv_transfer_config").str("kv_connector"))]
	}
}

func (f *Facts) addVersion(body []byte) error {
	var l lenient
	if err := json.Unmarshal(body, &l); err != nil {
		return err
	}
	if f.Version = l.str("version"); f.Version == "" {
		return errors.New("it names no version")
	}
	return nil
}

const (
	// probeTimeout bounds the question for the connector: an idle engine answers
	// in under a second, its first request may take several.
	probeTimeout = 10 * time.Second
	maxProbeBody = 256 << 10
	// maxProbeTokens bounds its prompt.
	maxProbeTokens = 4096
)

// connector asks a vLLM prefill worker how it hands KV cache over, as nothing
// tells it over HTTP: a request for one token, with the wish to leave its KV to a
// decode. What an engine so leaves is freed by its lease of some 30 s. The error
// is for what may pass; what can be said for people is in note.
func (p *httpProber) connector(ctx context.Context, w *Worker, f *Facts) (name, note string, err error) {
	model := w.spec.ModelID
	if names := f.names(); len(names) > 0 {
		model = names[0]
	}
	// More than a block, so that there is one to hand over. Short ids are in every
	// vocabulary.
	n := min(max(f.PageSize, 16)+1, maxProbeTokens)
	if most := f.maxModelLen(); most > 1 {
		n = min(n, most-1)
	}
	prompt := make([]int, n)
	for i := range prompt {
		prompt[i] = 3 + i%5
	}
	ask := map[string]any{
		"model": model, "max_tokens": 1, "stream": false, "temperature": 0,
		"kv_transfer_params": map[string]any{"do_remote_decode": true},
		"prompt":             prompt,
	}
	status, answer, err := p.post(ctx, w, "/v1/completions", ask)
	if err == nil && (status == 404 || status == 405 || status == 400) {
		delete(ask, "prompt")
		ask["messages"] = []map[string]string{{"role": "user", "content": strings.Repeat("a ", int(n))}}
		status, answer, err = p.post(ctx, w, "/v1/chat/completions", ask)
	}
	switch {
	case err != nil:
		return "", "", err
	case status == 429 || status >= 500 && status != 501:
		return "", "", fmt.Errorf("the probe is answered %d", status)
	case status/100 != 2:
		return ConnectorUnknown, fmt.Sprintf("its connector is not known: the probe is answered %d; set kv_connector", status), nil
	}
	return p.readProbe(ctx, w, answer)
}

func (p *httpProber) readProbe(ctx context.Context, w *Worker, answer []byte) (name, note string, err error) {
	var l lenient
	if json.Unmarshal(answer, &l) != nil {
		return ConnectorUnknown, "its connector is not known: the probe is answered with something else than JSON; set kv_connector", nil
	}
	if raw, told := l["kv_transfer_params"]; !told || string(raw) == "null" {
		// Mooncake leaves nothing without a transfer id, but has a server to ask.
		if m, err := p.mooncake(ctx, w); err == nil {
			w.mooncake.Store(m)
			return ConnectorMooncake, "", nil
		}
		return ConnectorNone, "it answers the probe without kv_transfer_params: it hands no KV over, or its connector needs none; set kv_connector if there is one", nil
	}
	params := l.object("kv_transfer_params")
	host := params.str("remote_host")
	switch {
	case params["remote_notify_port"] != nil:
		return ConnectorMoRIIO, "", nil
	case host == "":
		return ConnectorUnknown, "its connector is not known: its kv_transfer_params have no remote_host; set kv_connector", nil
	case isLoopback(host) && !isLoopback(w.base.Host):
		note = fmt.Sprintf("decode workers are told to fetch KV cache from %s; set VLLM_NIXL_SIDE_CHANNEL_HOST at the engine to an address that they reach", host)
	}
	if params.str("transfer_mode") == "push" {
		w.push.Store(readPushPeer(params))
		return ConnectorNIXLPush, note, nil
	}
	return ConnectorNIXL, note, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// maxModelLen is the context of its first model, 0 when not told.
func (f *Facts) maxModelLen() int64 {
	i := slices.IndexFunc(f.Models, func(m ModelInfo) bool { return m.MaxModelLen > 0 })
	if i < 0 {
		return 0
	}
	return f.Models[i].MaxModelLen
}

func (p *httpProber) post(ctx context.Context, w *Worker, path string, v any) (status int, body []byte, err error) {
	b, err := json.Marshal(v)
	if err != nil {
		return 0, nil, err
	}
	header := append(slices.Clone(probeHeader), upstream.Field{Name: "Content-Type", Value: "application/json"})
	return p.send(ctx, w.endpoint, &upstream.Request{
		Method: "POST", Path: path, Header: header, Body: [][]byte{b}, Limits: upstream.Limits{Total: probeTimeout},
	}, maxProbeBody)
}

// vllm tells whether w speaks vLLM's dialect by these facts of it.
func (f *Facts) vllm(w *Worker) bool {
	if b := w.setBackend(); b != "" {
		return b == DialectVLLM
	}
	return f.Backend == DialectVLLM
}

// addLoads takes from an answer about the load what does not change.
func (f *Facts) addLoads(l *loads) {
	f.loads, f.started = l.shares, l.started
	if l.blockSize > 0 { // vLLM
		f.PageSize, f.CacheType = l.blockSize, l.cacheType
		f.DPSize = len(l.shares)
	}
}

// keepLoads takes it from what was known before.
func (f *Facts) keepLoads(before *Facts) {
	f.loads, f.started = before.loads, before.started
	if before.Backend == DialectVLLM || f.Backend == DialectVLLM {
		f.PageSize, f.CacheType, f.DPSize = before.PageSize, before.CacheType, before.DPSize
	}
}
