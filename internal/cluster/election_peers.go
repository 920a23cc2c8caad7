package cluster

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// roster is who is a member, and who is proven not to be any more.
type roster struct {
	// members are the last list that is known, of the epoch of.
	members []Member
	of      Epoch
	// ended are proven to have ended, the latest last, so many at most.
	ended   []Incarnation
	isEnded map[Incarnation]bool
	full    bool   // an event told that there are too many members
	version uint32 // of the protocol, as agreeVersion found it last
	greeted admission.Instant
}

func (r *roster) start() { r.isEnded = map[Incarnation]bool{} }

// know notes the list of an epoch, if none of a later one is known.
func (r *roster) know(of Epoch, list []Member) {
	if of.Compare(r.of) >= 0 && len(list) > 0 && len(list) <= maxMembers {
		r.of, r.members = of, list
	}
}

func bySeat(a, b Member) int {
	return cmp.Or(cmp.Compare(a.Seat, b.Seat), cmp.Compare(a.Incarnation, b.Incarnation))
}

func names(list []Member) (names []string) {
	for _, x := range list {
		names = append(names, x.Name)
	}
	return names
}

func nameOf(list []Member, who Incarnation) string {
	for _, x := range list {
		if x.Incarnation == who {
			return x.Name
		}
	}
	return who.String()
}

// hasEnded tells whether a member is proven to have ended.
func (e *election) hasEnded(x Incarnation) bool { return e.roster.isEnded[x] }

// markEnded notes that a member is proven to have ended.
func (e *election) markEnded(x Incarnation, why string) {
	r := &e.roster
	if r.isEnded[x] || x == 0 {
		return
	}
	if x == e.m.o.Self.Incarnation {
		e.ban("this process was declared to have ended, and takes no part any more until it is restarted")
		return
	}
	if len(r.ended) == maxEnded {
		delete(r.isEnded, r.ended[0])
		r.ended = slices.Delete(r.ended, 0, 1)
	}
	r.isEnded[x] = true
	r.ended = append(r.ended, x)
	if p := e.m.peers[x]; p != nil {
		e.m.event(LevelInfo, "cluster: a member has ended", "member", p.Name, "incarnation", x, "why", why)
	}
	if e.m.keeper != nil {
		e.m.keeper.ended(x)
	}
	e.m.dropPeer(x)
}

// ban ends taking part: another process is this member now, or it was given up.
func (e *election) ban(why string) {
	if e.banned != "" {
		return
	}
	e.banned = why
	e.m.event(LevelError, "cluster: "+why)
	if e.m.keeper != nil {
		e.resign("it was declared to have ended")
	}
}

// meet makes peers of the members of a list.
func (e *election) meet(list []Member) {
	for _, x := range list {
		if !usable(x) || e.hasEnded(x.Incarnation) || x.Incarnation == e.m.o.Self.Incarnation {
			continue
		}
		if e.m.peers[x.Incarnation] == nil && !e.room() {
			continue
		}
		e.m.addPeer(x)
	}
}

// room tells whether one more peer may be had; one that is not listed and does not answer
// gives way.
func (e *election) room() bool {
	if len(e.m.order) < maxMembers {
		return true
	}
	for _, p := range e.m.order {
		if p.refused != "" || !e.inAnyList(p.Incarnation) && p.quiet(e.m.now) > admission.Instant(e.m.o.Silent) {
			e.m.dropPeer(p.Incarnation)
			return true
		}
	}
	if !e.roster.full {
		e.roster.full = true
		e.m.event(LevelError, "cluster: there are too many members; more are not taken", "most", maxMembers)
	}
	return false
}

func (e *election) inAnyList(x Incarnation) bool {
	is := func(m Member) bool { return m.Incarnation == x }
	if e.m.keeper != nil && (slices.ContainsFunc(e.wanted(), is) || slices.ContainsFunc(e.hadList, is)) {
		return true
	}
	r := e.store.record
	return r != nil && slices.ContainsFunc(r.Members, is) || slices.ContainsFunc(e.roster.members, is)
}

// stranger makes a peer of the sender of an envelope that is not known yet, if it says
// who it is and may be a member.
func (e *election) stranger(v *Envelope) *peer {
	if v.From == 0 || v.From == e.m.o.Self.Incarnation || e.left {
		return nil
	}
	for i := range v.Control {
		c := &v.Control[i]
		if c.Kind != ControlHello && c.Kind != ControlSummons && c.Kind != ControlHandover {
			continue
		}
		for _, x := range c.Members[:min(len(c.Members), maxMembers)] {
			if x.Incarnation == v.From && usable(x) && e.room() {
				p := e.m.addPeer(x)
				if e.hasEnded(x.Incarnation) {
					e.refuse(p, "this process was declared to have ended; restart it")
				}
				return p
			}
		}
	}
	return nil
}

