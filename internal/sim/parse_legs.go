package sim

import "math"

// legs returns host, port and bootstrap room of the sequence that is sample k of
// prompt p. ok is false if it has no bootstrap room.
func (r *request) legs(p, k int, perSample bool) (host string, port int, hasPort bool, room int64, ok bool) {
	i := p
	if perSample {
		i = p*r.n + k
	}
	at := func(n int) int {
		if n == 1 {
			return 0
		}
		return i
	}
	if len(r.rooms) == 0 {
		return
	}
	if r.scalarRoom {
		if r.rooms[0] > math.MaxInt64-int64(i) {
			return
		}
		room, ok = r.rooms[0]+int64(i), true
	} else if i < len(r.rooms) {
		room, ok = r.rooms[i], true
	} else if perSample && p < len(r.rooms) && len(r.rooms) == len(r.prompts) {
		room, ok = r.rooms[p], true
	}
	if x := at(len(r.hosts)); x < len(r.hosts) {
		host = r.hosts[x]
	}
	if x := at(len(r.ports)); x < len(r.ports) && r.ports[x] >= 0 {
		port, hasPort = r.ports[x], true
	}
	return
}

// checkLegs refuses arrays whose length does not fit the batch.
func (r *request) checkLegs() error {
	want := len(r.prompts)
	for _, l := range []struct {
		name string
		n    int
	}{{"bootstrap_host", len(r.hosts)}, {"bootstrap_port", len(r.ports)}, {"bootstrap_room", len(r.rooms)}} {
		if l.n > 1 && l.n != want && l.n != want*r.n {
			return invalidf(l.name, "%s has %d elements for a batch of %d", l.name, l.n, want)
		}
	}
	if !r.scalarRoom && len(r.rooms) == 1 && want > 1 {
		return invalidf("bootstrap_room", "bootstrap_room has 1 element for a batch of %d", want)
	}
	return nil
}
