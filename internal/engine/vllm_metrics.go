package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// LoadsPath implements Prober.
func (VLLM) LoadsPath() string { return "/metrics" }

// SchedulerQuestions implements Prober: a completion of one token, or an embedding of one
// where the model generates nothing. vLLM's health route does not ask the scheduler.
func (VLLM) SchedulerQuestions(model string) []Question {
	if model == "" {
		return nil
	}
	completion, err := json.Marshal(map[string]any{"model": model, "prompt": []int{3}, "max_tokens": 1, "stream": false, "temperature": 0})
	if err != nil {
		return nil
	}
	embedding, err := json.Marshal(map[string]any{"model": model, "input": []int{3}})
	if err != nil {
		return nil
	}
	return []Question{
		{Method: http.MethodPost, Path: "/v1/completions", Body: completion},
		{Method: http.MethodPost, Path: "/v1/embeddings", Body: embedding},
	}
}

// LoadsIdentify implements Prober: the metrics have the start time of the process.
func (VLLM) LoadsIdentify() bool { return true }

// ReadLoads implements Prober. It reads, for each data-parallel rank (label engine),
// the requests that run and wait, the size of its KV cache and how much of it is used,
// and a mark of these and of its counters of tokens; and what came from other engines.
// The counter of prompt tokens moves at the end of a prompt only, the use of the cache
// with each chunk of it. The label is the place of the rank among those of all servers of
// the model, so that the first of this server's need not be 0.
func (VLLM) ReadLoads(body []byte) (*Loads, error) {
	l := &Loads{FirstRank: MaxDPSize}
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
				_, l.Started, _ = readSample(at)
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
		case "prompt_tokens_total", "generation_tokens_total", "iteration_tokens_total_count", "num_preemptions_total",
			"prefix_cache_queries_total":
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
			if err != nil || n < 0 || n >= MaxDPSize {
				continue
			}
			dp = n
		}
		found, l.FirstRank = true, min(l.FirstRank, dp)
		l.Ranks, l.Capacities, used = grown(l.Ranks, dp), grown(l.Capacities, dp), grown(used, dp)
		amount := int64(min(max(value, 0), MaxCapacity))
		switch name {
		case "num_requests_running":
			l.Ranks[dp].Running += amount
		case "num_requests_waiting":
			l.Ranks[dp].Waiting += amount
		case "kv_cache_usage_perc", "gpu_cache_usage_perc":
			used[dp] = min(max(value, 0), 1)
			l.Ranks[dp].CacheMark = mix(0, name, value)
		case "prompt_tokens_total", "generation_tokens_total", "iteration_tokens_total_count", "num_preemptions_total",
			"prefix_cache_queries_total":
			l.Ranks[dp].Mark = mix(l.Ranks[dp].Mark, name, value)
		case "cache_config_info":
			blocks, size := number(labels["num_gpu_blocks"]), number(labels["block_size"])
			if size > 0 && size <= MaxBlockSize {
				l.BlockSize = size
				l.Capacities[dp].KVTokens = min(blocks, MaxCapacity/size) * size
			}
			if d := labels["cache_dtype"]; ValidName(d) {
				l.CacheType = d
			}
		case "external_prefix_cache_hits_total", "nixl_bytes_transferred_sum":
			l.External, l.CountsExternal = l.External+max(value, 0), true
		case "prompt_tokens_by_source_total":
			if labels["source"] == "external_kv_transfer" {
				l.External, l.CountsExternal = l.External+max(value, 0), true
			}
		}
	}
	if !found {
		return nil, errors.New("it contains none of vLLM's metrics")
	}
	l.Ranks, l.Capacities, used = l.Ranks[l.FirstRank:], l.Capacities[l.FirstRank:], used[l.FirstRank:]
	for dp := range l.Ranks {
		l.Ranks[dp].Usage = used[dp]
		l.Ranks[dp].UsedTokens = int64(used[dp] * float64(l.Capacities[dp].KVTokens))
	}
	return l, nil
}

// number reads a whole number ≥ 0 in a label; 0 for everything else.
func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return min(n, MaxCapacity)
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
