package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/telemetry"
)

// newMetricsReference writes docs/metrics.md; "make docs" calls it.
func newMetricsReference() *cobra.Command {
	return &cobra.Command{
		Use:    "metrics-reference",
		Short:  "Print the reference of all metrics, in Markdown",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			families, err := registeredMetrics()
			if err != nil {
				return err
			}
			return writeMetrics(cmd.OutOrStdout(), families)
		},
	}
}

// registeredMetrics are the metrics of a router that does not listen.
func registeredMetrics() ([]telemetry.Family, error) {
	cfg, _, err := config.Load(nil, nil, nil)
	if err != nil {
		return nil, err
	}
	r, err := newRouter(cfg, telemetry.NewLog(telemetry.LogOptions{Out: io.Discard}))
	if err != nil {
		return nil, err
	}
	defer r.log.Close(logFlush)
	defer r.close()
	return r.registry.Families()
}

// metricGroup is a section of the reference. A metric is in the group that has
// the longest beginning of its name.
type metricGroup struct {
	title, text string
	beginnings  []string
}

var metricGroups = []metricGroup{
	{
		"Requests", "Outcome, duration and tokens of requests. `route` is the API (`chat_completions`, …; `other` is any path without one of its own), never a path of a client's.",
		[]string{"sluice_request", "sluice_key_", "sluice_model_", "sluice_time_", "sluice_queue_wait_", "sluice_prefill_leg_", "sluice_retries_", "sluice_kv_handoffs_", "sluice_tokens_"},
	},
	{
		"Admission", "Admission control: which requests start, wait or are refused, and why. `class` is a configured class, or `default`; without classes that is the only one.",
		[]string{"sluice_admission_"},
	},
	{
		"Prefill slots", "Requests with separate prefill and decode workers, waiting for prefill. The `smg_*` metrics have the names of the SGLang model gateway's, so that its dashboards keep working.",
		[]string{"smg_pd_prefill_admission_", "sluice_admission_prefill_slot"},
	},
	{
		"Classes and load", "The load booked on each rank, and the scheduling state of the classes. [classes.md](classes.md) explains how to read them.",
		[]string{"sluice_admission_deficit_", "sluice_admission_decode_", "sluice_admission_prefill_tokens", "sluice_admission_missing_capacity", "sluice_admission_fences", "sluice_admission_unknown_classes_"},
	},
	{
		"Estimates of prompts", "Accuracy of the estimated prompt lengths, which sluice learns from the engines' token counts.",
		[]string{"sluice_prompt_"},
	},
	{
		"Text and tokens", "Text that becomes tokens in the router, for engines that take token ids and to count prompts. [grpc.md](grpc.md) explains it.",
		[]string{"sluice_text_", "sluice_tokenizer_"},
	},
	{
		"Fleet", "State and work of the workers. `worker` is a worker's URL and `rank` that with `@RANK` under `--dp-aware`, as in `GET /workers`, `GET /admission` and the access log; `worker_id` is the id that answers carry in `X-Sluice-Prefill-Worker` and `X-Sluice-Decode-Worker`. A worker's series are removed with it.",
		[]string{"sluice_worker", "sluice_rank", "sluice_pairs_"},
	},
	{
		"KV caches", "What is known of the engines' KV caches. [operations.md](operations.md#kv-caches-and-their-events) explains it.",
		[]string{"sluice_kv_", "sluice_rank_kv_", "sluice_cache_"},
	},
	{
		"Sources of workers", "What the sources that declare workers say; [discovery.md](discovery.md) explains them. `source` is configuration, file, dns or kubernetes.",
		[]string{"sluice_source_"},
	},
	{
		"Cluster", "Several routers behind one gate (`--cluster`), as this one knows it; [cluster.md](cluster.md#metrics-and-alerts) says which to watch. Without `--cluster` there are no series.",
		[]string{"sluice_cluster_"},
	},
	{
		"Server", "The router's own resources and their limits.",
		[]string{"sluice_buffered_", "sluice_client_", "sluice_engine_connections", "sluice_open_files_", "sluice_ready"},
	},
	{
		"Program and configuration", "Build, configuration and reloads.",
		[]string{"sluice_build_", "sluice_config_"},
	},
	{
		"Log", "",
		[]string{"sluice_log_"},
	},
}

const metricsHead = `# Metrics

<!-- Written by "make docs" from the metrics that "sluice serve" registers. Change them there. -->

` + "`GET /metrics`" + ` on ` + "`--prometheus-port`" + ` (29000) returns all metrics in the text format of Prometheus. Times are in seconds, sizes in bytes. Label values come from a closed set or name a rank, a model or a key of the configuration: clients cannot create series. [operations.md](operations.md) says which to look at when something is wrong, and lists the reasons.

A histogram has the series ` + "`_bucket`" + `, ` + "`_sum`" + ` and ` + "`_count`" + `. Many metrics with labels have no series before their first event.
`

const metricsEnd = `
## Process and runtime

` + "`process_*` and `go_*`" + ` come from Prometheus's client library: CPU time, memory, open files, garbage collection.
`

// writeMetrics writes the reference of all metrics, in Markdown.
func writeMetrics(w io.Writer, families []telemetry.Family) error {
	rows := make([][]telemetry.Family, len(metricGroups))
	for _, f := range families {
		best, length := -1, 0
		for i, g := range metricGroups {
			for _, beginning := range g.beginnings {
				if len(beginning) > length && strings.HasPrefix(f.Name, beginning) {
					best, length = i, len(beginning)
				}
			}
		}
		if best < 0 {
			return fmt.Errorf("cannot list the metric %s: it is in no group of the reference", f.Name)
		}
		rows[best] = append(rows[best], f)
	}
	b := bufio.NewWriter(w)
	write := func(format string, args ...any) { _, _ = fmt.Fprintf(b, format, args...) }
	write("%s", metricsHead)
	for i, g := range metricGroups {
		write("\n## %s\n\n", g.title)
		if g.text != "" {
			write("%s\n\n", g.text)
		}
		write("| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n")
		for _, f := range rows[i] {
			labels := ""
			if len(f.Labels) > 0 {
				labels = "`" + strings.Join(f.Labels, "`, `") + "`"
			}
			write("| `%s` | %s | %s | %s |\n", f.Name, f.Kind, labels, strings.ReplaceAll(f.Help, "|", `\|`))
		}
	}
	write("%s", metricsEnd)
	return b.Flush()
}
