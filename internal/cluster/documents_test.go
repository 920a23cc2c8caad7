package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/admission"
)

// docNet is some members' documents with links between them, of which a test lets the
// messages through.
type docNet struct {
	nodes  []*docNode
	keeper *docNode
	next   Incarnation
}

// docNode is one member, and what its fleet was told.
type docNode struct {
	m    *Machine
	told map[docName]string // bodies; by others
}

func newDocNet(n int) *docNet {
	x := &docNet{next: 1}
	for i := range n {
		x.nodes = append(x.nodes, nil)
		x.start(i)
	}
	x.elect(0)
	return x
}

// start starts member i, again if it ran before.
func (x *docNet) start(i int) {
	m := NewMachine(Options{Self: Member{Name: fmt.Sprintf("m%d", i), Incarnation: x.next}}, 0)
	m.docs.most = 4
	x.next++
	x.nodes[i] = &docNode{m: m, told: map[docName]string{}}
}

// elect makes member i the keeper of all others, whose sessions begin with what they have.
func (x *docNet) elect(i int) {
	x.keeper = x.nodes[i]
	self := x.keeper.m.o.Self
	for _, n := range x.nodes {
		n.m.keeper = nil
		n.m.election.promised = Epoch{1, self.Incarnation}
		n.m.peers, n.m.order = map[Incarnation]*peer{}, nil
	}
	x.keeper.m.keeper = &keeper{m: x.keeper.m}
	for _, n := range x.nodes {
		if n != x.keeper {
			x.join(n)
		}
	}
}

// join opens a session of n with the keeper: what is on the way is lost.
func (x *docNet) join(n *docNode) {
	k := x.keeper.m
	n.m.addPeer(k.o.Self).pending = nil
	k.addPeer(n.m.o.Self).pending = nil
	n.m.toKeeper(Item{Kind: ItemDocuments, Body: n.m.docs.hello()})
}

// deliver lets up to most messages of one link through.
func (x *docNet) deliver(n *docNode, toKeeper bool, most int) (moved bool) {
	from, to := x.keeper.m, n.m
	if toKeeper {
		from, to = n.m, x.keeper.m
	}
	p := from.peers[to.o.Self.Incarnation]
	for ; p != nil && len(p.pending) > 0 && most > 0; most-- {
		it := p.pending[0]
		p.pending = p.pending[1:]
		to.docs.receive(from.o.Self.Incarnation, it.Body.(*Documents))
		moved = true
	}
	return moved
}

// quiet lets all through until nothing is on the way.
func (x *docNet) quiet() {
	for moved := true; moved; {
		moved = false
		for _, n := range x.nodes {
			if n != x.keeper {
				moved = x.deliver(n, true, 1) || moved
				moved = x.deliver(n, false, 1) || moved
			}
		}
	}
	for _, n := range x.nodes {
		n.learn()
	}
}

// pass lets time pass for all.
func (x *docNet) pass(d time.Duration) {
	for _, n := range x.nodes {
		n.m.now = n.m.now.Add(d)
	}
}

// tick tells the documents the time; no session is opened besides those of the test.
func (n *docNode) tick(now admission.Instant) {
	n.m.at(now)
	n.m.docs.tick()
}

// learn does with what the fleet is told what it does.
func (n *docNode) learn() {
	for _, d := range n.m.Out().Documents {
		if d.Deleted {
			delete(n.told, d.name())
		} else {
			n.told[d.name()] = string(d.Body)
		}
	}
}

func (n *docNode) declare(d Document) {
	n.m.Declare(n.m.now, []Document{d})
	n.learn()
	d.Origin = ""
	if d.Source != "" {
		d.Origin = n.m.o.Self.Name
	}
	if d.Deleted || d.Source != "" {
		delete(n.told, d.name())
	} else {
		n.told[d.name()] = string(d.Body)
	}
}

func (n *docNode) String() string {
	var list []string
	for _, d := range n.m.Documents() {
		list = append(list, strings.Trim(fmt.Sprintf("%s@%s%s=%s", d.Key, d.Source, d.Origin, d.Body), "@"))
	}
	return strings.Join(list, " ")
}

func (x *docNet) want(t *testing.T, want string) {
	t.Helper()
	x.quiet()
	for i, n := range x.nodes {
		if got := n.String(); got != want {
			t.Errorf("m%d has %q, want %q", i, got, want)
		}
	}
}

func byHand(url, body string) Document {
	return Document{Key: url, Body: []byte(body), Deleted: body == ""}
}

func declaredBy(source, url, body string) Document {
	return Document{Key: url, Source: source, Body: []byte(body), Deleted: body == ""}
}

