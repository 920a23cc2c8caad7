package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// ModelAliases are other names of models: the model by its alias.
type ModelAliases map[string]string

// maxAliases bounds the aliases of a configuration.
const maxAliases = 4096

// parseAlias adds ALIAS=MODEL. A name with "=" in it can be given in the file.
func (o *option) parseAlias(v reflect.Value, text string) error {
	alias, model, ok := strings.Cut(text, "=")
	if !ok || strings.Contains(model, "=") {
		return errors.New("must be ALIAS=MODEL")
	}
	if v.IsNil() {
		v.Set(reflect.ValueOf(ModelAliases{}))
	}
	return v.Interface().(ModelAliases).add(alias, model)
}

func (a ModelAliases) add(alias, model string) error {
	if err := checkModelName(alias); err != nil {
		return fmt.Errorf("the alias %w", err)
	}
	if err := checkModelName(model); err != nil {
		return fmt.Errorf("behind the alias %q %w", clip(alias), err)
	}
	if other, ok := a[alias]; ok && other != model {
		return fmt.Errorf("the alias %q is given twice, for %q too", clip(alias), clip(other))
	}
	if len(a) == maxAliases {
		return fmt.Errorf("there are more than %d aliases", maxAliases)
	}
	a[alias] = model
	return nil
}

// aliases reads a mapping of aliases to models.
func (y *yamlReader) aliases(n *yaml.Node, o *option, root reflect.Value, path string, from Origin) {
	all := ModelAliases{}
	y.mappingOf(n, path, func(key string, at Origin, value *yaml.Node, valueAt Origin) {
		keyPath := join(path, key)
		text, ok := y.scalar(value, labelOption, keyPath, valueAt)
		if !ok {
			return
		}
		if err := all.add(key, text); err != nil {
			y.bad[path] = true
			y.fail(keyPath, at.String(), "", "%v", err)
		}
	})
	if len(all) > 0 {
		root.FieldByIndex(o.index).Set(reflect.ValueOf(all))
		y.cfg.origins[path] = from
	}
}

// checkAliases refuses an alias of an alias: a request would have to follow a chain, and
// a circle has no end.
func (l *loader) checkAliases() {
	const path = "fleet.model_alias"
	if !l.good(path) {
		return
	}
	all := l.cfg.Fleet.ModelAliases
	for _, alias := range slices.Sorted(maps.Keys(all)) {
		if _, ok := all[all[alias]]; ok {
			l.fail(path, l.source(path), alias+"="+all[alias], "%q is an alias itself; name the model", clip(all[alias]))
		}
	}
}
