package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-router/sluice/internal/workerurl"
)

// validate checks what one value cannot show by itself. Settings that are
// wrong by themselves are left out, so that one mistake makes one error.
func (l *loader) validate() {
	l.checkServer()
	l.checkAdmission()
	l.checkWaiting()
	l.checkConditional()
	l.checkRest()
	l.checkAliases()
	l.checkText()
	l.checkDiscovery()
	l.checkKubernetes()
	l.checkCluster()
	l.checkWorkers()
}

// named is a setting in words for whoever wrote another one at by: as it was
// written itself, and where it was not, in the way in which that was.
func (l *loader) named(path string, by Origin) string {
	from := l.cfg.origins[path]
	if from.Kind == FromDefault {
		from.Kind = by.Kind
	}
	o := schema().find(path)
	switch {
	case from.Kind == FromFile:
		return path
	case from.Kind == FromEnv && o.env != "":
		return o.env
	}
	return "--" + o.flag
}

// on is a switch that is on, in the same words.
func (l *loader) on(path string, by Origin) string {
	name := l.named(path, by)
	switch name {
	case path:
		return name + ": true"
	case schema().find(path).env:
		return name + "=true"
	}
	return name
}

// source is where a setting came from, for an Error.
func (l *loader) source(path string) string { return l.cfg.origins[path].String() }

// value is the text of a setting.
func (l *loader) value(path string) string {
	o := schema().find(path)
	return o.text(l.root.FieldByIndex(o.index))
}

// blame reports that a setting does not go with the rest.
func (l *loader) blame(path, format string, args ...any) {
	l.fail(path, l.source(path), l.value(path), format, args...)
}

// good reports whether nothing is wrong with settings, so that checks of how they go
// together mean something. A setting is wrong with its group as well, and one that
// nothing else sets may be in a file that cannot be read.
func (l *loader) good(paths ...string) bool {
	for _, p := range paths {
		if l.unread && !l.isSet(p) {
			return false
		}
		for group := p; group != ""; {
			if l.bad[group] {
				return false
			}
			group = group[:max(strings.LastIndexByte(group, '.'), 0)]
		}
	}
	return true
}

// blameOrder reports that the setting hi is less than lo; path is one of them.
func (l *loader) blameOrder(path, lo, hi string) {
	from := l.cfg.origins[path]
	if path == hi {
		l.blame(path, "must not be less than %s, which is %s", l.named(lo, from), l.value(lo))
		return
	}
	l.blame(path, "must not be more than %s, which is %s", l.named(hi, from), l.value(hi))
}

func (l *loader) isSet(path string) bool { return l.cfg.origins[path].Kind != FromDefault }

func (l *loader) checkServer() {
	s := &l.cfg.Server
	for _, h := range []struct {
		path string
		host *string
	}{{"server.host", &s.Host}, {"server.prometheus_host", &s.PrometheusHost}} {
		if !l.good(h.path) {
			continue
		}
		bare := strings.TrimSuffix(strings.TrimPrefix(*h.host, "["), "]")
		if net.ParseIP(bare) != nil {
			*h.host = bare
		} else if !workerurl.IsHostName(*h.host) {
			l.blame(h.path, "must be an address or a host name, without a port")
		}
	}
	if l.good("server.port", "server.prometheus_port", "server.host", "server.prometheus_host") &&
		s.Port != 0 && s.Port == s.PrometheusPort && hostsOverlap(s.Host, s.PrometheusHost) {
		path := "server.prometheus_port"
		if !l.isSet(path) {
			path = "server.port"
		}
		other := "server.port"
		if path == other {
			other = "server.prometheus_port"
		}
		l.blame(path, "clients and metrics cannot share one port, and %s is the same", l.named(other, l.cfg.origins[path]))
	}
	if l.good("server.max_payload_size", "server.max_buffered_bytes") && l.isSet("server.max_payload_size") && s.MaxPayloadSize > s.MaxBufferedBytes {
		l.blame("server.max_payload_size", "must not exceed %s, which is %s and bounds all bodies together", l.named("server.max_buffered_bytes", l.cfg.origins["server.max_payload_size"]), formatBytes(s.MaxBufferedBytes))
	}
}

func hostsOverlap(a, b string) bool {
	ipA, ipB := net.ParseIP(a), net.ParseIP(b)
	return a == b || ipA != nil && ipA.IsUnspecified() || ipB != nil && ipB.IsUnspecified()
}

