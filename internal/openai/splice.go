package openai

import (
	"slices"
	"strconv"
)

// Splicer builds an outgoing body from a peeked one: the client's bytes, with fields
// added, replaced or removed, as segments for a vectored write.
// One Splicer serves one leg; it may be reused with Reset. The segments refer to the
// client's body and to the Splicer's own buffer, and are valid until the next Reset.
type Splicer struct {
	p *Peeked

	// ours has all bytes that are not the client's: members to insert (each with a
	// comma after it) and replacements, in the order in which they were set.
	ours     []byte
	inserts  []Span // of ours; adjacent ones are joined
	edits    []edit
	segments [][]byte
	set      FieldSet
	deleted  FieldSet
	numDel   int

	oursArr [384]byte
	insArr  [8]Span
	edArr   [8]edit
	segArr  [12][]byte
}

// edit replaces the body's bytes at with ours[with].
type edit struct {
	at   Span
	with Span
}

// Reset starts a new body from p.
func (s *Splicer) Reset(p *Peeked) {
	s.p = p
	if s.ours == nil {
		s.ours, s.inserts, s.edits, s.segments = s.oursArr[:0], s.insArr[:0], s.edArr[:0], s.segArr[:0]
	}
	if cap(s.ours) > 64<<10 {
		s.ours = s.oursArr[:0] // a large buffer must not stay in a pool
	}
	clear(s.segments[:cap(s.segments)]) // drop references to the last client's bytes
	s.ours, s.inserts, s.edits, s.segments = s.ours[:0], s.inserts[:0], s.edits[:0], s.segments[:0]
	s.set, s.deleted, s.numDel = 0, 0, 0
}

// open begins a value of f: in place of the client's value if there is one, else as a new
// field at the front.
func (s *Splicer) open(f Field) (start int) {
	s.once(f)
	s.set = s.set.With(f)
	start = len(s.ours)
	if !s.p.Has(f) {
		s.ours = append(s.ours, '"')
		s.ours = append(s.ours, f.String()...)
		s.ours = append(s.ours, '"', ':')
	}
	return start
}

// once guards against two edits of one field, which would write it twice.
func (s *Splicer) once(f Field) {
	if s.set.Has(f) || s.deleted.Has(f) {
		panic("BUG: the field " + f.String() + " is spliced twice")
	}
}

func (s *Splicer) close(f Field, start int) {
	if s.p.Has(f) {
		s.edits = append(s.edits, edit{s.p.fields[f].value, Span{start, len(s.ours)}})
		return
	}
	s.ours = append(s.ours, ',')
	if n := len(s.inserts); n > 0 && s.inserts[n-1].End == start {
		s.inserts[n-1].End = len(s.ours) // one segment for adjacent ones
		return
	}
	s.inserts = append(s.inserts, Span{start, len(s.ours)})
}

// SetRaw sets f to a JSON value. Each field may be set or deleted once; a second edit
// of it is a bug and panics.
func (s *Splicer) SetRaw(f Field, json []byte) {
	at := s.open(f)
	s.ours = append(s.ours, json...)
	s.close(f, at)
}

// SetString sets f to a string.
func (s *Splicer) SetString(f Field, v string) {
	at := s.open(f)
	s.ours = AppendString(s.ours, v)
	s.close(f, at)
}

// SetInt sets f to an integer; all 64 bits are written exactly.
func (s *Splicer) SetInt(f Field, v int64) {
	at := s.open(f)
	s.ours = strconv.AppendInt(s.ours, v, 10)
	s.close(f, at)
}

// SetBool sets f to true or false.
func (s *Splicer) SetBool(f Field, v bool) {
	at := s.open(f)
	s.ours = strconv.AppendBool(s.ours, v)
	s.close(f, at)
}

// SetNull sets f to null.
func (s *Splicer) SetNull(f Field) {
	at := s.open(f)
	s.ours = append(s.ours, "null"...)
	s.close(f, at)
}

// SetInts sets f to a list of integers.
func (s *Splicer) SetInts(f Field, v []int64) {
	at := s.open(f)
	s.ours = append(s.ours, '[')
	for i, x := range v {
		if i > 0 {
			s.ours = append(s.ours, ',')
		}
		s.ours = strconv.AppendInt(s.ours, x, 10)
	}
	s.ours = append(s.ours, ']')
	s.close(f, at)
}

