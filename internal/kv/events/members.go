package events

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"strconv"
)

// The members of an event, each read by itself: one that cannot be read spoils no more than
// it must.

// field is a member of an event.
type field uint8

const (
	fieldNone field = iota
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoraID
	fieldLoraName
	fieldMedium
	fieldExtra
	fieldGroup
	fieldKind
	fieldLocality
	fieldSalt
	fieldSession
)

// The members of events that are arrays, after the tag. Versions differ in how many they
// send, never in their order.
var (
	storedFields = []field{fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoraID, fieldMedium,
		fieldLoraName, fieldExtra, fieldGroup, fieldKind, fieldNone, fieldLocality}
	removedFields = []field{fieldHashes, fieldMedium, fieldGroup, fieldLocality}
)

// fieldOf is the member of a name, for events that are maps.
func fieldOf(name []byte) field {
	switch string(name) {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoraID
	case "lora_name":
		return fieldLoraName
	case "medium":
		return fieldMedium
	case "extra_keys":
		return fieldExtra
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldKind
	case "locality":
		return fieldLocality
	case "cache_salt":
		return fieldSalt
	case "session_id":
		return fieldSession
	}
	return fieldNone
}

// set reads the value of a member and returns what follows it.
func (d *decoder) set(f field, hashes *[]uint64, b []byte) []byte {
	s := &d.stored
	k, n, in, _ := head(b)
	rest := in
	if f == fieldNone || k == kindArray && f != fieldTokens && f != fieldHashes || k >= kindStr && k != kindArray {
		rest = must(b)
	}
	var str []byte
	if k == kindStr {
		str = in[:n]
	}
	switch f {
	case fieldHashes:
		if k != kindArray {
			d.unusable = true
			break
		}
		return d.hashes(hashes, in, n)
	case fieldTokens:
		if k != kindArray {
			d.unknown = d.unknown || k != kindNil
			break
		}
		return d.tokens(in, n)
	case fieldParent:
		if k != kindNil {
			var ok bool
			s.Parent, ok = hashOf(k, n, in)
			s.HasParent, d.unusable = ok, d.unusable || !ok
		}
	case fieldBlockSize:
		if k == kindUint && n > 0 && n <= maxBlockSize {
			s.BlockSize = int(n)
		}
	case fieldLoraID:
		switch {
		case k == kindNil || s.Adapter != "":
		case k == kindUint:
			d.scratch = strconv.AppendUint(append(d.scratch[:0], '#'), n, 10)
			s.Adapter = d.intern(d.scratch)
		default:
			d.unknown = d.name(&s.Adapter, k, str) || d.unknown
		}
	case fieldLoraName:
		if k != kindNil {
			d.unknown = d.name(&s.Adapter, k, str) || d.unknown
		}
	case fieldSalt:
		d.unknown = d.name(&s.Salt, k, str) || d.unknown
	case fieldMedium:
		d.unusable = d.name(&s.Medium, k, str) || d.unusable
	case fieldKind:
		d.unusable = d.name(&s.Kind, k, str) || d.unusable
	case fieldSession:
		d.name(&s.Session, k, str) // it is a help, no more
	case fieldLocality:
		d.elsewhere = string(str) == "REMOTE"
	case fieldGroup:
		switch {
		case k == kindUint && n < maxGroup:
			s.Group = int(n)
		case k != kindNil:
			d.unusable = true
		}
	case fieldExtra:
		if k == kindArray {
			d.extraKeys(in, n)
		} else {
			d.unknown = d.unknown || k != kindNil
		}
	}
	return rest
}

// name reads a name into to; nil is none. It reports whether it is something else.
func (d *decoder) name(to *string, k kind, str []byte) (bad bool) {
	switch {
	case k == kindNil:
		return false
	case k != kindStr || len(str) > maxName:
		return true
	}
	*to = d.intern(str)
	return false
}

// intern returns b as a string that may be kept, without an allocation if it came before.
func (d *decoder) intern(b []byte) string {
	if s, ok := d.names[string(b)]; ok {
		return s
	}
	if len(d.names) >= maxInterned {
		clear(d.names)
	}
	s := string(b)
	d.names[s] = s
	return s
}

// hashes reads n hashes. One that is none spoils a Stored, but is only left out of a removal:
// what cannot be named was never stored.
func (d *decoder) hashes(to *[]uint64, b []byte, n uint64) []byte {
	stored := to == &d.stored.Hashes
	*to = (*to)[:0]
	for range n {
		k, v, in, _ := head(b)
		h, ok := hashOf(k, v, in)
		switch {
		case ok && (!stored || len(*to) < maxHashes):
			*to = append(*to, h)
		case stored:
			d.unusable = true
		default:
			d.unknown = true
		}
		if k >= kindStr {
			b = must(b)
		} else {
			b = in
		}
	}
	return b
}

