package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// ListedWorker is a worker of a list that stands outside of the configuration.
type ListedWorker struct {
	Worker
	// Identity tells engines apart that follow each other at one URL, as far as the list
	// does; else it is empty.
	Identity string
	// Name is the id that the list gives the worker, or "".
	Name string
	// Line is where it stands.
	Line int
	// LeftOut: it cannot be used. Its URL is what the list says, perhaps nothing; the rest
	// means nothing.
	LeftOut bool
}

// WorkerList reads lists of workers for a router with one configuration.
type WorkerList struct {
	// Config is that of the router; its mode decides which roles a worker may have.
	Config *Config
	// Connector is the name of a KV connector in the spelling of a vLLM class, "" if it
	// is none. Nil: they are taken as they are.
	Connector func(class string) string
	// ReadFile is nil for reading the files of keys that workers name.
	ReadFile ReadFile
}

// manifestVersion is the version of the SGLang model gateway's manifest that is read.
const manifestVersion = "1"

// Read reads a YAML or JSON list of workers as it stands in the configuration, alone or
// under workers, or a manifest of the SGLang model gateway: workers beside version, with
// the fields id, kv_role and kv_engine_id, URLs without a scheme and vLLM's names of
// connectors. Both forms may be mixed.
//
// A worker that cannot be used is marked as left out, with a warning that has its line. The error is
// an [Errors], for a text that is no list at all.
func (r WorkerList) Read(name string, data []byte) ([]ListedWorker, []Warning, error) {
	top := r.loader()
	top.readFile = func(string) ([]byte, error) { return data, nil }
	y := &yamlReader{loader: top, name: name, lines: map[string]Origin{}}
	n := top.document(name, "the list of workers")
	if n != nil {
		n = y.listOf(n)
	}
	if len(top.errs) > 0 || n == nil {
		return nil, nil, top.errs
	}
	var list []ListedWorker
	warnings := top.warnings
	first := map[string]int{}
	for i, item := range n.Content {
		if i == maxWorkers {
			warnings = append(warnings, Warning{Path: "workers", Source: y.at(item).String(), Message: fmt.Sprintf("has more than %d workers; the others are left out", maxWorkers)})
			break
		}
		w, l := r.item(y, i, item)
		if len(l.errs) == 0 {
			if line, twice := first[w.URL]; twice {
				l.fail(fmt.Sprintf("workers[%d].url", i), y.at(item).String(), w.URL, "is the same worker as in line %d", line)
			}
		}
		warnings = append(warnings, l.warnings...)
		if len(l.errs) == 0 {
			first[w.URL] = w.Line
			list = append(list, w)
			continue
		}
		for _, e := range l.errs[:min(len(l.errs), maxLineFaults)] {
			message := e.Message
			if e.Value != "" {
				message = fmt.Sprintf("%q %s", clip(e.Value), message)
			}
			warnings = append(warnings, Warning{Path: e.Path, Source: e.Source, Message: message + "; the entry is left out, and its worker stays as it was if it is in force"})
		}
		list = append(list, ListedWorker{Worker: Worker{URL: w.URL}, Line: w.Line, LeftOut: true})
	}
	return list, warnings, nil
}

func (r WorkerList) loader() *loader {
	l := &loader{cfg: &Config{Fleet: r.Config.Fleet, origins: map[string]Origin{}}, readFile: r.ReadFile, bad: map[string]bool{}}
	if l.readFile == nil {
		l.readFile = readRegular
	}
	l.root = reflect.ValueOf(l.cfg).Elem()
	return l
}

// listOf finds the list in a document.
func (y *yamlReader) listOf(n *yaml.Node) (list *yaml.Node) {
	if n.Kind == yaml.SequenceNode {
		return n
	}
	if isNull(n) {
		y.fail("", y.name, "", "is empty; a list of no workers is written as workers: []")
		return nil
	}
	y.mappingOf(n, "", func(key string, at Origin, value *yaml.Node, valueAt Origin) {
		switch key {
		case "version":
			if value.Kind != yaml.ScalarNode || value.Value != manifestVersion {
				y.fail(key, valueAt.String(), shown(value), "must be %s", manifestVersion)
			}
		case "workers":
			if value.Kind != yaml.SequenceNode {
				y.fail(key, valueAt.String(), shown(value), "must be a list, not %s", kindName(value))
				return
			}
			list = value
		default:
			y.fail(clip(key), at.String(), "", "unknown key; there are version and workers")
		}
	})
	if list == nil && len(y.errs) == 0 {
		y.fail("workers", y.name, "", "is missing; a list of no workers is written as workers: []")
	}
	return list
}

// item reads one worker. What is wrong with it is in the loader that is returned.
func (r WorkerList) item(top *yamlReader, i int, n *yaml.Node) (ListedWorker, *loader) {
	l := r.loader()
	l.visited = top.visited
	defer func() { top.visited = l.visited }()
	y := &yamlReader{loader: l, name: top.name, lines: map[string]Origin{}}
	o := schema().find("workers")
	at := y.at(n)
	w := ListedWorker{Line: n.Line}
	path := fmt.Sprintf("workers[%d]", i)
	v := reflect.ValueOf(&w.Worker).Elem()
	o.structList.setDefaults(v)
	if n = y.follow(n); n == nil {
		return w, l
	}
	y.mapping(r.withoutManifestKeys(y, n, &w, path), o.structList, v, path+".", path)
	if w.URL == "" && len(l.errs) == 0 {
		y.fail(path+".url", at.String(), "", "is missing")
	}
	if w.URL != "" && !strings.Contains(w.URL, "://") {
		w.URL = "http://" + w.URL
	}
	if len(l.errs) > 0 {
		return w, l
	}
	l.cfg.Workers, l.workers, l.firstWorker = []Worker{w.Worker}, []Origin{at}, i
	l.resolveSecretFiles()
	l.checkWorkers()
	w.Worker = l.cfg.Workers[0]
	if w.ModelID == "" {
		w.ModelID = r.Config.Fleet.ModelID
	}
	return w, l
}

// withoutManifestKeys takes over what only a manifest has, and returns the mapping
// without that: null is the same as no key there, and connectors have vLLM's names.
func (r WorkerList) withoutManifestKeys(y *yamlReader, n *yaml.Node, w *ListedWorker, path string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return n
	}
	rest := *n
	rest.Content = nil
	engine := ""
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := y.follow(n.Content[i]), y.follow(n.Content[i+1])
		if key == nil || value == nil {
			return n
		}
		if isNull(value) {
			continue
		}
		text := func(into *string) {
			if value.Kind != yaml.ScalarNode || len(value.Value) > maxIdentity || value.Value == "" {
				y.fail(path+"."+key.Value, y.at(n.Content[i+1]).String(), shown(value), "must be a text of 1 to %d bytes", maxIdentity)
				return
			}
			*into = value.Value
		}
		switch key.Value {
		case "id":
			text(&w.Name)
			continue
		case "kv_engine_id":
			text(&engine)
			continue
		case "kv_role":
			text(new(string)) // worker_type says it
			continue
		case "kv_connector":
			if r.Connector != nil && value.Kind == yaml.ScalarNode {
				if c := r.Connector(value.Value); c != "" {
					named := *value
					named.Value = c
					value = &named
				}
			}
		}
		rest.Content = append(rest.Content, n.Content[i], value)
	}
	w.Identity = strings.Join(slices.DeleteFunc([]string{w.Name, engine}, func(s string) bool { return s == "" }), "/")
	return &rest
}

// maxIdentity bounds what a list calls a worker, in bytes.
const maxIdentity = 253
