package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// version is what the engine calls itself.
const version = "0.5.17"

// infoRoutes are the routes that do not run the engine's front.
func (w *Worker) infoRoutes() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"/health":          w.health,
		"/health_generate": w.health,
		"/model_info":      w.modelInfo,
		"/get_model_info":  w.modelInfo,
		"/server_info":     w.serverInfo,
		"/get_server_info": w.serverInfo,
		"/v1/loads":        w.loads,
		"/get_load":        w.oldLoad,
		"/v1/models":       w.models,
		"/metrics":         w.metrics,
		"/abort_request":   w.abortRequest,
		"/flush_cache":     w.flushCache,
	}
}

func writeJSON(rw http.ResponseWriter, status int, v any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("BUG: cannot encode answer: " + err.Error())
	}
	_, _ = rw.Write(bytes.TrimRight(b.Bytes(), "\n"))
}

type object = map[string]any

// health asks for one token and checks once per HealthDelay whether the scheduler
// has made progress since. An idle engine answers at the first check; one that is
// busy with prompts alone answers only when a chunk of them is done.
func (w *Worker) health(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Content-Type", "text/plain")
	delay := w.opt.HealthDelay
	if delay < 0 {
		if !w.sched.isShut() {
			return
		}
		delay = time.Second
	}
	since := time.Now()
	for time.Since(since) < w.opt.HealthTimeout {
		if w.pause(r.Context(), delay) != nil {
			return
		}
		w.mu.Lock()
		silent := w.stats.phases[prefilling] > 0 || w.sched.isShut()
		w.mu.Unlock()
		if !silent || w.lastProgress.Load() > since.UnixNano() {
			return
		}
	}
	rw.WriteHeader(http.StatusServiceUnavailable)
}

func (w *Worker) modelInfo(rw http.ResponseWriter, _ *http.Request) {
	writeJSON(rw, http.StatusOK, object{
		"model_path": w.opt.Model, "tokenizer_path": w.opt.Model, "is_generation": true,
		"preferred_sampling_params": nil, "weight_version": "default",
		"has_image_understanding": false, "has_audio_understanding": false,
		"model_type": "llama", "architectures": []string{"LlamaForCausalLM"},
	})
}

func (w *Worker) mode() string {
	if w.role == Regular {
		return "null"
	}
	return string(w.role)
}

func (w *Worker) serverInfo(rw http.ResponseWriter, _ *http.Request) {
	boot := w.BootstrapPort()
	if boot == 0 {
		boot = w.opt.DefaultBootstrapPort
	}
	var events, config any
	if k := w.opt.KVEvents; w.publishes() {
		events = object{"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": w.eventPorts[0].Load(), "topic": k.Topic,
			"block_size": w.opt.CacheBlock, "dp_size": w.opt.DPSize}
		text, _ := json.Marshal(w.eventsConfig(0)) // a map of texts and numbers
		config = string(text)
	}
	var states []object
	w.mu.Lock()
	for i := range w.counts {
		states = append(states, object{
			"last_gen_throughput": 0.0, "token_capacity": w.opt.KVTokens,
			"memory_usage":                          object{"weight": 15.0, "kvcache": 40.0, "token_capacity": w.opt.KVTokens, "graph": 1.0},
			"effective_max_running_requests_per_dp": w.opt.MaxRunning, "dp_rank": i,
		})
	}
	w.mu.Unlock()
	writeJSON(rw, http.StatusOK, object{
		"model_path": w.opt.Model, "tokenizer_path": w.opt.Model, "served_model_name": w.opt.Model,
		"host": w.opt.Host, "port": w.port.Load(), "tp_size": 1, "dp_size": w.opt.DPSize, "pp_size": 1,
		"enable_dp_attention": w.opt.DPSize > 1, "page_size": w.opt.PageSize,
		"max_running_requests": w.opt.MaxRunning, "max_total_tokens": nil, "context_length": w.opt.ContextLength,
		"chunked_prefill_size": w.opt.ChunkedPrefillSize, "max_prefill_tokens": w.opt.MaxPrefillTokens,
		"schedule_policy": "fcfs", "mem_fraction_static": 0.85, "stream_interval": 1,
		"disaggregation_mode": w.mode(), "disaggregation_bootstrap_port": boot,
		"disaggregation_transfer_backend": "mooncake", "load_balance_method": "auto",
		"enable_metrics": true, "incremental_streaming_output": false, "weight_version": "default",
		"status": "ready",
		"scheduler_info": object{"status": "ready", "max_total_num_tokens": w.opt.KVTokens,
			"max_req_input_len": w.opt.ContextLength - 6},
		"startup_time": 1.5, "internal_states": states, "version": version, "kv_events": events, "kv_events_config": config,
	})
}

