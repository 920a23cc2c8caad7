package engine

import (
	"fmt"
	"slices"
	"testing"
)

func TestFingerprint(t *testing.T) {
	info := func(seed, capacity, load int) []byte {
		return fmt.Appendf(nil, `{"random_seed":%d,"name":"a\"[","internal_states":[{"token_capacity":%d,"last_gen_throughput":%d,"x":"]\\"}],"version":"1"}`, seed, capacity, load)
	}
	was := fingerprintOf(info(1, 100, 5))
	if fingerprintOf(info(1, 100, 77)) != was {
		t.Error("another load is another engine")
	}
	if fingerprintOf(info(2, 100, 5)) == was || fingerprintOf(info(1, 101, 5)) == was || fingerprintOf(nil) == was {
		t.Error("another seed or capacity is the same engine")
	}
	for _, odd := range []string{"", `"internal_states"`, `{"internal_states":[`, `{"internal_states":["\`, `{"internal_states":}]`, `"internal_states":{"token_capacity"`} {
		if fingerprintOf([]byte(odd)) == 0 {
			t.Errorf("%q has no mark", odd)
		}
	}
}

func TestReadMetrics(t *testing.T) {
	l, err := VLLM{}.ReadLoads([]byte(`# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \"b\" {c},\\"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4
vllm:num_requests_waiting{engine="1",model_name="m"} 2 1700000000
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 2
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 1e3
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 580
vllm:external_prefix_cache_hits_total{engine="1",model_name="m"} 20
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 4e+12
vllm:nixl_bytes_transferred_bucket{engine="0",le="+Inf",model_name="m"} 66
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="10",num_gpu_blocks_override="None"} 1.0
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="1",num_gpu_blocks="None"} 1.0`))
	if err != nil {
		t.Fatal(err)
	}
	if want := []RankLoad{{Running: 3, UsedTokens: 320, Usage: 0.25, CacheMark: l.Ranks[0].CacheMark}, {Running: 4, Waiting: 2}}; !slices.Equal(l.Ranks, want) {
		t.Errorf("loads %+v, want %+v", l.Ranks, want)
	}
	if want := []RankCapacity{{KVTokens: 1280}, {}}; !slices.Equal(l.Capacities, want) {
		t.Errorf("shares %+v, want %+v", l.Capacities, want)
	}
	if l.BlockSize != 128 || l.CacheType != "auto" || l.External != 4e12+600 || !l.CountsExternal {
		t.Errorf("%+v", l)
	}
	for _, odd := range []string{"", "{}", "vllm:", "vllm:num_requests_running", "vllm:num_requests_running{engine=\"0\"", "vllm:num_requests_running{engine} 1",
		`vllm:num_requests_running{engine="-1"} 1`, `vllm:num_requests_running{engine="1024"} 1`, `vllm:num_requests_running{a="\`, `vllm:num_requests_running NaN`,
		`vllm:num_requests_running{a="b"} x`, "sglang:num_running_reqs 1"} {
		if l, err := (VLLM{}).ReadLoads([]byte(odd)); err == nil {
			t.Errorf("%q is taken for %+v", odd, l)
		}
	}
}