// checkAdmission refuses at start what cannot mean anything, so that nobody
// believes in a limit that is not there.
func (l *loader) checkAdmission() {
	const (
		limit   = "admission.prefill_max_inflight_requests_per_worker"
		size    = "admission.prefill_queue_size"
		timeout = "admission.prefill_queue_timeout_secs"
		prio    = "admission.priority_scheduler_enabled"
	)
	a := l.cfg.Admission
	if l.isSet(prio) {
		l.blame(prio, "is not an option here, whatever its value: request classes do its job. A class is a queue of its own with an order, a weight and limits, and a request names its class in the header x-sluice-class. Leave the option out")
	}
	if !l.good(limit) {
		return
	}
	if !a.Enabled() {
		for _, path := range []string{size, timeout} {
			if l.good(path) && l.isSet(path) {
				l.blame(path, "needs a positive %s, which is %d: without that limit nothing waits for prefill", l.named(limit, l.cfg.origins[path]), a.PrefillMaxInflight)
			}
		}
		return
	}
	if l.good("fleet.pd_disaggregation") && !l.cfg.Fleet.PDDisaggregation {
		l.blame(limit, "needs %s; it bounds requests in prefill, and without disaggregation no worker has a prefill of its own", l.on("fleet.pd_disaggregation", l.cfg.origins[limit]))
	}
	if l.good(size, timeout) && a.PrefillQueueTimeout == 0 && a.PrefillQueueSize > 0 {
		l.blame(timeout, "must be positive while %s is %d: nothing could wait in that queue. To refuse at once, set the size to 0", l.named(size, l.cfg.origins[timeout]), a.PrefillQueueSize)
	}
}

// checkWaiting refuses bounds that are not in force.
func (l *loader) checkWaiting() {
	const limit = "admission.prefill_max_inflight_requests_per_worker"
	a := l.cfg.Admission
	for _, path := range []string{"admission.max_waiting", "admission.max_waiting_bytes", "admission.max_wait_secs"} {
		switch {
		case !l.isSet(path) || !l.good(path, limit):
		case a.Enabled():
			l.blame(path, "is not in force together with %s; prefill_queue_size and prefill_queue_timeout_secs are the bounds then", l.named(limit, l.cfg.origins[path]))
		case l.cfg.Classes == nil && l.good(policyConfigPath, "admission.router_queue_threshold"):
			from := l.cfg.origins[path]
			l.blame(path, "needs classes (%s, or %s for one): without them nothing waits", l.named(policyConfigPath, from), l.named("admission.router_queue_threshold", from))
		}
	}
	lo, hi := "admission.client_max_queue_min_ms", "admission.client_max_queue_max_ms"
	if l.good(lo, hi) && a.ClientQueueMax > 0 && a.ClientQueueMin > a.ClientQueueMax {
		path := lo
		if !l.isSet(path) {
			path = hi
		}
		l.blameOrder(path, lo, hi)
	}
}

// checkConditional refuses settings of what is off or cannot be.
func (l *loader) checkConditional() {
	const enabled, policy, busy = "conditional_disagg.conditional_disagg_enabled", "conditional_disagg.conditional_disagg_policy", "conditional_disagg.conditional_disagg_prefill_busy_threshold"
	const pd, topology, weight = "fleet.pd_disaggregation", "fleet.kv_transfer_topology", "fleet.kv_transfer_preferred_weight"
	c, f := l.cfg.ConditionalDisagg, l.cfg.Fleet
	if l.good(topology, pd) && f.KVTransferTopology != "off" && !f.PDDisaggregation {
		l.blame(topology, "needs %s; without it no KV cache is transferred", l.on(pd, l.cfg.origins[topology]))
	}
	if l.good(topology, weight) && l.isSet(weight) && f.KVTransferTopology != "preferred" {
		l.blame(weight, "needs %s to be preferred; it is %s", l.named(topology, l.cfg.origins[weight]), f.KVTransferTopology)
	}
	if !l.good(enabled, pd) {
		return
	}
	if !c.Enabled {
		schema().walk(func(o *option) {
			if o.onlyWith == "conditional" && l.isSet(o.path) && l.good(o.path) {
				l.blame(o.path, "needs %s", l.on(enabled, l.cfg.origins[o.path]))
			}
		})
		return
	}
	if !f.PDDisaggregation {
		l.blame(enabled, "needs %s; without it every request runs whole on one worker", l.on(pd, l.cfg.origins[enabled]))
	}
	if l.good(policy, busy, "admission.router_queue_threshold") && c.Policy != ConditionalISL && c.PrefillBusy == nil && l.cfg.Admission.RouterQueueThreshold == nil {
		from := l.cfg.origins[policy]
		l.blame(policy, "needs %s or %s", l.named(busy, from), l.named("admission.router_queue_threshold", from))
	}
}

