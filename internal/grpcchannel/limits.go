package grpcchannel

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/upstream"
)

// limits are those of one call. One timer looks at them when the first may have passed, and
// is set anew if none has: a message costs no timer, only the time of day.
type limits struct {
	// immutable
	of      upstream.Limits
	limited bool
	started mono.Instant
	cancel  context.CancelFunc // ends the call

	// atomic, as mono.Instant; 0: not yet
	opened   atomic.Int64 // when a connection was at hand
	headerIn atomic.Bool
	firstIn  atomic.Bool
	waiting  atomic.Int64 // since when the caller has waited for a message; 0: it does not

	mu sync.Mutex
	// guarded by mu
	timer *time.Timer
	ended bool
	limit string // that has passed
	value time.Duration
}

func (l *limits) begin(of upstream.Limits, cancel context.CancelFunc) {
	l.of, l.limited, l.cancel = of, of != (upstream.Limits{}), cancel
	if l.limited {
		l.started = mono.Now()
		l.check()
	}
}

// sent tells that a connection is at hand.
func (l *limits) sent() {
	if l.limited {
		l.opened.Store(int64(mono.Now()))
		l.check()
	}
}

// wantsHeader tells whether it matters when the head of the answer came.
func (l *limits) wantsHeader() bool { return l.of.Header > 0 || l.of.StreamIdle > 0 }

func (l *limits) header() {
	if l.limited && !l.headerIn.Swap(true) {
		l.check()
	}
}

// wait and came enclose waiting for a message.
func (l *limits) wait() {
	if l.of.StreamIdle > 0 {
		l.waiting.Store(int64(mono.Now()))
	}
}

func (l *limits) came(first bool) {
	if l.of.StreamIdle > 0 {
		l.waiting.Store(0)
	}
	if first && l.limited {
		l.headerIn.Store(true)
		l.firstIn.Store(true)
	}
}

// check looks whether a limit has passed, and sets the timer to when the next may.
func (l *limits) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.limit != "" {
		return
	}
	now := mono.Now()
	var at mono.Instant
	var limit string
	var value time.Duration
	add := func(name string, d time.Duration, from mono.Instant) {
		if d > 0 {
			if t := from.Add(d); limit == "" || t < at {
				at, limit, value = t, name, d
			}
		}
	}
	add(upstream.LimitTotal, l.of.Total, l.started)
	if opened := mono.Instant(l.opened.Load()); opened != 0 {
		if !l.firstIn.Load() {
			add(upstream.LimitFirstByte, l.of.FirstByte, opened)
		}
		if !l.headerIn.Load() {
			add(upstream.LimitHeader, l.of.Header, opened)
		} else {
			since := mono.Instant(l.waiting.Load())
			if since == 0 {
				since = now
			}
			add(upstream.LimitStreamIdle, l.of.StreamIdle, since)
		}
	}
	switch {
	case limit == "":
	case at <= now:
		l.limit, l.value = limit, value
		l.cancel()
	case l.timer == nil:
		l.timer = time.AfterFunc(at.Sub(now), l.check)
	default:
		l.timer.Reset(at.Sub(now))
	}
}

// passed is the limit that has ended the call, empty if none has.
func (l *limits) passed() (string, time.Duration) {
	if !l.limited {
		return "", 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit, l.value
}

func (l *limits) end() {
	if !l.limited {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.timer != nil {
		l.timer.Stop()
	}
}
