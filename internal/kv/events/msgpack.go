package events

import (
	"encoding/binary"
	"math"
)

// The part of msgpack that batches of events need. A library's reader is not used: theirs
// skip by recursion, as deep as a peer likes, and refuse a hash that is a signed number where
// an unsigned one is asked for, and the other way round.

// kind is the kind of a msgpack value.
type kind uint8

const (
	kindNil kind = iota
	kindBool
	kindUint  // the number itself
	kindInt   // a negative number, as its 64 bits
	kindFloat // as the bits of a float64
	kindStr
	kindBin
	kindExt
	kindArray
	kindMap
)

// head reads the head of the value that b begins with: its kind, and its number, its length
// in bytes or its count of members. rest is what follows the head. It fails if the value
// cannot be complete: a string is longer than what is left, or a list has more members than
// bytes are left.
func head(b []byte) (k kind, n uint64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, 0, nil, false
	}
	c, size := b[0], 0 // size of the number that follows the first byte
	switch {
	case c < 0x80:
		return kindUint, uint64(c), b[1:], true
	case c >= 0xe0:
		return kindInt, uint64(int64(int8(c))), b[1:], true
	case c < 0x90:
		k, n = kindMap, uint64(c&0x0f)
	case c < 0xa0:
		k, n = kindArray, uint64(c&0x0f)
	case c < 0xc0:
		k, n = kindStr, uint64(c&0x1f)
	default:
		switch c {
		case 0xc0:
			return kindNil, 0, b[1:], true
		case 0xc2, 0xc3:
			return kindBool, uint64(c & 1), b[1:], true
		case 0xc4, 0xc5, 0xc6:
			k, size = kindBin, 1<<(c-0xc4)
		case 0xc7, 0xc8, 0xc9:
			k, size = kindExt, 1<<(c-0xc7)
		case 0xca, 0xcb:
			k, size = kindFloat, 4<<(c-0xca)
		case 0xcc, 0xcd, 0xce, 0xcf:
			k, size = kindUint, 1<<(c-0xcc)
		case 0xd0, 0xd1, 0xd2, 0xd3:
			k, size = kindInt, 1<<(c-0xd0)
		case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
			k, n = kindExt, 1<<(c-0xd4)
		case 0xd9, 0xda, 0xdb:
			k, size = kindStr, 1<<(c-0xd9)
		case 0xdc, 0xdd:
			k, size = kindArray, 2<<(c-0xdc)
		case 0xde, 0xdf:
			k, size = kindMap, 2<<(c-0xde)
		default: // 0xc1 is never used
			return 0, 0, nil, false
		}
	}
	rest = b[1:]
	if size > 0 {
		if len(rest) < size {
			return 0, 0, nil, false
		}
		switch size {
		case 1:
			n = uint64(rest[0])
		case 2:
			n = uint64(binary.BigEndian.Uint16(rest))
		case 4:
			n = uint64(binary.BigEndian.Uint32(rest))
		case 8:
			n = binary.BigEndian.Uint64(rest)
		}
		rest = rest[size:]
	}
	left := uint64(len(rest))
	switch k {
	case kindInt:
		shift := 64 - 8*size
		if n = uint64(int64(n<<shift) >> shift); int64(n) >= 0 {
			k = kindUint
		}
	case kindFloat:
		if size == 4 {
			n = math.Float64bits(float64(math.Float32frombits(uint32(n))))
		}
	case kindExt:
		n++ // its type
		ok = n <= left
		return k, n, rest, ok
	case kindStr, kindBin, kindArray:
		return k, n, rest, n <= left
	case kindMap:
		return k, n, rest, 2*n <= left
	}
	return k, n, rest, true
}

// skip returns what follows the value that b begins with, or fails if it is not complete.
// It does not recurse.
func skip(b []byte) (rest []byte, ok bool) {
	for values := uint64(1); values > 0; values-- {
		if values > uint64(len(b)) {
			return nil, false
		}
		k, n, rest, ok := head(b)
		if !ok {
			return nil, false
		}
		switch k {
		case kindStr, kindBin, kindExt:
			rest = rest[n:]
		case kindArray:
			values += n
		case kindMap:
			values += 2 * n
		}
		b = rest
	}
	return b, true
}
