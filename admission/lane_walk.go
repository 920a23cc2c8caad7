package admission

// laneWalk goes through the waiters of a class in its order, over several lanes, without
// changing anything: the next of each lane is known, and lanes come in by the heap that they
// are in, each after its parent. The queues must stay as they are meanwhile.
type laneWalk struct {
	queues *queues
	at     []laneCursor // the first is last
	fill   int          // of fronts
}

// laneCursor is the i-th waiter of a lane.
type laneCursor struct {
	lane   *lane
	waiter *Ticket
	i      int
}

// enter has the walk come to the i-th waiter of l, if there is one.
func (w *laneWalk) enter(l *lane, i int) {
	t := (*Ticket)(nil)
	switch {
	case i >= l.waiters.Len():
		return
	case i == 0:
		t = l.head()
	default:
		t = w.queues.first(l, i+1, w.fill)[i]
	}
	low, high := 0, len(w.at) // those before low are behind t, those from high on ahead of it
	for low < high {
		if mid := (low + high) / 2; t.ahead(w.at[mid].waiter) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	w.at = append(w.at, laneCursor{})
	copy(w.at[low+1:], w.at[low:])
	w.at[low] = laneCursor{l, t, i}
}

// next is the waiter that the walk has come to. ok: there is one. The one behind it in its
// lane follows only with another enter, and the lanes behind it in their heap.
func (w *laneWalk) next() (x laneCursor, ok bool) {
	last := len(w.at) - 1
	if last < 0 {
		return x, false
	}
	x = w.at[last]
	w.at[last] = laneCursor{}
	w.at = w.at[:last]
	return x, true
}

// end forgets where the walk is.
func (w *laneWalk) end() {
	clear(w.at)
	w.at = w.at[:0]
}