// load is one rank's entry of /v1/loads, its fields in the engine's order.
func (w *Worker) load(rank int, sections func(string) bool) object {
	c := w.scheduled().counts[rank]
	running := c.n[decoding]
	waiting := c.n[queued]
	waitingTokens := c.tokens[queued]
	if w.role == Prefill {
		running = c.n[prefilling]
		waitingTokens += c.tokens[bootstrap]
	} else {
		running += c.n[prefilling]
	}
	capacity := max(1, w.opt.KVTokens)
	usage := float64(c.used) / float64(capacity)
	o := object{
		"timestamp": float64(time.Now().UnixNano()) / 1e9, "dp_rank": rank,
		"num_running_reqs": running, "num_waiting_reqs": waiting, "num_waiting_uncached_tokens": waitingTokens,
		"num_used_tokens": c.used, "num_total_tokens": c.used + waitingTokens, "num_active_tokens": c.used,
		"max_total_num_tokens": w.opt.KVTokens, "max_running_requests": w.opt.MaxRunning,
		"token_usage": usage, "gen_throughput": 0.0, "cache_hit_rate": c.hitRate(), "utilization": usage,
		"total_prefill_uncached_tokens": c.done, "total_prefill_busy_us": c.busy.Microseconds(), "decode_moments": nil,
	}
	if sections("memory") {
		o["memory"] = object{"weight_gb": 15.0, "kv_cache_gb": 40.0, "graph_gb": 1.0, "token_capacity": w.opt.KVTokens}
	}
	if sections("disagg") && w.role != Regular {
		o["disaggregation"] = object{"mode": w.mode(),
			"prefill_bootstrap_queue_reqs": c.n[bootstrap], "prefill_inflight_queue_reqs": c.n[transferring],
			"decode_prealloc_queue_reqs": c.n[prealloc], "decode_transfer_queue_reqs": c.n[receiving],
			"decode_retracted_queue_reqs": 0, "kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0}
	}
	if sections("queues") {
		o["queues"] = object{"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}
	}
	return o
}

func (w *Worker) loads(rw http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	include := q.Get("include")
	sections := func(name string) bool {
		for _, s := range strings.Split(include, ",") {
			if s = strings.TrimSpace(s); s == "" || s == "all" || s == name {
				return true
			}
		}
		return false
	}
	loads := []object{}
	for rank := range w.opt.DPSize {
		if s := q.Get("dp_rank"); s != "" && s != strconv.Itoa(rank) {
			continue
		}
		loads = append(loads, w.load(rank, sections))
	}
	if q.Get("format") == "prometheus" {
		rw.Header().Set("Content-Type", "text/plain")
		for _, l := range loads {
			for _, k := range []string{"num_running_reqs", "num_waiting_reqs", "num_used_tokens", "num_total_tokens",
				"max_total_num_tokens", "token_usage", "utilization"} {
				fmt.Fprintf(rw, "sglang_%s{dp_rank=\"%d\"} %v\n", k, l["dp_rank"], l[k])
			}
		}
		return
	}
	writeJSON(rw, http.StatusOK, object{"timestamp": time.Now().UTC().Format(time.RFC3339Nano), "version": version,
		"accelerator": "sim", "num_accelerators": 1, "loads": loads})
}

func (w *Worker) oldLoad(rw http.ResponseWriter, _ *http.Request) {
	out := []object{}
	for rank := range w.opt.DPSize {
		l := w.load(rank, func(string) bool { return false })
		waiting := l["num_waiting_reqs"].(int)
		out = append(out, object{"dp_rank": rank, "num_reqs": l["num_running_reqs"].(int) + waiting, "num_waiting_reqs": waiting,
			"num_tokens": l["num_used_tokens"], "num_pending_tokens": l["num_waiting_uncached_tokens"], "ts_tic": float64(time.Now().UnixNano()) / 1e9})
	}
	writeJSON(rw, http.StatusOK, out)
}

func (w *Worker) models(rw http.ResponseWriter, _ *http.Request) {
	created := w.started.Load() / int64(time.Second)
	data := []object{{"id": w.opt.Model, "object": "model", "created": created, "owned_by": "sglang",
		"root": w.opt.Model, "parent": nil, "max_model_len": w.opt.ContextLength}}
	for _, a := range w.opt.Adapters {
		data = append(data, object{"id": a, "object": "model", "created": created, "owned_by": "sglang",
			"root": a, "parent": w.opt.Model, "max_model_len": nil})
	}
	writeJSON(rw, http.StatusOK, object{"object": "list", "data": data})
}

// abortRequest ends requests whose id begins with rid, as the engine matches.
func (w *Worker) abortRequest(rw http.ResponseWriter, r *http.Request) {
	var ask struct {
		RID string `json:"rid"`
		All bool   `json:"abort_all"`
	}
	if v := r.Context().Value(abortBody{}); v != nil {
		_ = json.Unmarshal(v.([]byte), &ask)
	}
	w.mu.Lock()
	for rid, cancel := range w.rids {
		if ask.All || (ask.RID != "" && strings.HasPrefix(rid, ask.RID)) {
			cancel(errAborted)
		}
	}
	w.mu.Unlock()
}

// abortBody is the context key of the body of an information route.
type abortBody struct{}

// busy reports whether requests are in the engine. One whose answer is just being
// written is given a moment to leave it.
func (w *Worker) busy(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	return w.Wait(ctx, func(s Stats) bool { return s.phases == [phases]int{} }) != nil
}

func (w *Worker) flushCache(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Content-Type", "text/plain")
	if w.busy(r.Context()) {
		rw.WriteHeader(http.StatusBadRequest)
		fmt.Fprintln(rw, "Flush cache failed.")
		return
	}
	w.ClearCache()
	fmt.Fprintln(rw, "Cache flushed.")
}

func (w *Worker) metrics(rw http.ResponseWriter, _ *http.Request) {
	rw.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	report := w.scheduled()
	s := report.stats
	engine := "unified"
	if w.role != Regular {
		engine = string(w.role)
	}
	type sample struct {
		name, kind string
		value      func(rankCounts) float64
	}
	for _, m := range []sample{
		{"num_running_reqs", "gauge", func(c rankCounts) float64 { return float64(c.n[decoding] + c.n[prefilling]) }},
		{"num_queue_reqs", "gauge", func(c rankCounts) float64 { return float64(c.n[queued]) }},
		{"num_used_tokens", "gauge", func(c rankCounts) float64 { return float64(c.used) }},
		{"token_usage", "gauge", func(c rankCounts) float64 { return float64(c.used) / float64(max(1, w.opt.KVTokens)) }},
		{"max_total_num_tokens", "gauge", func(rankCounts) float64 { return float64(w.opt.KVTokens) }},
		{"kv_used_tokens", "gauge", func(c rankCounts) float64 { return float64(c.used) }},
		{"kv_available_tokens", "gauge", func(c rankCounts) float64 { return float64(w.opt.KVTokens - c.used) }},
		{"kv_evictable_tokens", "gauge", func(rankCounts) float64 { return 0 }},
		{"utilization", "gauge", func(c rankCounts) float64 { return float64(c.used) / float64(max(1, w.opt.KVTokens)) }},
		{"pending_prealloc_token_usage", "gauge", func(c rankCounts) float64 { return float64(c.tokens[prealloc]) / float64(max(1, w.opt.KVTokens)) }},
		{"num_retracted_reqs", "gauge", func(rankCounts) float64 { return 0 }},
		{"cache_hit_rate", "gauge", rankCounts.hitRate},
		{"gen_throughput", "gauge", func(rankCounts) float64 { return 0 }},
		{"num_prefill_bootstrap_queue_reqs", "gauge", func(c rankCounts) float64 { return float64(c.n[bootstrap]) }},
		{"num_prefill_inflight_queue_reqs", "gauge", func(c rankCounts) float64 { return float64(c.n[transferring]) }},
		{"num_decode_prealloc_queue_reqs", "gauge", func(c rankCounts) float64 { return float64(c.n[prealloc]) }},
		{"num_decode_transfer_queue_reqs", "gauge", func(c rankCounts) float64 { return float64(c.n[receiving]) }},
	} {
		fmt.Fprintf(rw, "# TYPE sglang:%s %s\n", m.name, m.kind)
		for rank := range w.opt.DPSize {
			c := report.counts[rank]
			dp := ""
			if w.opt.DPSize > 1 {
				dp = fmt.Sprintf(`,dp_rank="%d"`, rank)
			}
			fmt.Fprintf(rw, "sglang:%s{engine_type=%q,model_name=%q,moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"%s} %v\n",
				m.name, engine, w.opt.Model, dp, m.value(c))
		}
	}
	for _, m := range []struct {
		name  string
		value int64
	}{
		{"num_requests_total", int64(s.Ended)}, {"num_aborted_requests_total", int64(s.Gone)},
		{"prompt_tokens_total", s.PromptTokens}, {"generation_tokens_total", s.OutputTokens}, {"cached_tokens_total", s.CachedTokens},
	} {
		fmt.Fprintf(rw, "# TYPE sglang:%s counter\nsglang:%s{engine_type=%q,model_name=%q} %d\n", m.name, m.name, engine, w.opt.Model, m.value)
	}
}

// bootstrapHandler is the small server on a prefill worker's bootstrap port.
func (w *Worker) bootstrapHandler() http.Handler {
	if w.opt.Backend == VLLM {
		return w.mooncakeHandler()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(rw http.ResponseWriter, r *http.Request) {
		w.gate.wait(r.Context().Done())
		_, _ = rw.Write([]byte("OK"))
	})
	mux.HandleFunc("GET /route", func(rw http.ResponseWriter, r *http.Request) {
		w.gate.wait(r.Context().Done())
		q := r.URL.Query()
		whole, ok := routeQuery(q)
		switch {
		case !ok:
			http.Error(rw, "Missing inputs for bootstrap server.", http.StatusBadRequest)
		case whole:
			writeJSON(rw, http.StatusOK, object{"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": w.opt.DPSize, "pp_size": 1,
				"page_size": w.opt.PageSize, "kv_cache_dtype": "auto", "follow_bootstrap_room": true,
				"enable_dsa_cache_layer_split": false, "prefill_http_port": w.port.Load()})
		default:
			writeJSON(rw, http.StatusOK, object{"rank_ip": w.opt.Host, "rank_port": w.port.Load()})
		}
	})
	mux.HandleFunc("POST /query_dp_ranks", func(rw http.ResponseWriter, r *http.Request) {
		var ask struct {
			Rooms []int64 `json:"bootstrap_rooms"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(rw, r.Body, 1<<20)).Decode(&ask); err != nil {
			http.Error(rw, "bad body", http.StatusBadRequest)
			return
		}
		ranks := object{}
		for _, room := range ask.Rooms {
			if room >= 0 {
				ranks[strconv.FormatInt(room, 10)] = room % int64(w.opt.DPSize)
			}
		}
		writeJSON(rw, http.StatusOK, ranks)
	})
	return mux
}

// routeQuery reports whether GET /route asks for the whole layout (all -1).
func routeQuery(q url.Values) (whole, ok bool) {
	whole = true
	for _, k := range []string{"prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"} {
		n, err := strconv.Atoi(q.Get(k))
		if err != nil {
			return false, false
		}
		whole = whole && n == -1
	}
	return whole, true
}