func TestWhatIsOrderedAtOneMemberIsKnownToAll(t *testing.T) {
	x := newDocNet(3)
	x.quiet()
	x.nodes[1].declare(byHand("a", "1"))
	x.nodes[0].declare(byHand("b", "2"))
	x.want(t, "a@=1 b@=2")
	x.nodes[2].declare(byHand("a", "3"))
	x.want(t, "a@=3 b@=2")
	x.nodes[0].declare(byHand("a", ""))
	x.want(t, "b@=2")
	x.nodes[1].declare(byHand("a", "4"))
	x.want(t, "a@=4 b@=2")
}

// The keeper and then each other member is started anew: what was ordered stays.
func TestDocumentsSurviveARestartOfAnyMember(t *testing.T) {
	x := newDocNet(3)
	x.nodes[0].declare(byHand("a", "1"))
	x.nodes[1].declare(byHand("b", "2"))
	x.nodes[1].declare(byHand("b", ""))
	x.want(t, "a@=1")
	for i := range x.nodes {
		x.start(i)
		x.elect((i + 1) % 3)
		x.want(t, "a@=1")
		for n := range x.nodes {
			if got := x.nodes[n].told[docName{key: "a"}]; got != "1" {
				t.Errorf("the fleet of m%d was told %q", n, got)
			}
		}
	}
}

// A member that was away when something was deleted does not bring it back, also when the
// others have forgotten that it was deleted.
func TestWhatWasDeletedDoesNotComeBack(t *testing.T) {
	for _, forget := range []bool{false, true} {
		x := newDocNet(3)
		x.nodes[2].declare(byHand("a", "1"))
		x.want(t, "a@=1")
		away := x.nodes[2]
		x.nodes = x.nodes[:2]
		x.elect(0)
		x.nodes[1].declare(byHand("a", ""))
		for i := 0; forget && i < 20; i++ {
			x.nodes[i%2].declare(byHand(fmt.Sprint("x", i), "1"))
			x.quiet()
			x.nodes[i%2].declare(byHand(fmt.Sprint("x", i), ""))
			x.quiet()
			x.pass(time.Minute)
		}
		x.want(t, "")
		if _, kept := x.keeper.m.docs.byName[docName{key: "a"}]; kept == forget {
			t.Fatalf("forget=%v, but it is kept: %v", forget, kept)
		}
		late := byHand("b", "2")
		late.Version.Counter = 1 << 40 // by the clock
		away.declare(late)             // while it is cut off
		x.nodes = append(x.nodes, away)
		x.elect(0)
		x.want(t, "b@=2")
		if _, ok := away.told[docName{key: "a"}]; ok {
			t.Error("its fleet was not told")
		}
	}
}

// What a member reads from its file when it starts counts where nobody knows better, though
// the member has declared other workers before.
func TestWhatIsRestoredFromAFileIsOlderThanAllElse(t *testing.T) {
	x := newDocNet(2)
	x.nodes[0].declare(byHand("a", "1"))
	x.nodes[0].declare(byHand("gone", "1"))
	x.nodes[0].declare(byHand("gone", ""))
	x.want(t, "a@=1")
	x.start(1)
	x.nodes[1].declare(declaredBy("file", "c", "1"))
	for _, d := range []Document{byHand("a", "0"), byHand("b", "0"), byHand("gone", "0")} {
		d.Restored = true
		x.nodes[1].declare(d)
	}
	x.elect(0)
	x.want(t, "a@=1 b@=0 c@filem1=1")
	if told := x.nodes[1].told; told[docName{key: "a"}] != "1" || len(told) != 2 {
		t.Errorf("the fleet that restored was told %v", told)
	}
}

// What the sources of a member declare is the member's own, outlives it for a while, and
// goes when it does not come again.
func TestWhatSourcesDeclareOutlivesTheirMember(t *testing.T) {
	x := newDocNet(3)
	x.nodes[1].declare(declaredBy("file", "a", "1"))
	x.nodes[1].declare(declaredBy("file", "b", "1"))
	x.nodes[2].declare(declaredBy("file", "a", "2"))
	x.want(t, "a@filem1=1 a@filem2=2 b@filem1=1")
	x.nodes[2].declare(declaredBy("file", "a", ""))
	x.want(t, "a@filem1=1 b@filem1=1")

	// It comes again and declares one of them.
	docs := &x.keeper.m.docs
	docs.members([]string{"m0", "m2"})
	x.start(1)
	x.elect(0)
	x.nodes[1].declare(declaredBy("file", "a", "1"))
	docs.members([]string{"m0", "m1", "m2"})
	x.want(t, "a@filem1=1 b@filem1=1")
	x.nodes[1].tick(admission.Instant(time.Minute))
	x.want(t, "a@filem1=1")

	// It does not.
	docs.members([]string{"m0", "m2"})
	x.keeper.tick(admission.Instant(59 * time.Second))
	x.nodes = []*docNode{x.nodes[0], x.nodes[2]}
	x.want(t, "a@filem1=1")
	x.keeper.tick(admission.Instant(time.Minute))
	x.want(t, "")
}