func FuzzMooncake(f *testing.F) {
	f.Add([]byte(`{"0":{"engine_id":"a_dp0","worker_addr":{"0":{"0":"tcp://h:1"}}},"1":{"engine_id":"a_dp1"}}`))
	f.Add([]byte(`{"-1":{"engine_id":"x"},"1024":{"engine_id":"y"},"z":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if m, err := readMooncake(body); err == nil && (len(m.EngineIDs) == 0 || len(m.EngineIDs) > MaxDPSize) {
			t.Errorf("%+v", m)
		}
	})
}

func TestReadLoads(t *testing.T) {
	for _, odd := range []string{``, `null`, `[]`, `{}`, `{"loads":null}`, `{"loads":[]}`, `{"loads":{}}`, `{"loads":[1]}`, `{"loads":[{"dp_rank":-1}]}`, `{"loads":[{"dp_rank":1024}]}`} {
		if l, err := (SGLang{}).ReadLoads([]byte(odd)); err == nil {
			t.Errorf("%s is taken for %+v", odd, l)
		}
	}
	l, err := SGLang{}.ReadLoads([]byte(`{"loads":[{"num_running_reqs":3,"num_waiting_reqs":2,"num_waiting_uncached_tokens":70,"num_used_tokens":900},{"num_running_reqs":-4}]}`))
	if err != nil {
		t.Fatal(err)
	}
	l.Ranks[0].CacheMark = 0
	if !slices.Equal(l.Ranks, []RankLoad{{Running: 3, Waiting: 2, WaitingTokens: 70, UsedTokens: 900}, {}}) {
		t.Errorf("%+v", l)
	}
}

// What only the scheduler moves changes a mark; what comes and goes, and time, do not.
func TestMarksFollowTheScheduler(t *testing.T) {
	sglang := func(fields string) RankLoad {
		l, err := SGLang{}.ReadLoads([]byte(`{"loads":[{` + fields + `}]}`))
		if err != nil {
			t.Fatal(err)
		}
		return l.Ranks[0]
	}
	vllm := func(lines string) RankLoad {
		l, err := VLLM{}.ReadLoads([]byte("vllm:num_requests_running 1\n" + lines))
		if err != nil {
			t.Fatal(err)
		}
		return l.Ranks[0]
	}
	for _, c := range []struct {
		name         string
		a, b         RankLoad
		mark, cached bool // differ
	}{
		{"SGLang: prompt tokens", sglang(`"total_prefill_uncached_tokens":5`), sglang(`"total_prefill_uncached_tokens":6`), true, false},
		{"SGLang: decode", sglang(`"decode_moments":[1,2,3]`), sglang(`"decode_moments":[1,2.5,3]`), true, false},
		{"SGLang: the cache", sglang(`"num_used_tokens":5`), sglang(`"num_used_tokens":6`), false, true},
		{"SGLang: a request that came", sglang(`"num_running_reqs":1,"total_prefill_busy_us":9`), sglang(`"num_running_reqs":1,"num_waiting_reqs":1,"total_prefill_busy_us":9`), false, false},
		{"SGLang: the time", sglang(`"timestamp":1,"total_prefill_busy_us":9`), sglang(`"timestamp":2,"total_prefill_busy_us":9`), false, false},
		{"vLLM: prompt tokens", vllm("vllm:prompt_tokens_total{engine=\"0\"} 5"), vllm("vllm:prompt_tokens_total{engine=\"0\"} 6"), true, false},
		{"vLLM: generation tokens", vllm("vllm:generation_tokens_total 5"), vllm("vllm:generation_tokens_total 6"), true, false},
		{"vLLM: the cache", vllm("vllm:kv_cache_usage_perc 0.5"), vllm("vllm:kv_cache_usage_perc 0.51"), false, true},
		{"vLLM: a request that came", vllm("vllm:num_requests_waiting 0\nvllm:prompt_tokens_total 5"), vllm("vllm:num_requests_waiting 1\nvllm:prompt_tokens_total 5"), false, false},
		{"vLLM: the twin with the time of a counter", vllm("vllm:prompt_tokens_created 5\nvllm:prompt_tokens_total 5"), vllm("vllm:prompt_tokens_created 6\nvllm:prompt_tokens_total 5"), false, false},
	} {
		if (c.a.Mark != c.b.Mark) != c.mark || (c.a.CacheMark != c.b.CacheMark) != c.cached {
			t.Errorf("%s: marks %x and %x, of the cache %x and %x", c.name, c.a.Mark, c.b.Mark, c.a.CacheMark, c.b.CacheMark)
		}
		if c.a.Mark == 0 && c.a.CacheMark == 0 {
			t.Errorf("%s: no mark", c.name)
		}
	}
	if a, b := sglang(`"num_running_reqs":1`), vllm(""); a.Mark|a.CacheMark|b.Mark|b.CacheMark != 0 {
		t.Errorf("marks of answers without counters: %+v, %+v", a, b)
	}
}
