package generate

import (
	"math"
	"strconv"
	"strings"
	"unsafe"

	"github.com/sluice-router/sluice/internal/openai"
)

func null(raw []byte) bool { return len(raw) == 0 || raw[0] == 'n' }

// filled reports whether a value is neither an empty list, object or string nor false.
func filled(raw []byte) bool {
	switch raw[0] {
	case '[':
		for range openai.Elements(raw) {
			return true
		}
		return false
	case '{':
		for range openai.ObjectMembers(raw) {
			return true
		}
		return false
	case '"':
		return len(raw) > 2
	}
	return raw[0] != 'f'
}

// text is the text of a JSON string.
func text(raw []byte) string {
	b := openai.AppendUnquoted(make([]byte, 0, len(raw)), raw)
	// b is not changed and not used otherwise: prompts are long, and need not be copied twice.
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// wrong notes that a value has the wrong type.
func (w *wishes) wrong(name, want string, raw []byte) {
	if w.err != nil {
		return
	}
	is := openai.KindOf(raw).String()
	if raw[0] != '"' && len(raw) <= 24 {
		is = string(raw)
	}
	w.err = openai.InvalidRequest(name, "%s is %s; it must be %s", name, is, want)
}

// float reads a number, or a string that has one, as engines take both.
func float(raw []byte) (float64, bool) {
	s := string(raw)
	switch openai.KindOf(raw) {
	case openai.KindString:
		s = strings.TrimSpace(text(raw))
		if strings.ContainsAny(s, "xXpP_nNiI") { // hexadecimal, or no number
			return 0, false
		}
	case openai.KindNumber:
	default:
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && !math.IsInf(v, 0) && !math.IsNaN(v)
}

func (w *wishes) number(to *optional[float64], name string, raw []byte) {
	v, ok := float(raw)
	if !ok {
		w.wrong(name, "a number", raw)
		return
	}
	*to = optional[float64]{v, true}
}

// whole reads a whole number, which may be written with a fraction of 0.
func whole(raw []byte) (int64, bool) {
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil && raw[0] != '+' {
		return v, true
	}
	v, ok := float(raw)
	if !ok || v != math.Trunc(v) || math.Abs(v) >= 1<<63 {
		return 0, false
	}
	return int64(v), true
}

func (w *wishes) integer(to *optional[int64], name string, raw []byte) {
	v, ok := whole(raw)
	if !ok {
		w.wrong(name, "a whole number of 64 bits", raw)
		return
	}
	*to = optional[int64]{v, true}
}

// boolean reads true or false, or what else engines take for them.
func (w *wishes) boolean(to *bool, name string, raw []byte) {
	word := string(raw)
	if raw[0] == '"' {
		word = strings.ToLower(text(raw))
	}
	switch word {
	case "true", "1", "1.0", "yes", "y", "on", "t":
		*to = true
	case "false", "0", "0.0", "no", "n", "off", "f":
		*to = false
	default:
		w.wrong(name, "true or false", raw)
	}
}

func (w *wishes) choice(to *optional[bool], name string, raw []byte) {
	var v bool
	w.boolean(&v, name, raw)
	*to = optional[bool]{v, true}
}

// stops reads stop strings: one, or a list.
func (w *wishes) stops(name string, raw []byte) {
	w.stop = nil
	add := func(raw []byte) {
		if raw[0] != '"' {
			w.wrong(name, "a string or a list of strings", raw)
			return
		}
		w.stop = append(w.stop, text(raw))
	}
	if raw[0] != '[' {
		add(raw)
		return
	}
	for e := range openai.Elements(raw) {
		if add(e); w.err != nil {
			return
		}
		if len(w.stop) > maxStops {
			w.err = openai.InvalidRequest(name, "stop has more than %d strings", maxStops)
			return
		}
	}
}

// ids reads a list of token ids.
func (w *wishes) ids(to *[]uint32, name string, raw []byte) {
	*to = nil
	if raw[0] != '[' {
		w.wrong(name, "a list of token ids", raw)
		return
	}
	for e := range openai.Elements(raw) {
		v, ok := whole(e)
		if !ok || v < 0 || v > math.MaxUint32 {
			w.wrong(name, "a list of token ids", e)
			return
		}
		if *to = append(*to, uint32(v)); len(*to) > maxStopIDs {
			w.err = openai.InvalidRequest(name, "%s has more than %d ids", name, maxStopIDs)
			return
		}
	}
}

// biases reads logit_bias: numbers by token id. Engines take those beyond ±100 as these.
func (w *wishes) biases(name string, raw []byte) {
	w.logitBias = nil
	if raw[0] != '{' {
		w.wrong(name, "an object of numbers by token id", raw)
		return
	}
	for key, value := range openai.ObjectMembers(raw) {
		id, err := strconv.ParseInt(strings.TrimSpace(string(key)), 10, 32)
		v, ok := float(value)
		if err != nil || id < 0 || !ok {
			w.err = openai.InvalidRequest(name, "logit_bias must be an object of numbers by token id")
			return
		}
		if w.logitBias == nil {
			w.logitBias = make(map[int32]float32)
		}
		w.logitBias[int32(id)] = float32(min(100, max(-100, v)))
	}
}