// A member that was taken for gone, and is not, declares again what it declares.
func TestAMemberThatWasTakenForGoneDeclaresAgain(t *testing.T) {
	x := newDocNet(2)
	x.nodes[1].declare(declaredBy("file", "a", "1"))
	x.want(t, "a@filem1=1")
	x.keeper.m.docs.members([]string{"m0"})
	x.keeper.tick(admission.Instant(time.Minute))
	x.want(t, "a@filem1=1")
}

// Whatever is lost, late or repeated, in the end all have the same, and so do their fleets.
func TestDocumentsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newDocNet(3)
		for i := range rapid.IntRange(1, 80).Draw(t, "steps") {
			n := rapid.IntRange(0, 2).Draw(t, "member")
			node := x.nodes[n]
			d := Document{Key: string(rune('a' + rapid.IntRange(0, 5).Draw(t, "key"))), Body: []byte(fmt.Sprint(i))}
			d.Deleted = rapid.IntRange(0, 1).Draw(t, "deleted") == 0
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				x.elect(n)
			case 1:
				if node != x.keeper {
					x.join(node)
				}
			case 2:
				x.start(n)
				x.elect(rapid.IntRange(0, 2).Draw(t, "keeper"))
			case 3, 4:
				if node != x.keeper {
					x.deliver(node, rapid.Bool().Draw(t, "to keeper"), rapid.IntRange(1, 4).Draw(t, "messages"))
					node.learn()
					x.keeper.learn()
				}
			case 5:
				d.Source = "file"
				node.declare(d)
			case 6:
				if rapid.IntRange(0, 4).Draw(t, "pause") == 0 {
					x.elect(n)
					x.quiet()
					x.pass(deletedKept)
				}
			default:
				node.declare(d)
			}
		}
		x.elect(0)
		x.quiet()
		for _, n := range x.nodes {
			n.m.docs.tick() // takes back what earlier incarnations declared
		}
		x.quiet()
		want := x.keeper.String()
		for i, n := range x.nodes {
			if got := n.String(); got != want {
				t.Fatalf("m%d has %q, m0 %q", i, got, want)
			}
			for _, d := range n.m.Documents() {
				if body, mine := n.m.docs.own[d.name()]; mine {
					if string(body) != string(d.Body) {
						t.Fatalf("m%d declares %s, and all have %s", i, body, d.Body)
					}
				} else if n.told[d.name()] != string(d.Body) {
					t.Fatalf("the fleet of m%d was told %q of %v, which is %s", i, n.told[d.name()], d.name(), d.Body)
				}
				delete(n.told, d.name())
			}
			for name := range n.told {
				if _, mine := n.m.docs.own[name]; !mine {
					t.Fatalf("the fleet of m%d was not told that %v is gone", i, name)
				}
			}
		}
		// Nothing is sent any more.
		for _, n := range x.nodes {
			n.m.docs.tick()
			if n != x.keeper && (x.deliver(n, true, 1) || x.deliver(n, false, 1)) {
				t.Fatal("something is still sent")
			}
		}
		x.elect(1) // and with another keeper it is the same
		x.quiet()
		if got := x.nodes[2].String(); got != want {
			t.Fatalf("after another election m2 has %q, before %q", got, want)
		}
	})
}

// The documents of a message, and all of them, are bounded.
func TestDocumentsAreBounded(t *testing.T) {
	x := newDocNet(2)
	big := strings.Repeat("x", maxDocumentSize-1)
	for i := range 20 {
		x.nodes[1].declare(byHand(fmt.Sprint(i), big))
	}
	x.nodes[1].declare(byHand("too large", big+"xx"))
	if n := len(x.nodes[1].m.Documents()); n != 20 || x.nodes[1].m.docs.refused != 1 {
		t.Errorf("%d documents, %d refused", n, x.nodes[1].m.docs.refused)
	}
	for _, part := range x.nodes[1].m.docs.lacking(nil, 0) {
		size := 0
		for _, d := range part.All {
			size += len(d.Body)
		}
		if size > maxDocumentsPart {
			t.Errorf("a message of %d bytes", size)
		}
	}
	x.quiet()
	if a, b := x.nodes[0].String(), x.nodes[1].String(); a != b {
		t.Error("they differ")
	}
	d := &x.nodes[0].m.docs
	for i := range 2 * maxWriters {
		d.take(&docSession{}, false, &Document{Key: "k", Version: Version{uint64(i + 1), Incarnation(i + 10)}})
	}
	if len(d.seen) > maxWriters+1 || !slices.ContainsFunc(d.have(), func(v Version) bool { return v.Writer == Incarnation(2*maxWriters+9) }) {
		t.Errorf("%d writers are known", len(d.seen))
	}
	d.take(&docSession{}, false, &Document{Key: "k", Version: Version{1<<64 - 1, 5}})
	if d.highest > maxCounter {
		t.Error("a counter was taken after which there is none")
	}
}