// refuse tells a process that it is no member. It stays a peer for as long as it asks, so
// that it can be told why.
func (e *election) refuse(p *peer, why string) {
	if p.refused != why {
		p.refused = why
		e.m.event(LevelError, "cluster: a process is not taken as a member: "+why, "name", p.Name, "address", p.Address, "incarnation", p.Incarnation)
	}
	p.say(Control{Kind: ControlReject, Reason: why})
}

// hello takes a process that says who it is. It may want to be listed.
func (e *election) hello(p *peer, c *Control) {
	if len(c.Members) != 1 || c.Members[0].Incarnation != p.Incarnation || !usable(c.Members[0]) {
		return
	}
	if e.hasEnded(p.Incarnation) {
		e.refuse(p, "this process was declared to have ended; restart it")
		return
	}
	x := c.Members[0]
	x.Seat = p.Seat
	p = e.m.addPeer(x)
	own := e.m.o.Self
	if x.Versions.Max < own.Versions.Min || own.Versions.Max < x.Versions.Min {
		e.refuse(p, fmt.Sprintf("it speaks the versions %d to %d of the protocol of clusters, and %s the versions %d to %d",
			x.Versions.Min, x.Versions.Max, own.Name, own.Versions.Min, own.Versions.Max))
		return
	}
	if !e.inAnyList(x.Incarnation) && !e.nameIsFree(p) {
		return
	}
	p.refused = ""
	if e.m.keeper == nil || !p.everHere || p.quiet(e.m.now) > admission.Instant(e.m.o.Silent) {
		return // one that does not hear this member could not be granted anything; it asks again
	}
	for _, q := range e.wanted() {
		if q.Incarnation != x.Incarnation && (x.Versions.Max < q.Versions.Min || q.Versions.Max < x.Versions.Min) {
			e.refuse(p, fmt.Sprintf("it speaks the versions %d to %d of the protocol of clusters, and the member %s the versions %d to %d",
				x.Versions.Min, x.Versions.Max, q.Name, q.Versions.Min, q.Versions.Max))
			return
		}
	}
	if len(e.wanted()) >= maxMembers && !slices.ContainsFunc(e.wanted(), func(q Member) bool { return q.Incarnation == x.Incarnation }) {
		e.refuse(p, fmt.Sprintf("the cluster has %d members already, which is the most", maxMembers))
		return
	}
	e.m.keeper.join(x)
}

// nameIsFree tells whether no other member has the name of p, which is new. One that had it
// and does not answer has ended: p is the same process, started once more. Whether it
// answers is seen by what was sent to it since p came.
func (e *election) nameIsFree(p *peer) bool {
	now, silent := e.m.now, admission.Instant(e.m.o.Silent)
	if p.Name == e.m.o.Self.Name {
		e.refuse(p, "a member named "+p.Name+" answers already, at "+e.m.o.Self.Address)
		return false
	}
	for _, q := range slices.Clone(e.m.order) {
		if q == p || q.Name != p.Name || q.refused != "" {
			continue
		}
		switch {
		case q.everHere && q.answered > p.since:
			if q.quiet(now) <= silent {
				e.refuse(p, "a member named "+p.Name+" answers already, at "+q.Address)
				return false
			}
			p.since = now // it answered then, and does not now: once more
			return false
		case now-p.since <= silent || now-q.since <= silent:
			return false // not known yet; p asks again
		default:
			e.markEnded(q.Incarnation, "it was started once more")
		}
	}
	return true
}

// leadsHere notes that a call for a member reached this process at its own address.
func (e *election) leadsHere(x Incarnation) (former bool) {
	p := e.m.peers[x]
	if p == nil || p.Name != e.m.o.Self.Name || p.Address != e.m.o.Self.Address {
		return false
	}
	p.former = true
	return true
}

// endFormer marks as ended who had the name of this process before: this one listens at its
// address, it answers nothing there, and if it was the keeper it renews no record. The last
// keeps routers apart that were given one name by mistake.
func (e *election) endFormer() {
	for _, p := range slices.Clone(e.m.order) {
		if p.former && !p.everHere && p.quiet(e.m.now) > admission.Instant(e.m.o.Silent) && (e.m.keeper != nil || e.notRenewed()) {
			e.markEnded(p.Incarnation, "this process was started in its place")
		}
	}
}

// wasRejected notes why another does not take this process.
func (e *election) wasRejected(p *peer, c *Control) {
	if p.rejects == c.Reason {
		return
	}
	p.rejects, p.greeted = c.Reason, e.m.now
	e.m.event(LevelError, "cluster: a member does not take this process: "+clip(c.Reason), "member", p.Name, "address", p.Address)
}

