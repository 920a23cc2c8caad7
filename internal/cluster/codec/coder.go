package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// Bounds of a message, so that whoever has a stream cannot exhaust the reader.
const (
	// MaxMessage is the size in bytes of the largest message.
	MaxMessage = 16 << 20
	// maxDecoded is how much memory in bytes is allocated for one message.
	maxDecoded = 64 << 20
	maxDepth   = 16
	maxJSON    = 1 << 20
	// firstIgnorable is the lowest number of fields that a reader may skip when it does not
	// know them. It refuses the message for any other.
	firstIgnorable = 512
)

// The kinds of errors.
var (
	// ErrTooLarge: the message, or what it would take in memory, is over a bound.
	ErrTooLarge = errors.New("the message is too large")
	// ErrMalformed: it is no encoding of an envelope.
	ErrMalformed = errors.New("the message is malformed")
	// ErrUnknown: there is a field in it, or a kind of item, that must not be skipped. The
	// sender speaks a newer version of the protocol.
	ErrUnknown = errors.New("the message has what this version does not know and must not skip")
)

// coder writes a message, or reads one. Each type has one function for both, so that the
// two cannot differ: it names the fields in ascending order. A reader goes through it with
// the number of the field that comes next in the message, which each call compares with
// its own; if fields come in another order it goes through it once more.
type coder struct {
	writes bool
	buf    []byte // what was written; what is still to be read of the present message
	err    error
	depth  int

	// Of a reader.
	num    protowire.Number // of the field that comes next; 0: the message ends
	typ    protowire.Type
	taken  int // how many fields were read
	budget int // memory that may still be allocated

	in  *readDictionary
	out *writeDictionary
}

func (c *coder) fail(kind error, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", kind, fmt.Sprintf(format, args...))
	}
	c.buf, c.num = nil, 0
}

// next reads the number of the next field.
func (c *coder) next() {
	c.taken++
	if len(c.buf) == 0 {
		c.num = 0
		return
	}
	num, typ, n := protowire.ConsumeTag(c.buf)
	if n < 0 {
		c.fail(ErrMalformed, "a field's number cannot be read")
		return
	}
	c.num, c.typ, c.buf = num, typ, c.buf[n:]
}

// at tells whether the field n comes next. It must be of the type.
func (c *coder) at(n protowire.Number, typ protowire.Type) bool {
	if c.num != n {
		return false
	}
	if c.typ != typ {
		c.fail(ErrMalformed, "field %d has type %d in place of %d", n, c.typ, typ)
		return false
	}
	return true
}

func (c *coder) varint() uint64 {
	v, n := protowire.ConsumeVarint(c.buf)
	if n < 0 {
		c.fail(ErrMalformed, "field %d has no number", c.num)
		return 0
	}
	c.buf = c.buf[n:]
	return v
}

// bytes are valid as long as the message that is read.
func (c *coder) bytes() []byte {
	v, n := protowire.ConsumeBytes(c.buf)
	if n < 0 {
		c.fail(ErrMalformed, "field %d is longer than the message", c.num)
		return nil
	}
	c.buf = c.buf[n:]
	return v
}

// spend counts memory that is allocated.
func (c *coder) spend(size int) bool {
	if c.budget -= size; c.budget < 0 {
		c.fail(ErrTooLarge, "it would take more than %d MiB of memory", maxDecoded>>20)
		return false
	}
	return true
}

// unsigned is a number that is not negative.
func unsigned[T ~uint8 | ~uint16 | ~uint32 | ~uint64](c *coder, n protowire.Number, v *T) {
	if c.writes {
		if *v != 0 {
			c.buf = protowire.AppendVarint(protowire.AppendTag(c.buf, n, protowire.VarintType), uint64(*v))
		}
		return
	}
	if c.at(n, protowire.VarintType) {
		x := c.varint()
		if uint64(T(x)) != x {
			c.fail(ErrMalformed, "field %d: %d is out of range", n, x)
			return
		}
		*v = T(x)
		c.next()
	}
}

