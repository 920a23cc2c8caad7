package sim

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// vllmRoutes are a vLLM worker's information routes.
func (w *Worker) vllmRoutes() map[string]http.HandlerFunc {
	empty := func(http.ResponseWriter, *http.Request) {}
	routes := map[string]http.HandlerFunc{
		"/health": w.vllmHealth,
		"/ping":   empty,
		"/version": func(rw http.ResponseWriter, _ *http.Request) {
			writeJSON(rw, http.StatusOK, object{"version": vllmVersion})
		},
		"/load": func(rw http.ResponseWriter, _ *http.Request) {
			// The engine counts only with an option that is rarely set.
			writeJSON(rw, http.StatusOK, object{"server_load": 0})
		},
		"/kv_event_sources": func(rw http.ResponseWriter, _ *http.Request) {
			writeJSON(rw, http.StatusOK, w.eventSources())
		},
		"/v1/models": w.vllmModels,
		"/metrics":   w.vllmMetrics,
	}
	if w.opt.DevMode {
		routes["/server_info"] = w.vllmServerInfo
		routes["/reset_prefix_cache"] = func(rw http.ResponseWriter, r *http.Request) {
			if w.busy(r.Context()) { // some blocks are in use
				writeJSON(rw, http.StatusOK, object{"success": false})
				return
			}
			w.ClearCache()
			writeJSON(rw, http.StatusOK, object{"success": true})
		}
	}
	return routes
}

