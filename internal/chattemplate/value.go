package chattemplate

import (
	"fmt"
	"math"
	"math/big"
)

// Value is a value of a template. It is one of:
//
//	nil       None
//	bool      True, False
//	int64     an integer
//	*big.Int  an integer beyond int64; only printed and compared
//	float64
//	string    valid UTF-8
//	safe      a string marked safe, which escapes what is added to it
//	*List, *Tuple, *Dict
//
// and of the types that only templates make: undefined, *namespace, *macro, *function, *loop, *iterator, *view, *rangeOf.
type Value = any

type (
	// List is a list. Templates cannot change one.
	List struct{ items []Value }
	// Tuple is a list that cannot be changed in Python either; it prints with parentheses.
	Tuple struct{ items []Value }

	safe string

	// undefined is the value of a name that does not exist.
	undefined struct {
		name     string
		security bool // an attribute that the sandbox refuses
	}

	// namespace is the one kind of object whose attributes a template can set.
	namespace struct{ attributes *Dict }

	// function is a global or a method.
	function struct {
		name string
		call func(r *renderer, line int, a *arguments) Value
	}

	// iterator is what filters such as map and select give: true, without a length, and empty once it was read.
	iterator struct{ items []Value }

	// view is what keys, values and items of a dict give.
	view struct {
		name  string
		items []Value
	}

	// rangeOf is range(start, stop, step) with its length.
	rangeOf struct {
		start, stop, step int64
		n                 int
	}
)

// NewList makes a list of values.
func NewList(items ...Value) *List { return &List{items: items} }

// Len is the number of items.
func (l *List) Len() int { return len(l.items) }

// At is the item at i, from 0.
func (l *List) At(i int) Value { return l.items[i] }

// Dict is a dict: values by keys, in the order in which the keys came.
type Dict struct {
	keys, values []Value
	index        map[Value]int // of the normalised keys; nil for small dicts
}

// smallDict is the number of keys up to which a dict is searched key by key.
const smallDict = 8

// NewDict makes a dict of strings and values in turn.
func NewDict(pairs ...Value) *Dict {
	d := &Dict{}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Set(pairs[i], pairs[i+1])
	}
	return d
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// Entry is the key and the value at i, from 0, in order.
func (d *Dict) Entry(i int) (key, value Value) { return d.keys[i], d.values[i] }

// Get is the value of a key that is a string.
func (d *Dict) Get(key string) (Value, bool) { return d.get(key) }

// String is the value of a key, if that is a string.
func (d *Dict) String(key string) (string, bool) {
	v, _ := d.get(key)
	s, ok := v.(string)
	return s, ok
}

func (d *Dict) get(key Value) (Value, bool) {
	if i := d.find(hashKey(key)); i >= 0 {
		return d.values[i], true
	}
	return nil, false
}

func (d *Dict) find(key Value) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	for i, k := range d.keys {
		if hashKey(k) == key {
			return i
		}
	}
	return -1
}

// Set sets the value of a key. It is for those who make a dict, before anybody else has it.
func (d *Dict) Set(key, value Value) {
	hash := hashKey(key)
	if i := d.find(hash); i >= 0 {
		d.values[i] = value
		return
	}
	if d.keys == nil {
		room := new([8]Value) // of most messages and their parts
		d.keys, d.values = room[:0:4], room[4:4]
	}
	d.keys, d.values = append(d.keys, key), append(d.values, value)
	if d.index != nil {
		d.index[hash] = len(d.keys) - 1
	} else if len(d.keys) > smallDict {
		d.index = make(map[Value]int, 2*len(d.keys))
		for i, k := range d.keys {
			d.index[hashKey(k)] = i
		}
	}
}

// With is a copy in which a key has another value.
func (d *Dict) With(key, value Value) *Dict {
	c := d.clone()
	c.Set(key, value)
	return c
}

func (d *Dict) clone() *Dict {
	c := &Dict{}
	for i, k := range d.keys {
		c.Set(k, d.values[i])
	}
	return c
}

// tupleKey is a key that is a tuple: its printed form, since Go cannot compare slices.
type tupleKey string

// maxTupleKey bounds its bytes.
const maxTupleKey = 64 << 10

// hashKey is a key in a form in which keys that are equal in Python are equal in Go: 1, 1.0 and True are one key.
func hashKey(key Value) Value {
	switch k := key.(type) {
	case bool:
		if k {
			return int64(1)
		}
		return int64(0)
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<53 {
			return int64(k)
		}
	case safe:
		return string(k)
	case *Tuple:
		return tupleKey(fmt.Sprint(len(k.items)) + (&printer{maxDepth: 50, maxBytes: maxTupleKey}).repr(k))
	case *big.Int:
		return tupleKey(k.String())
	case undefined:
		return undefined{}
	}
	return key
}

// hashable tells whether Python takes the value as a key.
func hashable(v Value) bool {
	switch v := v.(type) {
	case *List, *Dict:
		return false
	case *Tuple:
		for _, item := range v.items {
			if !hashable(item) {
				return false
			}
		}
	}
	return true
}

// truth is what Python takes a value for in a condition.
func truth(v Value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case *big.Int:
		return v.Sign() != 0
	case string:
		return v != ""
	case safe:
		return v != ""
	case *List:
		return len(v.items) > 0
	case *Tuple:
		return len(v.items) > 0
	case *Dict:
		return len(v.keys) > 0
	case *view:
		return len(v.items) > 0
	case *rangeOf:
		return v.n > 0
	}
	return true
}

// typeName is Python's name of the type of a value, for messages.
func typeName(v Value) string {
	switch v.(type) {
	case nil:
		return "NoneType"
	case undefined:
		return "Undefined"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string, safe:
		return "str"
	case *List:
		return "list"
	case *Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case *namespace:
		return "Namespace"
	case *macro:
		return "Macro"
	case *function:
		return "builtin_function_or_method"
	case *loop:
		return "LoopContext"
	case *iterator:
		return "generator"
	case *view:
		return "dict view"
	case *rangeOf:
		return "range"
	}
	return "object"
}

// asString is the text of a value that is a string.
func asString(v Value) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case safe:
		return string(v), true
	}
	return "", false
}

// asInt is the value of an int or a bool, which Python takes for one.
func asInt(v Value) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// asFloat is the value of a number.
func asFloat(v Value) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return f, true
	}
	i, ok := asInt(v)
	return float64(i), ok
}
