package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/suggest"
)

// file reads the YAML file. It is decoded into nodes and those are laid over
// the schema here, because a decoder that fills structs stops at the first
// mistake of a kind and knows no paths.
func (l *loader) file(name string) {
	n := l.document(name, "the configuration")
	if n == nil || isNull(n) {
		return // an empty file sets nothing
	}
	y := &yamlReader{loader: l, name: name, lines: map[string]Origin{}}
	l.inline = &classReader{y: y, prefix: "admission."}
	y.mapping(n, schema(), l.root, "", "")
}

// document returns the one document of a YAML or JSON file, nil if there is
// none or it cannot be read.
func (l *loader) document(name, what string) *yaml.Node {
	data, err := l.readFile(name)
	if err != nil {
		l.fail("", name, "", "cannot read %s: %v", what, err)
		return nil
	}
	if len(data) > maxConfigBytes {
		l.fail("", name, "", "is larger than %d bytes", maxConfigBytes)
		return nil
	}
	none := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: 1}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return none
	} else if err != nil {
		l.fail("", name, "", "%s", yamlMessage(err))
		return nil
	}
	// A decoder that is not asked again ignores what follows "---" silently.
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		l.fail("", Origin{Kind: FromFile, Name: name, Line: second.Line}.String(), "", "holds a second YAML document; a configuration is one")
		return nil
	} else if !errors.Is(err, io.EOF) {
		l.fail("", name, "", "%s", yamlMessage(err))
		return nil
	}
	n := &doc
	if n.Kind == yaml.DocumentNode {
		if len(n.Content) == 0 {
			return none
		}
		n = n.Content[0]
	}
	y := yamlReader{loader: l, name: name}
	return y.follow(n)
}

func yamlMessage(err error) string {
	return "cannot read it as YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")
}

type yamlReader struct {
	*loader
	name string
	// lines is where the paths of classes stand, for what is found out about
	// them later.
	lines map[string]Origin
}

func (y *yamlReader) at(n *yaml.Node) Origin {
	return Origin{Kind: FromFile, Name: y.name, Line: n.Line}
}