// SetStringTimes sets f to a list of n times the same string.
func (s *Splicer) SetStringTimes(f Field, v string, n int) {
	at := s.open(f)
	mark := len(s.ours)
	s.ours = AppendString(s.ours, v)
	s.repeat(mark, n)
	s.close(f, at)
}

// SetIntTimes sets f to a list of n times the same integer.
func (s *Splicer) SetIntTimes(f Field, v int64, n int) {
	at := s.open(f)
	mark := len(s.ours)
	s.ours = strconv.AppendInt(s.ours, v, 10)
	s.repeat(mark, n)
	s.close(f, at)
}

// SetNullTimes sets f to a list of n nulls.
func (s *Splicer) SetNullTimes(f Field, n int) {
	at := s.open(f)
	mark := len(s.ours)
	s.ours = append(s.ours, "null"...)
	s.repeat(mark, n)
	s.close(f, at)
}

// repeat turns the value written since mark into a list of n of it.
func (s *Splicer) repeat(mark, n int) {
	one := slices.Clone(s.ours[mark:])
	s.ours = append(s.ours[:mark], '[')
	for i := range n {
		if i > 0 {
			s.ours = append(s.ours, ',')
		}
		s.ours = append(s.ours, one...)
	}
	s.ours = append(s.ours, ']')
}

// Delete removes f from the body; it does nothing if the body does not have it.
func (s *Splicer) Delete(f Field) {
	if !s.p.Has(f) || s.deleted.Has(f) {
		return
	}
	s.once(f)
	s.deleted = s.deleted.With(f)
	s.numDel++
}

// Segments is the new body in pieces, and its length in bytes. The slice itself may
// be consumed (net.Buffers does so); another call makes it anew.
func (s *Splicer) Segments() (segments [][]byte, size int) {
	p := s.p
	edits := s.withDeletes()
	out := s.segments[:0]
	add := func(b []byte) {
		if len(b) > 0 {
			out = append(out, b)
			size += len(b)
		}
	}
	at := 0
	if len(s.inserts) > 0 {
		add(p.Body[:p.afterOpen])
		at = p.afterOpen
		for i, ins := range s.inserts {
			if i == len(s.inserts)-1 && p.Members == s.numDel {
				ins.End-- // nothing follows the last comma
			}
			add(s.ours[ins.Start:ins.End])
		}
	}
	for _, e := range edits {
		add(p.Body[at:e.at.Start])
		add(s.ours[e.with.Start:e.with.End])
		at = e.at.End
	}
	add(p.Body[at:])
	s.segments = out
	return out, size
}

// withDeletes returns all edits in the order of the body, deletions included.
func (s *Splicer) withDeletes() []edit {
	edits := s.edits
	if s.numDel > 0 {
		edits = slices.Clone(edits)
		gone := make([]fieldSpan, 0, s.numDel)
		for f := FieldNone + 1; f < numFields; f++ {
			if s.deleted.Has(f) {
				gone = append(gone, s.p.fields[f])
			}
		}
		slices.SortFunc(gone, func(a, b fieldSpan) int { return a.start - b.start })
		for i := 0; i < len(gone); {
			j := i + 1
			for j < len(gone) && gone[j].ordinal == gone[j-1].ordinal+1 {
				j++
			}
			edits = append(edits, edit{at: s.p.cut(gone[i], gone[j-1])})
			i = j
		}
	}
	slices.SortFunc(edits, func(a, b edit) int { return a.at.Start - b.at.Start })
	return edits
}

// cut is the range to remove for the adjacent members first to last, with one of the
// commas around them, so that the rest stays valid.
func (p *Peeked) cut(first, last fieldSpan) Span {
	if last.ordinal < p.Members-1 {
		return Span{first.start, p.scan.space(last.value.End) + 1}
	}
	if first.ordinal > 0 {
		return Span{first.start - 1, last.value.End}
	}
	return Span{first.start, last.value.End}
}

// AppendBytes appends the new body in one piece.
func (s *Splicer) AppendBytes(dst []byte) []byte {
	segments, size := s.Segments()
	dst = slices.Grow(dst, size)
	for _, b := range segments {
		dst = append(dst, b...)
	}
	return dst
}
