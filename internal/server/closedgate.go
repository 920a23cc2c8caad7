package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-router/sluice/admission"
)

const (
	// closedLook is how often the gate is looked at. One look is a lock and a number.
	closedLook = time.Second
	// closedFirst is how long somebody must have waited at each look before it is told,
	// closedAgain how often it is told after that.
	closedFirst = 30 * time.Second
	closedAgain = time.Minute
	// closedLines bounds the lines of one time; each is for one class of one queue.
	closedLines = 8
)

// waiters is what is asked of the gate.
type waiters interface {
	Waiting() int
	Snapshot() admission.Stats
}

// closedWatch tells in the log when the gate has been closed for long: at every look
// somebody waited. It looks from outside, so that the gate does nothing for it.
type closedWatch struct {
	gate  waiters
	log   *slog.Logger
	since time.Time // zero: nobody waited at the last look
	told  time.Time // zero: not told since then
}

// run looks until ctx ends.
func (c *closedWatch) run(ctx context.Context) {
	t := time.NewTicker(closedLook)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			c.look(now)
		}
	}
}

func (c *closedWatch) look(now time.Time) {
	if c.gate.Waiting() == 0 {
		if !c.told.IsZero() {
			c.log.Info("the gate is open again: nobody waits", "closed_for", now.Sub(c.since).Round(time.Second))
		}
		c.since, c.told = time.Time{}, time.Time{}
		return
	}
	switch {
	case c.since.IsZero():
		c.since = now
	case c.told.IsZero() && now.Sub(c.since) >= closedFirst, !c.told.IsZero() && now.Sub(c.told) >= closedAgain:
		c.told = now
		c.tell(now.Sub(c.since).Round(time.Second))
	}
}

// tell writes a line for each class that waits.
func (c *closedWatch) tell(closed time.Duration) {
	st := c.gate.Snapshot()
	lines, more := 0, 0
	for i := range st.Queues {
		q := &st.Queues[i]
		for j := range q.Classes {
			k := &q.Classes[j]
			if k.Depth == 0 {
				continue
			}
			if lines == closedLines {
				more++
				continue
			}
			lines++
			models := q.Models
			if len(models) > closedLines {
				models = models[:closedLines]
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