// random is a number that is mostly large.
func random[T ~uint64](c *coder, n protowire.Number, v *T) {
	if c.writes {
		if *v != 0 {
			c.buf = protowire.AppendFixed64(protowire.AppendTag(c.buf, n, protowire.Fixed64Type), uint64(*v))
		}
		return
	}
	if c.at(n, protowire.Fixed64Type) {
		*v = T(c.fixed64())
		c.next()
	}
}

func (c *coder) fixed64() uint64 {
	x, k := protowire.ConsumeFixed64(c.buf)
	if k < 0 {
		c.fail(ErrMalformed, "field %d has no number", c.num)
		return 0
	}
	c.buf = c.buf[k:]
	return x
}

// signed is a number that may be negative.
func signed[T ~int | ~int32 | ~int64](c *coder, n protowire.Number, v *T) {
	if c.writes {
		if *v != 0 {
			c.buf = protowire.AppendVarint(protowire.AppendTag(c.buf, n, protowire.VarintType), protowire.EncodeZigZag(int64(*v)))
		}
		return
	}
	if c.at(n, protowire.VarintType) {
		x := protowire.DecodeZigZag(c.varint())
		if int64(T(x)) != x {
			c.fail(ErrMalformed, "field %d: %d is out of range", n, x)
			return
		}
		*v = T(x)
		c.next()
	}
}

func flag(c *coder, n protowire.Number, v *bool) {
	if c.writes {
		if *v {
			c.buf = append(protowire.AppendTag(c.buf, n, protowire.VarintType), 1)
		}
		return
	}
	if c.at(n, protowire.VarintType) {
		*v = c.varint() != 0
		c.next()
	}
}

func float(c *coder, n protowire.Number, v *float64) {
	bits := math.Float64bits(*v)
	random(c, n, &bits)
	if !c.writes { // what is written may be written for another peer at the same time
		*v = math.Float64frombits(bits)
	}
}

func text[T ~string](c *coder, n protowire.Number, v *T) {
	if c.writes {
		if *v != "" {
			c.buf = protowire.AppendString(protowire.AppendTag(c.buf, n, protowire.BytesType), string(*v))
		}
		return
	}
	if c.at(n, protowire.BytesType) {
		*v = T(c.in.text(c, c.bytes()))
		c.next()
	}
}

func blob(c *coder, n protowire.Number, v *[]byte) {
	if c.writes {
		if len(*v) > 0 {
			c.buf = protowire.AppendBytes(protowire.AppendTag(c.buf, n, protowire.BytesType), *v)
		}
		return
	}
	if c.at(n, protowire.BytesType) {
		if b := c.bytes(); c.spend(len(b)) {
			*v = append([]byte(nil), b...)
			c.next()
		}
	}
}

// texts is a list of strings. An empty one is read as nil.
func texts[T ~string](c *coder, n protowire.Number, v *[]T) {
	if c.writes {
		for _, s := range *v {
			c.buf = protowire.AppendString(protowire.AppendTag(c.buf, n, protowire.BytesType), string(s))
		}
		return
	}
	for c.at(n, protowire.BytesType) && c.spend(int(unsafe.Sizeof(""))) {
		*v = append(*v, T(c.in.text(c, c.bytes())))
		c.next()
	}
}

// randoms is a list of numbers that are mostly large. An empty one is read as nil.
func randoms[T ~uint64](c *coder, n protowire.Number, v *[]T) {
	if c.writes {
		for _, x := range *v {
			c.buf = protowire.AppendFixed64(protowire.AppendTag(c.buf, n, protowire.Fixed64Type), uint64(x))
		}
		return
	}
	for c.at(n, protowire.Fixed64Type) && c.spend(8) {
		*v = append(*v, T(c.fixed64()))
		c.next()
	}
}

// message is a part with fields of its own. One that is all zero is not written.
func message[T any](c *coder, n protowire.Number, v *T, fields func(*coder, *T)) {
	if c.writes {
		start := c.begin(n)
		fields(c, v)
		if len(c.buf) == start {
			c.buf = c.buf[:start-1-protowire.SizeTag(n)]
		} else {
			c.end(start)
		}
		return
	}
	if c.at(n, protowire.BytesType) {
		read(c, v, fields)
	}
}

