package codec

import (
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-router/sluice/admission"
)

// What requests ask for is mostly one of a few targets, which can be long. A stream sends
// each once and then its number; each new target takes the next number in turn.
const (
	maxTargets = 1024
	// maxTargetSize is the size in bytes of targets that are given a number. Larger ones
	// are sent whole each time.
	maxTargetSize = 2 << 10
)

// writeDictionary is the sender's end.
type writeDictionary struct {
	numbers map[string]uint32 // from 1 on, by what is written of the target
	keys    []string          // by number
	turn    int
	key     coder
}

// readDictionary is the receiver's end.
type readDictionary struct {
	targets []admission.TargetSpec // by number
	texts   map[string]string
}

func newReadDictionary() *readDictionary { return &readDictionary{texts: map[string]string{}} }

func newWriteDictionary() *writeDictionary { return &writeDictionary{numbers: map[string]uint32{}} }

// targetRef is a target as it is sent: as Number, with Spec when the number means
// something new from now on; or as Spec alone.
type targetRef struct {
	Number uint32
	Spec   *admission.TargetSpec
}

func refFields(c *coder, r *targetRef) {
	unsigned(c, 1, &r.Number)
	optional(c, 2, &r.Spec, targetSpec)
}

// target writes or reads a target by the dictionary.
func target(c *coder, n protowire.Number, s *admission.TargetSpec) {
	if c.writes {
		ref := c.out.refer(s)
		message(c, n, &ref, refFields)
		return
	}
	if !c.at(n, protowire.BytesType) {
		return
	}
	size := len(c.buf)
	var ref targetRef
	if read(c, &ref, refFields); c.err != nil {
		return
	}
	d, i := c.in, int(ref.Number)-1
	switch {
	case i < 0 && ref.Spec != nil:
		*s = *ref.Spec
		return
	case ref.Spec != nil && size-len(c.buf) > maxTargetSize+64, i >= maxTargets:
		c.fail(ErrTooLarge, "target %d is too large, or one too many", ref.Number)
		return
	case i >= 0 && i == len(d.targets) && ref.Spec != nil:
		d.targets = append(d.targets, *ref.Spec)
	case i < 0 || i >= len(d.targets):
		c.fail(ErrMalformed, "target %d was not told", ref.Number)
		return
	case ref.Spec != nil:
		d.targets[i] = *ref.Spec
	}
	*s = d.targets[i]
}

// refer returns how s is to be sent.
func (d *writeDictionary) refer(s *admission.TargetSpec) targetRef {
	d.key.writes, d.key.buf = true, d.key.buf[:0]
	targetSpec(&d.key, s)
	if n, ok := d.numbers[string(d.key.buf)]; ok {
		return targetRef{Number: n}
	}
	if len(d.key.buf) > maxTargetSize {
		d.key.buf = nil
		return targetRef{Spec: s}
	}
	key, i := string(d.key.buf), d.turn
	if i < len(d.keys) {
		delete(d.numbers, d.keys[i])
		d.keys[i] = key
	} else {
		d.keys = append(d.keys, key)
	}
	d.turn = (i + 1) % maxTargets
	d.numbers[key] = uint32(i + 1)
	return targetRef{uint32(i + 1), s}
}

// Names that come again and again are kept, some at most.
const (
	maxTexts    = 4096
	maxTextSize = 128
)

func (d *readDictionary) text(c *coder, b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := d.texts[string(b)]; ok {
		return s
	}
	if !c.spend(len(b) + int(unsafe.Sizeof(""))) {
		return ""
	}
	s := string(b)
	if len(s) <= maxTextSize {
		if len(d.texts) >= maxTexts {
			clear(d.texts)
		}
		d.texts[s] = s
	}
	return s
}

// targetSpec are the fields of a target.
func targetSpec(c *coder, s *admission.TargetSpec) {
	text(c, 1, &s.Model)
	unsigned(c, 2, &s.Shape)
	text(c, 3, &s.Pins[0])
	text(c, 4, &s.Pins[1])
	leg(c, 5, s, 0)
	leg(c, 6, s, 1)
	text(c, 7, &s.Adapter)
	unsigned(c, 8, &s.Topology)
	signed(c, 9, &s.TopologyWeight)
}

// targetLeg is what a target asks of the rank of one leg.
type targetLeg struct {
	OnlyAllowed bool // Allowed is not nil
	Allowed     []string
	Require     []admission.Label
	Prefer      []admission.Preference
}

func leg(c *coder, n protowire.Number, s *admission.TargetSpec, l int) {
	if c.writes {
		if s.Allowed[l] != nil || s.Require[l] != nil || s.Prefer[l] != nil {
			message(c, n, &targetLeg{s.Allowed[l] != nil, s.Allowed[l], s.Require[l], s.Prefer[l]}, legFields)
		}
		return
	}
	if c.num != n {
		return
	}
	x := &targetLeg{}
	message(c, n, x, legFields)
	if x.OnlyAllowed && x.Allowed == nil {
		x.Allowed = []string{}
	}
	s.Allowed[l], s.Require[l], s.Prefer[l] = x.Allowed, x.Require, x.Prefer
}

func legFields(c *coder, x *targetLeg) {
	flag(c, 1, &x.OnlyAllowed)
	texts(c, 2, &x.Allowed)
	list(c, 3, &x.Require, label)
	list(c, 4, &x.Prefer, preference)
}

func preference(c *coder, p *admission.Preference) {
	label(c, &p.Label)
	signed(c, 3, &p.Weight)
}

func label(c *coder, l *admission.Label) {
	text(c, 1, &l.Key)
	text(c, 2, &l.Value)
}

// labels are those of a rank.
func labels(c *coder, n protowire.Number, m *map[string]string) {
	if c.writes {
		for k, v := range *m {
			list(c, n, &[]admission.Label{{Key: k, Value: v}}, label)
		}
		return
	}
	if c.num != n {
		return
	}
	var all []admission.Label
	list(c, n, &all, label)
	if *m == nil {
		*m = make(map[string]string, len(all))
	}
	for _, l := range all {
		(*m)[l.Key] = l.Value
	}
}
