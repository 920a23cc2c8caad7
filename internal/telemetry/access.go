package telemetry

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sluice-router/sluice/internal/text"
)

// AccessLine is what is logged of one request. It has no place for prompts, keys
// and bodies.
type AccessLine struct {
	ID     string
	Method string
	// Route is the route's name, or the path of a request that matched none.
	Route string
	Model string
	// Client is the address of the connection's other end, without its port; Key the
	// name of the key that was presented, if it has one.
	Client, Key string
	// Class is the policy class, Resource what the request waited for or was refused
	// for.
	Class, Resource string
	// Prefill and Decode are the ranks of the last attempt, by URL; a request that ran
	// whole on one rank has it in Decode. PrefillID and DecodeID are the ids that the
	// answer's header told the client.
	Prefill, Decode     string
	PrefillID, DecodeID string
	Attempts            int
	// Failed tells at which ranks attempts failed, and how.
	Failed string
	// Queued is the time at the gate, TTFT that to the first output token,
	// Total that from arrival to the last byte.
	Queued, TTFT, Total time.Duration
	// Encoded is the time in which its text became tokens, the wait for that included.
	Encoded time.Duration
	// Predicted is how long the request would have waited, of one that was refused
	// early for it.
	Predicted time.Duration
	Status    int
	Reason    string
	// Code is the error code in the client's answer, if it differs from the reason.
	Code string
	// BytesIn is the length of the body as far as it was read, BytesOut that of
	// the answer's.
	BytesIn, BytesOut int64
	// PromptTokens and OutputTokens are the lengths of prompt and answer.
	PromptTokens, OutputTokens int64
	// CacheWhy is why the rank that prefilled was chosen, by what is cached; empty: that
	// played no part. The rest are tokens of the prompt: held by some rank, believed to be
	// held by the chosen one, reported as reused (negative: not reported).
	CacheWhy                              string
	CacheBest, CacheChosen, CacheReported int64
	// PrefixHashes are hashes of the prompt's blocks, in characters that need no quoting.
	PrefixHashes []byte
	// Note says which parts of the request were left out.
	Note string
	// Err is why it failed; of what the client caused, only what holds nothing of the
	// request.
	Err error
	// Level is slog.LevelDebug for requests that are rarely of interest, such as
	// probes.
	Level slog.Level
}

// Access logs one request.
//
// The line is put together here rather than by slog, in slog's two forms: there
// is one for each request, and this takes a quarter of the time.
func (l *Log) Access(a *AccessLine) {
	if l.w == nil || a.Level < l.access || !l.Enabled(context.Background(), a.Level) {
		return
	}
	e := lines.Get().(*line)
	e.json = l.json
	e.b = e.b[:0]
	e.begin(a.Level)
	e.text("id", a.ID)
	e.text("method", text.Line(a.Method))
	e.text("route", text.Line(a.Route))
	e.optional("client", a.Client)
	e.optional("key", a.Key)
	e.optional("model", a.Model)
	e.optional("class", a.Class)
	e.optional("prefill", a.Prefill)
	e.optional("prefill_id", a.PrefillID)
	e.optional("decode", a.Decode)
	e.optional("decode_id", a.DecodeID)
	if a.Attempts > 0 {
		e.number("attempts", int64(a.Attempts))
	}
	e.optional("failed", a.Failed)
	if a.Attempts > 0 || a.Queued > 0 {
		e.millis("queue_ms", a.Queued)
	}
	if a.Encoded > 0 {
		e.millis("encode_ms", a.Encoded)
	}
	e.optional("resource", a.Resource)
	if a.Predicted > 0 {
		e.millis("predicted_ms", a.Predicted)
	}
	if a.TTFT > 0 {
		e.millis("ttft_ms", a.TTFT)
	}
	e.millis("total_ms", a.Total)
	e.number("status", int64(a.Status))
	e.text("reason", a.Reason)
	e.optional("code", a.Code)
	e.number("bytes_in", a.BytesIn)
	e.number("bytes_out", a.BytesOut)
	if a.PromptTokens > 0 {
		e.number("prompt_tokens", a.PromptTokens)
	}
	if a.OutputTokens > 0 {
		e.number("output_tokens", a.OutputTokens)
	}
	if a.CacheWhy != "" {
		e.text("cache_why", a.CacheWhy)
		e.number("cache_best", a.CacheBest)
		e.number("cache_chosen", a.CacheChosen)
		if a.CacheReported >= 0 {
			e.number("cache_reported", a.CacheReported)
		}
	}
	if len(a.PrefixHashes) > 0 {
		e.bare("prefix_hashes", a.PrefixHashes)
	}
	e.optional("note", a.Note)
	if a.Err != nil {
		e.text("error", text.Line(a.Err.Error()))
	}
	e.end()
	_, _ = l.w.Write(e.b) // it never fails
	lines.Put(e)
}

// line is an access line that is put together.
type line struct {
	b    []byte
	json bool
}

var lines = sync.Pool{New: func() any { return &line{b: make([]byte, 0, 512)} }}

func (e *line) begin(level slog.Level) {
	if e.json {
		e.b = append(e.b, `{"time":"`...)
		e.b = time.Now().AppendFormat(e.b, logTime)
		e.b = append(e.b, `","level":"`...)
		e.b = append(e.b, level.String()...)
		e.b = append(e.b, `","msg":"request"`...)
		return
	}
	e.b = append(e.b, "time="...)
	e.b = time.Now().AppendFormat(e.b, logTime)
	e.b = append(e.b, " level="...)
	e.b = append(e.b, level.String()...)
	e.b = append(e.b, " msg=request"...)
}

// logTime is how slog writes times in text.
const logTime = "2006-01-02T15:04:05.000Z07:00"

func (e *line) end() {
	if e.json {
		e.b = append(e.b, '}')
	}
	e.b = append(e.b, '\n')
}

func (e *line) key(key string) {
	if e.json {
		e.b = append(e.b, ',', '"')
		e.b = append(e.b, key...)
		e.b = append(e.b, '"', ':')
		return
	}
	e.b = append(e.b, ' ')
	e.b = append(e.b, key...)
	e.b = append(e.b, '=')
}

func (e *line) text(key, v string) {
	e.key(key)
	switch {
	case e.json:
		e.b = appendJSON(e.b, v)
	case plain(v):
		e.b = append(e.b, v...)
	default:
		e.b = strconv.AppendQuote(e.b, v)
	}
}

// bare writes a value that has no character to be quoted.
func (e *line) bare(key string, v []byte) {
	e.key(key)
	if e.json {
		e.b = append(e.b, '"')
	}
	e.b = append(e.b, v...)
	if e.json {
		e.b = append(e.b, '"')
	}
}

func (e *line) optional(key, v string) {
	if v != "" {
		e.text(key, text.Line(v))
	}
}

func (e *line) number(key string, n int64) {
	e.key(key)
	e.b = strconv.AppendInt(e.b, n, 10)
}

// millis rounds to microseconds, which is more than the clock is worth.
func (e *line) millis(key string, d time.Duration) {
	e.key(key)
	e.b = strconv.AppendFloat(e.b, float64(d.Microseconds())/1000, 'f', -1, 64)
}

// plain reports whether text can stand in a line as it is.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '=' || c == '\\' {
			return false
		}
	}
	return s != ""
}

// appendJSON appends text without control characters as a JSON string.
func appendJSON(b []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\ufffd")
	}
	b = append(b, '"')
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = append(b, ' ')
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
