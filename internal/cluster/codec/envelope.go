package codec

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

// Writer encodes the envelopes of one stream.
type Writer struct{ c coder }

// NewWriter makes one.
func NewWriter() *Writer { return &Writer{coder{writes: true, out: newWriteDictionary()}} }

// Append appends the encoding of e to b. After an error the stream is of no more use.
func (w *Writer) Append(b []byte, e *cluster.Envelope) ([]byte, error) {
	c := &w.c
	c.buf = b
	start := len(b)
	envelope(c, e)
	b, c.buf = c.buf, nil
	if c.err == nil && len(b)-start > MaxMessage {
		c.fail(ErrTooLarge, "%d bytes, the most is %d", len(b)-start, MaxMessage)
	}
	return b, c.err
}

// Reader decodes the envelopes of one stream.
type Reader struct{ c coder }

// NewReader makes one.
func NewReader() *Reader { return &Reader{coder{in: newReadDictionary()}} }

// Read decodes an envelope into e, whose slice of items it uses again. Nothing of e refers
// to b. After an error the stream is of no more use. The error is one of those of this
// package.
func (r *Reader) Read(b []byte, e *cluster.Envelope) error {
	c := &r.c
	clear(e.Items)
	*e = cluster.Envelope{Items: e.Items[:0]}
	if c.err != nil {
		return c.err
	}
	if len(b) > MaxMessage {
		c.fail(ErrTooLarge, "%d bytes, the most is %d", len(b), MaxMessage)
		return c.err
	}
	c.buf, c.budget, c.depth = b, maxDecoded, 0
	readFields(c, e, envelope)
	c.buf = nil
	e.Items = slices.DeleteFunc(e.Items, func(it cluster.Item) bool { return skips(c, uint8(it.Kind)) })
	e.Control = slices.DeleteFunc(e.Control, func(x cluster.Control) bool { return skips(c, uint8(x.Kind)) })
	if len(e.Control) == 0 {
		e.Control = nil
	}
	return c.err
}

// firstIgnorableKind is the lowest kind of items and control messages that a reader may
// skip when it does not know it.
const firstIgnorableKind = 128

func skips(c *coder, kind uint8) bool {
	if kind == 0 {
		c.fail(ErrMalformed, "an item or a control message without a kind")
	}
	return kind >= firstIgnorableKind
}

// skipsRest leaves out what else there is of an item or control message that is skipped.
func skipsRest(c *coder, kind uint8) bool {
	if c.writes || kind < firstIgnorableKind {
		return false
	}
	c.buf, c.num = nil, 0
	c.taken++
	return true
}

func envelope(c *coder, e *cluster.Envelope) {
	random(c, 1, &e.From)
	random(c, 2, &e.To)
	unsigned(c, 3, &e.Stamp)
	unsigned(c, 4, &e.Echo)
	message(c, 5, &e.Epoch, epoch)
	unsigned(c, 6, &e.Office)
	unsigned(c, 7, &e.Session)
	unsigned(c, 8, &e.Seq)
	unsigned(c, 9, &e.Ack)
	list(c, 10, &e.Control, control)
	list(c, 11, &e.Items, item)
	flag(c, 12, &e.Heard)
	signed(c, firstIgnorable, &e.EchoAge)
	flag(c, firstIgnorable+1, &e.Wanted)
	newer(c)
}

func epoch(c *coder, e *cluster.Epoch) {
	unsigned(c, 1, &e.Number)
	random(c, 2, &e.Keeper)
}

func control(c *coder, x *cluster.Control) {
	unsigned(c, 1, &x.Kind)
	if skipsRest(c, uint8(x.Kind)) {
		return
	}
	if x.Kind > cluster.LastControl && uint8(x.Kind) < firstIgnorableKind {
		c.fail(ErrUnknown, "a control message of kind %d", x.Kind)
		return
	}
	message(c, 2, &x.Epoch, epoch)
	flag(c, 3, &x.Heard)
	list(c, 4, &x.Members, member)
	blob(c, 5, &x.Soft)
	text(c, 6, &x.Reason)
}

func member(c *coder, m *cluster.Member) {
	text(c, 1, &m.Name)
	random(c, 2, &m.Incarnation)
	text(c, 3, &m.Address)
	unsigned(c, 4, &m.Versions.Min)
	unsigned(c, 5, &m.Versions.Max)
	text(c, 6, &m.Build)
	unsigned(c, 7, &m.Seat)
}

