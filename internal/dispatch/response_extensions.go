package dispatch

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
)

// extensions are the facts that the client wants in its answer, under "nvext" as the
// public router of policy classes names them.
type extensions struct{ workers, timing bool }

func (w extensions) any() bool { return w.workers || w.timing }

// maxExtraFields bounds what is read of nvext.extra_fields, in bytes.
const maxExtraFields = 4 << 10

// readExtensions reads nvext.extra_fields of a request. What it does not understand
// asks for nothing: the field is an extension that an engine may know otherwise.
func readExtensions(p *openai.Peeked) (w extensions) {
	if p.FieldKind(openai.FieldNVExt) != openai.KindObject {
		return w
	}
	fields, ok := openai.RawField(p.Raw(openai.FieldNVExt), "extra_fields")
	if !ok || len(fields) > maxExtraFields {
		return w
	}
	var names []string
	if json.Unmarshal(fields, &names) != nil {
		return w
	}
	for _, n := range names {
		switch n {
		case "worker_id":
			w.workers = true
		case "timing":
			w.timing = true
		}
	}
	return w
}

// appendExtension appends the member "nvext". over tells that the whole answer is
// there; otherwise its first token is.
func (x *request) appendExtension(b []byte, over bool) []byte {
	b = append(b, `"nvext":{`...)
	if x.extensions.workers {
		b = append(b, `"worker_id":{`...)
		if r := x.ticket.Prefill; r != nil {
			b = appendWorker(b, "prefill", r.Data().(*fleet.Rank))
			b = append(b, ',')
		}
		b = appendWorker(b, "decode", x.ticket.Decode.Data().(*fleet.Rank))
		b = append(b, '}')
	}
	if x.extensions.timing {
		if x.extensions.workers {
			b = append(b, ',')
		}
		arrived := x.call.Arrived
		b = append(b, `"timing":{"request_received_ms":`...)
		b = strconv.AppendInt(b, arrived.UnixMilli(), 10)
		b = appendMS(append(b, `,"prefill_wait_time_ms":`...), x.ticket.Waited())
		if over {
			b = appendMS(append(b, `,"total_time_ms":`...), time.Since(arrived))
		} else {
			ttft := x.call.Record.TTFT
			if ttft == 0 { // an opening event, which engines send with the first token
				ttft = time.Since(arrived)
			}
			b = appendMS(append(b, `,"ttft_ms":`...), ttft)
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

func appendWorker(b []byte, leg string, r *fleet.Rank) []byte {
	b = append(b, '"')
	b = append(b, leg...)
	b = openai.AppendString(append(b, `_worker_id":`...), r.Worker().ID())
	if r.DPRank() >= 0 {
		b = append(b, `,"`...)
		b = append(b, leg...)
		b = strconv.AppendInt(append(b, `_dp_rank":`...), int64(r.DPRank()), 10)
	}
	return b
}

func appendMS(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, float64(d.Microseconds())/1000, 'f', -1, 64)
}

// withExtension is a whole answer with the facts as its last member. An answer that
// is no object, or has such a member already, stays as it is.
func (x *request) withExtension(b []byte) []byte {
	end := len(bytes.TrimRight(b, " \t\r\n")) - 1
	if end < 1 || b[end] != '}' || !takesExtension(b) {
		return b
	}
	out := make([]byte, 0, len(b)+512)
	out = append(append(out, b[:end]...), ',')
	out = x.appendExtension(out, true)
	return append(out, b[end:]...)
}

// takesExtension tells whether an object has members, and none of that name.
func takesExtension(object []byte) bool {
	rest := bytes.TrimLeft(object, " \t\r\n")
	if len(rest) == 0 || rest[0] != '{' {
		return false
	}
	if rest = bytes.TrimLeft(rest[1:], " \t\r\n"); len(rest) == 0 || rest[0] != '"' {
		return false
	}
	_, has := openai.RawField(object, "nvext")
	return !has
}

// eventWithExtension is the beginning of an event stream with the facts as the first
// member of its first event's data.
func (x *request) eventWithExtension(b []byte) []byte {
	for at := 0; at < len(b); {
		line := b[at:]
		if i := bytes.IndexAny(line, "\r\n"); i >= 0 {
			line = line[:i]
		}
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			at += len(line) + 1
			continue
		}
		if !takesExtension(data) {
			return b
		}
		at += len("data:") + bytes.IndexByte(data, '{') + 1
		out := make([]byte, 0, len(b)+512)
		out = append(out, b[:at]...)
		out = append(x.appendExtension(out, false), ',')
		return append(out, b[at:]...)
	}
	return b
}