// hashOf makes a number of a block's hash. Engines send it as a number, signed or not, or as
// the bytes of a digest, whose last 8 are the number that the same engine would send.
func hashOf(k kind, n uint64, in []byte) (uint64, bool) {
	switch k {
	case kindUint, kindInt:
		return n, true
	case kindBin:
		switch b := in[:n]; {
		case n == 0 || n > maxName:
			return 0, false
		case n < 8:
			var full [8]byte
			copy(full[8-n:], b)
			return binary.BigEndian.Uint64(full[:]), true
		default:
			return binary.BigEndian.Uint64(b[n-8:]), true
		}
	case kindStr:
		if n == 0 || n > maxName {
			return 0, false
		}
		h := fnv.New64a()
		_, _ = h.Write(in[:n])
		return h.Sum64(), true
	}
	return 0, false
}

// tokens reads n token ids. With EAGLE each of them is a pair with the token that follows;
// the first one of each counts.
func (d *decoder) tokens(b []byte, n uint64) []byte {
	if n > maxTokens {
		d.unknown = true
		return skipN(b, n)
	}
	to := d.stored.Tokens[:0]
	for range n {
		// The two forms of nearly all ids, without a call.
		switch c := b[0]; {
		case c < 0x80:
			to, b = append(to, uint32(c)), b[1:]
			continue
		case c == 0xcd:
			to, b = append(to, uint32(binary.BigEndian.Uint16(b[1:]))), b[3:]
			continue
		}
		k, v, in, _ := head(b)
		after := in
		if k == kindArray && v == 2 {
			after = must(b)
			k, v, _, _ = head(in)
		} else if k >= kindStr {
			k, after = kindNil, must(b)
		}
		if k != kindUint || v > math.MaxUint32 {
			d.unknown, v = true, 0
		}
		to, b = append(to, uint32(v)), after
	}
	d.stored.Tokens = to
	return b
}

func skipN(b []byte, n uint64) []byte {
	for range n {
		b = must(b)
	}
	return b
}

// extraKeys reads, for each of n blocks, a list of what else its hash depends on, or nil.
func (d *decoder) extraKeys(b []byte, n uint64) {
	if n > maxHashes {
		d.unknown = true
		return
	}
	d.stored.Extra, d.extra = d.stored.Extra[:0], false
	for range n {
		k, parts, in, _ := head(b)
		b = must(b)
		from := len(d.extras)
		switch {
		case k == kindArray && parts <= maxExtra:
			for range parts {
				d.extras = append(d.extras, d.part(in))
				in = must(in)
			}
		case k != kindNil:
			d.unknown = true
		}
		to := len(d.extras)
		d.extra = d.extra || to > from
		d.stored.Extra = append(d.stored.Extra, d.extras[from:to:to])
	}
}

// part is a part of extra_keys as a string: strings as they are, all else (numbers, pairs) as
// it was encoded.
func (d *decoder) part(b []byte) string {
	raw := b[:len(b)-len(must(b))]
	if k, n, in, _ := head(b); k == kindStr || k == kindBin {
		raw = in[:n]
	}
	if len(raw) > maxName {
		d.unknown = true
		return ""
	}
	return d.intern(raw)
}

// finishStored makes sure that what was read fits together. It reports false if nothing of it
// can be used.
func (d *decoder) finishStored() bool {
	s := &d.stored
	if d.unusable {
		return false
	}
	n, size := len(s.Hashes), s.BlockSize
	if len(s.Tokens) > 0 && len(s.Tokens) != n*size {
		// The last block may not be full: it can be in no prompt's way.
		if whole := max(n-1, 0); size > 0 && whole*size < len(s.Tokens) && len(s.Tokens) < n*size {
			s.Hashes, s.Tokens = s.Hashes[:whole], s.Tokens[:whole*size]
			s.Extra = s.Extra[:min(whole, len(s.Extra))]
			n = whole
		} else {
			d.unknown = true
		}
	}
	if d.extra && len(s.Extra) != n {
		d.unknown = true
	}
	if d.unknown {
		s.Tokens, s.Extra = s.Tokens[:0], s.Extra[:0]
	}
	if !d.extra {
		s.Extra = s.Extra[:0]
	}
	return true
}

func (d *decoder) finishRemoved(to handler, got *batch) {
	r := &d.removed
	r.Medium, r.Group = d.stored.Medium, d.stored.Group
	if d.unusable || d.unknown {
		got.bad++
	}
	if !d.unusable && len(r.Hashes) > 0 {
		to.removed(r)
	}
}