// optional is a message that is there or not.
func optional[T any](c *coder, n protowire.Number, v **T, fields func(*coder, *T)) {
	if c.writes {
		if *v != nil {
			start := c.begin(n)
			fields(c, *v)
			c.end(start)
		}
		return
	}
	if c.at(n, protowire.BytesType) {
		if *v == nil {
			if !c.spend(int(unsafe.Sizeof(**v))) {
				return
			}
			*v = new(T)
		}
		read(c, *v, fields)
	}
}

// list is a list of messages. An empty one is read as nil.
func list[T any](c *coder, n protowire.Number, v *[]T, fields func(*coder, *T)) {
	if c.writes {
		for i := range *v {
			start := c.begin(n)
			fields(c, &(*v)[i])
			c.end(start)
		}
		return
	}
	var zero T
	for c.at(n, protowire.BytesType) && c.spend(int(unsafe.Sizeof(zero))) {
		*v = append(*v, zero)
		read(c, &(*v)[len(*v)-1], fields)
	}
}

// asJSON is a message that is rare and of no fixed form. Settings are such.
func asJSON[T any](c *coder, n protowire.Number, v **T) {
	if c.writes {
		if *v == nil {
			return
		}
		b, err := json.Marshal(*v)
		if err != nil || len(b) > maxJSON {
			c.fail(ErrTooLarge, "field %d: %d bytes of JSON, %v", n, len(b), err)
			return
		}
		blob(c, n, &b)
		return
	}
	if c.at(n, protowire.BytesType) {
		b := c.bytes()
		if len(b) > maxJSON {
			c.fail(ErrTooLarge, "field %d: %d bytes of JSON, the most is %d", n, len(b), maxJSON)
			return
		}
		if !c.spend(16 * len(b)) {
			return
		}
		x := new(T)
		if err := json.Unmarshal(b, x); err != nil {
			c.fail(ErrMalformed, "field %d: %v", n, err)
			return
		}
		*v = x
		c.next()
	}
}

// begin starts a message, of which one byte is kept for the length.
func (c *coder) begin(n protowire.Number) (start int) {
	c.buf = append(protowire.AppendTag(c.buf, n, protowire.BytesType), 0)
	return len(c.buf)
}

// end writes the length of the message that began at start.
func (c *coder) end(start int) {
	if c.err != nil {
		return
	}
	size := len(c.buf) - start
	if more := protowire.SizeVarint(uint64(size)) - 1; more > 0 {
		var zeros [10]byte
		c.buf = append(c.buf, zeros[:more]...)
		copy(c.buf[start+more:], c.buf[start:start+size])
	}
	protowire.AppendVarint(c.buf[:start-1], uint64(size))
}

// read reads the message that comes next.
func read[T any](c *coder, v *T, fields func(*coder, *T)) {
	inner := c.bytes()
	if c.err != nil {
		return
	}
	rest := c.buf
	if c.depth++; c.depth > maxDepth {
		c.fail(ErrTooLarge, "messages are nested more than %d deep", maxDepth)
		return
	}
	c.buf = inner
	readFields(c, v, fields)
	c.depth--
	if c.err != nil {
		return
	}
	c.buf = rest
	c.next()
}

// readFields reads the fields of the present message.
func readFields[T any](c *coder, v *T, fields func(*coder, *T)) {
	c.next()
	for c.num != 0 {
		before := c.taken
		fields(c, v)
		if c.num == 0 || c.taken != before {
			continue
		}
		if c.num < firstIgnorable {
			c.fail(ErrUnknown, "field %d of %T", c.num, v)
			return
		}
		n := protowire.ConsumeFieldValue(c.num, c.typ, c.buf)
		if n < 0 {
			c.fail(ErrMalformed, "field %d cannot be skipped", c.num)
			return
		}
		c.buf = c.buf[n:]
		c.next()
	}
}