// goodbye notes that the sender has ended, or, with members, that they have, as it knows.
func (e *election) goodbye(p *peer, c *Control) {
	if len(c.Members) == 0 {
		e.markEnded(p.Incarnation, "it said goodbye")
		return
	}
	if p.refused != "" {
		return
	}
	for _, x := range c.Members[:min(len(c.Members), maxMembers)] {
		if x.Incarnation != e.m.o.Self.Incarnation && x.Incarnation != p.Incarnation {
			e.markEnded(x.Incarnation, "the member "+p.Name+" knows that it did")
		}
	}
}

// ended is an operator's word that the member of a name is gone.
func (e *election) endedByName(name string) error {
	if name == e.m.o.Self.Name {
		return fmt.Errorf("%w: %q is this one", ErrAnswers, name)
	}
	var found []Member
	for _, p := range e.m.order {
		if p.Name != name || p.refused != "" {
			continue
		}
		if p.everHere && p.quiet(e.m.now) <= admission.Instant(e.m.o.Silent) {
			return fmt.Errorf("%w: %q, at %s", ErrAnswers, name, p.Address)
		}
		found = append(found, p.Member)
	}
	if found == nil {
		return fmt.Errorf("%w as %q", ErrNoMember, name)
	}
	for _, x := range found {
		e.markEnded(x.Incarnation, "an operator said so")
	}
	return nil
}

// greet says who this is to those that do not know it, asks the keeper to list it, summons,
// and passes on what is known of members that ended.
func (e *election) greet() {
	now := e.m.now
	if now-e.roster.greeted < admission.Instant(e.m.o.Beat) || e.banned != "" {
		return
	}
	e.roster.greeted = now
	e.agreeVersion()
	listed := e.isListed()
	k := e.m.keeper
	var proven []Member
	if r := e.store.record; r != nil && k == nil {
		for _, x := range r.Members {
			if e.hasEnded(x.Incarnation) {
				proven = append(proven, x)
			}
		}
	}
	for _, p := range e.m.order {
		if p.refused != "" || p.rejects != "" && now-p.greeted < admission.Instant(e.m.o.ReadStore) {
			continue // who does not take this process is asked less often
		}
		p.greeted = now
		if !listed && k == nil || p.quiet(now) > admission.Instant(e.m.o.Silent) || !p.everHere {
			p.say(Control{Kind: ControlHello, Members: []Member{e.m.o.Self}})
		}
		if k != nil && p.epoch.Compare(k.epoch) < 0 {
			p.say(Control{Kind: ControlSummons, Epoch: k.epoch, Members: e.hadList})
		}
		if proven != nil && p.Incarnation == e.promised.Keeper {
			p.say(Control{Kind: ControlGoodbye, Members: proven})
		}
	}
	if e.handed.epoch != (Epoch{}) {
		e.offer()
	}
}

// dropQuiet forgets peers that nobody lists and that do not answer.
func (e *election) dropQuiet() {
	long := admission.Instant(2 * e.m.o.Lease)
	for _, p := range slices.Clone(e.m.order) {
		if e.m.now-p.since > long && p.quiet(e.m.now) > long && !e.inAnyList(p.Incarnation) {
			e.m.dropPeer(p.Incarnation)
		}
	}
}

// leave says goodbye to all. A keeper that could not hand over marks the record, so that
// who comes next need not wait for it.
func (e *election) leave() {
	if e.left {
		return
	}
	for _, p := range e.m.order {
		p.control = append(p.control[:0], Control{Kind: ControlGoodbye})
	}
	if e.m.keeper != nil {
		if e.store.op == nil && e.store.known {
			list := slices.DeleteFunc(slices.Clone(e.wanted()), func(x Member) bool { return x.Incarnation == e.m.o.Self.Incarnation })
			ended := e.roster.ended
			e.roster.ended = append(slices.Clone(ended[max(0, len(ended)+1-maxEnded):]), e.m.o.Self.Incarnation)
			e.write(Record{Epoch: e.promised, Members: list})
			e.roster.ended = ended
		}
		e.endOffice()
	}
	e.left = true
}

// agreeVersion finds the version of the protocol that all listed members speak, which is the
// one that the gate speaks: the oldest for a member that is not listed yet.
func (e *election) agreeVersion() {
	own := e.m.o.Self.Versions
	v := own.Min
	if e.isListed() {
		v = own.Max
		for _, x := range e.listed() {
			v = min(v, x.Versions.Max)
		}
	}
	if v = max(v, own.Min); v == e.roster.version {
		return
	}
	if e.roster.version != 0 && own.Min != own.Max {
		e.m.event(LevelInfo, "cluster: the version of the protocol that is spoken has changed", "version", v, "before", e.roster.version)
	}
	e.roster.version = v
}