// vllmHealth answers at once, with an empty body.
func (w *Worker) vllmHealth(rw http.ResponseWriter, _ *http.Request) {
	if w.core.isShut() {
		rw.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (w *Worker) vllmModels(rw http.ResponseWriter, _ *http.Request) {
	created := time.Now().Unix()
	card := func(id string, parent, most any) object {
		return object{"id": id, "object": "model", "created": created, "owned_by": "vllm", "root": id, "parent": parent,
			"max_model_len": most, "permission": []object{{"id": "modelperm-" + newRequestID()[:16], "object": "model_permission",
				"created": created, "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
				"allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false, "organization": "*",
				"group": nil, "is_blocking": false}}}
	}
	data := []object{card(w.opt.Model, nil, w.opt.ContextLength)}
	for _, n := range w.opt.Names {
		data = append(data, card(n, nil, w.opt.ContextLength))
	}
	for _, a := range w.opt.Adapters {
		data = append(data, card(a, w.opt.Model, nil))
	}
	writeJSON(rw, http.StatusOK, object{"object": "list", "data": data})
}

// vllmServerInfo is served in development mode only.
func (w *Worker) vllmServerInfo(rw http.ResponseWriter, _ *http.Request) {
	var transfer any
	if c := connectorNames[w.opt.Connector]; c != "" {
		role := w.opt.KVRole
		if role == "" {
			role = "kv_both"
		}
		transfer = object{"kv_connector": c, "kv_role": role}
	}
	var events any
	if w.publishes() {
		events = w.eventsConfig(0)
	}
	writeJSON(rw, http.StatusOK, object{"vllm_config": object{
		"model_config":       object{"model": w.opt.Model, "served_model_name": w.opt.Model, "max_model_len": w.opt.ContextLength},
		"cache_config":       object{"block_size": w.opt.PageSize, "num_gpu_blocks": w.opt.KVTokens / w.opt.PageSize, "enable_prefix_caching": w.caches()},
		"parallel_config":    object{"data_parallel_size": w.opt.DPSize, "tensor_parallel_size": 1, "pipeline_parallel_size": 1},
		"scheduler_config":   object{"max_num_seqs": w.opt.MaxRunning, "max_num_batched_tokens": w.opt.ChunkedPrefillSize},
		"kv_transfer_config": transfer, "kv_events_config": events,
	}})
}

// connectorNames are the engine's names of the connectors.
var connectorNames = map[Connector]string{NIXL: "NixlConnector", NIXLPush: "NixlPushConnector", Mooncake: "MooncakeConnector",
	MoRIIO: "MoRIIOConnector", LMCache: "LMCacheConnectorV1", SharedStorage: "SharedStorageConnector"}

// bytesOfKV is the size of one token's KV over the connector.
const bytesOfKV = 2048

func (w *Worker) vllmMetrics(rw http.ResponseWriter, _ *http.Request) {
	rw.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	report := w.scheduled()
	counts, s := report.counts, report.stats
	waiting := func(c rankCounts) int { return c.n[queued] }
	deferred := func(c rankCounts) int { return c.n[receiving] }
	type sample struct {
		name, kind, labels string
		value              func(rankCounts) float64
	}
	num := func(f func(rankCounts) int) func(rankCounts) float64 {
		return func(c rankCounts) float64 { return float64(f(c)) }
	}
	none := func(rankCounts) float64 { return 0 }
	external := num(func(c rankCounts) int { return c.external })
	hits := num(func(c rankCounts) int { return c.hit })
	prompts := num(func(c rankCounts) int { return c.done + c.hit + c.external })
	last := ""
	for _, m := range []sample{
		{"num_requests_running", "gauge", "", num(func(c rankCounts) int { return c.n[prefilling] + c.n[decoding] })},
		{"num_requests_waiting", "gauge", "", num(func(c rankCounts) int { return waiting(c) + deferred(c) })},
		{"num_requests_waiting_by_reason", "gauge", `,reason="capacity"`, num(waiting)},
		{"num_requests_waiting_by_reason", "gauge", `,reason="deferred"`, num(deferred)},
		{"kv_cache_usage_perc", "gauge", "", func(c rankCounts) float64 { return float64(max(c.used-c.uncomputed, 0)) / float64(w.opt.KVTokens) }},
		{"prefix_cache_queries_total", "counter", "", num(func(c rankCounts) int { return c.queried })},
		{"prefix_cache_hits_total", "counter", "", hits},
		{"external_prefix_cache_queries_total", "counter", "", prompts},
		{"external_prefix_cache_hits_total", "counter", "", external},
		{"num_preemptions_total", "counter", "", none},
		{"prompt_tokens_total", "counter", "", prompts},
		{"prompt_tokens_by_source_total", "counter", `,source="local_compute"`, num(func(c rankCounts) int { return c.done })},
		{"prompt_tokens_by_source_total", "counter", `,source="local_cache_hit"`, hits},
		{"prompt_tokens_by_source_total", "counter", `,source="external_kv_transfer"`, external},
		{"prompt_tokens_cached_total", "counter", "", num(func(c rankCounts) int { return c.hit + c.external })},
	} {
		if m.name != last {
			fmt.Fprintf(rw, "# TYPE vllm:%s %s\n", m.name, m.kind)
			last = m.name
		}
		for rank, c := range counts {
			fmt.Fprintf(rw, "vllm:%s{engine=\"%d\",model_name=%q%s} %v\n", m.name, rank+w.opt.FirstRank, w.opt.Model, m.labels, m.value(c))
			if base, ok := strings.CutSuffix(m.name, "_total"); ok { // its twin, with a time as value
				fmt.Fprintf(rw, "vllm:%s_created{engine=\"%d\",model_name=%q%s} %v\n", base, rank+w.opt.FirstRank, w.opt.Model, m.labels, w.startedSeconds())
			}
		}
	}
	fmt.Fprintf(rw, "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n"+
		"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %g\n", w.startedSeconds())
	fmt.Fprintf(rw, "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{engine=\"%d\",model_name=%q} %d\n", w.opt.FirstRank, w.opt.Model, report.generated)
	fmt.Fprintf(rw, "# TYPE vllm:iteration_tokens_total histogram\nvllm:iteration_tokens_total_count{engine=\"%d\",model_name=%q} %d\n", w.opt.FirstRank, w.opt.Model, report.steps)
	fmt.Fprintf(rw, "# TYPE vllm:request_success_total counter\n")
	for _, reason := range []string{"stop", "length", "abort"} {
		n := 0
		if reason == "stop" {
			n = s.Completed
		} else if reason == "abort" {
			n = s.Gone
		}
		fmt.Fprintf(rw, "vllm:request_success_total{engine=\"%d\",finished_reason=%q,model_name=%q} %d\n", w.opt.FirstRank, reason, w.opt.Model, n)
	}
	fmt.Fprintf(rw, "# TYPE vllm:cache_config_info gauge\n")
	for rank := range counts {
		fmt.Fprintf(rw, "vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"%d\",cache_dtype=\"auto\",enable_prefix_caching=\"%s\",engine=\"%d\","+
			"gpu_memory_utilization=\"0.9\",kv_cache_size_tokens=\"%d\",num_gpu_blocks=\"%d\",num_gpu_blocks_override=\"None\",prefix_caching_hash_algo=\"sha256\",user_specified_block_size=\"True\"} 1.0\n",
			w.opt.PageSize, map[bool]string{true: "True", false: "False"}[w.caches()], rank+w.opt.FirstRank, w.opt.KVTokens, w.opt.KVTokens/w.opt.PageSize)
	}
	if c := w.opt.Connector; c == NIXL || c == NIXLPush {
		for rank, c := range counts {
			fmt.Fprintf(rw, "# TYPE vllm:nixl_bytes_transferred histogram\n"+
				"vllm:nixl_bytes_transferred_count{engine=\"%d\",model_name=%q} %d\nvllm:nixl_bytes_transferred_sum{engine=\"%d\",model_name=%q} %d\n",
				rank+w.opt.FirstRank, w.opt.Model, c.pulled, rank+w.opt.FirstRank, w.opt.Model, c.external*bytesOfKV)
		}
		fmt.Fprintf(rw, "# TYPE vllm:nixl_num_failed_transfers_total counter\nvllm:nixl_num_failed_transfers_total{engine=\"%d\",model_name=%q} %d\n", w.opt.FirstRank, w.opt.Model, s.TransferFailed)
		fmt.Fprintf(rw, "# TYPE vllm:nixl_num_kv_expired_reqs_total counter\nvllm:nixl_num_kv_expired_reqs_total{engine=\"%d\",model_name=%q} %d\n", w.opt.FirstRank, w.opt.Model, s.Expired)
	}
}

// startedSeconds is when the process started, in seconds since 1970.
func (w *Worker) startedSeconds() float64 { return float64(w.started.Load()) / 1e9 }

// mooncakeHandler is the bootstrap server of a prefill with Mooncake.
func (w *Worker) mooncakeHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /query", func(rw http.ResponseWriter, r *http.Request) {
		w.gate.wait(r.Context().Done())
		ranks := object{}
		if l := w.current.Load(); l != nil {
			for _, e := range l.engines {
				ranks[fmt.Sprint(e.rank)] = object{"engine_id": e.id,
					"worker_addr": object{"0": object{"0": fmt.Sprintf("tcp://%s", hostPort(e.host, e.port))}}}
			}
		}
		writeJSON(rw, http.StatusOK, ranks)
	})
	return mux
}
