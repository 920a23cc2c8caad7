package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-router/sluice/admission"
)

const (
	// closedInterval is how often the gate is checked. A check takes one lock and reads
	// one number.
	closedInterval = time.Second
	// closedLogAfter is how long requests must have been waiting at every check before it
	// is logged, closedLogEvery the interval of further log lines.
	closedLogAfter = 30 * time.Second
	closedLogEvery = time.Minute
	// maxClosedLines bounds the lines per report; each is for one class of one queue.
	maxClosedLines = 8
)

// waiters is the part of the gate that closedWatch reads.
type waiters interface {
	Waiting() int
	Snapshot() admission.Stats
}

// closedWatch logs when the gate has been closed for long, that is, when requests were
// waiting at every check. It polls, so that it costs the gate nothing per request.
type closedWatch struct {
	gate     waiters
	log      *slog.Logger
	since    time.Time // zero: no request was waiting at the last check
	loggedAt time.Time // zero: not logged since then
}

// run checks the gate until ctx ends.
func (c *closedWatch) run(ctx context.Context) {
	t := time.NewTicker(closedInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			c.check(now)
		}
	}
}

func (c *closedWatch) check(now time.Time) {
	if c.gate.Waiting() == 0 {
		if !c.loggedAt.IsZero() {
			c.log.Info("the gate is open again: nobody waits", "closed_for", now.Sub(c.since).Round(time.Second))
		}
		c.since, c.loggedAt = time.Time{}, time.Time{}
		return
	}
	switch {
	case c.since.IsZero():
		c.since = now
	case c.loggedAt.IsZero() && now.Sub(c.since) >= closedLogAfter, !c.loggedAt.IsZero() && now.Sub(c.loggedAt) >= closedLogEvery:
		c.loggedAt = now
		c.logClasses(now.Sub(c.since).Round(time.Second))
	}
}

// logClasses writes a line for each class with waiting requests.
func (c *closedWatch) logClasses(closed time.Duration) {
	st := c.gate.Snapshot()
	lines, more := 0, 0
	for i := range st.Queues {
		q := &st.Queues[i]
		for j := range q.Classes {
			k := &q.Classes[j]
			if k.Depth == 0 {
				continue
			}
			if lines == maxClosedLines {
				more++
				continue
			}
			lines++
			models := q.Models
			if len(models) > maxClosedLines {
				models = models[:maxClosedLines]
			}
			attrs := []any{"for", closed, "models", models, "class", k.Class, "resource", k.ClosedBy.String(),
				"waiting", k.Depth, "oldest", k.OldestWait.Round(time.Millisecond)}
			for _, s := range k.Short {
				if s.Short > 0 {
					attrs = append(attrs, slog.Group("short", "rank", s.Rank, "resource", s.Resource.String(), "by", s.Short, "of", s.Of))
					break
				}
			}
			if k.HeldUp > 0 {
				attrs = append(attrs, slog.Group("held_up", "requests", k.HeldUp, "for", k.HeldUpFor.Round(time.Millisecond), "remedy", heldUpRemedy))
			}
			c.log.Warn("the gate is closed", attrs...)
		}
	}
	if more > 0 {
		c.log.Warn("the gate is closed for more classes; GET /admission tells of all", "more", more)
	}
}
