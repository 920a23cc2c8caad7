//go:build realengine

package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Counters of vLLM's /metrics.
const (
	running       = "vllm:num_requests_running"
	waiting       = "vllm:num_requests_waiting"
	prefixHits    = "vllm:prefix_cache_hits_total"
	externalHits  = "vllm:external_prefix_cache_hits_total"
	nixlBytes     = "vllm:nixl_bytes_transferred_sum"
	nixlTransfers = "vllm:nixl_bytes_transferred_count"
	nixlExpired   = "vllm:nixl_num_kv_expired_reqs_total"
	nixlFailed    = "vllm:nixl_num_failed_transfers_total"
	generated     = "vllm:generation_tokens_total"
	computedHere  = `vllm:prompt_tokens_by_source_total{source="local_compute"}`
	transferred   = `vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}`
)

// counters are the values of a /metrics, by the name and by the name with one
// label, summed over the others.
type counters map[string]float64

var scraper = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func scrape(t testing.TB, url string) counters {
	t.Helper()
	resp, err := scraper.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s/metrics: %s, %v", url, resp.Status, err)
	}
	c := counters{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		space := strings.LastIndexByte(line, ' ')
		if space < 0 || line[0] == '#' {
			continue
		}
		v, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			continue
		}
		name, labels, _ := strings.Cut(line[:space], "{")
		c[name] += v
		for label := range strings.SplitSeq(strings.TrimSuffix(labels, "}"), ",") {
			c[name+"{"+label+"}"] += v
		}
	}
	return c
}

// since are the changes of the counters named.
func (c counters) since(before counters, names ...string) counters {
	d := counters{}
	for _, name := range names {
		d[name] = c[name] - before[name]
	}
	return d
}

func (c counters) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, fmt.Sprintf("%s %+.0f", name, c[name]))
	}
	return strings.Join(parts, ", ")
}

// waitIdle waits until an engine has nothing to do.
func waitIdle(t testing.TB, e *Engine) {
	t.Helper()
	eventually(t, string(e.Role)+" is idle", func() string {
		c := scrape(t, e.URL())
		if c[running] == 0 && c[waiting] == 0 {
			return ""
		}
		return fmt.Sprintf("running %v, waiting %v", c[running], c[waiting])
	})
}
