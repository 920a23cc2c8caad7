package chattemplate

import (
	"sort"
	"strconv"
	"strings"
)

func sequenceFilters() map[string]filterFunc {
	return map[string]filterFunc{
		"batch":      batchFilter,
		"count":      lengthFilter,
		"dictsort":   dictSortFilter,
		"first":      firstFilter,
		"groupby":    groupByFilter,
		"items":      itemsFilter,
		"join":       joinFilter,
		"last":       lastFilter,
		"length":     lengthFilter,
		"list":       listFilter,
		"map":        mapFilter,
		"max":        extreme(">"),
		"min":        extreme("<"),
		"reject":     selecting(false, false),
		"rejectattr": selecting(false, true),
		"reverse":    reverseFilter,
		"select":     selecting(true, false),
		"selectattr": selecting(true, true),
		"slice":      sliceFilter,
		"sort":       sortFilter,
		"sum":        sumFilter,
		"unique":     uniqueFilter,
	}
}

func lengthFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line)
	n, ok := r.size(v)
	if !ok {
		r.fail(Runtime, line, "object of type '%s' has no len()", typeName(v))
	}
	return int64(n)
}

// size is Python's len.
func (r *renderer) size(v Value) (int, bool) {
	switch v := v.(type) {
	case string, safe:
		s, _ := asString(v)
		return r.length(s), true
	case *List:
		return len(v.items), true
	case *Tuple:
		return len(v.items), true
	case *Dict:
		return len(v.keys), true
	case *view:
		return len(v.items), true
	case *rangeOf:
		return v.n, true
	case *loop:
		return v.length(r), true
	case undefined:
		return 0, true
	}
	return 0, false
}

func firstFilter(r *renderer, line int, v Value, _ *arguments) Value {
	if s, ok := asString(v); ok && s != "" {
		return sliceString(s, 0, 1, r.length(s))
	}
	if items := r.iterate(v, line); len(items) > 0 {
		return items[0]
	}
	return undefined{name: "first"}
}

func lastFilter(r *renderer, line int, v Value, _ *arguments) Value {
	if _, ok := v.(*iterator); ok {
		r.fail(Runtime, line, "'generator' object is not reversible")
	}
	if items := r.iterate(v, line); len(items) > 0 {
		return items[len(items)-1]
	}
	return undefined{name: "last"}
}

func listFilter(r *renderer, line int, v Value, _ *arguments) Value {
	items := r.iterate(v, line)
	return &List{append(r.items(len(items)), items...)}
}

func itemsFilter(r *renderer, line int, v Value, _ *arguments) Value {
	if _, ok := v.(undefined); ok {
		return &iterator{}
	}
	d, ok := v.(*Dict)
	if !ok {
		r.fail(Runtime, line, "can only get item pairs from a mapping")
	}
	return &iterator{items: pairs(r, d)}
}

func pairs(r *renderer, d *Dict) []Value {
	items := r.items(2 * len(d.keys))
	for i, key := range d.keys {
		items = append(items, &Tuple{[]Value{key, d.values[i]}})
	}
	return items
}

func joinFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "d", "attribute")
	sep := ""
	if a.has(0, "d") {
		sep = r.str(a.at(r, line, 0, "d"), line)
	}
	get := r.getter(a.at(r, line, 1, "attribute"), line)
	var b strings.Builder
	for i, item := range r.iterate(v, line) {
		if i > 0 {
			r.write(&b, sep)
		}
		r.write(&b, r.str(get(item), line))
	}
	return b.String()
}

// getter makes a function that follows a path of attributes, such as "function.name" or 0; nil leaves values as they are.
func (r *renderer) getter(attribute Value, line int) func(Value) Value {
	if attribute == nil {
		return func(v Value) Value { return v }
	}
	var path []Value
	if s, ok := asString(attribute); ok {
		for _, part := range strings.Split(s, ".") {
			if i, err := strconv.ParseInt(part, 10, 64); err == nil && i >= 0 {
				path = append(path, i)
			} else {
				path = append(path, part)
			}
		}
	} else {
		path = []Value{attribute}
	}
	return func(v Value) Value {
		for _, part := range path {
			v = r.item(v, part, line)
		}
		return v
	}
}

// ignoringCase makes texts lower-case, by which the reference sorts and compares unless it is told otherwise.
func ignoringCase(v Value) Value {
	if s, ok := asString(v); ok {
		return strings.ToLower(s)
	}
	return v
}

