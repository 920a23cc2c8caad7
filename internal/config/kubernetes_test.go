package config

import (
	"strings"
	"testing"
)

func loadText(t *testing.T, yaml string, env []string, args string) (*Config, string) {
	t.Helper()
	words := strings.Split(args, "~")
	if args == "" {
		words = nil
	}
	if yaml != "" {
		words = append(words, "--config", "c.yaml")
	}
	c, _, err := Load(words, env, func(string) ([]byte, error) { return []byte(yaml), nil })
	if err != nil {
		return nil, err.Error()
	}
	return c, ""
}

// The words of a selector may stand in one argument or in several, as in the SGLang model
// gateway, and a flag that is given again adds to it.
func TestSelectorsOfKubernetes(t *testing.T) {
	for _, tc := range []struct{ args, yaml, env, want string }{
		{args: "--service-discovery~--selector~app=worker~env=prod", want: "app=worker,env=prod"},
		{args: "--service-discovery~--selector~app=worker env=prod", want: "app=worker,env=prod"},
		{args: "--service-discovery~--selector~app=worker~env in (a, b)~!canary", want: "app=worker,!canary,env in (a,b)"},
		{args: "--service-discovery~--selector~app~=~worker", want: "app=worker"},
		{args: "--service-discovery~--selector=app=worker~env=prod~--port~1", want: "app=worker,env=prod"},
		{args: "--selector~app=worker~--service-discovery~--selector~env in (a, b)", want: "app=worker,env in (a,b)"},
		{args: "--service-discovery", env: "SLUICE_SELECTOR=app in (x, y),!canary", want: "app in (x,y),!canary"},
		{yaml: "kubernetes: {service_discovery: true, selector: 'app=x tier=y'}", want: "app=x,tier=y"},
	} {
		var env []string
		if tc.env != "" {
			env = []string{tc.env}
		}
		c, err := loadText(t, tc.yaml, env, tc.args)
		if err != "" {
			t.Errorf("%s%s%s: %s", tc.args, tc.yaml, tc.env, err)
			continue
		}
		if got := string(c.Kubernetes.Selector); got != tc.want {
			t.Errorf("%s%s%s: %q, want %q", tc.args, tc.yaml, tc.env, got, tc.want)
		}
	}
}

func TestRefusalsOfKubernetes(t *testing.T) {
	const on = "--service-discovery~--selector~app=x~"
	for _, tc := range []struct{ args, yaml, want string }{
		{args: "--selector~app=x", want: `flag --selector: kubernetes.selector: "app=x": needs --service-discovery`},
		{yaml: "kubernetes: {service_discovery_port: 8000}", want: `c.yaml:1: kubernetes.service_discovery_port: "8000": needs kubernetes.service_discovery: true`},
		{args: "--service-discovery", want: `flag --service-discovery: kubernetes.service_discovery: "true": needs --selector: without a selector no pod is a worker`},
		{args: "--service-discovery~--pd-disaggregation", want: `flag --service-discovery: kubernetes.service_discovery: "true": needs --prefill-selector and --decode-selector, or one of them: without a selector no pod is a worker`},
		{args: on + "--pd-disaggregation", want: `flag --selector: kubernetes.selector: "app=x": is for workers that run whole requests; with --pd-disaggregation use --prefill-selector and --decode-selector`},
		{args: "--service-discovery~--prefill-selector~app=x", want: `flag --prefill-selector: kubernetes.prefill_selector: "app=x": needs --pd-disaggregation; without it every worker runs whole requests, and --selector says which pods`},
		{args: "--service-discovery~--selector~app in (", want: `flag --selector: kubernetes.selector: "app in (": is no label selector: `},
		{args: "--service-discovery~--selector~", want: `flag --selector: kubernetes.selector: is no label selector: it has no requirement, so that it would match every object`},
		{args: "--service-discovery~--selector~app=x~--selector~=", want: `flag --selector: kubernetes.selector: "=": is no label selector: `},
		{args: on + "--service-discovery-port~0", want: `flag --service-discovery-port: kubernetes.service_discovery_port: "0": must be a port from 1 to 65535, the name of a port of a container, label:KEY or annotation:KEY`},
		{args: on + "--service-discovery-port~70000", want: `"70000": must be a port from 1 to 65535, the name of a port of a container, label:KEY or annotation:KEY`},
		{args: on + "--service-discovery-port~HTTP", want: `"HTTP": must be a port from 1 to 65535, the name of a port of a container, label:KEY or annotation:KEY`},
		{args: on + "--service-discovery-port~label:", want: `"label:": must be a port from 1 to 65535, the name of a port of a container, label:KEY or annotation:KEY`},
		{args: on + "--service-discovery-namespace~a b", want: `flag --service-discovery-namespace: kubernetes.service_discovery_namespace: "a b": must be the name of a namespace: lower-case letters, digits and -`},
		{args: on + "--model-id-from~label", want: `flag --model-id-from: kubernetes.model_id_from: "label": must be namespace, label:KEY or annotation:KEY`},
		{args: on + "--model-id-from~pod:x", want: `"pod:x": must be namespace, label:KEY or annotation:KEY`},
		{args: on + "--bootstrap-port-annotation~a b", want: `flag --bootstrap-port-annotation: kubernetes.bootstrap_port_annotation: "a b": must be the name of a label or an annotation, such as app or example.com/app`},
		{args: "--pair-label~rev", want: `flag --pair-label: fleet.pair_label: "rev": needs --pd-disaggregation; without it no workers are paired`},
		{args: "--pd-disaggregation~--pair-label~a/b/c", want: `flag --pair-label: fleet.pair_label: "a/b/c": must be the name of a label or an annotation, such as app or example.com/app`},
	} {
		if _, err := loadText(t, tc.yaml, nil, tc.args); !strings.Contains(err, tc.want) || strings.Count(err, "\n") > 0 {
			t.Errorf("%s%s:\n%s\nwant\n%s", tc.args, tc.yaml, err, tc.want)
		}
	}
}

func TestWhatAPodSaysOfItsModel(t *testing.T) {
	labels, annotations := map[string]string{"a": "by label"}, map[string]string{"b/c": "by annotation"}
	for from, want := range map[PodMetadata]string{
		"": "", "namespace": "ns", "label:a": "by label", "annotation:b/c": "by annotation", "label:b/c": "", "annotation:x": "",
	} {
		if got := from.Of("ns", labels, annotations); got != want {
			t.Errorf("%q: %q, want %q", from, got, want)
		}
	}
}