// follow resolves an alias and counts visits, which bounds what a small file
// full of aliases can cost. nil means: enough, or too much is wrong already.
func (y *yamlReader) follow(n *yaml.Node) *yaml.Node {
	const most = 500_000
	if len(y.errs) > maxErrors {
		return nil
	}
	if y.visited++; y.visited > most {
		if y.visited == most+1 {
			y.fail("", y.name, "", "has more than %d values, aliases included", most)
		}
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

func shown(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode {
		return n.Value
	}
	return ""
}

// mapping lays the mapping n over the group g of the struct root. prefix is
// the path of root, path that of n. It returns the keys that are set, nil if n
// is no mapping.
func (y *yamlReader) mapping(n *yaml.Node, g *group, root reflect.Value, prefix, path string) map[string]int {
	return y.mappingOf(n, path, func(key string, at Origin, value *yaml.Node, valueAt Origin) {
		if o := g.option(key); o != nil {
			if root.Type() != y.root.Type() {
				y.lines[prefix+o.path] = at
			}
			y.option(value, o, root, prefix, valueAt)
			return
		}
		keyPath := join(path, key)
		if s := g.group(key); s != nil {
			if !isNull(value) {
				y.mapping(value, s, root, prefix, keyPath)
			}
			return
		}
		if g.path == "admission" && y.inline.key(key, at, value, valueAt) {
			return
		}
		if root.Type() == y.root.Type() && path == "" && slices.Contains(classKeys, key) {
			y.fail(keyPath, at.String(), "", "unknown key; a class file is given with --router-policy-config, and its keys can stand under admission")
			return
		}
		meant := meantKey(key, g)
		if meant == "" && root.Type() == y.root.Type() && path == "" && key != "<<" {
			y.fail(keyPath, at.String(), "", "%s", unknownGroup(key, g))
			return
		}
		if meant != "" {
			y.bad[prefix+meant] = true // what it was set to is not known
		}
		y.fail(keyPath, at.String(), "", "%s", unknownKey(key, meant))
	})
}

// mappingOf calls f for each key of the mapping n, once. at is where the key
// stands. It returns the keys with their lines, nil if n is no mapping.
func (y *yamlReader) mappingOf(n *yaml.Node, path string, f func(key string, at Origin, value *yaml.Node, valueAt Origin)) map[string]int {
	if n.Kind != yaml.MappingNode {
		y.fail(path, y.at(n).String(), shown(n), "must be a mapping, not %s", kindName(n))
		return nil
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := y.follow(n.Content[i]), y.follow(n.Content[i+1])
		if key == nil || value == nil {
			return seen
		}
		at := y.at(n.Content[i])
		if key.Kind != yaml.ScalarNode {
			y.fail(path, at.String(), "", "a key must be a word, not %s", kindName(key))
			continue
		}
		if line, twice := seen[key.Value]; twice {
			y.fail(join(path, key.Value), at.String(), "", "is set twice, first in line %d", line)
			continue
		}
		seen[key.Value] = at.Line
		f(key.Value, at, value, y.at(n.Content[i+1]))
	}
	return seen
}

// skip counts the values of what is not looked at, to the bound of all.
func (y *yamlReader) skip(n *yaml.Node) {
	for _, c := range n.Content {
		if c = y.follow(c); c == nil {
			return
		}
		y.skip(c)
	}
}

func join(path, key string) string {
	if path == "" {
		return clip(key)
	}
	return path + "." + clip(key)
}

func (g *group) option(key string) *option {
	for _, o := range g.options {
		if o.key == key {
			return o
		}
	}
	return nil
}

func (g *group) group(key string) *group {
	for _, s := range g.groups {
		if s.key == key {
			return s
		}
	}
	return nil
}

// unknownGroup refuses a key that is none of the file's groups, and lists these.
func unknownGroup(key string, g *group) string {
	switch key {
	case "prefill", "decode", "regular", "worker_urls":
		return "unknown key; workers are listed under workers, each with its worker_type: prefill, decode or regular"
	}
	var names []string
	for _, k := range g.keys() {
		if g.group(k) != nil || g.option(k) != nil {
			names = append(names, k)
		}
	}
	return "unknown key; there are " + strings.Join(names, ", ")
}

func unknownKey(key, meant string) string {
	switch {
	case key == "<<":
		return "merge keys are not supported"
	case meant != "":
		return fmt.Sprintf("unknown key; did you mean %s?", meant)
	}
	return "unknown key"
}

// meantKey is the path that an unknown key of a group was most likely meant to
// have, or "".
func meantKey(key string, g *group) string {
	if key == "<<" {
		return ""
	}
	if n := suggest.Nearest(strings.ReplaceAll(key, "-", "_"), g.keys()); n != "" {
		return join(g.path, n)
	}
	var elsewhere string
	schema().walk(func(o *option) {
		if o.key == strings.ReplaceAll(key, "-", "_") {
			elsewhere = o.path
		}
	})
	if elsewhere != "" {
		return elsewhere
	}
	// "level" under "log" is log_level.
	short, full := []string{}, map[string]string{}
	for _, k := range g.keys() {
		if _, s, ok := strings.Cut(k, "_"); ok {
			short, full[s] = append(short, s), k
		}
	}
	if n := suggest.Nearest(key, short); n != "" {
		return join(g.path, full[n])
	}
	return ""
}

// option sets one setting from its node. from is the position of the value.
func (y *yamlReader) option(n *yaml.Node, o *option, root reflect.Value, prefix string, from Origin) {
	path := prefix + o.path
	if o.nullOK && isNull(n) {
		return
	}
	switch {
	case o.path == "workers":
		y.workerList(n, o, from)
		return
	case o.structList != nil:
		y.structList(n, o, root, path, from)
		return
	case o.typ == typeLabels:
		y.labels(n, o, root, path, from)
		return
	case o.typ == typeAliases:
		y.aliases(n, o, root, path, from)
		return
	}
	if (o.typ == typeSecrets || o.typ == typeStrings || o.typ == typeDNSNames || o.typ == typePaths) && n.Kind == yaml.SequenceNode {
		var texts []string
		for i, item := range n.Content {
			if text, ok := y.scalar(item, o, fmt.Sprintf("%s[%d]", path, i), y.at(item)); ok {
				texts = append(texts, text)
			} else {
				y.bad[path] = true
			}
		}
		y.set(root, prefix, o, from, texts...)
		return
	}
	if text, ok := y.scalar(n, o, path, from); ok {
		y.set(root, prefix, o, from, text)
	}
}

// scalar returns the text of a single value of the right kind.
func (y *yamlReader) scalar(n *yaml.Node, o *option, path string, from Origin) (string, bool) {
	if n = y.follow(n); n == nil {
		return "", false
	}
	value := shown(n)
	if o.secret() && value != "" {
		value = hidden
	}
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	switch {
	case n.Kind != yaml.ScalarNode:
		y.fail(path, from.String(), "", "must be a single value, not %s", kindName(n))
	case isNull(n):
		y.fail(path, from.String(), "", "has no value; leave the key out to keep the default")
	case n.Style&yaml.TaggedStyle != 0:
		y.fail(path, from.String(), value, "must have no YAML tag")
	case !o.isText() && n.Style&quoted != 0:
		y.fail(path, from.String(), value, "must stand without quotes")
	default:
		return n.Value, true
	}
	return "", false
}

func (y *yamlReader) workerList(n *yaml.Node, o *option, from Origin) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		y.fail(o.path, from.String(), shown(n), "must be a list, not %s", kindName(n))
		return
	}
	if len(n.Content) > maxWorkers {
		y.fail(o.path, from.String(), "", "has more than %d workers", maxWorkers)
		return
	}
	var b workerBuilder
	for i, item := range n.Content {
		at := y.at(item)
		path := fmt.Sprintf("%s[%d]", o.path, i)
		if item = y.follow(item); item == nil {
			return
		}
		var w Worker
		v := reflect.ValueOf(&w).Elem()
		o.structList.setDefaults(v)
		y.mapping(item, o.structList, v, path+".", path)
		if w.URL == "" && !y.bad[path] && !y.bad[path+".url"] {
			y.fail(path+".url", at.String(), "", "is missing")
		}
		b.workers = append(b.workers, w)
		b.from = append(b.from, at)
	}
	y.setWorkers(b.workers, b.from, from)
}

