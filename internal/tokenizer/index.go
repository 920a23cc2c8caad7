package tokenizer

import "hash/maphash"

// textIndex finds numbers by texts: a hash table with open addressing, since Go's maps
// take three times the memory and half as long again. The seed differs for each table,
// so that no file can be written to make its texts collide.
type textIndex struct {
	seed  maphash.Seed
	slots []uint32 // id + 1; 0 is free
	mask  uint64
	text  func(id uint32) string
}

// newTextIndex makes an index with room for n texts. text gives the text of a number
// that was added.
func newTextIndex(n int, text func(id uint32) string) *textIndex {
	size := 16
	for size < n+n/2 {
		size *= 2
	}
	return &textIndex{seed: maphash.MakeSeed(), slots: make([]uint32, size), mask: uint64(size - 1), text: text}
}

// add adds a text. It returns the number that the text had before and true if there is one,
// which stays.
func (x *textIndex) add(text string, id uint32) (uint32, bool) {
	for i := maphash.String(x.seed, text) & x.mask; ; i = (i + 1) & x.mask {
		switch s := x.slots[i]; {
		case s == 0:
			x.slots[i] = id + 1
			return 0, false
		case x.text(s-1) == text:
			return s - 1, true
		}
	}
}

// find returns the number of a text.
func (x *textIndex) find(text string) (uint32, bool) {
	for i := maphash.String(x.seed, text) & x.mask; ; i = (i + 1) & x.mask {
		switch s := x.slots[i]; {
		case s == 0:
			return 0, false
		case x.text(s-1) == text:
			return s - 1, true
		}
	}
}

func (x *textIndex) bytes() int64 { return int64(len(x.slots)) * 4 }