// sortKey makes a function of the key to sort by: an attribute, or several with commas between.
func (r *renderer) sortKey(attribute Value, caseSensitive bool, line int) func(Value) Value {
	fold := func(v Value) Value {
		if caseSensitive {
			return v
		}
		return ignoringCase(v)
	}
	names, ok := asString(attribute)
	if !ok || !strings.Contains(names, ",") {
		get := r.getter(attribute, line)
		return func(v Value) Value { return fold(get(v)) }
	}
	var gets []func(Value) Value
	for _, name := range strings.Split(names, ",") {
		gets = append(gets, r.getter(name, line))
	}
	return func(v Value) Value {
		key := &Tuple{}
		for _, get := range gets {
			key.items = append(key.items, fold(get(v)))
		}
		return key
	}
}

// sorted sorts a copy, stably; reverse keeps equal items in order, as Python does.
func (r *renderer) sorted(items []Value, key func(Value) Value, reverse bool, line int) []Value {
	keys := r.items(len(items))
	order := make([]int, len(items))
	for i, item := range items {
		keys = append(keys, key(item))
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		if reverse {
			return r.less(keys[order[j]], keys[order[i]], line)
		}
		return r.less(keys[order[i]], keys[order[j]], line)
	})
	sorted := r.items(len(items))
	for _, i := range order {
		sorted = append(sorted, items[i])
	}
	return sorted
}

func sortFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "reverse", "case_sensitive", "attribute")
	key := r.sortKey(a.at(r, line, 2, "attribute"), truth(a.at(r, line, 1, "case_sensitive")), line)
	return &List{r.sorted(r.iterate(v, line), key, truth(a.at(r, line, 0, "reverse")), line)}
}

func dictSortFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "case_sensitive", "by", "reverse")
	d, ok := v.(*Dict)
	if !ok {
		if u, ok := v.(undefined); ok {
			r.failUndefined(u, line)
		}
		r.fail(Runtime, line, "'%s' object has no attribute 'items'", typeName(v))
	}
	place := int64(0)
	switch by := a.text(r, line, 1, "by", "key"); by {
	case "key":
	case "value":
		place = 1
	default:
		r.fail(Runtime, line, "you can only sort by either \"key\" or \"value\"")
	}
	key := r.sortKey(place, truth(a.at(r, line, 0, "case_sensitive")), line)
	return &List{r.sorted(pairs(r, d), key, truth(a.at(r, line, 2, "reverse")), line)}
}

func extreme(op string) filterFunc {
	return func(r *renderer, line int, v Value, a *arguments) Value {
		a.most(r, line, "case_sensitive", "attribute")
		key := r.sortKey(a.at(r, line, 1, "attribute"), truth(a.at(r, line, 0, "case_sensitive")), line)
		items := r.iterate(v, line)
		if len(items) == 0 {
			return undefined{name: "no aggregated item, sequence was empty"}
		}
		best, bestKey := items[0], key(items[0])
		for _, item := range items[1:] {
			if k := key(item); r.compare(op, k, bestKey, line) {
				best, bestKey = item, k
			}
		}
		return best
	}
}

func uniqueFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "case_sensitive", "attribute")
	key := r.sortKey(a.at(r, line, 1, "attribute"), truth(a.at(r, line, 0, "case_sensitive")), line)
	seen := &Dict{}
	var items []Value
	for _, item := range r.iterate(v, line) {
		k := key(item)
		r.mustHash(k, line)
		r.allocate(64)
		if _, ok := seen.get(k); !ok {
			seen.Set(k, true)
			items = append(items, item)
		}
	}
	return &iterator{items: items}
}

func groupByFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "attribute", "default", "case_sensitive")
	attribute := a.at(r, line, 0, "attribute")
	get := r.getter(attribute, line)
	key := func(v Value) Value {
		k := get(v)
		if _, ok := k.(undefined); ok && a.has(1, "default") {
			k = a.at(r, line, 1, "default")
		}
		if truth(a.at(r, line, 2, "case_sensitive")) {
			return k
		}
		return ignoringCase(k)
	}
	groups := &List{}
	var last Value
	var members *List
	for _, item := range r.sorted(r.iterate(v, line), key, false, line) {
		k := key(item)
		if members == nil || !r.equal(k, last) {
			members = &List{}
			name := get(item)
			if _, ok := name.(undefined); ok {
				name = k
			}
			groups.items = append(groups.items, &Tuple{[]Value{name, members}})
			last = k
		}
		members.items = append(members.items, item)
	}
	r.allocate(64 * len(groups.items))
	return groups
}

func sumFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "attribute", "start")
	get := r.getter(a.at(r, line, 0, "attribute"), line)
	var sum Value = int64(0)
	if a.has(1, "start") {
		sum = a.at(r, line, 1, "start")
	}
	for _, item := range r.iterate(v, line) {
		sum = r.binary("+", sum, get(item), line)
	}
	return sum
}

func reverseFilter(r *renderer, line int, v Value, _ *arguments) Value {
	if s, ok := asString(v); ok {
		runes := []rune(s)
		r.allocate(5 * len(s))
		for i, j := 0, len(runes)-1; i < j; i, j = i+1, j-1 {
			runes[i], runes[j] = runes[j], runes[i]
		}
		return string(runes)
	}
	items := r.iterate(v, line)
	reversed := r.items(len(items))
	for i := len(items) - 1; i >= 0; i-- {
		reversed = append(reversed, items[i])
	}
	return &iterator{items: reversed}
}

func batchFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "linecount", "fill_with")
	n := a.number(r, line, 0, "linecount", 0)
	fill := a.at(r, line, 1, "fill_with")
	batches := &iterator{}
	items := r.iterate(v, line)
	if n <= 0 {
		r.fail(Runtime, line, "batch needs a positive number")
	}
	for len(items) > 0 {
		size := min(n, len(items))
		batch := append(r.items(size), items[:size]...)
		items = items[size:]
		for fill != nil && len(batch) < n {
			r.allocate(16)
			batch = append(batch, fill)
		}
		batches.items = append(batches.items, &List{batch})
	}
	return batches
}

func sliceFilter(r *renderer, line int, v Value, a *arguments) Value {
	a.most(r, line, "slices", "fill_with")
	slices := a.number(r, line, 0, "slices", 0)
	fill := a.at(r, line, 1, "fill_with")
	items := r.iterate(v, line)
	if slices <= 0 {
		r.fail(Runtime, line, "slice needs a positive number")
	}
	r.allocate(64 * min(slices, 1<<24))
	result := &iterator{}
	each, extra := len(items)/slices, len(items)%slices
	for i := range slices {
		size := each
		if i < extra {
			size++
		}
		part := append(r.items(size+1), items[:size]...)
		items = items[size:]
		if fill != nil && i >= extra {
			part = append(part, fill)
		}
		result.items = append(result.items, &List{part})
	}
	return result
}

func mapFilter(r *renderer, line int, v Value, a *arguments) Value {
	var apply func(v Value) Value
	if attribute, ok := a.get("attribute"); ok && len(a.positional) == 0 {
		a.most(r, line, "attribute", "default")
		get := r.getter(attribute, line)
		otherwise, hasDefault := a.get("default")
		apply = func(v Value) Value {
			v = get(v)
			if _, ok := v.(undefined); ok && hasDefault {
				return otherwise
			}
			return v
		}
	} else {
		if len(a.positional) == 0 {
			r.fail(Runtime, line, "map requires a filter argument")
		}
		name, _ := asString(a.positional[0])
		f := filters[name]
		if f == nil {
			r.fail(Runtime, line, "no filter named %q", name)
		}
		rest := &arguments{positional: a.positional[1:], names: a.names, named: a.named}
		apply = func(v Value) Value { return f(r, line, v, rest) }
	}
	items := r.iterate(v, line)
	mapped := r.items(len(items))
	for _, item := range items {
		r.step(1)
		mapped = append(mapped, apply(item))
	}
	return &iterator{items: mapped}
}

// selecting makes select, reject and their siblings with an attribute.
func selecting(want, byAttribute bool) filterFunc {
	return func(r *renderer, line int, v Value, a *arguments) Value {
		get := func(v Value) Value { return v }
		passed := a.positional
		if byAttribute {
			if len(passed) == 0 {
				r.fail(Runtime, line, "missing parameter for attribute name")
			}
			get, passed = r.getter(passed[0], line), passed[1:]
		}
		holds := truth
		if len(passed) > 0 {
			name, _ := asString(passed[0])
			test := tests[name]
			if test == nil {
				r.fail(Runtime, line, "no test named %q", name)
			}
			rest := &arguments{positional: passed[1:], names: a.names, named: a.named}
			holds = func(v Value) bool { return test(r, line, v, rest) }
		}
		chosen := &iterator{}
		for _, item := range r.iterate(v, line) {
			r.step(1)
			if holds(get(item)) == want {
				chosen.items = append(chosen.items, item)
			}
		}
		r.allocate(16 * len(chosen.items))
		return chosen
	}
}