// structList reads a list of mappings.
func (y *yamlReader) structList(n *yaml.Node, o *option, root reflect.Value, path string, from Origin) {
	if n.Kind != yaml.SequenceNode {
		y.fail(path, from.String(), shown(n), "must be a list, not %s", kindName(n))
		return
	}
	if len(n.Content) > admission.MaxClasses {
		y.fail(path, from.String(), "", "has more than %d entries", admission.MaxClasses)
		return
	}
	list := root.FieldByIndex(o.index)
	for i, item := range n.Content {
		at := y.at(item)
		itemPath := fmt.Sprintf("%s[%d]", path, i)
		y.lines[itemPath] = at
		if item = y.follow(item); item == nil {
			return
		}
		v := reflect.New(o.typ.Elem()).Elem()
		o.structList.setDefaults(v)
		if seen := y.mapping(item, o.structList, v, itemPath+".", itemPath); seen != nil {
			o.structList.walk(func(e *option) {
				if _, set := seen[e.key]; e.required && !set {
					y.fail(itemPath+"."+e.path, at.String(), "", "is missing")
				}
			})
		}
		list.Set(reflect.Append(list, v))
	}
}

// Bounds of a worker's labels and adapters.
const (
	MaxLabels   = 64
	MaxAdapters = 4096
)

var (
	labelName  = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,253}$`)
	labelValue = regexp.MustCompile(`^[!-~]([ -~]{0,251}[!-~])?$`)
)

func (y *yamlReader) labels(n *yaml.Node, o *option, root reflect.Value, path string, from Origin) {
	labels := map[string]string{}
	y.mappingOf(n, path, func(key string, at Origin, value *yaml.Node, valueAt Origin) {
		keyPath := join(path, key)
		text, ok := y.scalar(value, labelOption, keyPath, valueAt)
		switch {
		case !ok:
		case !labelName.MatchString(key):
			y.fail(keyPath, at.String(), "", "a label's name is of letters, digits, '_', '.', '-' and '/', 253 at most")
		case !labelValue.MatchString(text):
			y.fail(keyPath, valueAt.String(), text, "must be 1 to 253 characters of ASCII, without spaces at the ends")
		case len(labels) == MaxLabels:
			y.fail(path, from.String(), "", "has more than %d labels", MaxLabels)
		default:
			labels[key] = text
		}
	})
	if len(labels) > 0 {
		root.FieldByIndex(o.index).Set(reflect.ValueOf(labels))
	}
}

// labelOption is what a label's value is like: text.
var labelOption = &option{typ: reflect.TypeFor[string]()}