// minHashKey is the least length of a key of hashes, in bytes: a shorter one can be guessed.
const minHashKey = 16

var endpointPath = regexp.MustCompile(`^/[!-"$-~]*$`)

func (l *loader) checkRest() {
	c := l.cfg
	if path := "health.health_check_endpoint"; l.good(path) && !endpointPath.MatchString(c.Health.Endpoint) {
		l.blame(path, "must be a path that begins with /")
	}
	if path := "health.health_check_timeout_secs"; !c.Health.Disabled && l.good(path, "health.health_check_interval_secs") && c.Health.Timeout > c.Health.Interval {
		if !l.isSet(path) {
			path = "health.health_check_interval_secs"
		}
		l.warn(path, l.source(path), "a check may take %s and the next is due after %s, so that a worker that hangs is found later than the interval says; keep the timeout at or below the interval", c.Health.Timeout, c.Health.Interval)
	}
	if l.good("retry.retry_initial_backoff_ms", "retry.retry_max_backoff_ms") && c.Retry.InitialBackoff > c.Retry.MaxBackoff {
		path := "retry.retry_max_backoff_ms"
		if !l.isSet(path) {
			path = "retry.retry_initial_backoff_ms"
		}
		l.blameOrder(path, "retry.retry_initial_backoff_ms", "retry.retry_max_backoff_ms")
	}
	if key := c.Log.AccessHashKey; key != "" && len(key) < minHashKey {
		path := "log.access_log_hash_key"
		if !l.isSet(path) {
			path = "log.access_log_hash_key_file"
		}
		l.blame(path, "is a key of less than %d bytes", minHashKey)
	}
	if path := "server.trust_upstream_transfer_params"; c.Server.TrustUpstream && l.good(path, "fleet.pd_disaggregation") && c.Fleet.PDDisaggregation {
		l.blame(path, "does not go with %s; there sluice itself sets these fields", l.on("fleet.pd_disaggregation", l.cfg.origins[path]))
	}
	for _, path := range []string{"routing.prefill_policy", "routing.decode_policy"} {
		if l.good(path, "fleet.pd_disaggregation") && l.isSet(path) && !c.Fleet.PDDisaggregation {
			from := l.cfg.origins[path]
			l.blame(path, "needs %s; without it %s is the one policy", l.on("fleet.pd_disaggregation", from), l.named("routing.policy", from))
		}
	}
}

// checkDiscovery checks which sources of workers there are. A file alone says that it is
// one.
func (l *loader) checkDiscovery() {
	d := &l.cfg.Discovery
	const provider, file = "discovery.discovery_provider", "discovery.discovery_file"
	l.checkDNS()
	if !l.good(provider, file) {
		return
	}
	if d.Provider == DiscoveryKubernetes {
		const enabled = "kubernetes.service_discovery"
		if l.good(enabled) && l.isSet(enabled) && !l.cfg.Kubernetes.Enabled {
			l.blame(provider, "contradicts %s, which is false", l.named(enabled, l.cfg.origins[provider]))
		} else if !l.cfg.Kubernetes.Enabled {
			l.cfg.Kubernetes.Enabled, l.cfg.origins[enabled] = true, l.cfg.origins[provider]
		}
	}
	switch {
	case d.File != "" && !l.isSet(provider):
		d.Provider, l.cfg.origins[provider] = DiscoveryFile, l.cfg.origins[file]
	case d.File == "" && d.Provider == DiscoveryFile:
		l.blame(provider, "needs %s", l.named(file, l.cfg.origins[provider]))
	case d.File != "" && d.Provider != DiscoveryFile:
		l.blame(file, "is not used with %s %s", l.named(provider, l.cfg.origins[file]), d.Provider)
	}
}

