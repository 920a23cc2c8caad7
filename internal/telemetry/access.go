package telemetry

import (
	"context"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"
)

// maxLogged bounds text in a line that came from outside, in bytes.
const maxLogged = 256

// AccessLine is what is logged of one request. It has no place for prompts, keys
// and bodies.
type AccessLine struct {
	ID     string
	Method string
	// Route is the route's name, or the path of a request that matched none.
	Route string
	Model string
	// Prefill and Decode are the ranks of the last attempt; a request that ran
	// whole on one rank has it in Decode.
	Prefill, Decode string
	Attempts        int
	// Queued is the time at the gate, TTFT that to the first byte of content,
	// Total that from arrival to the last byte.
	Queued, TTFT, Total time.Duration
	Status              int
	Reason              string
	// BytesIn is the length of the body as far as it was read, BytesOut that of
	// the answer's.
	BytesIn, BytesOut int64
	// Err is why it failed, if that is not the client's doing.
	Err error
	// Level is slog.LevelDebug for requests nobody wants a line of, such as
	// probes.
	Level slog.Level
}

// Access logs one request.
func (l *Log) Access(a *AccessLine) {
	ctx := context.Background()
	if !l.Enabled(ctx, a.Level) {
		return
	}
	var buf [16]slog.Attr
	attrs := append(buf[:0],
		slog.String("id", a.ID), slog.String("method", Clip(a.Method)), slog.String("route", Clip(a.Route)))
	text := func(key, v string) {
		if v != "" {
			attrs = append(attrs, slog.String(key, Clip(v)))
		}
	}
	text("model", a.Model)
	text("prefill", a.Prefill)
	text("decode", a.Decode)
	if a.Attempts > 0 {
		attrs = append(attrs, slog.Int("attempts", a.Attempts), millis("queue_ms", a.Queued))
	}
	if a.TTFT > 0 {
		attrs = append(attrs, millis("ttft_ms", a.TTFT))
	}
	attrs = append(attrs, millis("total_ms", a.Total), slog.Int("status", a.Status), slog.String("reason", a.Reason),
		slog.Int64("bytes_in", a.BytesIn), slog.Int64("bytes_out", a.BytesOut))
	if a.Err != nil {
		attrs = append(attrs, slog.String("error", Clip(a.Err.Error())))
	}
	l.LogAttrs(ctx, a.Level, "request", attrs...)
}

// millis rounds to microseconds, which is more than the clock is worth.
func millis(key string, d time.Duration) slog.Attr {
	return slog.Float64(key, float64(d.Microseconds())/1000)
}

// Clip shortens text from outside for a log line and takes out what could fake
// another one.
func Clip(s string) string {
	if len(s) > maxLogged {
		cut := maxLogged - len("…")
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
