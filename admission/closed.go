package admission

import "time"

// closedClock adds up how long a model group's queue was blocked, and by what.
type closedClock struct {
	queues *queues
	class  *[numResources]time.Duration // of Core.closedBy
	by     Resource
	since  Instant
}

func (c *closedClock) set(by Resource, now Instant) {
	if by == c.by {
		return
	}
	if c.by != ResourceNone {
		c.queues.closedFor[c.by] += now.Sub(c.since)
		c.class[c.by] += now.Sub(c.since)
	}
	c.by, c.since = by, now
}

// closedOf is the times of the class of that name.
func (qs *queues) closedOf(class string) *[numResources]time.Duration {
	times := qs.closedBy[class]
	if times == nil {
		if qs.closedBy == nil {
			qs.closedBy = map[string]*[numResources]time.Duration{}
		}
		times = new([numResources]time.Duration)
		qs.closedBy[class] = times
	}
	return times
}
