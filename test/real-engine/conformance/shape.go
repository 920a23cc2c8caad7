package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// kept are the keys whose strings and numbers are part of the shape.
var kept = map[string]bool{
	"object": true, "type": true, "code": true, "param": true, "role": true, "finish_reason": true,
	"stop_reason": true, "status": true, "owned_by": true, "model": true, "transfer_mode": true, "reason": true,
	"do_remote_prefill": true, "do_remote_decode": true, "detail": true, "max_model_len": true,
}

// Shape is what an answer looks like. A body that is JSON is written with its keys,
// sorted, and, for most values, their kinds; of lists with the shapes in them, each
// once. Of an event stream there is a line for each event of another shape than all
// before it: how samples take turns and how many tokens an event holds is left to
// the engine.
func Shape(status int, header http.Header, body []byte) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d", status)
	for _, name := range []string{"Content-Type", "Cache-Control", "Allow", "X-Request-Id"} {
		if v := header.Get(name); v != "" {
			fmt.Fprintf(&s, " %s=%s", strings.ToLower(name), v)
		}
	}
	s.WriteByte('\n')
	if strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		writeEvents(&s, string(body))
		return strings.TrimSuffix(s.String(), "\n")
	}
	s.WriteString(shapeOf(body))
	return s.String()
}

func shapeOf(body []byte) string {
	switch {
	case len(body) == 0:
		return "nothing"
	case !json.Valid(body):
		return "text"
	}
	var s strings.Builder
	writeValue(&s, "", body)
	return s.String()
}

// writeEvents writes a stream's blocks: their fields in their order, with data as
// a shape. A block that is not ended by an empty line shows as such.
func writeEvents(s *strings.Builder, body string) {
	seen := map[string]bool{}
	for body != "" {
		block, rest, ended := strings.Cut(body, "\n\n")
		body = rest
		var fields []string
		for field := range strings.SplitSeq(block, "\n") {
			if data, ok := strings.CutPrefix(field, "data: "); ok && strings.HasPrefix(data, "{") {
				fields = append(fields, "data: "+shapeOf([]byte(data)))
			} else {
				fields = append(fields, strconv.Quote(field))
			}
		}
		if !ended {
			fields = append(fields, "without an empty line")
		}
		if line := strings.Join(fields, " "); !seen[line] {
			seen[line] = true
			s.WriteString(line + "\n")
		}
	}
}

func writeValue(s *strings.Builder, key string, v json.RawMessage) {
	switch kind(v) {
	case '{':
		if key == "top_logprobs" && !strings.Contains(string(v), `"logprob"`) {
			s.WriteString("{token:number}") // the keys are tokens
			return
		}
		members(s, v)
	case '[':
		elements(s, key, v)
	case '"':
		var text string
		_ = json.Unmarshal(v, &text) // it is valid
		switch {
		case kept[key]:
			s.Write(v)
		case key == "id" || key == "item_id" || key == "remote_request_id":
			s.WriteString("id " + text[:max(0, strings.IndexAny(text, "-_"))])
		case text == "":
			s.WriteString(`""`)
		default:
			s.WriteString("string")
		}
	case '0':
		if kept[key] {
			s.Write(v)
		} else {
			s.WriteString("number")
		}
	case 't', 'f':
		if kept[key] {
			s.Write(v)
		} else {
			s.WriteString("bool")
		}
	default:
		s.WriteString("null")
	}
}

// kind is the first byte of a value, '0' of a number.
func kind(v json.RawMessage) byte {
	v = json.RawMessage(strings.TrimSpace(string(v)))
	if c := v[0]; c != '-' && (c < '0' || c > '9') {
		return c
	}
	return '0'
}

func members(s *strings.Builder, v json.RawMessage) {
	var m map[string]json.RawMessage
	_ = json.Unmarshal(v, &m) // it is valid
	s.WriteByte('{')
	for i, key := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			s.WriteByte(',')
		}
		s.WriteString(key + ":")
		writeValue(s, key, m[key])
	}
	s.WriteByte('}')
}

func elements(s *strings.Builder, key string, v json.RawMessage) {
	var list []json.RawMessage
	_ = json.Unmarshal(v, &list) // it is valid
	var shapes []string
	for _, e := range list {
		var one strings.Builder
		writeValue(&one, key, e)
		if !slices.Contains(shapes, one.String()) {
			shapes = append(shapes, one.String())
		}
	}
	s.WriteString("[" + strings.Join(shapes, ",") + "]")
}
