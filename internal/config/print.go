package config

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-router/sluice/admission"
)

// WriteEffective writes the configuration in force as a YAML file that says
// after each setting where it came from. Secrets are hidden; a configuration
// without any in it can be loaded again and is the same. Settings without a
// value, and those that mean nothing in the chosen mode, are left out.
func (c *Config) WriteEffective(w io.Writer) error {
	b := bufio.NewWriter(w)
	p := printer{Writer: b, cfg: c}
	p.group(schema(), reflect.ValueOf(c).Elem(), "")
	return b.Flush()
}

type printer struct {
	*bufio.Writer
	cfg *Config
}

func (p *printer) group(g *group, root reflect.Value, indent string) {
	for _, e := range g.order {
		switch e := e.(type) {
		case *option:
			if e.structList != nil {
				p.list(e, root.FieldByIndex(e.index), indent)
			} else if p.shown(e, root) {
				_, _ = fmt.Fprintf(p, "%s%s: %s  # %s\n", indent, e.key, e.yaml(root.FieldByIndex(e.index)), p.cfg.Origin(e.path))
			}
		case *group:
			_, _ = fmt.Fprintf(p, "%s%s:\n", indent, e.key)
			p.group(e, root, indent+"  ")
			if e.path == "admission" {
				p.classes(indent + "  ")
			}
		}
	}
}

// classes writes the classes that were given as such, with the place of each.
func (p *printer) classes(indent string) {
	if file := p.cfg.Admission.RouterPolicyConfig; file != "" {
		_, _ = fmt.Fprintf(p, "%s# %s: %s  # %s\n", indent, "router_policy_config", quoted(file), p.cfg.Origin(policyConfigPath))
	}
	if p.cfg.classes == nil {
		return
	}
	prefix := ""
	if p.cfg.Admission.RouterPolicyConfig == "" {
		prefix = "admission."
	}
	if root := p.cfg.Classes.Root; root != nil {
		p.profile(root, prefix, indent)
	}
	if len(p.cfg.Classes.Models) == 0 {
		return
	}
	_, _ = fmt.Fprintf(p, "%smodels:\n", indent)
	for _, name := range sortedKeys(p.cfg.Classes.Models) {
		_, _ = fmt.Fprintf(p, "%s  %s:\n", indent, quoted(name))
		p.profile(p.cfg.Classes.Models[name], prefix+"models."+name+".", indent+"    ")
	}
}

func (p *printer) profile(profile *admission.Profile, prefix, indent string) {
	v := reflect.ValueOf(writtenProfile(profile)).Elem()
	for _, o := range profileSchema().options {
		from := p.cfg.classes[prefix+o.path]
		if o.structList == nil {
			_, _ = fmt.Fprintf(p, "%s%s: %s  # %s\n", indent, o.key, o.yaml(v.FieldByIndex(o.index)), from)
			continue
		}
		_, _ = fmt.Fprintf(p, "%s%s:  # %s\n", indent, o.key, from)
		list := v.FieldByIndex(o.index)
		for i := range list.Len() {
			lead := indent + "  - "
			p.element(o.structList, list.Index(i), &lead, indent+"    ")
		}
	}
}

func (p *printer) list(o *option, list reflect.Value, indent string) {
	if list.Len() == 0 {
		_, _ = fmt.Fprintf(p, "%s%s: []  # %s\n", indent, o.key, p.cfg.Origin(o.path))
		return
	}
	_, _ = fmt.Fprintf(p, "%s%s:  # %s\n", indent, o.key, p.cfg.Origin(o.path))
	for i := range list.Len() {
		bullet := indent + "  - "
		p.element(o.structList, list.Index(i), &bullet, indent+"    ")
	}
}

// element writes what is set in one element of a list. lead is the indent of
// the next line, rest that of those after it.
func (p *printer) element(g *group, root reflect.Value, lead *string, rest string) {
	for _, e := range g.order {
		switch e := e.(type) {
		case *option:
			if v := root.FieldByIndex(e.index); (!v.IsZero() || e.required) && !fromFile(g, e, root) {
				_, _ = fmt.Fprintf(p, "%s%s: %s\n", *lead, e.key, e.yaml(v))
				*lead = rest
			}
		case *group:
			if !root.FieldByIndex(e.options[0].index[:1]).IsZero() {
				_, _ = fmt.Fprintf(p, "%s%s:\n", *lead, e.key)
				*lead = rest + "  "
				p.element(e, root, lead, rest+"  ")
				*lead = rest
			}
		}
	}
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// fromFile reports whether o is a key whose file is printed in its place.
func fromFile(g *group, o *option, root reflect.Value) bool {
	found := false
	g.walk(func(f *option) {
		if f.fileOf == o.path && !root.FieldByIndex(f.index).IsZero() {
			found = true
		}
	})
	return found
}

func (p *printer) shown(o *option, root reflect.Value) bool {
	switch o.onlyWith {
	case "never":
		return false
	case "admission":
		if !p.cfg.Admission.Enabled() {
			return false
		}
	case "pd":
		if !p.cfg.Fleet.PDDisaggregation {
			return false
		}
	case "classes":
		if p.cfg.Classes == nil || p.cfg.Admission.Enabled() {
			return false
		}
	case "threshold":
		if a := p.cfg.Admission; a.RouterQueueThreshold == nil && a.RouterQueuePolicy == admission.FCFS {
			return false
		}
	case "preferred":
		if p.cfg.Fleet.KVTransferTopology != "preferred" {
			return false
		}
	case "discovery_file":
		if p.cfg.Discovery.Provider != DiscoveryFile {
			return false
		}
	case "discovery_dns":
		if len(p.cfg.Discovery.DNSNames) == 0 {
			return false
		}
	case "conditional":
		if !p.cfg.ConditionalDisagg.Enabled {
			return false
		}
	case "kubernetes":
		if !p.cfg.Kubernetes.Enabled {
			return false
		}
	case "cluster":
		if !p.cfg.Cluster.Enabled() {
			return false
		}
	}
	if o.path == policyConfigPath {
		return false // its classes are shown in its place
	}
	v := root.FieldByIndex(o.index)
	if o.def == "" && v.IsZero() {
		return false
	}
	return !fromFile(schema(), o, root)
}

// yaml is the value of o as YAML that reads back as the same.
func (o *option) yaml(v reflect.Value) string {
	if o.typ == typeSecrets {
		items := make([]string, v.Len())
		for i := range items {
			items[i] = quoted(hidden)
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	switch o.typ {
	case typeStrings, typeDNSNames, typePaths:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = quoted(v.Index(i).String())
		}
		return "[" + strings.Join(items, ", ") + "]"
	case typeLabels:
		return mappingYAML(v.Interface().(map[string]string))
	case typeAliases:
		return mappingYAML(v.Interface().(ModelAliases))
	}
	text := o.text(v)
	if o.typ.Kind() == reflect.String {
		return quoted(text)
	}
	return text
}

func mappingYAML(m map[string]string) string {
	var items []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		items = append(items, quoted(key)+": "+quoted(m[key]))
	}
	return "{" + strings.Join(items, ", ") + "}"
}

// plain are the texts that YAML reads as text without quotes, apart from a few
// words.
var plain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*$`)

func quoted(s string) string {
	switch strings.ToLower(s) {
	case "null", "true", "false", "yes", "no", "on", "off", "y", "n":
		return strconv.Quote(s)
	}
	if plain.MatchString(s) {
		return s
	}
	return strconv.Quote(s)
}