func (l *loader) checkWorkers() {
	first := map[string]int{}
	modeWrong := map[string]bool{}
	for i := range l.cfg.Workers {
		w := &l.cfg.Workers[i]
		path, source := fmt.Sprintf("workers[%d]", i+l.firstWorker), l.workers[i].String()
		if w.URL != "" {
			if parsed, err := workerurl.Parse(w.URL); err != nil {
				l.fail(path+".url", source, w.URL, "%v", err)
			} else {
				canonical := parsed.String()
				if workerurl.EndsInV1(w.URL) {
					l.warn(path+".url", source, "ends in /v1, which belongs to the paths of requests; %s is taken as the engine's base URL", canonical)
				}
				w.URL = canonical
				if j, twice := first[canonical]; twice {
					l.fail(path+".url", source, w.URL, "is the same worker as workers[%d] (%s)", j, l.workers[j])
				} else {
					first[canonical] = i
				}
			}
		}
		if l.good(path+".worker_type", "fleet.pd_disaggregation") {
			l.checkMode(w, path, l.workers[i], modeWrong)
		}
		if w.BootstrapPort != BootstrapAuto && w.Type != WorkerPrefill && l.good(path+".worker_type") {
			l.fail(path+".bootstrap_port", source, w.BootstrapPort.String(), "is only for prefill workers; this one is %s", w.Type)
		}
		if w.PrefillMaxInflight > 0 && w.Type != WorkerPrefill && l.good(path+".worker_type") {
			l.fail(path+".prefill_max_inflight_requests", source, "", "is only for prefill workers; this one is %s: max_running_requests limits it", w.Type)
		}
		l.checkTLS(w, path, source)
		l.checkNames(w, path, source)
	}
}

// checkNames bounds the names of a worker's domain and adapters.
func (l *loader) checkNames(w *Worker, path, source string) {
	if d := w.TopologyDomain; d != "" && !labelValue.MatchString(d) {
		l.fail(path+".topology_domain", source, d, "must be 1 to 253 characters of ASCII, without spaces at the ends")
	}
	if len(w.Adapters) > MaxAdapters {
		l.fail(path+".adapters", source, "", "has more than %d adapters", MaxAdapters)
		return
	}
	for i, a := range w.Adapters {
		if err := checkModelName(a); err != nil {
			l.fail(fmt.Sprintf("%s.adapters[%d]", path, i), source, a, "%v", err)
		} else if slices.Contains(w.Adapters[:i], a) {
			l.fail(fmt.Sprintf("%s.adapters[%d]", path, i), source, a, "is named twice")
		}
	}
}

// checkMode refuses workers whose role the mode has no use for; once for all
// the workers of one flag.
func (l *loader) checkMode(w *Worker, path string, from Origin, told map[string]bool) {
	pd := l.cfg.Fleet.PDDisaggregation
	if pd == (w.Type != WorkerRegular) {
		return
	}
	source := from.String()
	if told[source] {
		return
	}
	told[source] = true
	split, whole := "", ""
	if from.Kind != FromFile { // there no flag makes the list
		split, whole = " (--prefill, --decode)", " (--worker-urls)"
	}
	name := l.on("fleet.pd_disaggregation", from)
	if pd {
		l.fail(path+".worker_type", source, string(w.Type), "with %s every worker is prefill or decode%s", name, split)
		return
	}
	l.fail(path+".worker_type", source, string(w.Type), "needs %s; without it every worker runs whole requests%s", name, whole)
}

func (l *loader) checkTLS(w *Worker, path, source string) {
	t := w.TLS
	if t.IsZero() {
		return
	}
	if strings.HasPrefix(w.URL, "http://") || strings.HasPrefix(w.URL, "grpc://") {
		l.fail(path+".tls", source, w.URL, "is only for https and grpcs URLs")
	}
	if t.InsecureSkipVerify {
		l.warn(path+".tls.insecure_skip_verify", source, "the certificate of %s is not checked", w.URL)
	}
	if t.CAFile != "" {
		if pem, ok := l.readPEM(path+".tls.ca_file", source, t.CAFile); ok && !x509.NewCertPool().AppendCertsFromPEM(pem) {
			l.fail(path+".tls.ca_file", source, t.CAFile, "holds no certificate in PEM form")
		}
	}
	switch {
	case t.CertFile != "" && t.KeyFile != "":
		cert, ok1 := l.readPEM(path+".tls.cert_file", source, t.CertFile)
		key, ok2 := l.readPEM(path+".tls.key_file", source, t.KeyFile)
		if ok1 && ok2 {
			if _, err := tls.X509KeyPair(cert, key); err != nil {
				l.fail(path+".tls.cert_file", source, t.CertFile, "does not go with key_file %q: %v", t.KeyFile, err)
			}
		}
	case t.CertFile != "" || t.KeyFile != "":
		l.fail(path+".tls", source, t.CertFile+t.KeyFile, "cert_file and key_file go together; one is missing")
	}
}

func (l *loader) readPEM(path, source, file string) ([]byte, bool) {
	data, err := l.readFile(file)
	if err != nil {
		l.fail(path, source, file, "cannot read it: %v", err)
		return nil, false
	}
	return data, true
}
