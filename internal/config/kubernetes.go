package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-router/sluice/internal/labelselector"
)

// LabelSelector is the text of a selector of labels, in the form that an API server takes.
type LabelSelector string

// UnmarshalText reads a selector as kubectl takes it, or pairs with spaces between.
func (s *LabelSelector) UnmarshalText(text []byte) error {
	parsed, err := labelselector.Parse(string(text))
	if err != nil {
		return fmt.Errorf("is no label selector: %w; write for instance app=x,tier in (a, b)", err)
	}
	*s = LabelSelector(parsed.String())
	return nil
}

// joinSelectors makes one selector of those that a flag was given: all of them must match.
func joinSelectors(values []string) string {
	for i, v := range values {
		var s LabelSelector
		if err := s.UnmarshalText([]byte(v)); err != nil {
			return v // to be refused
		}
		values[i] = string(s)
	}
	return strings.Join(values, ",")
}

// areSelectors reports whether each word is a selector by itself.
func areSelectors(words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool {
		_, err := labelselector.Parse(w)
		return err != nil
	})
}

// LabelKey is the name of a label or an annotation of Kubernetes.
type LabelKey string

var labelKey = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)

// UnmarshalText reads a name such as app or example.com/app.
func (k *LabelKey) UnmarshalText(text []byte) error {
	if !labelKey.Match(text) {
		return errors.New("must be the name of a label or an annotation, such as app or example.com/app")
	}
	*k = LabelKey(text)
	return nil
}

// PodPort is a port of a pod: a number, the name of a port of its containers, or a
// PodMetadata that says it.
type PodPort string

var portName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$`)

// UnmarshalText reads a number from 1 to 65535, a name, label:KEY or annotation:KEY.
func (p *PodPort) UnmarshalText(text []byte) error {
	_, isNumber := PodPort(text).Number()
	_, isMetadata := PodPort(text).Metadata()
	if !isNumber && !isMetadata && (!portName.Match(text) || !strings.ContainsAny(string(text), "abcdefghijklmnopqrstuvwxyz")) {
		return errors.New("must be a port from 1 to 65535, the name of a port of a container, label:KEY or annotation:KEY")
	}
	*p = PodPort(text)
	return nil
}

// Number returns the port where it is one; ok is false for a name.
func (p PodPort) Number() (port int, ok bool) {
	n, err := strconv.ParseUint(string(p), 10, 16)
	return int(n), err == nil && n > 0
}

// Metadata returns where a pod says its port; ok is false for a number or a name.
func (p PodPort) Metadata() (m PodMetadata, ok bool) {
	kind, key, _ := strings.Cut(string(p), ":")
	return PodMetadata(p), (kind == "label" || kind == "annotation") && labelKey.MatchString(key)
}

// PodMetadata names what of a pod's metadata is meant. The zero value is nothing.
type PodMetadata string

// UnmarshalText reads namespace, label:KEY or annotation:KEY.
func (m *PodMetadata) UnmarshalText(text []byte) error {
	kind, key, _ := strings.Cut(string(text), ":")
	switch {
	case string(text) == "namespace":
	case (kind == "label" || kind == "annotation") && labelKey.MatchString(key):
	default:
		return errors.New("must be namespace, label:KEY or annotation:KEY")
	}
	*m = PodMetadata(text)
	return nil
}

// Of returns what a pod with the namespace, labels and annotations says, "" for nothing.
func (m PodMetadata) Of(namespace string, labels, annotations map[string]string) string {
	switch kind, key, _ := strings.Cut(string(m), ":"); kind {
	case "namespace":
		return namespace
	case "label":
		return labels[key]
	case "annotation":
		return annotations[key]
	}
	return ""
}

var namespaceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// checkKubernetes refuses selectors that the mode has no use for, and options of what is
// off.
func (l *loader) checkKubernetes() {
	const enabled, pd = "kubernetes.service_discovery", "fleet.pd_disaggregation"
	const selector, prefill, decode = "kubernetes.selector", "kubernetes.prefill_selector", "kubernetes.decode_selector"
	if path := "fleet.pair_label"; l.good(path, pd) && l.isSet(path) && !l.cfg.Fleet.PDDisaggregation {
		l.blame(path, "needs %s; without it no workers are paired", l.on(pd, l.cfg.origins[path]))
	}
	if !l.good(enabled) {
		return
	}
	k := l.cfg.Kubernetes
	if !k.Enabled {
		schema().walk(func(o *option) {
			if o.onlyWith == "kubernetes" && l.isSet(o.path) && l.good(o.path) {
				l.blame(o.path, "needs %s", l.on(enabled, l.cfg.origins[o.path]))
			}
		})
		return
	}
	if path := "kubernetes.service_discovery_namespace"; l.good(path) && l.isSet(path) && k.Namespace != "" && !namespaceName.MatchString(k.Namespace) {
		l.blame(path, "must be the name of a namespace: lower-case letters, digits and -")
	}
	if !l.good(pd, selector, prefill, decode) {
		return
	}
	from := l.cfg.origins[enabled]
	if l.cfg.Fleet.PDDisaggregation {
		if l.isSet(selector) {
			l.blame(selector, "is for workers that run whole requests; with %s use %s and %s", l.on(pd, l.cfg.origins[selector]), l.named(prefill, l.cfg.origins[selector]), l.named(decode, l.cfg.origins[selector]))
		} else if k.PrefillSelector == "" && k.DecodeSelector == "" {
			l.blame(enabled, "needs %s and %s, or one of them: without a selector no pod is a worker", l.named(prefill, from), l.named(decode, from))
		}
		return
	}
	for _, path := range []string{prefill, decode} {
		if l.isSet(path) {
			l.blame(path, "needs %s; without it every worker runs whole requests, and %s says which pods", l.on(pd, l.cfg.origins[path]), l.named(selector, l.cfg.origins[path]))
		}
	}
	if k.Selector == "" && !l.isSet(prefill) && !l.isSet(decode) {
		l.blame(enabled, "needs %s: without a selector no pod is a worker", l.named(selector, from))
	}
}
