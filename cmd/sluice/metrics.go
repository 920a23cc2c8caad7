package main

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/metric"
)

var (
	buildDesc = metric.Gauge("sluice_build_info",
		"Always 1; the labels have the version, the commit it was built from, and Go's version.", "version", "commit", "go")
	reloadsDesc = metric.Counter("sluice_config_reloads_total",
		"Reloads of the configuration, by result: ok, or failed (the previous configuration stays in force).", "result")
	reloadOKDesc = metric.Gauge("sluice_config_last_reload_successful",
		"0 if the last reload failed, so that the files differ from what is in force; else 1.")
	reloadTimeDesc = metric.Gauge("sluice_config_last_success_timestamp_seconds",
		"Time of the last successful load of the configuration, at the start or by a reload, in seconds since 1970.")
	generationDesc = metric.Gauge("sluice_config_generation",
		"Number of the configuration in force, from 1 at the start; each reload that changes something adds 1.")
	configDesc = metric.Gauge("sluice_config_info",
		"Always 1; hash identifies the contents of the configuration files in force, to compare routers. Settings that need a restart may still be those of the start.", "hash")
)

// Metrics implements metric.Collector: metrics of the build and its configuration.
func (r *reload) Metrics() metric.Descs {
	return metric.Descs{buildDesc, reloadsDesc, reloadOKDesc, reloadTimeDesc, generationDesc, configDesc}
}

// Describe implements prometheus.Collector.
func (r *reload) Describe(ch chan<- *prometheus.Desc) { r.Metrics().Describe(ch) }

// Collect implements prometheus.Collector.
func (r *reload) Collect(ch chan<- prometheus.Metric) {
	version, commit := built()
	ch <- buildDesc.Of(1, version, commit, runtime.Version())
	reader := r.reader.Load()
	st := config.ReloadStatus{Generation: 1}
	if reader != nil {
		st = reader.Status()
		ch <- configDesc.Of(1, st.Hash)
		ch <- reloadTimeDesc.Of(float64(st.LastGood.UnixMilli()) / 1000)
	}
	ch <- reloadsDesc.Of(float64(st.Succeeded), "ok")
	ch <- reloadsDesc.Of(float64(st.Failed), "failed")
	ok := 1.0
	if st.Err != nil {
		ok = 0
	}
	ch <- reloadOKDesc.Of(ok)
	ch <- generationDesc.Of(float64(st.Generation))
}
