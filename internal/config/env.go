package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-router/sluice/internal/suggest"
)

// Kubernetes gives every container variables for the services of its namespace:
// a service named sluice makes SLUICE_PORT=tcp://10.0.0.1:30000 and
// SLUICE_SERVICE_HOST; one named sluice-prometheus makes SLUICE_PROMETHEUS_PORT.
var (
	kubernetesValue = regexp.MustCompile(`^(tcp|udp|sctp)://`)
	kubernetesName  = regexp.MustCompile(`^SLUICE_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)$`)
)

// environment returns the variables that are sluice's, without the empty ones,
// which count as not set, and warns of those that mean nothing.
func (l *loader) environment(environ []string) map[string]string {
	known := map[string]bool{EnvPrefix + "CONFIG": true}
	for _, w := range workerFlags {
		known[envName(w.name)] = true
	}
	schema().walk(func(o *option) {
		if o.env != "" {
			known[o.env] = true
		}
	})
	all := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, EnvPrefix) && value != "" {
			all[name] = value
		}
	}
	names := slices.Sorted(maps.Keys(known))
	env := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name]
		source := Origin{Kind: FromEnv, Name: name}.String()
		switch {
		case kubernetesValue.MatchString(value):
			if known[name] || !kubernetesName.MatchString(name) {
				l.warn("", source, "ignored: its value %q is one that Kubernetes sets for a service of that name (enableServiceLinks: false in the pod keeps it away)", clip(value))
			}
		case known[name]:
			env[name] = value
		case kubernetesName.MatchString(name):
		default:
			if n := suggest.Nearest(name, names); n != "" {
				l.warn("", source, "ignored: no such setting; did you mean %s?", n)
			} else {
				l.warn("", source, "ignored: no such setting")
			}
		}
	}
	return env
}

func (l *loader) applyEnv(env map[string]string) {
	schema().walk(func(o *option) {
		value, ok := env[o.env]
		if !ok || o.env == "" {
			return
		}
		from := Origin{Kind: FromEnv, Name: o.env}
		if o.repeats() {
			l.set(l.root, "", o, from, strings.Fields(value)...)
		} else {
			l.set(l.root, "", o, from, value)
		}
	})
	var b workerBuilder
	named := false
	for i, w := range workerFlags {
		value, ok := env[envName(w.name)]
		if !ok {
			continue
		}
		named = true
		from := Origin{Kind: FromEnv, Name: envName(w.name)}
		// Workers stand apart by commas, since a prefill worker can have a
		// second word.
		for part := range strings.SplitSeq(value, ",") {
			if words := strings.Fields(part); len(words) > 0 {
				l.addWorkerWords(&b, i, words, from)
			}
		}
	}
	if named {
		l.setWorkers(b.workers, b.from, b.from0())
	}
}