// ops are the steps of tickets, by number.
var ops = [...]admission.StepOp{
	1: admission.StepCancel, 2: admission.StepStartDecode, 3: admission.StepFirstToken, 4: admission.StepGrow,
	5: admission.StepEndPrefill, 6: admission.StepEndDecode, 7: admission.StepRelease, 8: admission.StepForget,
}

func op(c *coder, n protowire.Number, o *admission.StepOp) {
	var i uint8
	if c.writes {
		if i = uint8(max(slices.Index(ops[:], *o), 0)); i == 0 && *o != "" {
			c.fail(ErrMalformed, "a step %q is not for tickets", *o)
		}
	}
	unsigned(c, n, &i)
	if c.writes || i == 0 {
		return
	}
	if int(i) >= len(ops) {
		c.fail(ErrUnknown, "step %d", i)
		return
	}
	*o = ops[i]
}

func rankAt(c *coder, r *cluster.RankAt) {
	unsigned(c, 1, &r.Number)
	unsigned(c, 2, &r.Generation)
}

func item(c *coder, it *cluster.Item) {
	unsigned(c, 1, &it.Kind)
	if skipsRest(c, uint8(it.Kind)) {
		return
	}
	op(c, 2, &it.Op)
	flag(c, 3, &it.Granted)
	unsigned(c, 4, &it.Attempt)
	unsigned(c, 5, &it.Number)
	random(c, 6, &it.Member)
	signed(c, 7, &it.Amount)
	unsigned(c, 8, &it.Prefill.Number)
	unsigned(c, 9, &it.Prefill.Generation)
	unsigned(c, 10, &it.Decode.Number)
	unsigned(c, 11, &it.Decode.Generation)
	unsigned(c, 12, &it.Place.Epoch)
	unsigned(c, 13, &it.Place.Number)
	body(c, 14, it)
}

// body is what the kind of the item says.
func body(c *coder, n protowire.Number, it *cluster.Item) {
	switch it.Kind {
	case cluster.ItemArrive:
		bodyOf(c, n, it, ask)
	case cluster.ItemRefresh:
		bodyOf(c, n, it, hintsOf)
	case cluster.ItemMove:
		ranksBody(c, n, it)
	case cluster.ItemReport:
		bodyOf(c, n, it, report)
	case cluster.ItemObserve:
		bodyOf(c, n, it, observation)
	case cluster.ItemConfigure:
		bodyOf(c, n, it, configuration)
	case cluster.ItemQueued:
		bodyOf(c, n, it, queued)
	case cluster.ItemDecision:
		if _, refused := it.Body.(*cluster.Refused); refused || c.num == n+1 {
			bodyOf(c, n+1, it, refusedBody)
		} else {
			bodyOf(c, n, it, grant)
		}
	case cluster.ItemRows:
		bodyOf(c, n, it, rows)
	case cluster.ItemShares:
		bodyOf(c, n, it, shares)
	case cluster.ItemHold:
		bodyOf(c, n, it, holdOf)
	case cluster.ItemHolds:
		bodyOf(c, n, it, holds)
	case cluster.ItemStatus:
		viewBody(c, n, it)
	case cluster.ItemDocuments:
		bodyOf(c, n, it, documents)
	case cluster.ItemStep, cluster.ItemMovedAlone, cluster.ItemSharesTaken, cluster.ItemRenew, cluster.ItemMoved:
	default:
		c.fail(ErrUnknown, "an item of kind %d", it.Kind)
	}
}

func bodyOf[T any](c *coder, n protowire.Number, it *cluster.Item, fields func(*coder, *T)) {
	if c.writes {
		switch b := it.Body.(type) {
		case nil:
		case *T:
			optional(c, n, &b, fields)
		default:
			c.fail(ErrMalformed, "an item of kind %d with a %T", it.Kind, b)
		}
		return
	}
	if c.num != n {
		return
	}
	b, _ := it.Body.(*T)
	if optional(c, n, &b, fields); b != nil {
		it.Body = b
	}
}

func ranksBody(c *coder, n protowire.Number, it *cluster.Item) {
	ranks, _ := it.Body.([]cluster.RankAt)
	if list(c, n, &ranks, rankAt); ranks != nil && !c.writes {
		it.Body = ranks
	}
}

func viewBody(c *coder, n protowire.Number, it *cluster.Item) {
	view, _ := it.Body.(*cluster.ClusterView)
	if asJSON(c, n, &view); view != nil && !c.writes {
		it.Body = view
	}
}
