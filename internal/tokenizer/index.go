package tokenizer

import "hash/maphash"

// textIndex finds numbers by texts: a hash table with open addressing, since Go's maps
// take three times the memory and half as long again. The seed differs for each table,
// so that no file can be written to make its texts collide.
type textIndex struct {
	seed  maphash.Seed
	slots []uint64 // the upper half of the hash, and id + 1; 0 is free
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
	return &textIndex{seed: maphash.MakeSeed(), slots: make([]uint64, size), mask: uint64(size - 1), text: text}
}

// slot returns the slot of a text, free or taken, and what it has or is to have in its
// upper half.
func (x *textIndex) slot(text string) (slot *uint64, tag uint64) {
	h := maphash.String(x.seed, text)
	tag = h >> 32 << 32
	for i := h & x.mask; ; i = (i + 1) & x.mask {
		slot = &x.slots[i]
		if *slot == 0 || *slot>>32<<32 == tag && x.text(uint32(*slot)-1) == text {
			return slot, tag
		}
	}
}

// add adds a text that is not in the index.
func (x *textIndex) add(text string, id uint32) {
	slot, tag := x.slot(text)
	*slot = tag | uint64(id+1)
}

// find returns the number of a text.
func (x *textIndex) find(text string) (uint32, bool) {
	slot, _ := x.slot(text)
	return uint32(*slot) - 1, *slot != 0
}

func (x *textIndex) bytes() int64 { return int64(len(x.slots)) * 8 }
